"""Audit digests compared with the input of the scenario and with the visible output.

The digests of a manifest are read here as plain JSON. They are compared with the records that the seed generated, cut
at the offsets in the history, and with the rows that the targets accepted. Only the hash function is shared.

    I1, I2  every (partition, offset) is in the digests of exactly one epoch of the lineage, with the same values
    P8      input and output of an uncompleted epoch are in the digests of the next one, once
    P10     input read before a rollback is in no digest unless it was committed

Source: docs/decisions/0018-audit.md; PROTOCOL P8, P10.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.chaos.sim.checks.history import Fail
from holdfast.chaos.sim.jobs.oracle import Cut
from holdfast.chaos.sim.jobs.workload import ADDED, LASTS, Scenario
from holdfast.model import Epoch, RowDigest, Tag, Writer
from holdfast.sinks.contract.target import DELETE, OP
from holdfast.storage.digests import NOTHING, added, whole
from holdfast.storage.rowhash import digest_of


class Audited:
    """The digests of one run.

    Args:
        batches: All records, one batch per partition.
        keys: Per upsert sink, its key columns.
    """

    def __init__(
        self, batches: Sequence[pa.RecordBatch], keys: Mapping[str, tuple[str, ...]], scenario: Scenario, fail: Fail
    ) -> None:
        self._batches, self._keys, self._scenario, self._fail = batches, keys, scenario, fail
        self._audits: dict[int, dict[str, Any]] = {}

    def completed(self, manifest: Mapping[str, Any], before: Cut, now: Cut) -> None:
        """An epoch was completed: its digests must match the records between these two cuts."""
        epoch, audit = manifest["epoch"], manifest.get("audit")
        if audit is None:
            self._fail("P8 audit", f"epoch {epoch} has no digests")
            return
        self._audits[epoch] = audit
        digests = {each["partition"]: each for each in audit["sources"]}
        if len(digests) < len(audit["sources"]):
            self._fail("I2 audit", f"epoch {epoch}: a partition is listed twice")
        for partition, batch in enumerate(self._batches):
            first, end = before.get(partition, 0), now.get(partition, 0)
            digest = digests.get(partition, {"first": first, "end": first, "taken": {"rows": 0, "sum": 0, "xor": 0}})
            if (digest["first"], digest["end"]) != (first, end):
                span = f"{digest['first']} to {digest['end']}"
                self._fail(
                    "I1 audit",
                    f"epoch {epoch}, partition {partition}: the digest covers {span}, the epoch read {first} to {end}",
                )
            elif _read(digest["taken"]) != digest_of(batch.slice(first, end - first)):
                self._fail("I1 audit", f"epoch {epoch}, partition {partition}: the digest does not match the records")
        if self._scenario.immediate:
            self._written_immediately(epoch, audit, before, now)
        for count in audit["operators"]:
            out = sum(count[way] or 0 for way in ("rows_out", "dropped", "late", "dlq"))
            if count["kind"] in ("source", "edge", "function") and count["rows_in"] != out:
                self._fail("I1 audit", f"epoch {epoch}: {count['name']} read {count['rows_in']} rows and wrote {out}")

    def delivered(self, writer: Writer, tag: Tag, batches: list[pa.RecordBatch]) -> None:
        """Output became visible: it must match the epoch's digests."""
        epoch_digest = self._digest_of(tag.epoch, writer)
        visible_digest = NOTHING
        for batch in batches:
            visible_digest = added(visible_digest, self._digest(writer.sink, batch))
        if epoch_digest is not None and epoch_digest != visible_digest:
            self._fail(
                "I5 audit",
                f"{writer} at epoch {tag.epoch}: {visible_digest} became visible, the digest says {epoch_digest}",
            )

    def at_end(self, last: Epoch, rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> None:
        """The rows added in all must match the sum of the last epoch."""
        audit = self._audits.get(last)
        if audit is None:
            return
        total = next((_read(each["staged"]) for each in audit["totals"] if each["sink"] == ADDED), NOTHING)
        found = digest_of(pa.Table.from_pylist(list(rows), schema=schema))
        if audit["since"] != 0 or total != found:
            self._fail("I1 audit", f"{ADDED} shows {found}, since epoch {audit['since']} there were {total}")

    def _written_immediately(self, epoch: int, audit: Mapping[str, Any], before: Cut, now: Cut) -> None:
        """An epoch's output to the sink with immediate writes follows from its records alone."""
        expected_digest = written_digest = NOTHING
        for partition, batch in enumerate(self._batches):
            first, end = before.get(partition, 0), now.get(partition, 0)
            rows = batch.slice(first, end - first).select(["place", "id", "value"])
            if self._scenario.above is not None:
                rows = rows.filter(pc.greater(rows.column("value"), self._scenario.above))
            expected_digest = added(expected_digest, digest_of(rows))
        for each in audit["sinks"]:
            if each["writer"]["sink"] == LASTS:
                written_digest = added(written_digest, whole(map(_read, each["parts"])))
        if written_digest != expected_digest:
            self._fail("I1 audit", f"epoch {epoch}: immediate writes were {written_digest}, expected {expected_digest}")

    def _digest_of(self, epoch: int, writer: Writer) -> RowDigest | None:
        audit = self._audits.get(epoch)
        if audit is None:
            return None
        total = NOTHING
        for each in audit["sinks"]:
            if (each["writer"]["sink"], each["writer"]["subtask"]) == (writer.sink, writer.subtask):
                for part in each["parts"]:
                    total = added(total, _read(part))
        return total

    def _digest(self, sink: str, batch: pa.RecordBatch) -> RowDigest:
        if OP not in batch.schema.names:
            return digest_of(batch)
        deleted = batch.column(OP).to_numpy(zero_copy_only=False) == DELETE
        return digest_of(batch, deleted, (*self._keys[sink], OP))


def _read(digest: Mapping[str, int]) -> RowDigest:
    return RowDigest(digest["rows"], digest["sum"], digest["xor"])
