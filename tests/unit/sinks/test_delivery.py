from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigError, Fenced, Unavailable
from holdfast.model import Epoch, ObjectRef, Pending, Staged, Subtask, Tag, Timeline, Writer
from holdfast.sinks.protocol.delivery import (
    RETRY_FIRST_MS,
    RETRY_MAX_MS,
    TOGETHER_BYTES_MAX,
    TOGETHER_EPOCHS_MAX,
    TOGETHER_ROWS_MAX,
    AlreadyThere,
    AttemptDelivery,
    AttemptFailed,
    Confirm,
    Delivery,
    DeliveryOpening,
    DeliveryRunning,
    DeliveryStopped,
    DeliveryWaiting,
    Effect,
    Event,
    Fail,
    Open,
    Opened,
    Queue,
    RetryAfter,
    RetryDue,
    Settled,
    Succeeded,
    backlog,
    is_full,
    start,
    step,
)

WRITER = Writer("out", Subtask(3))
REFUSAL = ConfigError("duplicate key", next_step="correct the key").report()
LOST = AttemptFailed(Unavailable("no answer", next_step="wait").report(), permanent=False)


def tag(epoch: int, timeline: int = 1) -> Tag:
    return Tag(Timeline(timeline), Epoch(epoch))


def pending(epoch: int, size: int = 10, timeline: int = 1, rows: int = 1) -> Pending:
    part = ObjectRef(f"staged/1/{epoch}/out-3/0", size, "0" * 64)
    return Pending(WRITER, tag(epoch, timeline), Staged((part,), rows=rows))


FIVE, SIX, SEVEN = pending(5), pending(6), pending(7)


def play(*events: Event) -> tuple[Delivery, list[Effect]]:
    """Start, take the events; return the state and the effects of the last event."""
    state, effects = start(WRITER)
    for event in events:
        state, effects = step(state, event)
    return state, effects


class TestOpening:
    def test_the_tag_is_read_before_anything_is_attempted(self) -> None:
        assert start(WRITER) == (DeliveryOpening(WRITER, None, (), 0), [Open(WRITER)])
        assert play(Queue(FIVE)) == (DeliveryOpening(WRITER, None, (FIVE,), 0), [])

    def test_an_empty_target_gets_the_oldest_output_first(self) -> None:
        assert play(Queue(FIVE), Queue(SIX), Opened(None)) == (
            DeliveryRunning(WRITER, None, (FIVE, SIX), 0, together=2),
            [AttemptDelivery((FIVE, SIX))],
        )

    def test_output_that_the_target_already_holds_is_confirmed_and_not_attempted(self) -> None:
        assert play(Queue(FIVE), Queue(SIX), Opened(tag(5)))[1] == [Confirm(WRITER, tag(5)), AttemptDelivery((SIX,))]

    def test_a_target_that_holds_everything_is_ready(self) -> None:
        assert play(Queue(FIVE), Opened(tag(5), confirmed_by_manifest=tag(4))) == (
            Settled(WRITER, tag(5)),
            [Confirm(WRITER, tag(5))],
        )

    @pytest.mark.parametrize("delivered", [None, tag(3), tag(9, timeline=0)])
    def test_a_target_below_what_a_manifest_confirmed_stops_delivery(self, delivered: Tag | None) -> None:
        state, effects = play(Queue(FIVE), Opened(delivered, confirmed_by_manifest=tag(4)))
        assert isinstance(state, DeliveryStopped)
        match effects:
            case [Fail(writer, error)]:
                assert writer == WRITER and error.kind == "damaged"
                assert "epoch 4 was delivered to it: it was restored from a backup" in error.what
            case _:
                pytest.fail(f"{effects}")

    def test_a_target_that_loses_its_tag_while_the_job_runs_stops_delivery(self) -> None:
        state, _ = play(Queue(FIVE), Opened(None), Succeeded(tag(5)), Queue(SIX), LOST, RetryDue(), Opened(tag(4)))
        assert isinstance(state, DeliveryStopped)

    def test_a_new_timeline_is_above_every_epoch_of_the_old_one(self) -> None:
        later = pending(6, timeline=2)
        assert play(Queue(later), Opened(tag(50)))[1] == [Confirm(WRITER, tag(50)), AttemptDelivery((later,))]


