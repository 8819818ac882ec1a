"""The changelog of a plan as one more output: a sink whose staged parts are the segments themselves.

Pure except for the sinks.
Source: docs/decisions/0055-changelog-topic.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from holdfast.model import CHANGELOG
from holdfast.runtime.plan.model import ANY_FRAGMENT, Plan, SinkSpec
from holdfast.sinks.contract.changelogs import Changelog
from holdfast.sinks.contract.target import OP
from holdfast.state.records import DELETED, KEY, RECORDS, records_of


@dataclass(frozen=True)
class SegmentRecords:
    """Decodes a segment as the records of a topic, each key once.

    Args:
        names: The operators by number.
    """

    names: tuple[tuple[int, str], ...]

    def __call__(self, data: bytes) -> Iterator[pa.RecordBatch]:
        """Return the records; the last column marks deletes for sinks."""
        batches = list(records_of(data, dict(self.names)))
        if batches:
            records = pa.concat_batches(batches)
            marks = records.column(DELETED.name).cast(pa.int8())
            yield records.drop_columns([DELETED.name]).append_column(pa.field(OP, pa.int8(), nullable=False), marks)


def with_changelog(plan: Plan, changelog: Changelog) -> Plan:
    """Return the plan with its changelog there."""
    if changelog.sink(RECORDS, KEY, plan.key_groups) is None:
        return replace(plan, changelog=changelog)
    operators = tuple(replace(each, table=replace(each.table, ranges=False)) for each in plan.operators)
    return replace(plan, changelog=changelog, operators=operators)


def topic_place(plan: Plan) -> Mapping[str, str] | None:
    """Return the place of the topic that takes the changelog, None if it stays in the root."""
    return None if changelog_of(plan) is None else plan.changelog.place


def changelog_of(plan: Plan) -> SinkSpec | None:
    """Return the output that takes the changelog, None if it stays in the root."""
    sink = plan.changelog.sink(RECORDS, KEY, plan.key_groups)
    if sink is None:
        return None
    names = tuple((operator.id, operator.name) for operator in plan.operators)
    return SinkSpec(CHANGELOG, sink, ANY_FRAGMENT, RECORDS, KEY, decode=SegmentRecords(names))


def outputs_of(plan: Plan) -> tuple[SinkSpec, ...]:
    """Return everything that is delivered: the output of all sinks, and the changelog if it goes to a topic."""
    changelog = changelog_of(plan)
    return plan.sinks if changelog is None else (*plan.sinks, changelog)
