"""A replay of an incident file in a test, and the text of such a test.

replay = IncidentReplay("wrong-total.incident", app)
assert replay.rows("totals-out") == [{"shop": "north", "sales": 4, "turnover": 426.5}]
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from holdfast.errors import ConfigError, Where
from holdfast.runtime.plan.model import Plan
from holdfast.runtime.replay.incidents.container import Unpacked
from holdfast.runtime.replay.incidents.incident import Incident, read
from holdfast.runtime.replay.incidents.outcome import IncidentOutcome, outcome
from holdfast.sinks.contract.target import DELETE, OP

ROWS_MAX = 1_000
"""Sinks with more rows are left out of a test that is written."""
PlainRow = dict[str, Any]


class PlannedApp(Protocol):
    """An app."""

    def plan(self) -> Plan:
        """Return its plan."""


class IncidentReplay:
    """The replay of an incident file with the code of an app. Sources, sinks and the root are not opened.

    Args:
        file: The path of the file that `holdfast incident` wrote.
        app: The job's app, with the present code.

    Raises:
        ConfigError: it is no incident file, or the code lacks a source or cannot read the state.
        Damaged: the file is damaged.
        JobFailed: the code fails.
    """

    def __init__(self, file: str | os.PathLike[str], app: PlannedApp) -> None:
        with open(file, "rb") as data:
            incident = read(Unpacked(data, os.fspath(file)))
        self._outcome = outcome(incident, incident.code(app.plan()))

    @property
    def differences(self) -> list[str]:
        """Return what differs from the job's checkpoint, a sentence each; none if the replay equals it."""
        return [f"{each.kind} {each.name!r}: {each.what}" for each in self._outcome.proof.differences]

    def rows(self, sink: str) -> list[PlainRow]:
        """Return the rows that the epoch gives a sink, in an order that does not depend on the code.

        Times are text in ISO form; a delete of an upsert stream has `_op` "delete".
        """
        return sorted_rows(self._outcome, sink)


def sorted_rows(of: IncidentOutcome, sink: str) -> list[PlainRow]:
    """Return the rows of a sink as a test has them. Raises ConfigError."""
    if sink not in of.rows:
        raise ConfigError(
            f"the code has no sink {sink!r}",
            not_done="its rows were not read",
            next_step=f"use one of {', '.join(sorted(of.rows))}",
        )
    return sorted(map(plain_row, of.rows[sink]), key=repr)


def written_test(incident: Incident, of: IncidentOutcome, file: str, module: str, folder: str | None) -> str:
    """Return the text of a test with what the code gives now.

    Args:
        file: The incident file, seen from the test's folder.
        module: The module that has the app, by the name `app`.
        folder: The folder with the module, seen from the test's; None: the same.

    Raises:
        ConfigError: the incident has the state of one key alone.
    """
    job, epoch = incident.job, incident.end.manifest.epoch
    if incident.only is not None:
        raise ConfigError(
            f"the file has the state of key {incident.only.key} alone, so rows of other keys are not those of the job",
            not_done="no test was written",
            next_step="write the incident file without --key",
            where=Where(job=job, epoch=epoch),
        )
    small = [sink for sink, rows in of.rows.items() if 0 < len(rows) <= ROWS_MAX]
    large = [(sink, len(rows)) for sink, rows in of.rows.items() if len(rows) > ROWS_MAX]
    add = "" if folder is None else f"sys.path.insert(0, str(HERE / {folder!r}))\n\n"
    return _TEMPLATE.format(
        job=job,
        epoch=epoch,
        file=file,
        imports="" if folder is None else "import sys\n",
        before="" if folder is None else f"HERE = Path(__file__).parent\n{add}",
        ignored="" if folder is None else "  # noqa: E402",
        after="HERE = Path(__file__).parent\n" if folder is None else "",
        module=module,
        today=_literal({sink: sorted_rows(of, sink) for sink in small}),
        left_out="".join(f"# {sink} has {count:,} rows, too many for a test.\n" for sink, count in large),
    )


_TEMPLATE = '''\
"""Replays epoch {epoch} of {job} from {file}, without the job's sources, targets and root.

TODAY is what the code gave when holdfast replay --test wrote this. Change EXPECTED to what it should give: the test
then fails until the code gives that.
"""

{imports}from pathlib import Path

import pytest
from holdfast.testing import IncidentReplay

{before}from {module} import app{ignored}

{after}{left_out}TODAY = {today}
EXPECTED = {today}


def test_the_expectation_was_edited():
    assert EXPECTED != TODAY, "change EXPECTED to what the code should give"


@pytest.mark.parametrize("sink", EXPECTED)
def test_the_epoch_gives_what_is_expected(sink):
    assert IncidentReplay(HERE / {file!r}, app).rows(sink) == EXPECTED[sink]
'''


def _literal(rows: Mapping[str, Sequence[PlainRow]]) -> str:
    lines = ["{"]
    for sink, each in rows.items():
        lines += [f"    {sink!r}: [", *(f"        {row!r}," for row in each), "    ],"]
    return "\n".join([*lines, "}"])


def plain_row(row: Mapping[str, Any]) -> PlainRow:
    """Return a row of a sink as JSON has it: times are text, and `_op` is there in deletes alone."""
    op = row.get(OP)
    shown = {name: _plain(value) for name, value in row.items() if name != OP}
    return shown | {OP: "delete"} if op == DELETE else shown


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: times are text, and numbers that JSON lacks are too."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return msgspec.to_builtins(value)
