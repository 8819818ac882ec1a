"""Barrier alignment for one fragment of one subtask.

A subtask with several input channels closes an epoch only after the same barrier has arrived on
all of them. Channels that deliver it early are paused meanwhile, so the frozen state holds every
record before the barrier and none after it.

Invariants
    - A paused channel delivers nothing until it is resumed.
    - Every channel delivers every barrier, in epoch order: a skipped one is a broken channel (P9).
    - The epochs that a fragment closes strictly increase.
    - A barrier is the last one only if every channel marks it so: a sender that missed a trigger sends that barrier
      together with the next one, and marks only the newer one as last.

Pure: no clock, thread or I/O. Driven by runtime/worker/protocol.py.
Source: Carbone et al., Lightweight Asynchronous Snapshots, 2015, algorithm 1; PROTOCOL P9.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.frozen import replace
from holdfast.model import Barrier, ChannelId, Epoch


@dataclass(frozen=True)
class NoBarrier:
    """No barrier is in progress; `latest` is the last one that every channel delivered."""

    channels: frozenset[ChannelId]
    latest: Epoch


@dataclass(frozen=True)
class Aligning:
    """The barrier has arrived on some channels, which are paused."""

    channels: frozenset[ChannelId]
    barrier: Barrier
    """Its `last` is true only if all channels that delivered it so far marked it as last."""
    arrived: frozenset[ChannelId]


Alignment = NoBarrier | Aligning


@dataclass(frozen=True)
class Pause:
    """Stop delivering from this channel."""

    channel: ChannelId


@dataclass(frozen=True)
class Close:
    """Every channel delivered the barrier: emit, freeze, forward it."""

    barrier: Barrier


@dataclass(frozen=True)
class Resume:
    """Deliver from these channels again."""

    channels: frozenset[ChannelId]


Effect = Pause | Close | Resume


def step(state: Alignment, channel: ChannelId, barrier: Barrier) -> tuple[Alignment, list[Effect]]:
    """Take one barrier; return the next state and the effects, in order."""
    assert channel in state.channels
    match state:
        case NoBarrier(channels, latest):
            assert barrier.epoch == latest + 1, f"{channel} skipped a barrier: {latest} then {barrier.epoch}"
            return _arrive(Aligning(channels, barrier, frozenset()), channel)
        case Aligning(channels, current, arrived):
            same = replace(barrier, last=current.last) == current
            assert same, f"{channel} skipped a barrier: {current} expected, got {barrier}"
            assert channel not in arrived, f"{channel} delivered {barrier} twice"
            agreed = replace(current, last=current.last and barrier.last)
            return _arrive(Aligning(channels, agreed, arrived), channel)


def _arrive(state: Aligning, channel: ChannelId) -> tuple[Alignment, list[Effect]]:
    arrived = state.arrived | {channel}
    if arrived != state.channels:
        return Aligning(state.channels, state.barrier, arrived), [Pause(channel)]
    effects: list[Effect] = [Close(state.barrier)]
    if state.arrived:
        effects.append(Resume(state.arrived))
    return NoBarrier(state.channels, state.barrier.epoch), effects
