"""Bounds for event time, and so for when a window may be emitted and when it must have been emitted.

The offsets of a checkpoint determine both. Without idleness, a clock is between the lowest watermark of all partitions
and the lowest of those that have more records; with idleness, no clock is above the highest watermark. On a channel,
time never goes back, and neither does the clock of a key group from one checkpoint of a lineage to the next.

A partition that is added while the job runs does not take time back: its records may be late at any time. While no
checkpoint holds it, time does not wait for it.

A run that reads to given ends does not wait for a partition that has no event time up to its end (0023). So the clocks
of its checkpoints may be higher. A later run waits for that partition again; its clocks may be as high as those of the
checkpoint from which it started.

A run that was asked to finish ends the input of every partition after the records that had arrived by then, or later.
Time does not wait for later records.

If a partition has no records for a long time while another one is active (`Scenario.rests`), time must not wait for it:
its next records are late.

Source: PROTOCOL P11, P13; docs/decisions/0006-watermarks.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from holdfast.chaos.sim.jobs import oracle
from holdfast.chaos.sim.jobs.oracle import Cut, Partitions

Fail = Callable[[str, str], None]
NEVER, LAST = -(2**63), 2**63 - 1
"""No time yet, and the end of time."""
Channel = tuple[int, str]
"""Generation, and how messages name the channel."""


class Clocks:
    """Event time in channels and in checkpoints.

    Args:
        delay: Microseconds by which a partition's watermark is below its largest event time.
        idles: Partitions without new records hold nothing back after a while.
        added: Partitions that are not there from the start.
    """

    def __init__(
        self, partitions: Partitions, delay: int, idles: bool, fail: Fail, added: frozenset[int] = frozenset()
    ) -> None:
        self._partitions, self._delay, self._idles, self._fail = partitions, delay, idles, fail
        self._added = added
        self._lets_go: dict[str, frozenset[int]] = {}
        """By owner of a run: partitions without event time up to the end of reading; they hold nothing back."""
        self._finishes: dict[str, Cut] = {}
        """By owner of a run: the least offsets at which it may end the input."""
        self.overtaken: set[int] = set(added)
        """Partitions for which some completed epoch did not wait: their later records may be late."""
        self._latest: dict[int, int] = {}
        """By completed epoch: the upper bound of its clocks."""
        self._said: dict[Channel, int] = {}
        self._held: dict[int, Mapping[int, int]] = {}
        """By restored epoch: the clock of each key group."""

    def reads_to(self, owner: str, ends: Cut) -> None:
        """A run starts that reads no further than these offsets."""
        marks = {p: oracle.watermark(self._partitions[p], end, self._delay) for p, end in ends.items()}
        self._lets_go[owner] = frozenset(p for p, mark in marks.items() if mark is None)

    def finishes(self, owner: str, ends: Cut) -> None:
        """A run accepted to end the input of each partition at these offsets, or after them."""
        self._finishes[owner] = ends

    def completed(self, epoch: int, follows: int, cut: Cut, owner: str) -> None:
        """The run of this owner completed an epoch, which follows an earlier one; 0: it is the first."""
        let_go = self._lets_go.get(owner, frozenset())
        ends = self._finishes.get(owner)
        self.overtaken |= let_go
        if ends is not None:
            self.overtaken |= {p for p, records in enumerate(self._partitions) if ends.get(p, 0) < len(records)}
        self._latest[epoch] = max(self.bounds(cut, let_go, ends)[1], self._latest.get(follows, NEVER))

    def latest(self, epoch: int) -> int:
        """Return the upper bound of the clocks of this completed epoch."""
        return self._latest[epoch]

    def said(self, channel: Channel, at_us: int) -> None:
        """A watermark was put into a channel."""
        if at_us < (before := self._said.get(channel, NEVER)):
            self._fail("P11 watermark", f"channel {channel[1]}: time goes back from {before} to {at_us}")
        self._said[channel] = at_us

    def bounds(self, cut: Cut, let_go: frozenset[int] = frozenset(), ends: Cut | None = None) -> tuple[int, int]:
        """Return the lower and upper bound of a run's clocks at these offsets, if none was ahead when it began.

        Args:
            let_go: Partitions for which the run does not wait.
            ends: The least offsets at which the input may end; None: it ends with the last record.
        """
        there = [p for p in range(len(self._partitions)) if p in cut or p not in self._added]
        marks = {p: oracle.watermark(self._partitions[p], cut.get(p, 0), self._delay) for p in there}
        known_marks = [mark for mark in marks.values() if mark is not None]
        least = min(known_marks) if known_marks and len(known_marks) == len(marks) else NEVER
        sizes = {p: len(self._partitions[p]) for p in there}
        until = sizes if ends is None else {p: min(size, ends.get(p, 0)) for p, size in sizes.items()}
        unread = [p for p in there if cut.get(p, 0) < until[p]]
        if not unread:
            return least, LAST
        left = [marks[p] for p in unread if p not in let_go and p not in self._added]
        if self._idles or not left:
            return least, max(known_marks, default=NEVER)
        return least, min(NEVER if mark is None else mark for mark in left)

    def restored(self, epoch: int, lineage: Sequence[int], cut: Cut, clocks: Mapping[int, int]) -> None:
        """A checkpoint was restored; `clocks` has the clock of every key group, NEVER if there is none."""
        (least, _), most = self.bounds(cut), self.latest(epoch)
        if wrong := {group: at for group, at in clocks.items() if not least <= at <= most}:
            self._fail("P11 clock", f"epoch {epoch}: clocks {wrong} are not between {least} and {most}")
        self._held[epoch] = clocks
        on = [each for each in self._held if each in lineage]
        for before in (each for each in on if each < epoch and epoch in lineage):
            self._compare(before, epoch)
        for after in (each for each in on if each > epoch and epoch in lineage):
            self._compare(epoch, after)

    def _compare(self, before: int, after: int) -> None:
        earlier, later = self._held[before], self._held[after]
        if back := {group: (at, later[group]) for group, at in earlier.items() if later[group] < at}:
            self._fail("P11 clock", f"from epoch {before} to {after} clocks go back: {back}")
