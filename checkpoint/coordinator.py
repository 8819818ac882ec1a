"""The checkpoint coordinator of one generation: trigger, collect acks, decide.

One epoch is open at a time. When every subtask has acked, the manifest is stored and its record is
appended; that append is the only commit point. An epoch that misses its deadline before its record
was sent is given up. No message announces that; workers learn it from the next barrier's `committed_through`.

Invariants
    - Epoch n+1 is triggered only when n is completed, or given up with no append sent (P8).
    - Once the append is sent the epoch is never given up (P4).
    - At most A epochs in a row are given up, then the generation must recover (P2).

Pure: no clock, thread or I/O. Driven by runtime/driver/master.py.
Source: Carbone et al. 2015; PROTOCOL P2, P4, P8, P9.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.checkpoint.manifest import SubtaskPart
from holdfast.frozen import changed, replace
from holdfast.model import EPOCHS_GIVEN_UP_MAX, Barrier, Epoch, Subtask


@dataclass(frozen=True)
class Idle:
    """No epoch is being closed."""

    parallelism: int
    committed_through: Epoch
    next_epoch: Epoch
    given_up: int


@dataclass(frozen=True)
class Collecting:
    """The barrier is in flight; acks are arriving."""

    parallelism: int
    barrier: Barrier
    given_up: int
    started: float
    parts: Mapping[Subtask, SubtaskPart]


@dataclass(frozen=True)
class Deciding:
    """All acks have arrived and the record is being appended: the epoch can no longer be given up."""

    parallelism: int
    barrier: Barrier
    started: float
    parts: Mapping[Subtask, SubtaskPart]


Coordinator = Idle | Collecting | Deciding


@dataclass(frozen=True)
class SendBarrier:
    """Send this barrier from all sources."""

    barrier: Barrier


@dataclass(frozen=True)
class Decide:
    """Store the manifest made of these parts and append its record."""

    barrier: Barrier
    started: float
    parts: tuple[SubtaskPart, ...]


@dataclass(frozen=True)
class Announce:
    """Hint to all workers that the epoch is committed (P9)."""

    epoch: Epoch


@dataclass(frozen=True)
class EpochGivenUp:
    """The epoch missed its deadline; its changes and output merge into the next one."""

    epoch: Epoch
    missing: tuple[Subtask, ...]


@dataclass(frozen=True)
class MustRecover:
    """Too many epochs in a row were given up; epoch numbers would run out (P2)."""

    given_up: int


Effect = SendBarrier | Decide | Announce | EpochGivenUp | MustRecover


def start(parallelism: int, base_epoch: Epoch, first_epoch: Epoch) -> Coordinator:
    """Return the coordinator of a generation that continues after `base_epoch`."""
    return Idle(parallelism, base_epoch, first_epoch, 0)


def trigger(state: Idle, now: float, last: bool) -> tuple[Coordinator, list[Effect]]:
    """Open the next epoch's barrier."""
    if state.given_up >= EPOCHS_GIVEN_UP_MAX:
        return state, [MustRecover(state.given_up)]
    barrier = Barrier(state.next_epoch, state.committed_through, last)
    return Collecting(state.parallelism, barrier, state.given_up, now, {}), [SendBarrier(barrier)]


def acked(state: Coordinator, epoch: Epoch, part: SubtaskPart) -> tuple[Coordinator, list[Effect]]:
    """Take one subtask's ack; a late or repeated one changes nothing."""
    if not isinstance(state, Collecting) or state.barrier.epoch != epoch:
        return state, []
    assert 0 <= part.subtask < state.parallelism, f"subtask {part.subtask} does not belong to this generation"
    parts = state.parts if part.subtask in state.parts else changed(state.parts, part.subtask, part)
    if len(parts) < state.parallelism:
        return replace(state, parts=parts), []
    decided = Deciding(state.parallelism, state.barrier, state.started, parts)
    return decided, [Decide(state.barrier, state.started, tuple(parts[s] for s in sorted(parts)))]


def deadline_passed(state: Coordinator) -> tuple[Coordinator, list[Effect]]:
    """Give up the open epoch, unless its record may already be in the log."""
    if not isinstance(state, Collecting):
        return state, []
    epoch = state.barrier.epoch
    missing = tuple(Subtask(s) for s in range(state.parallelism) if s not in state.parts)
    after = Idle(state.parallelism, state.barrier.committed_through, Epoch(epoch + 1), state.given_up + 1)
    return after, [EpochGivenUp(epoch, missing)]


def appended(state: Deciding) -> tuple[Coordinator, list[Effect]]:
    """The record is in the log: the epoch is committed."""
    epoch = state.barrier.epoch
    return Idle(state.parallelism, epoch, Epoch(epoch + 1), 0), [Announce(epoch)]
