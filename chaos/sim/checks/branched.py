"""Shows the contents of sinks to the watches over a job's branches, after deliveries, rewinds and the end of the job.

Source: PROTOCOL P11, P25.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from holdfast.chaos.sim.checks.clocks import Clocks
from holdfast.chaos.sim.jobs.branches.contract import Row, Watched
from holdfast.chaos.sim.jobs.branches.registry import BRANCHES
from holdfast.chaos.sim.jobs.oracle import Cut
from holdfast.chaos.sim.jobs.tables import SharedTable
from holdfast.model import Tag, Writer


class Branched:
    """The branches of one run.

    Args:
        names: Names of the branches that the job has.
        clocks: None: the job has no event time, and so no branches.
    """

    def __init__(
        self, names: Sequence[str], watched: Watched, clocks: Clocks | None, tables: Mapping[str, SharedTable]
    ) -> None:
        assert clocks is not None or not names
        self._clocks, self._tables = clocks, tables
        self._branches = {BRANCHES[name].out: BRANCHES[name] for name in names}
        self._watches = {out: branch.watch(watched) for out, branch in self._branches.items()}
        self._seen = dict.fromkeys(self._branches, 0)
        self.late = {branch.late for branch in self._branches.values()}
        """Sinks of late rows, which are compared at the end."""

    def __contains__(self, sink: str) -> bool:
        """Return whether this is the sink of a branch's results."""
        return sink in self._branches

    def look(self, writer: Writer, tag: Tag, cut: Cut, rows: Sequence[Row]) -> None:
        """A delivery to a sink of results committed."""
        assert self._clocks is not None
        added, self._seen[writer.sink] = rows[self._seen[writer.sink] :], len(rows)
        when, latest = f"{writer} at epoch {tag.epoch}", self._clocks.latest(tag.epoch)
        self._watches[writer.sink].look(when, latest, cut, rows, added)

    def taken_back(self, sink: str, to: Tag, cut: Cut, rows: Sequence[Row]) -> None:
        """A rewind removed results."""
        self._watches[sink].taken_back(f"after going back to {to}", cut, rows)
        self._seen[sink] = len(rows)

    def restored(self, epoch: int, cut: Cut, read: Callable[[str], Sequence[Row]]) -> None:
        """A checkpoint was restored; `read` returns the rows of an operator in it."""
        if self._clocks is not None:
            earliest, _ = self._clocks.bounds(cut)
            for watch in self._watches.values():
                watch.restored(f"restored at epoch {epoch}", earliest, cut, read)

    def at_end(self, everything: Cut) -> None:
        """The job is finished."""
        for out, branch in self._branches.items():
            late = [] if branch.late is None else self._tables[branch.late].rows()
            self._watches[out].at_end(everything, self._tables[out].rows(), late)
