from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.alignment import Alignment, Close, Effect, NoBarrier, Pause, Resume, step
from holdfast.model import Barrier, ChannelId, Epoch, Subtask

LEFT = ChannelId(0, Subtask(0), Subtask(0))
RIGHT = ChannelId(0, Subtask(1), Subtask(0))
BOTH = frozenset({LEFT, RIGHT})


def barrier(epoch: int, *, last: bool = False, committed: int = 6) -> Barrier:
    return Barrier(Epoch(epoch), Epoch(committed), last)


SEVEN, EIGHT, NINE = barrier(7), barrier(8), barrier(9)


def play(*arrivals: tuple[ChannelId, Barrier], channels: frozenset[ChannelId] = BOTH) -> list[Effect]:
    """Take the barriers after epoch 6; return all effects."""
    state: Alignment = NoBarrier(channels, Epoch(6))
    effects: list[Effect] = []
    for channel, each in arrivals:
        state, now = step(state, channel, each)
        effects += now
    return effects


class TestBarrierAlignment:
    def test_an_early_channel_is_paused(self) -> None:
        assert play((LEFT, SEVEN)) == [Pause(LEFT)]

    def test_the_last_barrier_closes_before_any_channel_resumes(self) -> None:
        assert play((LEFT, SEVEN), (RIGHT, SEVEN)) == [Pause(LEFT), Close(SEVEN), Resume(frozenset({LEFT}))]

    def test_the_channel_that_comes_last_was_never_paused(self) -> None:
        assert play((RIGHT, SEVEN), (LEFT, SEVEN)) == [Pause(RIGHT), Close(SEVEN), Resume(frozenset({RIGHT}))]

    def test_a_single_channel_closes_immediately(self) -> None:
        assert play((LEFT, SEVEN), (LEFT, EIGHT), channels=frozenset({LEFT})) == [Close(SEVEN), Close(EIGHT)]


class TestBrokenChannel:
    """P9: every source emits every barrier, so a hole means that records may be lost as well."""

    def test_a_channel_that_skips_a_barrier_stops_the_worker(self) -> None:
        with pytest.raises(AssertionError, match="skipped"):
            play((LEFT, EIGHT))
        with pytest.raises(AssertionError, match="skipped"):
            play((LEFT, SEVEN), (RIGHT, SEVEN), (LEFT, NINE))

    def test_channels_that_disagree_on_the_epoch_stop_the_worker(self) -> None:
        with pytest.raises(AssertionError, match="skipped"):
            play((LEFT, SEVEN), (RIGHT, EIGHT))

    def test_channels_that_disagree_on_what_is_committed_stop_the_worker(self) -> None:
        with pytest.raises(AssertionError, match="skipped"):
            play((LEFT, SEVEN), (RIGHT, barrier(7, committed=5)))

    def test_a_repeated_barrier_stops_the_worker(self) -> None:
        with pytest.raises(AssertionError, match="twice"):
            play((LEFT, SEVEN), (LEFT, SEVEN))
        with pytest.raises(AssertionError, match="skipped"):
            play((LEFT, SEVEN), (RIGHT, SEVEN), (RIGHT, SEVEN))

    def test_an_unknown_channel_stops_the_worker(self) -> None:
        with pytest.raises(AssertionError):
            play((ChannelId(1, Subtask(0), Subtask(0)), SEVEN))


class TestLastBarrier:
    def test_a_barrier_is_the_last_if_every_channel_marks_it_as_last(self) -> None:
        last = barrier(7, last=True)
        assert play((LEFT, last), (RIGHT, last))[1] == Close(last)

    @pytest.mark.parametrize("order", [(LEFT, RIGHT), (RIGHT, LEFT)])
    def test_a_sender_that_missed_the_last_trigger_does_not_stop_the_worker(
        self, order: tuple[ChannelId, ChannelId]
    ) -> None:
        """Epoch 7 was meant to be the last and was given up; LEFT closed it only with the trigger of 8."""
        said = {LEFT: barrier(7), RIGHT: barrier(7, last=True)}
        assert play(*((channel, said[channel]) for channel in order))[1] == Close(SEVEN)


class TestAnyOrder:
    @given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 2**32))
    def test_every_epoch_closes_once_in_order_and_after_all_channels(self, width: int, epochs: int, seed: int) -> None:
        order = random.Random(seed)
        channels = [ChannelId(0, Subtask(i), Subtask(0)) for i in range(width)]
        waiting = {channel: deque(range(1, epochs + 1)) for channel in channels}
        delivered = dict.fromkeys(channels, 0)
        state: Alignment = NoBarrier(frozenset(channels), Epoch(0))
        paused: set[ChannelId] = set()
        closed: list[int] = []
        while ready := [channel for channel in channels if waiting[channel] and channel not in paused]:
            channel = order.choice(ready)
            delivered[channel] = waiting[channel].popleft()
            state, effects = step(state, channel, barrier(delivered[channel]))
            for effect in effects:
                match effect:
                    case Pause(each):
                        paused.add(each)
                    case Resume(each):
                        paused -= each
                    case Close(each):
                        closed.append(each.epoch)
                        assert set(delivered.values()) == {each.epoch}
        assert closed == list(range(1, epochs + 1)) and not paused
