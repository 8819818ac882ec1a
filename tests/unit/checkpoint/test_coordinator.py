from __future__ import annotations

import pytest

from holdfast.checkpoint.coordinator import (
    Announce,
    Collecting,
    Coordinator,
    Decide,
    Deciding,
    EpochGivenUp,
    Idle,
    MustRecover,
    SendBarrier,
    acked,
    appended,
    deadline_passed,
    start,
    trigger,
)
from holdfast.checkpoint.manifest import SubtaskPart
from holdfast.model import EPOCHS_GIVEN_UP_MAX, Barrier, Epoch, SourcePosition, Subtask

BASE, FIRST = Epoch(7), Epoch(108)


def part(subtask: int, offset: int = 0) -> SubtaskPart:
    return SubtaskPart(Subtask(subtask), (SourcePosition("s", subtask, offset),), None, {}, ())


def barrier(epoch: int, committed: int = BASE, last: bool = False) -> Barrier:
    return Barrier(Epoch(epoch), Epoch(committed), last)


def idle() -> Idle:
    state = start(2, BASE, FIRST)
    assert isinstance(state, Idle)
    return state


def collecting() -> Collecting:
    state, _ = trigger(idle(), 5.0, last=False)
    assert isinstance(state, Collecting)
    return state


def deciding() -> Deciding:
    state: Coordinator = collecting()
    for subtask in (0, 1):
        state, _ = acked(state, FIRST, part(subtask))
    assert isinstance(state, Deciding)
    return state


class TestTrigger:
    def test_the_barrier_names_the_committed_epoch(self) -> None:
        """P9"""
        state, effects = trigger(idle(), 5.0, last=False)
        assert state == Collecting(2, barrier(108), 0, 5.0, {})
        assert effects == [SendBarrier(barrier(108))]

    def test_the_last_barrier_is_marked_as_last(self) -> None:
        assert trigger(idle(), 5.0, last=True)[1] == [SendBarrier(barrier(108, last=True))]

    def test_the_epoch_after_a_completed_one_builds_on_it(self) -> None:
        state, _ = appended(deciding())
        assert isinstance(state, Idle)
        assert trigger(state, 6.0, last=False)[1] == [SendBarrier(barrier(109, committed=108))]

    def test_the_epoch_after_one_given_up_builds_on_the_last_completed_epoch(self) -> None:
        """P8: from this, workers know that they must merge the other epoch forward."""
        state, _ = deadline_passed(collecting())
        assert isinstance(state, Idle)
        assert trigger(state, 6.0, last=False)[1] == [SendBarrier(barrier(109, committed=BASE))]


class TestAcks:
    def test_one_ack_is_not_enough(self) -> None:
        assert acked(collecting(), FIRST, part(1)) == (Collecting(2, barrier(108), 0, 5.0, {Subtask(1): part(1)}), [])

    def test_the_epoch_is_decided_when_every_subtask_has_acked(self) -> None:
        state, _ = acked(collecting(), FIRST, part(1))
        parts = {Subtask(0): part(0), Subtask(1): part(1)}
        assert acked(state, FIRST, part(0)) == (
            Deciding(2, barrier(108), 5.0, parts),
            [Decide(barrier(108), 5.0, (part(0), part(1)))],
        )

    def test_a_repeated_ack_changes_nothing(self) -> None:
        state, _ = acked(collecting(), FIRST, part(0))
        assert acked(state, FIRST, part(0, offset=9)) == (state, [])

    def test_an_ack_for_another_epoch_changes_nothing(self) -> None:
        assert acked(collecting(), Epoch(107), part(0)) == (collecting(), [])
        assert acked(collecting(), Epoch(109), part(0)) == (collecting(), [])

    def test_an_ack_while_no_epoch_is_open_changes_nothing(self) -> None:
        assert acked(idle(), FIRST, part(0)) == (idle(), [])
        assert acked(deciding(), FIRST, part(0)) == (deciding(), [])

    def test_an_ack_of_an_unknown_subtask_stops_the_driver(self) -> None:
        with pytest.raises(AssertionError, match="subtask 2 does not belong to this generation"):
            acked(collecting(), FIRST, part(2))


class TestDeadline:
    def test_an_epoch_that_misses_it_is_given_up(self) -> None:
        state, _ = acked(collecting(), FIRST, part(0))
        assert deadline_passed(state) == (Idle(2, BASE, Epoch(109), 1), [EpochGivenUp(FIRST, (Subtask(1),))])

    def test_an_epoch_whose_record_may_be_in_the_log_is_never_given_up(self) -> None:
        """P4"""
        assert deadline_passed(deciding()) == (deciding(), [])

    def test_the_deadline_changes_nothing_when_no_epoch_is_open(self) -> None:
        assert deadline_passed(idle()) == (idle(), [])


class TestGivingUpInARow:
    """P2: the numbers of a generation end before those of the next begin."""

    def test_a_generation_recovers_after_its_last_epoch_number(self) -> None:
        state: Coordinator = idle()
        triggered = []
        for _ in range(EPOCHS_GIVEN_UP_MAX):
            assert isinstance(state, Idle)
            state, effects = trigger(state, 0.0, last=False)
            triggered += effects
            state, _ = deadline_passed(state)
        assert isinstance(state, Idle)
        assert [e.barrier.epoch for e in triggered if isinstance(e, SendBarrier)] == list(range(108, 208))
        assert trigger(state, 0.0, last=False) == (state, [MustRecover(EPOCHS_GIVEN_UP_MAX)])

    def test_a_completed_epoch_resets_the_count(self) -> None:
        state, effects = appended(deciding())
        assert (state, effects) == (Idle(2, FIRST, Epoch(109), 0), [Announce(FIRST)])