class TestTargetBeyondTheCompletedEpochs:
    @pytest.mark.parametrize(
        ("queued", "opened"),
        [
            ((), Opened(tag(6), completed=tag(6))),
            ((FIVE, SIX), Opened(tag(6), completed=tag(4))),
            ((), Opened(tag(6), confirmed_by_manifest=tag(6), completed=tag(5))),
            ((), Opened(tag(50), completed=tag(6, timeline=2))),
        ],
        ids=["completed", "queued since", "confirmed by a manifest", "of a former timeline"],
    )
    def test_does_not_include_a_target_at_a_known_epoch(self, queued: tuple[Pending, ...], opened: Opened) -> None:
        assert opened.delivered is not None
        after = Settled(WRITER, opened.delivered), [Confirm(WRITER, opened.delivered)]
        assert play(*map(Queue, queued), opened) == after

    @pytest.mark.parametrize(
        ("queued", "opened", "kind"),
        [
            ((), Opened(tag(7), completed=tag(6)), "damaged"),
            ((FIVE, SIX), Opened(tag(7), completed=tag(4)), "damaged"),
            ((FIVE, SIX), Opened(tag(5, timeline=2), completed=tag(4)), "fenced"),
        ],
        ids=["completed", "queued since", "of a later timeline"],
    )
    def test_stops_delivery(self, queued: tuple[Pending, ...], opened: Opened, kind: str) -> None:
        state, effects = play(*map(Queue, queued), opened)
        assert isinstance(state, DeliveryStopped)
        assert [each.error.kind for each in effects if isinstance(each, Fail)] == [kind]


class TestDelivering:
    def test_the_next_attempt_begins_when_the_previous_one_succeeded(self) -> None:
        assert play(Opened(None), Queue(FIVE), Queue(SIX), Succeeded(tag(5)))[1] == [
            Confirm(WRITER, tag(5)),
            AttemptDelivery((SIX,)),
        ]

    def test_output_queued_at_an_idle_writer_is_attempted_immediately(self) -> None:
        assert play(Opened(None), Queue(FIVE)) == (
            DeliveryRunning(WRITER, None, (FIVE,), 0),
            [AttemptDelivery((FIVE,))],
        )

    def test_the_writer_is_ready_after_the_last_attempt(self) -> None:
        assert play(Opened(None), Queue(FIVE), Succeeded(tag(5)))[0] == Settled(WRITER, tag(5))

    def test_a_target_beyond_the_attempt_drops_all_output_it_covers(self) -> None:
        events = (Opened(None), Queue(FIVE), Queue(SIX), Queue(SEVEN), AlreadyThere(tag(6)))
        assert play(*events)[1] == [Confirm(WRITER, tag(6)), AttemptDelivery((SEVEN,))]

    def test_output_queued_again_by_a_recovery_is_ignored(self) -> None:
        before = play(Opened(None), Queue(FIVE), Queue(SIX), Succeeded(tag(5)))[0]
        assert [step(before, Queue(again)) for again in (FIVE, SIX)] == [(before, []), (before, [])]

    def test_output_queued_out_of_order_is_an_error_of_the_caller(self) -> None:
        with pytest.raises(AssertionError, match="overtaken"):
            play(Opened(None), Queue(SIX), Queue(FIVE))

    def test_an_epoch_staged_in_two_ways_is_an_error_of_the_caller(self) -> None:
        with pytest.raises(AssertionError, match="two ways"):
            play(Opened(None), Queue(FIVE), Queue(pending(5, size=11)))

    def test_a_reply_to_another_attempt_is_an_error_of_the_caller(self) -> None:
        with pytest.raises(AssertionError, match="another attempt"):
            play(Opened(None), Queue(FIVE), Succeeded(tag(4)))


