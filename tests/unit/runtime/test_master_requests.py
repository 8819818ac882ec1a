"""What the master does with requests: savepoints, the three ways to stop, and runs that read only so far."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.checkpoint import joblog
from holdfast.model import Barrier, Epoch, Generation, SourcePosition, Timeline
from holdfast.runtime.driver.epochs import repeated
from holdfast.runtime.driver.events import CreateRecord, End, Send
from holdfast.runtime.driver.requests import Answer, carry_out
from holdfast.runtime.driver.state import SAVEPOINTS_WAITING_MAX, Finishing, Stopping
from holdfast.runtime.wire import messages as m
from tests.unit.runtime.test_master import RULES, A, B, C, Run, acked, blob, completed, kinds, replaced, running

FIRST = Generation(1)
ACCEPTED = Answer(True, Generation(1))


def ask(run: Run, kind: str, generation: int = 1, first: Generation = FIRST, **args: Any) -> Answer | None:
    state, effects, answer = carry_out(run.state, kind, args, generation, first)
    run.take((state, effects))
    return answer


def refused(answer: Answer | None) -> str:
    assert answer is not None and not answer.accepted and answer.reason is not None
    return answer.reason


def last_record(run: Run) -> joblog.Body:
    return next(e.record.body for e in reversed(run.effects) if isinstance(e, CreateRecord))


def closed(run: Run, epoch: int, *workers: Any) -> joblog.Body:
    """The open epoch is acked and its record appended; returns the body of the record."""
    for worker in workers or (A, B):
        run.ack(worker, epoch)
    run.store()
    body = last_record(run)
    run.append()
    return body


def name_of(body: joblog.Body) -> str | None:
    assert isinstance(body, joblog.CheckpointCompleted)
    return body.savepoint


class TestGenerationOfARequest:
    def test_a_request_for_an_earlier_run_is_answered_and_not_carried_out(self) -> None:
        run = running()
        before = run.state
        assert "earlier run" in refused(ask(run, "stop", generation=1, first=Generation(2)))
        assert run.state == before

    def test_a_request_for_an_unknown_generation_is_left_to_its_driver(self) -> None:
        run = running()
        before = run.state
        assert ask(run, "stop", generation=2) is None
        assert run.state == before

    def test_a_request_for_an_earlier_generation_of_this_run_is_carried_out(self) -> None:
        run = running()
        run.lose(B)
        replaced(run)
        assert ask(run, "stop", generation=1) == Answer(True, Generation(2))
        assert run.state.ending == Stopping()

    @pytest.mark.parametrize(
        ("kind", "args"), [("dance", {}), ("stop", {"how": "slowly"}), ("savepoint", {}), ("savepoint", {"name": 7})]
    )
    def test_an_invalid_request_is_refused(self, kind: str, args: dict[str, Any]) -> None:
        run = running()
        before = run.state
        assert refused(ask(run, kind, **args))
        assert run.state == before

    def test_no_request_is_carried_out_after_the_end(self) -> None:
        run = running()
        ask(run, "stop", how="now")
        assert refused(ask(run, "savepoint", name="v1")) == "the run is over"


class TestSavepoints:
    def test_the_next_epoch_is_closed_immediately_and_carries_the_name(self) -> None:
        """P13"""
        run = running()
        assert ask(run, "savepoint", name="v1") == ACCEPTED
        trigger = m.Trigger(Generation(1), Barrier(Epoch(1), Epoch(0), False))
        assert run.pass_time(0.0) == [Send(A, trigger), Send(B, trigger)]
        assert closed(run, 1) == joblog.CheckpointCompleted(Epoch(1), Epoch(0), blob("manifests/1"), 0, 0, 0, "v1")
        assert run.state.job.savepoints == (joblog.Savepoint("v1", Epoch(1)),)
        assert run.state.savepoints == ()

    def test_an_epoch_that_is_already_open_does_not_get_the_name(self) -> None:
        run = running()
        run.pass_time(10.0)
        ask(run, "savepoint", name="v1")
        assert name_of(closed(run, 1)) is None
        run.pass_time(0.0)
        assert name_of(closed(run, 2)) == "v1"

    def test_one_epoch_takes_one_name(self) -> None:
        run = running()
        ask(run, "savepoint", name="v1")
        ask(run, "savepoint", name="v2")
        run.pass_time(0.0)
        assert name_of(closed(run, 1)) == "v1"
        run.pass_time(0.0)
        assert name_of(closed(run, 2)) == "v2"
        assert run.pass_time(1.0) == []

    def test_a_name_survives_an_epoch_that_is_given_up(self) -> None:
        """P8"""
        run = running()
        ask(run, "savepoint", name="v1")
        run.pass_time(0.0)
        assert kinds(run.pass_time(32.0))[:2] == [m.Trigger, m.Trigger]
        assert name_of(closed(run, 2)) == "v1"

    def test_a_name_survives_the_loss_of_a_worker(self) -> None:
        run = running()
        ask(run, "savepoint", name="v1")
        run.pass_time(0.0)
        run.ack(A, 1)
        run.lose(B)
        replaced(run)
        run.pass_time(0.0)
        assert name_of(closed(run, 101, A, C)) == "v1"

    def test_a_worker_lost_while_the_name_is_appended_does_not_repeat_it(self) -> None:
        """P4"""
        run = running()
        ask(run, "savepoint", name="v1")
        run.pass_time(0.0)
        run.ack(A, 1)
        run.ack(B, 1)
        run.store()
        run.lose(B)
        run.append()
        replaced(run)
        assert run.state.job.savepoints == (joblog.Savepoint("v1", Epoch(1)),)
        assert run.state.savepoints == ()

    def test_a_name_can_be_given_only_once(self) -> None:
        run = running()
        ask(run, "savepoint", name="v1")
        assert "is already being taken" in refused(ask(run, "savepoint", name="v1"))
        run.pass_time(0.0)
        closed(run, 1)
        assert "already" in refused(ask(run, "savepoint", name="v1"))

    def test_the_number_of_waiting_savepoints_is_limited(self) -> None:
        run = running()
        for number in range(SAVEPOINTS_WAITING_MAX):
            assert ask(run, "savepoint", name=f"v{number}") == ACCEPTED
        assert "waiting" in refused(ask(run, "savepoint", name="one-more"))

    def test_a_name_that_another_process_gave_first_is_not_given_again(self) -> None:
        """P6: the driver's own record follows, without the name."""
        run = running()
        completed(run)
        ask(run, "savepoint", name="v1")
        run.pass_time(0.0)
        run.ack(A, 2)
        run.ack(B, 2)
        run.store()
        body = joblog.SavepointNamed(Epoch(1), "v1")
        job = run.state.job
        foreign = joblog.Record(job.next_seq, job.uuid, job.generation, Timeline(1), "somebody", 0, body)
        run.log.append(foreign)
        (again,) = run.append()
        assert isinstance(again, CreateRecord) and again.record.seq == foreign.seq + 1
        assert name_of(again.record.body) is None
        run.append()
        assert run.state.job.savepoints == (joblog.Savepoint("v1", Epoch(1)),)
        assert (run.state.savepoints, run.state.job.base_epoch) == ((), 2)

    def test_the_last_barrier_waits_until_at_most_one_name_is_left(self) -> None:
        run = running()
        ask(run, "savepoint", name="v1")
        ask(run, "savepoint", name="v2")
        ask(run, "stop")
        (first, _) = run.pass_time(0.0)
        assert isinstance(first, Send) and isinstance(first.message, m.Trigger) and not first.message.barrier.last
        closed(run, 1)
        (second, _) = run.pass_time(0.0)
        assert isinstance(second, Send) and isinstance(second.message, m.Trigger) and second.message.barrier.last
        assert name_of(closed(run, 2)) == "v2"

    def test_no_savepoint_is_accepted_after_the_last_barrier(self) -> None:
        run = running()
        ask(run, "stop")
        run.pass_time(0.0)
        assert "last barrier is out" in refused(ask(run, "savepoint", name="v1"))


