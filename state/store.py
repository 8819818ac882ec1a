"""All keyed state of one worker: its tables.

Invariants
    - All tables commit an epoch together.
    - After restore(n) the tables hold the state of the segments up to n.
    - roll_back reads and writes no file.

Carries out PROTOCOL P8, P9, P10 (through the tables).
For use by one thread, the operator thread. Deltas may be sealed on another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from numpy.typing import NDArray

from holdfast.errors import Damaged
from holdfast.model import NO_EPOCH, Cut, Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.state.blocks import deltas_of
from holdfast.state.changelog import Data, opened
from holdfast.state.evolution import by_name, unreadable
from holdfast.state.tables.delta import OperatorDelta
from holdfast.state.tables.frozen import FrozenDelta
from holdfast.state.tables.slab import PLAIN, Memory, TableContents
from holdfast.state.tables.table import StateTable, TableSpec


@dataclass(frozen=True)
class Identity:
    """The owner of the state; a recovery brings a new generation, a rewind also a new timeline."""

    job_uuid: JobUuid
    generation: Generation
    timeline: Timeline
    worker: WorkerId


class Piece(NamedTuple):
    """A sealed segment and the key groups [first, end) to use from it."""

    data: Data
    key_groups: tuple[int, int]


class StateStore:
    """The state of one worker.

    Args:
        identity: Job, generation, timeline, worker. Replaced when a recovery brings another.
        specs: One per stateful operator.
        key_group_count: Key groups of the job.
        owned: Key groups [first, end) of this worker's subtask.
        memory: Where the records of all tables are.
    """

    def __init__(
        self,
        identity: Identity,
        specs: Iterable[TableSpec],
        key_group_count: int,
        owned: tuple[int, int],
        memory: Memory = PLAIN,
    ) -> None:
        assert 0 <= owned[0] <= owned[1] <= key_group_count
        self.identity = identity
        self.owned = owned
        self._count = key_group_count
        self._tables = {spec.operator: StateTable(spec, key_group_count, memory=memory) for spec in specs}
        self._memory = memory
        self._committed, self._known = NO_EPOCH, Cut(NO_EPOCH, "")
        self._begin(NO_EPOCH)

    def table(self, operator: int) -> StateTable:
        """Return the table of an operator; it stays the same object through restores."""
        return self._tables[operator]

    @property
    def committed_through(self) -> Epoch:
        """The last completed epoch that every table holds as committed."""
        return self._committed

    # Epochs

    def freeze(self, operator: int, epoch: Epoch, committed_through: Epoch) -> None:
        """Close the epoch for one operator, at which barrier `epoch` has arrived (P9)."""
        self.commit(committed_through)
        self._tables[operator].freeze(epoch, committed_through)

    @property
    def uncopied(self) -> int:
        """How many records frozen by barriers are still to be copied, or looked at."""
        return sum(table.uncopied for table in self._tables.values())

    @property
    def uncommitted(self) -> int:
        """How many records of committed epochs are still to be written to the committed values."""
        return sum(table.uncommitted for table in self._tables.values())

    @property
    def unsettled(self) -> bool:
        """Whether records are still to be copied or committed, as `uncopied` and `uncommitted` count them."""
        return any(table.unsettled for table in self._tables.values())

    def advance(self, records_max: int) -> None:
        """Copy records that barriers froze, and commit copies; look at this many records at most.

        An operation that needs a copy earlier makes it then.
        """
        for table in self._tables.values():
            records_max -= table.advance(records_max)

    def supersede(self, epoch: Epoch) -> None:
        """Drop data of epochs before this one, which were given up (P8); all tables have frozen this one.

        Else memory would grow with every epoch for as long as the checkpoint root is unreachable.
        """
        for table in self._tables.values():
            table.supersede(epoch)

    def deltas(self, epoch: Epoch) -> list[FrozenDelta]:
        """Return the changes of the epoch, one delta per operator, once all have frozen it.

        Records that are not copied yet are copied first; advance() does that in steps.
        """
        return [table.delta(epoch) for table in self._tables.values()]

    def commit(self, through: Epoch) -> None:
        """Treat everything frozen up to this completed epoch as committed; a hint, harmless to repeat."""
        if through <= self._committed or not any(table.froze(through) for table in self._tables.values()):
            return
        assert all(table.froze(through) for table in self._tables.values()), "an operator never froze this epoch"
        for table in self._tables.values():
            table.commit(through)
        self._committed = through

    def completed(self, cut: Cut) -> None:
        """Record the manifest of an epoch, as the driver reports it."""
        self._known = max(self._known, cut)

    @property
    def cut(self) -> Cut:
        """The last completed epoch held as committed, with its manifest if the driver has reported it."""
        return self._known if self._known.epoch == self._committed else Cut(self._committed, "")

    def roll_back(self, base: Epoch, identity: Identity | None = None) -> bool:
        """Return to the end of the completed epoch `base`, without I/O (P10).

        Returns:
            False if this worker does not hold that epoch; nothing was changed, call restore().
        """
        if not all(table.holds(base) for table in self._tables.values()):
            return False
        self.commit(base)
        for table in self._tables.values():
            held = table.roll_back(base)
            assert held
        self.identity = identity or self.identity
        return True

    # Restore

    def restore(
        self,
        epoch: Epoch,
        segments: Iterable[bytes | Piece],
        advanced: Callable[[], object] = lambda: None,
    ) -> None:
        """Restore the state as of a completed epoch.

        Args:
            epoch: The epoch to restore.
            segments: Every segment of the owned key groups, oldest first. They are taken one at a time, so that only
                one is open if the iterable opens each when it is asked for it. A piece applies to its key groups only.
                A stored base is a segment that follows 0: nothing older of its key groups may precede it.
            advanced: Called after every part of a segment, at most ROWS_AT_ONCE rows.

        Raises:
            Damaged: a segment differs from what was written. Restore again from an older checkpoint; until then this
                store must not be used.
            ConfigError: a segment was written with a declaration that the present one cannot read.
        """
        self._begin(epoch)
        newest = NO_EPOCH
        for each in segments:
            piece = each if isinstance(each, Piece) else Piece(each, self.owned)
            segment_epoch = self._absorb(piece, advanced)
            assert newest <= segment_epoch, "a segment comes before an older one"
            assert segment_epoch <= epoch, "a segment from after the epoch to restore"
            newest = segment_epoch

    def follow(
        self, epoch: Epoch, segments: Iterable[bytes | Piece], advanced: Callable[[], object] = lambda: None
    ) -> None:
        """Advance a store that processes no records itself to the completed epoch of these segments.

        Args:
            advanced: As in restore.
        """
        assert epoch > self._committed
        for each in segments:
            piece = each if isinstance(each, Piece) else Piece(each, self.owned)
            absorbed = self._absorb(piece, advanced)
            assert self._committed < absorbed <= epoch
        for table in self._tables.values():
            table.committed_through = epoch
        self._committed = epoch

    def stored(self) -> dict[int, TableContents]:
        """Return the parts of the tables, by operator; only committed epochs may be in them."""
        return {operator: table.stored() for operator, table in self._tables.items()}

    def adopt(
        self, stored: Mapping[int, TableContents], rooms: Mapping[int, Mapping[str, NDArray[Any]]], epoch: Epoch
    ) -> None:
        """Take tables as of a completed epoch, with the same declarations and key groups; see StateTable.adopt."""
        self._begin(epoch)
        for operator, table in self._tables.items():
            table.adopt(stored[operator], rooms[operator], epoch)

    def drop_vacant(self) -> None:
        """Drop the slots without a row where they are as many as the others."""
        for table in self._tables.values():
            if table.mostly_vacant():
                table.drop_vacant()

    def _begin(self, epoch: Epoch) -> None:
        """Empty the tables."""
        for table in self._tables.values():
            table.reset(epoch)
        self._committed, self._known = epoch, Cut(epoch, "")

    def _absorb(self, piece: Piece, advanced: Callable[[], object]) -> Epoch:
        """Write the owned part of a piece into the tables; return its epoch."""
        segment = opened(piece.data)
        epoch = segment.header.epoch
        if segment.header.job_uuid != self.identity.job_uuid:
            raise Damaged(
                f"a changelog segment belongs to job {segment.header.job_uuid}, not {self.identity.job_uuid}",
                not_done="none of it was restored",
                next_step="find out which other process writes below this job's root",
            )
        part = max(self.owned[0], piece.key_groups[0]), min(self.owned[1], piece.key_groups[1])
        if part[0] < part[1]:
            for delta in deltas_of(segment, part):
                self._absorb_delta(delta)
                advanced()
        return epoch

    def _absorb_delta(self, delta: OperatorDelta) -> None:
        table = self._tables.get(delta.operator)
        if table is None:  # the planner has accepted the loss of this operator's state
            return
        if delta.key_group_count != self._count:
            raise unreadable(table.spec)
        table.absorb(by_name(delta, table.spec))

    def get_committed(self, operator: int, key: tuple[object, ...]) -> dict[str, Any] | None:
        """Return the committed values of one key, None if it is absent."""
        return self._tables[operator].get_committed(key)

    @property
    def nbytes(self) -> int:
        """Bytes of all tables and of their unfinished epochs, in memory or swapped out."""
        return sum(table.nbytes + table.frozen_bytes for table in self._tables.values())

    @property
    def dirty_bytes(self) -> int:
        """Bytes that the next freeze will take."""
        return sum(table.dirty_bytes for table in self._tables.values())

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of the changes that are not committed yet: frozen, or to be frozen at the next barrier."""
        return self.dirty_bytes + sum(table.frozen_bytes for table in self._tables.values())

    @property
    def refused(self) -> str:
        """Why tables cannot leave memory although they are larger than their budget; empty if they can."""
        return self._memory.refused

    def settle(self) -> None:
        """Bring tables back inside their budget, if the disk has room again."""
        self._memory.settle()
