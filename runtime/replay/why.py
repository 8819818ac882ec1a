"""Which records changed a key: an epoch is replayed in pieces, and those that changed the key in smaller ones.

Each piece is an epoch of the job in memory, so its checkpoints say between which pieces the key changed. A piece that
changed it is replayed again from the checkpoint before it, cut finer, until each piece is one record.

Invariants
    - A cause names one record, or none where time alone changed the key.
    - The state before a piece is that of the pieces before it, however finely those were cut.
    - At most `limit` causes are looked for in an epoch.

Source: docs/decisions/0130-replay.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from holdfast.model import Epoch
from holdfast.runtime.inspect.keyhistory import history_of
from holdfast.runtime.replay.checking import replayed
from holdfast.runtime.replay.epochs import Replayable
from holdfast.runtime.replay.player import Code, Player, Start
from holdfast.runtime.replay.proof import Proof
from holdfast.runtime.replay.sources import record_at
from holdfast.runtime.replay.spans import Range, Span, cut, offsets_in
from holdfast.sinks.contract.target import DELETE, OP

PARTS = 16
"""Pieces of a span: a million records need five rounds."""


@dataclass(frozen=True)
class Change:
    """One change of the key.

    Args:
        change: added, changed or removed; for a sink put or delete.
        key: The columns of the key.
        before: Its values before; None if it had none, or for a sink: a sink is not read.
        after: Its values after; None if it has none.
    """

    change: str
    key: dict[str, Any]
    before: dict[str, Any] | None
    after: dict[str, Any] | None


@dataclass(frozen=True)
class Cause:
    """A record, and what it changed.

    Args:
        at: The record's offset; None: no record, only time, which moves on while partitions have none.
        record: Its columns; None if it cannot be decoded.
    """

    at: Range | None
    record: dict[str, Any] | None
    changes: tuple[Change, ...]


class Watch(Protocol):
    """A key or rows that are watched while an epoch is replayed."""

    def changes(self, player: Player) -> dict[Epoch, list[Change]]:
        """Return, by the replay's epochs, how it changed."""


@dataclass(frozen=True)
class WatchedState:
    """A key of an operator, as a user types it."""

    operator: str
    key: str

    def changes(self, player: Player) -> dict[Epoch, list[Change]]:
        """See Watch."""
        found: dict[Epoch, list[Change]] = {}
        known: dict[tuple[Any, ...], dict[str, Any]] = {}
        history = history_of(player.stored(), self.operator, self.key)
        for row in (row for batch in history.batches() for row in batch.to_pylist()):
            key = {name: row[name] for name in history.view.keys}
            values = {name: row[name] for name in history.view.values}
            at = tuple(map(str, key.values()))
            before, after = known.pop(at, None), None if row["change"] == "removed" else values
            if after is not None:
                known[at] = after
            change = "added" if row["change"] == "present" and player.begins_empty else row["change"]
            if change != "present":
                found.setdefault(Epoch(row["epoch"]), []).append(Change(change, key, before, after))
        return found


@dataclass(frozen=True)
class WatchedRows:
    """Rows of a sink whose columns have these values."""

    sink: str
    wanted: tuple[tuple[str, Any], ...]

    def changes(self, player: Player) -> dict[Epoch, list[Change]]:
        """See Watch."""
        found: dict[Epoch, list[Change]] = {}
        for epoch, batches in player.sinks[self.sink].rows.items():
            for row in (row for batch in batches for row in batch.to_pylist()):
                if all(row[name] == value for name, value in self.wanted):
                    deleted = row.pop(OP, None) == DELETE
                    change = Change("delete" if deleted else "put", dict(self.wanted), None, None if deleted else row)
                    found.setdefault(epoch, []).append(change)
        return found


@dataclass(frozen=True)
class Explained:
    """One epoch.

    Args:
        causes: In the order of the replay.
        more: Whether there are further ones.
    """

    epoch: Replayable
    proof: Proof
    causes: tuple[Cause, ...]
    more: bool


def explained(code: Code, epoch: Replayable, watch: Watch, limit: int) -> Explained:
    """Return which records of an epoch changed what is watched.

    Raises:
        ConfigError, Damaged, Unavailable: what is needed cannot be read.
        JobFailed: the job's code fails.
    """
    proved = replayed(code, epoch)
    causes = list(islice(_causes(code, epoch, epoch.start, epoch.span, watch), limit + 1))
    return Explained(epoch, proved, tuple(causes[:limit]), len(causes) > limit)


def _causes(code: Code, epoch: Replayable, start: Start, span: Span, watch: Watch) -> Iterator[Cause]:
    pieces = [span] if offsets_in(span) <= 1 else cut(span, PARTS)
    starts: dict[Epoch, tuple[Span, Epoch]] = {}
    with Player(code, start, epoch.manifest, epoch.done.at, span) as player:
        pieces_begin = before = player.base
        for piece in pieces:
            played = player.play(piece)
            starts[played], before = (piece, before), played
        changes, stored = watch.changes(player), player.stored()
    for played, (piece, before) in starts.items():
        if played not in changes:
            continue
        if offsets_in(piece) > 1:
            first = before == pieces_begin
            again = start if first else Start(stored, stored.job.checkpoint(before))
            yield from _causes(code, epoch, again, piece, watch)
        else:
            yield _cause(code, piece, changes[played])


def _cause(code: Code, piece: Span, changes: list[Change]) -> Cause:
    at = next((each for each in piece if each.offsets), None)
    if at is None:
        return Cause(None, None, tuple(changes))
    schema = next(spec.source.schema for spec in code.plan.sources if spec.name == at.source)
    return Cause(at, record_at(code.opened[at.source], schema, at.partition, at.first), tuple(changes))
