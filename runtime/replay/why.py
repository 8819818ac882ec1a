"""Which records changed a key: an epoch is replayed in pieces, and those that changed the key in smaller ones.

Each piece is an epoch of the job in memory, so its checkpoints say between which pieces the key changed. A piece that
changed it is replayed again from the checkpoint before it, cut finer, until each piece is one record. Where records
come late, the result depends on which are processed together: what pieces changed is compared with what the whole did.

Invariants
    - A cause names one record, or none where time alone changed the key.
    - The state before a piece is that of the pieces before it, however finely those were cut.
    - At most `limit` causes are looked for in an epoch.

Source: docs/decisions/0130-replay.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol

from holdfast.model import Epoch
from holdfast.runtime.inspect.keyhistory import history_of
from holdfast.runtime.replay.checking import replayed
from holdfast.runtime.replay.epochs import Replayable
from holdfast.runtime.replay.player import Code, Player, Start
from holdfast.runtime.replay.proof import Difference, Kind, Proof
from holdfast.runtime.replay.reads import Reads
from holdfast.runtime.replay.spans import Range, Span, cut, offsets_in
from holdfast.sinks.contract.target import DELETE, OP

IN_PIECES = (
    "replayed in pieces, the epoch gave another result than replayed whole, so records may be missing here: the result "
    "depends on which records are processed together, as where records come late"
)


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


class ReplayWatch(Protocol):
    """A key or rows that are watched while an epoch is replayed."""

    @property
    def kind(self) -> Kind:
        """Return whether it is that of an operator or of a sink."""

    @property
    def name(self) -> str:
        """Return the name of the operator or the sink."""

    def changes(self, player: Player) -> dict[Epoch, list[Change]]:
        """Return, by the replay's epochs, how it changed."""

    def same(self, whole: list[Change], pieces: list[Change]) -> bool:
        """Return whether an epoch that was replayed whole and one that was replayed in pieces gave the same."""


@dataclass(frozen=True)
class WatchedState:
    """A key of an operator, as a user types it."""

    name: str
    key: str
    kind: Kind = "operator"

    def changes(self, player: Player) -> dict[Epoch, list[Change]]:
        """See ReplayWatch."""
        changes_by_epoch: dict[Epoch, list[Change]] = {}
        last_values: dict[tuple[Any, ...], dict[str, Any]] = {}
        history = history_of(player.stored(), self.name, self.key)
        for row in (row for batch in history.batches() for row in batch.to_pylist()):
            key = {name: row[name] for name in history.view.keys}
            values = {name: row[name] for name in history.view.values}
            at = tuple(map(str, key.values()))
            before, after = last_values.pop(at, None), None if row["change"] == "removed" else values
            if after is not None:
                last_values[at] = after
            change = "added" if row["change"] == "present" and player.begins_empty else row["change"]
            if change != "present":
                changes_by_epoch.setdefault(Epoch(row["epoch"]), []).append(Change(change, key, before, after))
        return changes_by_epoch

    def same(self, whole: list[Change], pieces: list[Change]) -> bool:
        """See ReplayWatch."""
        return _ends(whole) == _ends(pieces)


@dataclass(frozen=True)
class WatchedRows:
    """Rows of a sink whose columns have these values.

    Args:
        upserts: Whether a row replaces an earlier one.
    """

    name: str
    wanted: tuple[tuple[str, Any], ...]
    upserts: bool = False
    kind: Kind = "sink"

    def changes(self, player: Player) -> dict[Epoch, list[Change]]:
        """See ReplayWatch."""
        changes_by_epoch: dict[Epoch, list[Change]] = {}
        for epoch, batches in player.sinks[self.name].rows.items():
            for row in (row for batch in batches for row in batch.to_pylist()):
                if all(row[name] == value for name, value in self.wanted):
                    deleted = row.pop(OP, None) == DELETE
                    change = Change("delete" if deleted else "put", dict(self.wanted), None, None if deleted else row)
                    changes_by_epoch.setdefault(epoch, []).append(change)
        return changes_by_epoch

    def same(self, whole: list[Change], pieces: list[Change]) -> bool:
        """See ReplayWatch. In pieces an upsert also puts what a later record of the epoch replaces."""
        once, in_pieces = (Counter(f"{c.change} {_text(c.after)}" for c in given) for given in (whole, pieces))
        return once.keys() <= in_pieces.keys() if self.upserts else once == in_pieces


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


