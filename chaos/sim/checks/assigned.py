"""Which subtask reads which partition: deployments and triggers compared with the manifests that follow.

    P12  in a generation one subtask reads a partition, from its position in the base manifest, or from the first record
         the manifest of an epoch holds every partition that a trigger up to this epoch has assigned
         if the trigger of the epoch itself assigned it first, it is at its first record there: nothing was read
         a manifest holds no partition that neither its generation nor an earlier one was given

Source: PROTOCOL P12; docs/decisions/0035-partition-discovery.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdfast.chaos.sim.jobs.oracle import Cut
from holdfast.runtime.wire import messages as m

FIRST = 0
"""The offset of the first record of every partition."""


class AssignmentCheck:
    """The assignments of one run of a seed.

    Args:
        cuts: By completed epoch: the offset it reached in each partition.
    """

    def __init__(self, cuts: Mapping[int, Cut], fail: Callable[[str, str], None]) -> None:
        self._cuts, self._fail = cuts, fail
        self._readers: dict[int, dict[int, int]] = {}
        """By generation and partition: the subtask."""
        self._since: dict[int, dict[int, int]] = {}
        """By generation and partition: the first epoch whose trigger assigned it."""
        self.discovered = 0
        """Partitions that triggers assigned, once for every generation."""

    def deployed(self, deploy: m.Deploy) -> None:
        """A driver deploys a subtask; it may repeat the message."""
        base = self._cuts.get(deploy.base_epoch, {})
        for at in deploy.positions:
            self._given(deploy.generation, at.partition, deploy.subtask)
            begins = base.get(at.partition, FIRST)
            if max(at.offset, FIRST) != begins:
                what = f"partition {at.partition} is deployed at {at.offset}, but epoch {deploy.base_epoch} is at"
                self._fail("P12 position", f"generation {deploy.generation}: {what} {begins}")

    def triggered(self, trigger: m.Trigger) -> None:
        """A driver closes an epoch."""
        generation, epoch = trigger.generation, trigger.barrier.epoch
        since = self._since.setdefault(generation, {})
        for each in trigger.assignment:
            at = each.position
            self._given(generation, at.partition, each.subtask)
            self.discovered += at.partition not in since
            since.setdefault(at.partition, epoch)
            if at.offset != FIRST:
                self._fail("P12 first record", f"the trigger of epoch {epoch} assigns {at}, not its first record")

    def completed(self, epoch: int, generation: int, follows: int) -> None:
        """An epoch was completed."""
        offsets, since = self._cuts[epoch], self._since.get(generation, {})
        for partition, first in since.items():
            if first <= epoch and partition not in offsets:
                self._fail("P12 manifest", f"epoch {epoch} lacks partition {partition}, assigned by trigger {first}")
            elif first == epoch and offsets[partition] != FIRST:
                what = f"partition {partition} was read up to {offsets[partition]} in the epoch of its own trigger"
                self._fail("P12 barrier", f"epoch {epoch}: {what}")
        known = self._readers.get(generation, {}).keys() | self._cuts.get(follows, {}).keys()
        if unknown := offsets.keys() - known:
            self._fail("P12 manifest", f"epoch {epoch} has partitions {sorted(unknown)}, which nothing was to read")

    def _given(self, generation: int, partition: int, subtask: int) -> None:
        reader = self._readers.setdefault(generation, {}).setdefault(partition, subtask)
        if reader != subtask:
            what = f"generation {generation}: partition {partition} is given to subtasks {reader} and {subtask}"
            self._fail("P12 assignment", what)
