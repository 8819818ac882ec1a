"""How the state of one key changed, from checkpoint to checkpoint.

Checkpoints share most of their objects. Each object is read once, newest checkpoint first, and only its rows of this
key are kept; the state as of a checkpoint is then a merge of a few rows.

Invariants
    - Every change is given with the epoch of the first retained checkpoint that has it.
    - The history is that of one timeline's end: it does not include checkpoints that a rewind abandoned.

Source: docs/decisions/0037-state-inspection.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import ConfigError, Where
from holdfast.model import ObjectRef, SegmentRef
from holdfast.runtime.inspect import keys
from holdfast.runtime.inspect.objects import held
from holdfast.runtime.inspect.reading import StateCheckpoint, at_checkpoint, gathered, of_key, operator_in, within
from holdfast.runtime.inspect.stored import Stored
from holdfast.runtime.inspect.topic import with_topic
from holdfast.runtime.inspect.view import View, view_of
from holdfast.runtime.time.windows import TIME
from holdfast.state.blocks import BlockReader, StateRows, concatenated
from holdfast.state.changelog import opened
from holdfast.state.keys.batch import Keys
from holdfast.state.merged import Chained, compared, merged
from holdfast.state.tables.expiry import Through


class State(NamedTuple):
    """The rows of the key as of a checkpoint."""

    at: StateCheckpoint
    rows: tuple[StateRows, ...]


class HistoryEnd(NamedTuple):
    """A checkpoint that does not belong to the history of a key, and why."""

    at: StateCheckpoint
    why: str


@dataclass(frozen=True)
class KeyHistory:
    """The states of a key in the retained checkpoints.

    Args:
        states: Newest first.
        born: Whether the operator had no state before the oldest of them.
        beyond: The newest checkpoint in which the operator has other state, so that the history ends above it.
    """

    view: View
    states: tuple[State, ...]
    born: bool
    beyond: HistoryEnd | None

    @property
    def schema(self) -> pa.Schema:
        """Return the columns: epoch, at, change, those of the key, and its values, null once the key was removed."""
        values = [self.view.schema.field(name).with_nullable(True) for name in self.view.values]
        return pa.schema([*_PLACE, *(self.view.schema.field(name) for name in self.view.keys), *values])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the changes, oldest first: what the oldest checkpoint has is "present", or "added" if it was born."""
        return gathered(self._changes())

    def _changes(self) -> Iterator[pa.RecordBatch]:
        before: tuple[StateRows, ...] = ()
        for number, state in enumerate(reversed(self.states)):
            for part in compared(Chained(iter(before)), Chained(iter(state.rows))):
                change = part.change if number or self.born else "present"
                yield self._shown(state.at, change, part.after, part.before)
            before = state.rows

    def _shown(
        self, at: StateCheckpoint, change: str, after: StateRows | None, before: StateRows | None
    ) -> pa.RecordBatch:
        rows = after if after is not None else before
        assert rows is not None
        table, count = self.view.table(rows), len(rows)
        columns = [
            pa.array(np.full(count, at.epoch)),
            pa.array(np.full(count, at.at)).view(TIME),
            pa.array([change] * count),
            *table.select(list(self.view.keys)).columns,
        ]
        for values in table.select(list(self.view.values)).columns:
            columns.append(values if after is not None else pa.nulls(count, values.type))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


_PLACE = (
    pa.field("epoch", pa.int64(), nullable=False),
    pa.field("at", TIME, nullable=False),
    pa.field("change", pa.string(), nullable=False),
)


@dataclass(frozen=True)
class _KeyRows:
    """The rows of the key in one block, as an input of a merge."""

    through: Through
    rows: list[StateRows]

    def again(self) -> _KeyRows:
        return _KeyRows(self.through, list(self.rows))

    def read(self) -> StateRows | None:
        return self.rows.pop(0) if self.rows else None


@dataclass
class _Reader:
    """Reads the key in one checkpoint after another."""

    stored: Stored
    operator: str
    text: str
    view: View | None = None
    born: bool = False
    beyond: HistoryEnd | None = None
    found: dict[tuple[ObjectRef, tuple[int, int]], list[_KeyRows]] = field(default_factory=dict)

    def state(self, at: StateCheckpoint, manifest: Manifest) -> State | None:
        """Return the state as of a checkpoint; None where the history of the first one read begins."""
        if self.view is not None and all(each.dropped or each.name != self.operator for each in manifest.operators):
            self.born = True
            return None
        view = view_of(operator_in(manifest, self.operator, at))
        if self.view is not None and not _same_columns(self.view, view):
            self.born = self.view.number != view.number
            self.beyond = HistoryEnd(at, "state that was given up" if self.born else "other columns")
            return None
        self.view = view
        key = keys.parsed(self.text, view.routed)
        group = int(key.key_groups(manifest.key_groups)[0])
        stored, manifest = with_topic(self.stored, manifest, (group, group + 1))
        refs = [each for handle in manifest.state for each in within(handle, (group, group + 1))]
        pieces = [rows.again() for ref, span in refs for rows in self._of_key(stored, ref, span, key, view)]
        return State(at, tuple(merged(pieces)))

    def _of_key(self, stored: Stored, ref: SegmentRef, span: tuple[int, int], key: Keys, view: View) -> list[_KeyRows]:
        if (known := self.found.get((ref.object, span))) is not None:
            return known
        segment = opened(held(stored.store, [ref.object])[ref.object.path])
        blocks = [block for block in segment.blocks if block.operator == view.number]
        rows = [_of_block(BlockReader(segment.file, block, span, spec=view.spec), key) for block in blocks]
        self.found[ref.object, span] = rows
        return rows


def _same_columns(one: View, other: View) -> bool:
    """Compare declarations as text: the default of a column may be NaN, which equals no other."""
    return one.schema == other.schema and repr(one.spec) == repr(other.spec)


def _of_block(reader: BlockReader, key: Keys) -> _KeyRows:
    parts = []
    while (rows := reader.read()) is not None:
        if (found := of_key(rows, key)) is not None:
            parts.append(found)
    return _KeyRows(reader.through, [concatenated(parts)] if parts else [])


def history_of(stored: Stored, operator: str, key: str, wanted: str | None = None) -> KeyHistory:
    """Return how a key's state changed up to a checkpoint.

    Args:
        key: As a user types it.
        wanted: The newest checkpoint of the history, as for `at_checkpoint`.

    Raises:
        ConfigError: there is no such checkpoint or operator, a rewind abandoned it, or the key does not fit.
        Damaged: an object differs from what was written.
    """
    reader = _Reader(stored, operator, key)
    newest = at_checkpoint(stored, wanted, reader.state)
    assert newest is not None and reader.view is not None
    if newest.at.abandoned:
        raise ConfigError(
            f"a rewind of job {newest.at.job!r} abandoned the checkpoint of epoch {newest.at.epoch}",
            not_done="no state was read",
            next_step="give --epoch of a checkpoint of the present timeline; "
            f"to read this one alone: holdfast state get {newest.at.job} {operator} KEY --epoch {newest.at.epoch}",
            where=Where(job=newest.at.job, operator=operator, epoch=newest.at.epoch),
        )
    states = [newest]
    for done in reversed([each for each in stored.job.completed if each.body.epoch < newest.at.epoch]):
        try:
            state = at_checkpoint(stored, str(done.body.epoch), reader.state)
        except ConfigError:  # it has just expired, as have all before it
            break
        if state is None:
            break
        states.append(state)
    return KeyHistory(reader.view, tuple(states), reader.born, reader.beyond)
