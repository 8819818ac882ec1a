"""Defines a branch of a simulated job: steps that read the job's records, and a watch over the rows they append.

Only jobs with event time have branches. A stream of numbers of its own decides which seeds have a branch, so a new one
changes the jobs of no other seeds. The name of the stream is chosen such that the seeds that other mutants and tests
name do not get the branch.

Invariants
    - Nothing outside of registry.py names a branch, except the mutants and tests that need it.
    - A watch sees every row of the branch's results once as added, also after a rewind removed others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.chaos.sim.jobs import oracle
from holdfast.chaos.sim.jobs.oracle import PARTITION_STRIDE, Cut, Partitions
from holdfast.runtime.api.stream import Stream

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Watched:
    """The run of a branch as its watch sees it.

    Args:
        delay_us: Microseconds by which a partition's watermark is below its largest event time.
        idles: Whether partitions without new records hold no time back.
        overtaken: Returns the partitions for which time did not wait.
        fail: Records a finding: the rule, and how it was broken.
    """

    partitions: Partitions
    delay_us: int
    idles: bool
    overtaken: Callable[[], AbstractSet[int]]
    fail: Callable[[str, str], None]

    def prompt(self, lasting_us: int = 0) -> set[int]:
        """Return the ids of records that are read before event time is `lasting_us` past theirs, in any run."""
        if self.idles:
            return set()
        ids, overtaken = oracle.prompt(self.partitions, self.delay_us, lasting_us), self.overtaken()
        return {id for id in ids if id // PARTITION_STRIDE not in overtaken}


class BranchWatch(Protocol):
    """Compares the rows of a branch with the expected rows."""

    def look(self, when: str, latest_us: int, cut: Cut, rows: Sequence[Row], added: Sequence[Row]) -> None:
        """A delivery committed.

        Args:
            latest_us: No clock was above this when the epoch of the delivery ended.
            cut: The offsets of that epoch; other writers may already show a later one (P25).
            rows: All rows of the results.
            added: Those that no earlier delivery had shown.
        """
        ...

    def taken_back(self, when: str, cut: Cut, rows: Sequence[Row]) -> None:
        """A rewind removed rows: the others were read up to the cut of its base."""
        ...

    def restored(self, when: str, earliest_us: int, cut: Cut, read: Callable[[str], Sequence[Row]]) -> None:
        """A checkpoint was restored.

        Args:
            earliest_us: Every clock had reached this when its epoch ended.
            read: Returns the rows that a reader gets of the state of an operator, by its name.
        """
        ...

    def at_end(self, everything: Cut, rows: Sequence[Row], late: Sequence[Row]) -> None:
        """The job is finished; `late` is empty if the branch has no late rows."""
        ...


@dataclass(frozen=True)
class Branch:
    """A branch.

    Args:
        name: Names it in scenarios, mutants and summaries.
        share: Share of the seeds with event time that have it.
        stream: The stream of numbers that decides which.
        out: The sink of its results.
        late: The sink of its late rows; None: it has none.
        add: Adds its steps to a job.
    """

    name: str
    share: float
    stream: str
    out: str
    late: str | None
    add: Callable[[Stream], None]
    watch: Callable[[Watched], BranchWatch]