def explained(code: Code, epoch: Replayable, watch: ReplayWatch, limit: int) -> Explained:
    """Return which records of an epoch changed what is watched.

    Raises:
        ConfigError, Damaged, Unavailable: what is needed cannot be read.
        JobFailed: the job's code fails.
    """
    whole: list[Change] = []
    replay_proof = replayed(code, epoch, lambda player: whole.extend(_listed(watch.changes(player))))

    unlike: list[Difference] = []
    reads = epoch.reads() if replay_proof.in_order else None
    found = _causes(code, epoch, EpochPiece(epoch.start, epoch.done.at, epoch.span, whole, reads), watch, unlike)
    causes = list(islice(found, limit + 1))
    replay_proof = replace(replay_proof, differences=(*replay_proof.differences, *unlike[:1]))
    return Explained(epoch, replay_proof, tuple(causes[:limit]), len(causes) > limit)


@dataclass(frozen=True)
class EpochPiece:
    """Part of an epoch, and where it begins.

    Args:
        ends_at: The time of the wall clock behind it.
        changes: Those of the key when it was replayed whole.
        reads: The recorded batches of the epoch; None: they were not recorded, or the code is another.
    """

    start: Start
    ends_at: int
    span: Span
    changes: list[Change]
    reads: Reads | None


def _causes(
    code: Code, epoch: Replayable, of: EpochPiece, watch: ReplayWatch, unlike: list[Difference]
) -> Iterator[Cause]:
    """Args: unlike: Takes what smaller pieces changed otherwise than the piece that they were cut from."""
    pieces = cut(of.span) if of.reads is None else of.reads.cut(of.span)
    starts: dict[Epoch, tuple[Span, Epoch]] = {}
    with Player(code, of.start, epoch.manifest, of.ends_at, of.span, reads=of.reads) as player:
        pieces_begin = before = player.base
        for piece in pieces:
            piece_epoch = player.play(piece)
            starts[piece_epoch], before = (piece, before), piece_epoch
        changes, replay_job = watch.changes(player), player.stored()
    if not watch.same(of.changes, _listed(changes)):
        unlike.append(Difference(watch.kind, watch.name, IN_PIECES))
    for piece_epoch, (piece, before) in starts.items():
        if piece_epoch not in changes:
            continue
        if offsets_in(piece) > 1:
            first, done = before == pieces_begin, replay_job.job.checkpoint(piece_epoch)
            assert done is not None, "it was played"
            again = of.start if first else Start(replay_job, replay_job.job.checkpoint(before))
            piece_of = EpochPiece(again, done.at, piece, changes[piece_epoch], of.reads)
            yield from _causes(code, epoch, piece_of, watch, unlike)
        else:
            yield _cause(code, piece, changes[piece_epoch])


def _listed(changes: dict[Epoch, list[Change]]) -> list[Change]:
    return [change for epoch in sorted(changes) for change in changes[epoch]]


def _ends(changes: list[Change]) -> dict[str, tuple[str, str]]:
    """Return, by key, the first and the last state, where these differ."""
    ends: dict[str, tuple[str, str]] = {}
    for each in changes:
        first, _ = ends.get(str(each.key), (_text(each.before), ""))
        ends[str(each.key)] = first, _text(each.after)
    return {key: end for key, end in ends.items() if end[0] != end[1]}


def _text(values: dict[str, Any] | None) -> str:
    """Return values as text, floats without the digits in which sums differ by the order of their addends."""
    rounded = {name: f"{at:.9g}" if isinstance(at, float) else at for name, at in (values or {}).items()}
    return "" if values is None else str(rounded)


def _cause(code: Code, piece: Span, changes: list[Change]) -> Cause:
    at = next((each for each in piece if each.offsets), None)
    if at is None:
        return Cause(None, None, tuple(changes))
    return Cause(at, code.record(at), tuple(changes))