def attempted(*queue: Pending, after: tuple[Event, ...] = (Opened(None),)) -> list[int]:
    """Return the epochs of the attempt that follows these events."""
    match play(*map(Queue, queue), *after)[1]:
        case [*_, AttemptDelivery(epochs)]:
            return [each.tag.epoch for each in epochs]
        case effects:
            pytest.fail(f"{effects}")


class TestLaggingWriter:
    def test_all_output_queued_in_the_meantime_is_attempted_in_one_transaction(self) -> None:
        events = (Opened(None), Queue(FIVE), Queue(SIX), Queue(SEVEN), Succeeded(tag(5)))
        assert play(*events) == (
            DeliveryRunning(WRITER, tag(5), (SIX, SEVEN), 0, together=2),
            [Confirm(WRITER, tag(5)), AttemptDelivery((SIX, SEVEN))],
        )
        assert play(*events, Succeeded(tag(7))) == (Settled(WRITER, tag(7)), [Confirm(WRITER, tag(7))])

    def test_output_queued_during_an_attempt_is_not_part_of_it(self) -> None:
        events = (Queue(FIVE), Queue(SIX), Opened(None), Queue(SEVEN))
        assert play(*events, Succeeded(tag(6)))[1] == [Confirm(WRITER, tag(6)), AttemptDelivery((SEVEN,))]
        with pytest.raises(AssertionError, match="another attempt"):
            play(*events, Succeeded(tag(7)))

    def test_a_target_that_takes_one_epoch_at_a_time_continues_with_the_rest(self) -> None:
        events = (Queue(FIVE), Queue(SIX), Queue(SEVEN), Opened(None), Succeeded(tag(5)))
        assert play(*events)[1] == [Confirm(WRITER, tag(5)), AttemptDelivery((SIX, SEVEN))]

    def test_a_target_that_holds_some_of_the_epochs_is_given_the_rest(self) -> None:
        events = (Queue(FIVE), Queue(SIX), Queue(SEVEN), Opened(None), AlreadyThere(tag(6)))
        assert play(*events)[1] == [Confirm(WRITER, tag(6)), AttemptDelivery((SEVEN,))]

    def test_an_attempt_is_bounded_in_epochs_bytes_and_rows(self) -> None:
        assert attempted(*map(pending, range(1, 31))) == list(range(1, TOGETHER_EPOCHS_MAX + 1))
        half = TOGETHER_BYTES_MAX // 2
        assert attempted(*(pending(n, half) for n in range(1, 5))) == [1, 2]
        assert attempted(*(pending(n, rows=TOGETHER_ROWS_MAX // 2) for n in range(1, 5))) == [1, 2]

    def test_an_epoch_above_the_bounds_is_attempted_alone(self) -> None:
        assert attempted(pending(1, TOGETHER_BYTES_MAX + 1), pending(2)) == [1]
        assert attempted(pending(1, rows=TOGETHER_ROWS_MAX + 1), pending(2)) == [1]
        assert attempted(pending(1), pending(2, TOGETHER_BYTES_MAX + 1)) == [1]

    def test_epochs_of_two_timelines_are_not_attempted_together(self) -> None:
        assert attempted(FIVE, SIX, pending(6, timeline=2)) == [5, 6]

    def test_each_failure_halves_the_epochs_of_the_next_attempt(self) -> None:
        """Their number may be what keeps the target from taking them."""
        queue, again = tuple(map(pending, range(1, 31))), (LOST, RetryDue(), Opened(None))
        counts = [len(attempted(*queue, after=(Opened(None), *again * failures))) for failures in range(6)]
        assert counts == [16, 8, 4, 2, 1, 1]

    def test_epochs_before_an_undeliverable_one_are_delivered(self) -> None:
        refusal = AttemptFailed(REFUSAL, permanent=True)
        events: tuple[Event, ...] = (Queue(FIVE), Queue(SIX), Opened(None), refusal)
        assert play(*events) == (DeliveryRunning(WRITER, None, (FIVE, SIX), 0), [AttemptDelivery((FIVE,))])
        assert play(*events, Succeeded(tag(5)))[1] == [Confirm(WRITER, tag(5)), AttemptDelivery((SIX,))]
        assert play(*events, Succeeded(tag(5)), refusal)[1] == [Fail(WRITER, REFUSAL)]
        assert play(*events, refusal)[1] == [Fail(WRITER, REFUSAL)]

    def test_a_fenced_writer_does_not_retry(self) -> None:
        refused = Fenced("another driver owns it", next_step="leave").report()
        fenced = AttemptFailed(refused, permanent=True)
        assert play(Queue(FIVE), Queue(SIX), Opened(None), fenced)[1] == [Fail(WRITER, refused)]


class TestFailure:
    def test_the_tag_is_read_again_before_the_next_attempt(self) -> None:
        assert play(Opened(None), Queue(FIVE), LOST) == (
            DeliveryWaiting(WRITER, None, (FIVE,), 1),
            [RetryAfter(WRITER, RETRY_FIRST_MS)],
        )
        assert play(Opened(None), Queue(FIVE), LOST, RetryDue())[1] == [Open(WRITER)]
        assert play(Opened(None), Queue(FIVE), LOST, RetryDue(), Opened(None))[1] == [AttemptDelivery((FIVE,))]

    def test_a_completed_delivery_whose_reply_was_lost_is_not_repeated(self) -> None:
        events = (Opened(None), Queue(FIVE), LOST, RetryDue(), Opened(tag(5)))
        assert play(*events) == (Settled(WRITER, tag(5)), [Confirm(WRITER, tag(5))])

    def test_the_wait_doubles_up_to_a_limit_though_the_tag_can_be_read(self) -> None:
        state, _ = play(Opened(None), Queue(FIVE))
        waits = []
        for _ in range(40):
            state, effects = step(state, LOST)
            waits += [effect.delay_ms for effect in effects if isinstance(effect, RetryAfter)]
            state = step(step(state, RetryDue())[0], Opened(None))[0]
        assert waits[:3] == [RETRY_FIRST_MS, 2 * RETRY_FIRST_MS, 4 * RETRY_FIRST_MS]
        assert (len(waits), waits[-1]) == (40, RETRY_MAX_MS)

    def test_a_success_ends_the_long_waits(self) -> None:
        events = (Opened(None), Queue(FIVE), Queue(SIX), LOST, RetryDue(), LOST, RetryDue(), Opened(None))
        assert play(*events, Succeeded(tag(5)), LOST)[1] == [RetryAfter(WRITER, RETRY_FIRST_MS)]

    def test_a_permanent_failure_stops_with_its_own_error(self) -> None:
        refusal = AttemptFailed(REFUSAL, permanent=True)
        assert play(Opened(None), Queue(FIVE), refusal) == (
            DeliveryStopped(WRITER, (FIVE,), REFUSAL),
            [Fail(WRITER, REFUSAL)],
        )

    def test_nothing_happens_after_the_stop(self) -> None:
        stopped = play(AttemptFailed(REFUSAL, permanent=True))[0]
        assert step(stopped, Queue(FIVE)) == (stopped, [])


class TestBacklog:
    def test_the_backlog_counts_epochs_and_bytes_without_a_confirmed_delivery(self) -> None:
        assert backlog(play(Queue(pending(5, 10)), Queue(pending(6, 7)))[0]) == (2, 17)
        assert backlog(play(Opened(None), Queue(pending(5, 10)), Queue(pending(6, 7)), Succeeded(tag(5)))[0]) == (1, 7)
        assert backlog(play(Opened(tag(5)))[0]) == (0, 0)

    def test_the_backlog_is_full_in_epochs_or_in_bytes(self) -> None:
        state = play(Queue(pending(5, 10)), Queue(pending(6, 7)))[0]
        assert (is_full(state, 2, 100), is_full(state, 3, 17), is_full(state, 3, 18)) == (True, True, False)


@dataclass
class World:
    """A target with a tag, a job that commits and crashes, and replies that get lost."""

    epochs: int
    state: Delivery = field(init=False)
    todo: list[Effect] = field(init=False)
    committed: int = 0
    stands: Tag | None = None
    visible: list[int] = field(default_factory=list)
    confirmed: Tag | None = None
    stragglers: list[tuple[Pending, ...]] = field(default_factory=list)
    merges: bool = True

    def __post_init__(self) -> None:
        self.state, self.todo = start(WRITER)

    def take(self, event: Event) -> None:
        self.state, effects = step(self.state, event)
        self.todo += effects

    def apply(self, attempt: tuple[Pending, ...]) -> bool:
        if self.stands is not None and self.stands >= attempt[0].tag:
            return False
        self.stands = attempt[-1].tag
        self.visible += [each.tag.epoch for each in attempt]
        return True

    def commit(self) -> None:
        if self.committed < self.epochs:
            self.committed += 1
            self.take(Queue(pending(self.committed)))

    def queue_again(self) -> None:
        """Recovery: everything that no manifest confirmed, in order."""
        for epoch in range(1 if self.confirmed is None else self.confirmed.epoch + 1, self.committed + 1):
            self.take(Queue(pending(epoch)))

    def crash(self) -> None:
        """The process dies with its machine; an attempt in progress may still arrive later."""
        self.stragglers += [effect.epochs for effect in self.todo if isinstance(effect, AttemptDelivery)]
        self.state, self.todo = start(WRITER)
        self.queue_again()

    def perform(self, fate: str) -> None:
        """Carry out the oldest effect; `fate` decides the outcome of a request to the target."""
        effect = self.todo.pop(0)
        match effect:
            case Confirm(_, confirmed):
                assert self.stands is not None and confirmed <= self.stands, "confirmed before it was in"
                self.confirmed = confirmed
            case RetryAfter():
                self.take(RetryDue())
            case Open():
                self.take(LOST if fate != "works" else Opened(self.stands, self.confirmed))
            case AttemptDelivery(epochs):
                self.attempt(epochs if self.merges else epochs[:1], fate)
            case Fail():
                pytest.fail(f"stopped: {effect}")

    def attempt(self, epochs: tuple[Pending, ...], fate: str) -> None:
        if fate == "works":
            moved = self.apply(epochs)
            assert self.stands is not None
            self.take(Succeeded(epochs[-1].tag) if moved else AlreadyThere(self.stands))
            return
        if fate == "reply lost":
            self.apply(epochs)
        if fate == "late":
            self.stragglers.append(epochs)
        self.take(LOST)


class TestEveryOrderOfEvents:
    @given(
        st.lists(
            st.sampled_from(["commit", "works", "works", "reply lost", "refused", "late", "land", "crash", "again"]),
            max_size=120,
        ),
        st.booleans(),
    )
    def test_each_epoch_becomes_visible_once_and_in_order(self, script: list[str], merges: bool) -> None:
        world = World(epochs=12, merges=merges)
        for action in script:
            match action:
                case "commit":
                    world.commit()
                case "crash":
                    world.crash()
                case "again":
                    world.queue_again()
                case "land":
                    if world.stragglers:
                        world.apply(world.stragglers.pop())
                case fate:
                    if world.todo:
                        world.perform(fate)
            assert world.visible == list(range(1, len(world.visible) + 1))
            assert len(world.visible) <= world.committed
            under_way = [effect for effect in world.todo if isinstance(effect, Open | AttemptDelivery | RetryAfter)]
            assert len(under_way) == (0 if isinstance(world.state, Settled) else 1)
        while world.todo:
            world.perform("works")
        assert world.visible == list(range(1, world.committed + 1))
        assert isinstance(world.state, Settled) and backlog(world.state) == (0, 0)
        assert world.confirmed == world.stands
