"""The outcome of a replay of an incident: changes of state and rows of each sink, whole or after every record.

Invariants
    - Changes are those between two checkpoints of the replay, so they are what a restart would find.
    - Each record is one step, and every step names the records behind it, at most one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.errors import ConfigError
from holdfast.model import Epoch
from holdfast.runtime.inspect.comparison import differences
from holdfast.runtime.inspect.reading import reading_of
from holdfast.runtime.inspect.stored import Stored
from holdfast.runtime.operators.contract import is_part
from holdfast.runtime.replay.incidents.incident import Incident
from holdfast.runtime.replay.player import Code, Player
from holdfast.runtime.replay.proof import Proof
from holdfast.runtime.replay.spans import Range, Span, cut, offsets_in

Groups = tuple[int, int] | None
"""Key groups [first, end); None: all."""
Rows = Mapping[str, tuple[dict[str, Any], ...]]
"""Rows by sink, in the order in which they were staged; those of upsert streams have `_op` last."""


@dataclass(frozen=True)
class StateChange:
    """How one key changed.

    Args:
        change: added, changed or removed.
        before: None if it had no state.
        after: None if it has none.
    """

    operator: str
    change: str
    key: dict[str, Any]
    before: dict[str, Any] | None
    after: dict[str, Any] | None


@dataclass(frozen=True)
class IncidentOutcome:
    """A replay of the whole epoch."""

    proof: Proof
    changes: tuple[StateChange, ...]
    rows: Rows


@dataclass(frozen=True)
class ReplayStep:
    """One record, and what it did.

    Args:
        at: Its place; None: time alone passed.
        record: Its columns; None if it cannot be decoded.
    """

    at: Range | None
    record: dict[str, Any] | None
    changes: tuple[StateChange, ...]
    rows: Rows


def outcome(incident: Incident, code: Code) -> IncidentOutcome:
    """Replay an incident whole. Raises as `Incident.replayed`."""
    changes, rows = list[StateChange](), dict[str, tuple[dict[str, Any], ...]]()

    def seen(player: Player) -> None:
        begins = None if incident.start is None else incident.start.manifest.epoch
        changes.extend(_changes(player.stored(), begins, player.base, incident.key_groups))
        rows.update(_rows(player, player.base) if incident.only is None else {})

    proof = incident.replayed(code, seen)
    return IncidentOutcome(proof, tuple(changes), rows)


def steps(incident: Incident, code: Code) -> Iterator[ReplayStep]:
    """Replay an incident record by record. Raises as `Incident.replayed`."""
    epoch = incident.epoch()
    code.check(epoch.span, epoch.manifest)
    with Player(code, epoch.start, epoch.manifest, epoch.done.at, epoch.span) as player:
        before = None if player.begins_empty else player.base
        for piece in _single(epoch.span):
            number = player.play(piece)
            at = next((each for each in piece if each.offsets), None)
            record = None if at is None else code.record(at)
            changes = tuple(_changes(player.stored(), before, number, incident.key_groups))
            yield ReplayStep(at, record, changes, _rows(player, number) if incident.only is None else {})
            before = number


def _single(span: Span) -> Iterator[Span]:
    """Yield pieces with one offset each, partitions side by side."""
    if offsets_in(span) <= 1:
        yield span
        return
    for piece in cut(span):
        if offsets_in(piece):
            yield from _single(piece)


def _changes(stored: Stored, before: Epoch | None, after: Epoch, key_groups: Groups) -> Iterator[StateChange]:
    done = stored.job.checkpoint(after)
    assert done is not None, "it was played"
    manifest = stored.repository.load_manifest(done.body.manifest)
    for name in sorted(each.name for each in manifest.operators if not each.dropped and not is_part(each.name)):
        yield from _changes_of(stored, name, before, after, key_groups)


def _changes_of(
    stored: Stored, operator: str, before: Epoch | None, after: Epoch, key_groups: Groups
) -> Iterator[StateChange]:
    now = reading_of(stored, operator, str(after), key_groups=key_groups)
    try:
        then = None if before is None else reading_of(stored, operator, str(before), key_groups=key_groups)
    except ConfigError:  # the operator is new
        then = None
    if then is None:
        for row in (row for batch in now.batches() for row in batch.to_pylist()):
            key, values = ({name: row[name] for name in names} for names in (now.view.keys, now.view.values))
            yield StateChange(operator, "added", key, None, values)
        return
    for row in (row for batch in differences(then, now) for row in batch.to_pylist()):
        yield StateChange(operator, row["change"], row["key"], row["before"], row["after"])


def _rows(player: Player, number: Epoch) -> Rows:
    given = {name: player.rows(name, number) for name in sorted(player.sinks)}
    return {name: tuple(row for batch in each for row in batch.to_pylist()) for name, each in given.items()}