class TestFinish:
    END = m.EndInput(Generation(1))

    def test_the_request_is_repeated_to_workers_until_all_have_ended(self) -> None:
        run = running()
        ask(run, "stop", how="finish")
        assert run.pass_time(0.0) == [Send(A, self.END), Send(B, self.END)]
        run.beat(A, ended=True)
        assert [e for e in repeated(run.state) if e == Send(B, self.END)]
        run.beat(B, ended=True)
        assert not [e for e in repeated(run.state) if e == Send(B, self.END)]

    def test_unread_records_are_dropped_only_on_request_and_irrevocably(self) -> None:
        run = running()
        assert ask(run, "stop", how="finish", unread="drop") == ACCEPTED
        dropping = m.EndInput(Generation(1), drop_unread=True)
        assert [e for e in run.effects if isinstance(e, Send)][-2:] == [Send(A, dropping), Send(B, dropping)]
        ask(run, "stop", how="finish")
        assert Send(A, dropping) in repeated(run.state)
        assert "unread" in refused(ask(running(), "stop", how="finish", unread="keep"))

    def test_a_finish_ends_like_the_end_of_input(self) -> None:
        run = running()
        ask(run, "stop", how="finish")
        run.pass_time(0.0)
        assert run.pass_time(1.0) == []
        run.beat(A, ended=True)
        run.beat(B, ended=True)
        trigger = m.Trigger(Generation(1), Barrier(Epoch(1), Epoch(0), True), finishing=True)
        assert run.pass_time(0.0) == [Send(A, trigger), Send(B, trigger)]
        closed(run, 1)
        run.pass_time(0.0)
        assert last_record(run) == joblog.Finished(Epoch(1))

    def test_a_recovery_repeats_the_request_to_the_workers(self) -> None:
        run = running()
        ask(run, "stop", how="finish")
        run.pass_time(0.0)
        run.beat(A, ended=True)
        run.lose(B)
        replaced(run)
        reported = m.EndInput(Generation(2))
        assert [e for e in repeated(run.state) if e in (Send(A, reported), Send(C, reported))] == [
            Send(A, reported),
            Send(C, reported),
        ]

    def test_a_later_stop_does_not_revoke_a_finish(self) -> None:
        run = running()
        ask(run, "stop", how="finish")
        ask(run, "stop")
        assert run.state.ending == Finishing(drop_unread=False)

    def test_a_finish_after_the_last_barrier_was_sent_is_refused(self) -> None:
        run = running()
        ask(run, "stop")
        assert ask(run, "stop", how="finish") == ACCEPTED
        run = running()
        ask(run, "stop")
        run.pass_time(0.0)
        assert "already stopping" in refused(ask(run, "stop", how="finish"))

    @pytest.mark.parametrize("once", [False, True])
    def test_a_finish_is_refused_even_if_the_epoch_of_the_last_barrier_was_given_up(self, once: bool) -> None:
        """The workers that have had the barrier read nothing more, so they would never reach the end."""
        run = running(replace(RULES, until=UNTIL) if once else RULES)
        if once:
            for worker in (A, B):
                run.hear(run.heartbeat(worker, caught_up=True))
        else:
            ask(run, "stop")
        run.pass_time(0.0)
        run.pass_time(31.0, alive=(A, B))
        assert run.state.given_up == 1
        assert "already stopping" in refused(ask(run, "stop", how="finish"))
        run.lose(B)
        replaced(run)
        assert ask(run, "stop", how="finish") == Answer(True, Generation(2)), "the workers of a new generation read on"

    def test_a_finish_is_accepted_if_the_last_barrier_of_a_finish_was_given_up(self) -> None:
        run = running()
        for worker in (A, B):
            run.beat(worker, ended=True)
        run.pass_time(0.0)
        run.pass_time(31.0, alive=(A, B))
        assert run.state.given_up == 1
        assert ask(run, "stop", how="finish") == ACCEPTED


