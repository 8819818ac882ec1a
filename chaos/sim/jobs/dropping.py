"""A branch of an evolving job whose state is given up once: by the first start of a later version of the code.

Every later driver is started by the same command. It counts the records since its state began, so the oracle needs to
know where that was: at the epoch whose checkpoint the first one with the new state follows.

Source: docs/decisions/0046-dropped-state.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import holdfast as hf
from holdfast.chaos.sim.jobs import oracle
from holdfast.chaos.sim.jobs.oracle import Cut, Partitions
from holdfast.checkpoint.manifest import Manifest, OperatorState
from holdfast.model import NO_EPOCH
from holdfast.runtime.api.stream import Stream
from holdfast.sinks.memory.sink import MemorySink

DROPS_SHARE = 0.5
"""Share of the evolving jobs."""
SINCE, SINCE_OPERATOR = "since", "counted_since"
SINCE_COLUMNS = {"n": "n.count", "total": "total.sum"}


def count_since(records: Stream) -> None:
    """Add the branch to a job."""
    counted = records.key_by("key").agg(SINCE_OPERATOR, n=hf.count(), total=hf.sum("value"))
    counted.sink(SINCE, MemorySink(key=["key"]))


def arguments_of(version: int, known: Sequence[OperatorState]) -> list[str]:
    """Return the `--drop-state` of every start of this version, if the job has the branch and a checkpoint."""
    names = {operator.name for operator in known}
    return [SINCE_OPERATOR] if version and SINCE_OPERATOR in names else []


def of(operators: Sequence[OperatorState]) -> OperatorState:
    """Return the branch's operator in a checkpoint."""
    return next(each for each in operators if each.name == SINCE_OPERATOR and not each.dropped)


Row = tuple[int, int]
"""Count and sum."""


class Since:
    """Compares state and output of the branch with the records since its state began.

    Args:
        cuts: By completed epoch: the offset it reached in each partition.
    """

    def __init__(self, partitions: Partitions, cuts: Mapping[int, Cut], fail: Callable[[str, str], None]) -> None:
        self._partitions, self._cuts, self._fail = partitions, cuts, fail
        self._drops: dict[int, int] = {NO_EPOCH: 0}
        self._began: dict[int, Cut] = {NO_EPOCH: {}}
        """By epoch: the records before its state."""
        self._visible: dict[int, dict[int, Row]] = {NO_EPOCH: {}}
        """By epoch: the rows of the target; of keys without later records they are those of the former state."""

    def completed(self, manifest: Manifest) -> None:
        """An epoch was completed: its state is that of the one before, or has begun since."""
        epoch, follows = manifest.epoch, manifest.follows
        drops = sum(each.name == SINCE_OPERATOR and each.dropped for each in manifest.operators)
        same = self._drops[follows] == drops
        self._drops[epoch], self._began[epoch] = drops, self._began[follows] if same else self._cuts[follows]
        written = self._state(self._cuts.get(follows, {}), self._cuts[epoch])
        state = self._state(self._began[epoch], self._cuts[epoch])
        self._visible[epoch] = self._visible[follows] | {key: state[key] for key in written}
        if drops > 1:
            self._fail("decisions/0046", f"epoch {epoch}: one command gave up the state {drops} times")

    def restored(self, rule: str, epoch: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Compare the state of a checkpoint."""
        self._compare(f"{rule}: epoch {epoch}", rows, self._state(self._began[epoch], self._cuts[epoch]))

    def visible(self, rule: str, epoch: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Compare the rows of the target when it shows this epoch."""
        self._compare(f"{rule}: output of epoch {epoch}", rows, self._visible.get(epoch, {}))

    def _compare(self, what: str, rows: Sequence[Mapping[str, Any]], expected: Mapping[int, Row]) -> None:
        found = {row["key"]: (row["n"], row["total"]) for row in rows}
        if found != expected:
            self._fail("decisions/0046", f"{what}: {found} since the state began, expected {expected}")

    def _state(self, began: Cut, cut: Cut) -> dict[int, Row]:
        """Return count and sum of every key that has records between two cuts."""
        before, rows = (oracle.totals(self._partitions, each, "key") for each in (began, cut))
        none = {"n": 0, "total": 0}
        past = {key: before.get(key, none) for key in rows}
        changes = {key: (row["n"] - past[key]["n"], row["total"] - past[key]["total"]) for key, row in rows.items()}
        return {key: change for key, change in changes.items() if change[0]}
