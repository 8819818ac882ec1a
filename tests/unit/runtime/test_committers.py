"""How the driver hands the output of sinks with one committer to the worker that hosts it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from master_runs import OUT0, RULES, A, B, C, Run, completed, replaced, running, staged, tag

from holdfast.checkpoint.manifest import Confirmed
from holdfast.model import Generation, ObjectRef, Pending, Staged, Subtask
from holdfast.runtime.driver import epochs
from holdfast.runtime.driver.epochs import repeated
from holdfast.runtime.driver.events import Effect, Send
from holdfast.runtime.wire import messages as m
from holdfast.sinks.protocol import delivery

ONCE = replace(RULES, committed_once=("out",))


def epoch(run: Run, number: int, size: int = 10) -> list[Effect]:
    """Both workers stage output, and the epoch completes."""
    run.pass_time(10.0)
    for worker in (A, B):
        run.ack(worker, number, staged={"out": Staged((ObjectRef(f"{worker}{number}", size, ""),), 1)})
    run.store()
    return run.append()


def whole(number: int, size: int = 10) -> Pending:
    """The output of both workers."""
    parts = tuple(ObjectRef(f"{worker}{number}", size, "") for worker in (A, B))
    return Pending(OUT0, tag(number), Staged(parts, 2))


def handed(run: Run, *numbers: int) -> Send:
    return Send(A, m.Deliver(Generation(1), tuple(map(whole, numbers))))


class TestCommittedOutput:
    def test_committed_output_of_all_writers_is_handed_to_the_committer_at_the_commit(self) -> None:
        run = running(ONCE)
        assert handed(run, 1) in epoch(run, 1)
        assert run.manifests[-1].pending == (whole(1),)
        assert run.manifests[-1].committed_once == ("out",)

    def test_is_repeated_with_every_pulse_until_it_is_confirmed(self) -> None:
        """P9"""
        run = running(ONCE)
        epoch(run, 1)
        for _ in range(2):
            assert handed(run, 1) in repeated(run.state)
        epoch(run, 2)
        assert handed(run, 1, 2) in repeated(run.state)
        run.beat(A, delivered=1)
        assert handed(run, 2) in repeated(run.state)
        run.beat(A, delivered=2)
        assert epochs.hand_over(run.state) == []

    def test_is_handed_over_oldest_first_and_without_a_gap(self) -> None:
        """P18"""
        run, most = running(ONCE), epochs.HANDED_OVER_MAX
        for number in range(1, most + 3):
            epoch(run, number)
        assert epochs.hand_over(run.state) == [handed(run, *range(1, most + 1))]
        run.beat(A, delivered=1)
        assert epochs.hand_over(run.state) == [handed(run, *range(2, most + 2))]

    def test_committed_output_of_an_earlier_generation_is_in_the_deployment(self) -> None:
        run = running(ONCE)
        epoch(run, 1)
        run.lose(A)
        replaced(run)
        (deploy,) = [e.message for e in run.effects if isinstance(e, Send) and e.worker == C][:1]
        assert isinstance(deploy, m.Deploy) and deploy.subtask == Subtask(0) and deploy.pending == (whole(1),)
        assert epochs.hand_over(run.state) == []

    def test_output_of_sinks_without_a_committer_is_not_handed_over(self) -> None:
        run = running(RULES)
        completed(run, staged={"out": staged("a")})
        assert epochs.hand_over(run.state) == []
        assert run.manifests[-1].pending == (Pending(OUT0, tag(1), staged("a")),)


class TestTooMuchCommittedOutput:
    """P18: every worker stops its sources, also one that has nothing of its own to deliver."""

    def stops(self, run: Run) -> bool:
        told = {e.message.behind for e in repeated(run.state) if isinstance(e, Send) and isinstance(e.message, m.Pulse)}
        (behind,) = told
        return behind

    def test_stops_the_sources_of_all_workers_by_its_bytes(self) -> None:
        run = running(replace(ONCE, staged_bytes_max=20))
        epoch(run, 1)
        assert not self.stops(run)
        epoch(run, 2)
        assert self.stops(run)
        run.beat(A, delivered=1)
        assert not self.stops(run)

    def test_stops_them_by_its_epochs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right = delivery.too_much
        monkeypatch.setattr(delivery, "too_much", lambda epochs, size, **_: right(epochs, 0, epochs_max=2))
        run = running(ONCE)
        epoch(run, 1)
        assert not self.stops(run)
        epoch(run, 2)
        assert self.stops(run)


class TestOutputThatAnEarlierVersionLeft:
    def left(self) -> Run:
        """The base has output of writer 1, under its own tag."""
        run = running()
        run.pass_time(10.0)
        run.ack(A, 1)
        run.ack(B, 1, staged={"out": staged("b")})
        run.store()
        run.append()
        run.rules = ONCE
        run.begin("another")
        run.append()
        run.load()
        run.register(A, B)
        run.ready(A, B)
        return run

    def test_keeps_the_next_epoch_waiting_until_it_is_delivered(self) -> None:
        """P20"""
        run = self.left()
        assert not [e for e in run.pass_time(20.0) if isinstance(e, Send) and isinstance(e.message, m.Trigger)]
        (item,) = run.manifests[-1].pending
        done = (Confirmed(item.writer, item.tag),)
        run.hear(run.heartbeat(B, done=done))
        assert [e for e in run.pass_time(20.0) if isinstance(e, Send) and isinstance(e.message, m.Trigger)]

    def test_is_delivered_by_the_worker_that_gets_it_with_its_deployment(self) -> None:
        run = self.left()
        deploys = [e.message for e in run.effects if isinstance(e, Send) and isinstance(e.message, m.Deploy)]
        assert [each.pending for each in deploys[-2:]] == [(), run.manifests[-1].pending]
        assert epochs.hand_over(run.state) == []