class TestStopNow:
    def test_nothing_is_triggered_or_appended(self) -> None:
        run = running()
        acked(run)
        effects = len(run.effects)
        assert ask(run, "stop", how="now") == ACCEPTED
        assert run.effects[effects:] == [Send(A, m.Exit("ended")), Send(B, m.Exit("ended")), End("ended", None)]
        assert run.pass_time(100.0) == []

    def test_the_next_run_resumes_from_the_last_checkpoint(self) -> None:
        run = running()
        completed(run)
        ask(run, "stop", how="now")
        (start,) = run.begin("next")
        assert isinstance(start, CreateRecord)
        assert start.record.body == joblog.GenerationStarted(Epoch(102), Epoch(1), "here", "started")


UNTIL = {"s": {0: 5, 1: 7, 2: 0}}


class TestOnce:
    def beat(self, run: Run, worker: Any, *, caught_up: bool = True, ended: bool = False) -> None:
        run.hear(run.heartbeat(worker, ended, caught_up=caught_up))

    def test_the_workers_are_given_the_offsets_to_read_to(self) -> None:
        run = running(replace(RULES, until=UNTIL))
        reported = [e.message.until for e in run.effects if isinstance(e, Send) and isinstance(e.message, m.Deploy)]
        assert reported[0] == (SourcePosition("s", 0, 5), SourcePosition("s", 2, 0))
        assert reported[1] == (SourcePosition("s", 1, 7),)

    def test_the_run_stops_when_all_have_read_to_the_end_and_can_be_resumed(self) -> None:
        run = running(replace(RULES, until=UNTIL))
        self.beat(run, A)
        assert run.pass_time(1.0) == []
        self.beat(run, B)
        trigger = m.Trigger(Generation(1), Barrier(Epoch(1), Epoch(0), True))
        assert run.pass_time(0.0) == [Send(A, trigger), Send(B, trigger)]
        closed(run, 1)
        run.pass_time(0.0)
        assert last_record(run) == joblog.Stopped(Epoch(1))

    def test_input_that_has_ended_finishes_the_job(self) -> None:
        run = running(replace(RULES, until=UNTIL))
        self.beat(run, A, ended=True)
        self.beat(run, B, ended=True)
        run.pass_time(0.0)
        closed(run, 1)
        run.pass_time(0.0)
        assert last_record(run) == joblog.Finished(Epoch(1))

    def test_a_finish_waits_for_the_end_of_the_input(self) -> None:
        run = running(replace(RULES, until=UNTIL))
        ask(run, "stop", how="finish")
        run.pass_time(0.0)
        self.beat(run, A)
        self.beat(run, B)
        assert run.pass_time(0.0) == []
        self.beat(run, A, ended=True)
        self.beat(run, B, ended=True)
        assert kinds(run.pass_time(0.0)) == [m.Trigger, m.Trigger]

    def test_offsets_read_before_a_recovery_do_not_count(self) -> None:
        run = running(replace(RULES, until=UNTIL))
        self.beat(run, A)
        run.lose(B)
        replaced(run)
        self.beat(run, C)
        assert run.pass_time(1.0) == []
        self.beat(run, A)
        assert kinds(run.pass_time(0.0)) == [m.Trigger, m.Trigger]

    def test_a_run_without_fixed_ends_ignores_the_report(self) -> None:
        run = running()
        self.beat(run, A)
        self.beat(run, B)
        assert run.pass_time(1.0) == []
