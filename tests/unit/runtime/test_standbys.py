"""Standbys: who follows what, what they are sent, and how one takes a subtask over."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from master_runs import RULES, A, B, C, Run, blob, completed, opened, running
from msgspec import msgpack

import holdfast as hf
from holdfast.checkpoint.bases import pieces
from holdfast.errors import Unavailable
from holdfast.model import NO_EPOCH, Epoch, SegmentRef, Subtask, WorkerId
from holdfast.runtime.driver import master, standbys
from holdfast.runtime.driver.epochs import repeated
from holdfast.runtime.driver.events import Effect, Launch, LaunchEnded, Moment, Send
from holdfast.runtime.driver.failover import LAUNCH_DEADLINE_S
from holdfast.runtime.driver.state import Master, Rules
from holdfast.runtime.job.standbys import LAG_SHOWN_EPOCHS, problems
from holdfast.runtime.job.status import of_run
from holdfast.runtime.wire import messages as m
from holdfast.runtime.worker import compaction
from holdfast.runtime.worker.local import opened as opening
from holdfast.testing import TestDriver

D = WorkerId("d")
ZERO, ONE = Subtask(0), Subtask(1)
ONE_STANDBY = replace(RULES, standbys=1)
TWO_STANDBYS = replace(RULES, standbys=2)


def with_standby(rules: Rules = ONE_STANDBY) -> Run:
    """Both subtasks are ready, and C is a standby."""
    run = running(rules)
    run.pass_time(0.0)
    run.register(C)
    return run


def followed(effects: list[Effect]) -> list[tuple[WorkerId, Subtask, int]]:
    """Who is sent which subtask as of which epoch."""
    sent = [(effect.worker, effect.message) for effect in effects if isinstance(effect, Send)]
    return [(to, message.subtask, message.base_epoch) for to, message in sent if isinstance(message, m.Follow)]


def segment(epoch: int) -> SegmentRef:
    return SegmentRef(Epoch(epoch), Epoch(epoch - 1), blob(f"segments/{epoch}"))


def sent(run: Run) -> list[m.Follow]:
    """What the standbys are sent now."""
    messages = [each.message for each in repeated(run.state) if isinstance(each, Send)]
    return [each for each in messages if isinstance(each, m.Follow)]


def copied(run: Run, worker: WorkerId, *copies: tuple[Subtask, int]) -> None:
    """A standby reports its copies."""
    held = tuple(m.StandbyCopy(subtask, Epoch(epoch)) for subtask, epoch in copies)
    run.hear(run.heartbeat(worker, copies=held))


def roles(run: Run) -> dict[WorkerId, m.Role | None]:
    return {worker: hosted.role for worker, hosted in run.state.workers.items()}


def launches(effects: list[Effect]) -> int:
    return sum(isinstance(effect, Launch) for effect in effects)


def epoch(state: Master) -> Epoch:
    return state.job.base_epoch


def follows(run: Run, worker: WorkerId) -> tuple[Subtask, ...]:
    role = roles(run)[worker]
    assert isinstance(role, m.Standby)
    return role.follows


class TestLaunches:
    def test_wait_until_every_subtask_has_a_worker(self) -> None:
        run = running(ONE_STANDBY)
        assert run.state.launches == 2
        assert launches(run.pass_time(0.0)) == 1
        assert launches(run.pass_time(1.0)) == 0

    def test_standby_launches_without_result_do_not_count_as_failures(self) -> None:
        run = running(ONE_STANDBY)
        run.pass_time(0.0)
        effects = run.pass_time(10 * LAUNCH_DEADLINE_S)
        assert run.state.deployed is not None and run.state.failures == ()
        assert 5 <= launches(effects) <= 10

    def test_follow_with_growing_delays_until_all_copies_are_complete(self) -> None:
        run = with_standby()
        completed(run)
        for delay in (0.5, 1.0, 2.0):
            run.lose(C)
            assert launches(run.pass_time(delay - 0.25)) == 0
            assert launches(run.pass_time(1.25)) == 1
            run.register(C)
        assert run.state.standby_failures == 3
        copied(run, C, (ZERO, epoch(run.state)), (ONE, epoch(run.state)))
        assert run.state.standby_failures == 0
        run.lose(C)
        assert launches(run.pass_time(0.75)) == 1

    def test_do_not_follow_a_worker_that_takes_a_subtask(self) -> None:
        run = with_standby()
        run.lose(A)
        effects = run.pass_time(0.0)
        assert launches(effects) == 0
        replaced_by = run.append()
        assert launches(replaced_by) == 0


class TestWhoFollows:
    def test_one_standby_follows_every_subtask(self) -> None:
        assert roles(with_standby())[C] == m.Standby((ZERO, ONE))

    def test_a_second_one_takes_a_copy_over_once_it_has_it(self) -> None:
        run = with_standby(TWO_STANDBYS)
        completed(run)
        copied(run, C, (ZERO, epoch(run.state)), (ONE, epoch(run.state)))
        run.register(D)
        assert roles(run)[C] == m.Standby((ZERO, ONE))
        assert roles(run)[D] == m.Standby((ZERO,))
        copied(run, D, (ZERO, epoch(run.state)))
        run.pass_time(0.0, alive=(A, B, C, D))
        assert roles(run)[C] == m.Standby((ONE,))
        assert roles(run)[D] == m.Standby((ZERO,))

    def test_the_copies_of_a_lost_standby_are_followed_by_another(self) -> None:
        run = with_standby(TWO_STANDBYS)
        completed(run)
        copied(run, C, (ZERO, epoch(run.state)), (ONE, epoch(run.state)))
        run.register(D)
        for worker in (C, D):
            copied(run, worker, *((subtask, epoch(run.state)) for subtask in follows(run, worker)))
        run.pass_time(0.0, alive=(A, B, C, D))
        assert [follows(run, worker) for worker in (C, D)] == [(ONE,), (ZERO,)]
        run.lose(D)
        run.pass_time(0.0)
        assert follows(run, C) == (ZERO, ONE)

    def test_a_worker_beyond_the_standbys_follows_nothing(self) -> None:
        run = running()
        run.register(C)
        assert roles(run) == {A: m.ActiveRole(ZERO), B: m.ActiveRole(ONE), C: None}

    def test_another_host_is_preferred(self) -> None:
        run = running(TWO_STANDBYS)
        run.pass_time(0.0)
        for worker, host in ((C, "here"), (D, "there")):
            run.hear(m.Register(worker, min(run.state.launching), host, 1, "boot", ("here", 1)))
        new = {worker: replace(run.state.workers[worker], role=None) for worker in (C, D)}
        covered = standbys.cover(replace(run.state, workers={**run.state.workers, **new}))
        assert covered.workers[C].role == m.Standby((ONE,))
        assert covered.workers[D].role == m.Standby((ZERO,))

    @pytest.mark.parametrize(("parallelism", "standbys", "most"), [(8, 2, 4), (7, 3, 3), (2, 3, 1), (200, 4, 50)])
    def test_copies_spread_over_the_standbys(self, parallelism: int, standbys: int, most: int) -> None:
        ranges = tuple((s, s + 1) for s in range(parallelism))
        run = opened(replace(RULES, key_groups=parallelism, key_ranges=ranges, standbys=standbys))
        run.pass_time(0.0)
        active = tuple(WorkerId(f"{number:03}") for number in range(parallelism))
        spare = tuple(WorkerId(f"spare-{number}") for number in range(standbys))
        for worker in active:
            run.hear(m.Register(worker, min(run.state.launching), "here", 1, "boot", ("here", 1)))
        run.ready(*active)
        run.pass_time(0.0, alive=active)
        for worker in spare:
            run.hear(m.Register(worker, min(run.state.launching), "there", 1, "boot", ("there", 1)))
        for _ in range(3):
            for worker in spare:
                copied(run, worker, *((subtask, 0) for subtask in follows(run, worker)))
            run.pass_time(0.0, alive=(*active, *spare))
        spread = [follows(run, worker) for worker in spare]
        assert {subtask for each in spread for subtask in each} == set(range(parallelism))
        assert max(map(len, spread)) == most


class TestFollow:
    def test_names_the_state_of_a_completed_epoch(self) -> None:
        run = with_standby()
        assert followed(run.effects) == []
        effects = completed(run, segment=SegmentRef(Epoch(1), Epoch(0), blob("segments/1")))
        done = epoch(run.state)
        assert followed(effects) == [(C, ZERO, done), (C, ONE, done)]
        message = next(e.message for e in effects if isinstance(e, Send) and isinstance(e.message, m.Follow))
        assert [piece.object for piece in message.handle.segments] == [blob("segments/1")]
        assert message.role == m.Standby((ZERO, ONE)) and set(message.lineage) == {done}
        assert m.FROM_DRIVER.decode(msgpack.encode(message)) == message

    def test_is_repeated_until_the_copy_is_reported(self) -> None:
        run = with_standby()
        completed(run)
        copied(run, C, (ONE, epoch(run.state)))
        assert followed(repeated(run.state)) == [(C, ZERO, epoch(run.state))]
        copied(run, C, (ZERO, epoch(run.state)), (ONE, epoch(run.state)))
        assert followed(repeated(run.state)) == []

    def test_waits_while_the_standby_restores_a_copy(self) -> None:
        run = with_standby()
        copied(run, C)
        run.hear(m.Heartbeat(C, run.generation, False, False, (), m.WorkerProgress(restored=(1, 2))))
        assert followed(completed(run)) == [] == followed(repeated(run.state))
        copied(run, C, (ONE, epoch(run.state)))
        assert followed(repeated(run.state)) == [(C, ZERO, epoch(run.state))]

    def test_names_only_the_epochs_that_a_copy_needs(self) -> None:
        run = with_standby()
        for number in range(1, 4):
            completed(run, number)
        copied(run, C, (ZERO, 2))
        sent = [e.message for e in repeated(run.state) if isinstance(e, Send) and isinstance(e.message, m.Follow)]
        assert [(each.subtask, sorted(each.lineage)) for each in sent] == [(ZERO, [2, 3]), (ONE, [1, 2, 3])]

    def test_is_sent_to_a_standby_that_comes_later(self) -> None:
        run = running(ONE_STANDBY)
        completed(run)
        run.pass_time(0.0)
        assert followed(run.register(C)) == [(C, ZERO, epoch(run.state)), (C, ONE, epoch(run.state))]

    def test_leads_a_slow_copy_past_a_base(self) -> None:
        """A base does not record deletions, so a copy older than it needs the segments that it replaced."""
        run = with_standby()
        for number in range(1, 5):
            completed(run, number, segment=segment(number))
        copied(run, C, (ZERO, 1), (ONE, 4))
        completed(run, 5, segment=segment(5), compacted=SegmentRef(Epoch(3), NO_EPOCH, blob("base/3")))
        first, _ = sent(run)
        assert (first.subtask, first.base_epoch, sorted(first.lineage)) == (ZERO, 4, [1, 4])
        assert [piece.object.path for piece in pieces(first.handle)] == [f"segments/{n}" for n in range(1, 5)]
        copied(run, C, (ZERO, 4), (ONE, 5))
        (second,) = sent(run)
        assert (second.base_epoch, pieces(second.handle)[0].object) == (5, blob("base/3"))
        completed(run, 6, segment=segment(6))
        assert run.state.deployed is not None and run.state.deployed.waypoints == {}

    def test_leads_a_copy_past_a_base_made_while_it_was_restored(self) -> None:
        run = with_standby()
        completed(run, 1, segment=segment(1))
        run.hear(m.Heartbeat(C, run.generation, False, False, (), m.WorkerProgress(restored=(1, 2))))
        for number in range(2, 4):
            completed(run, number, segment=segment(number))
        for base in (2, 4):
            compacted = SegmentRef(Epoch(base), NO_EPOCH, blob(f"base/{base}"))
            completed(run, base + 2, segment=segment(base + 2), compacted=compacted)
            completed(run, base + 3, segment=segment(base + 3))
        reached = []
        for at in (1, 3, 5):
            copied(run, C, (ZERO, at), (ONE, 7))
            reached += [each.base_epoch for each in sent(run)]
        assert reached == [3, 5, 7]

    def test_names_no_expired_epoch(self) -> None:
        run = with_standby()
        for number in range(1, 5):
            completed(run, number, segment=segment(number))
        copied(run, C, (ZERO, 1), (ONE, 4))
        completed(run, 5, segment=segment(5), compacted=SegmentRef(Epoch(3), NO_EPOCH, blob("base/3")))
        phase = run.state.deployed
        assert phase is not None
        handle = phase.last.state[0] if phase.last else None
        assert handle is not None
        known = phase.waypoints
        assert standbys.next_for(known, handle, Epoch(1), {Epoch(4)}.__contains__) == known[ZERO][0]
        assert standbys.next_for(known, handle, Epoch(1), {Epoch(5)}.__contains__) is None


class TestLosses:
    def test_losses_of_a_standby_do_not_affect_the_generation_and_the_restart_limit(self) -> None:
        run = with_standby()
        before = run.generation
        for _ in range(RULES.restart_failures_max + 2):
            run.lose(C)
            run.pass_time(5.0)
            run.register(C)
        assert run.generation == before and run.state.failures == ()

    def test_the_newest_copy_takes_over_a_lost_subtask(self) -> None:
        run = with_standby(TWO_STANDBYS)
        completed(run)
        run.register(D)
        copied(run, C, (ZERO, epoch(run.state) - 1), (ONE, epoch(run.state)))
        copied(run, D, (ZERO, epoch(run.state)))
        run.lose(A)
        run.pass_time(0.0, alive=(B, C, D))
        run.append()
        deployed = {e.worker: e.message for e in run.load() if isinstance(e, Send) and isinstance(e.message, m.Deploy)}
        assert {worker: message.subtask for worker, message in deployed.items()} == {B: ONE, D: ZERO}
        assert m.FROM_DRIVER.decode(msgpack.encode(deployed[D])) == deployed[D]

    def test_are_not_taken_over_by_a_copy_that_a_rewind_abandoned(self) -> None:
        run = with_standby(TWO_STANDBYS)
        completed(run)
        run.register(D)
        copied(run, C, (ZERO, 99))
        copied(run, D, (ZERO, epoch(run.state)))
        assert standbys.newest_copy(run.state, ZERO, (C, D)) == D

    def test_a_launch_lost_in_a_recovery_with_enough_workers_does_not_count(self) -> None:
        run = with_standby(replace(TWO_STANDBYS, restart_failures_max=1))
        (pending,) = run.state.launching
        run.lose(A)
        run.pass_time(0.0)
        run.append()
        failures = len(run.state.failures)
        run.take(master.step(run.state, LaunchEnded(pending, "no slot"), Moment(run.now)))
        assert len(run.state.failures) == failures == 1 and run.state.standby_failures == 1

    def test_by_a_machine_that_cannot_see_the_files_leave_the_run_alone(self) -> None:
        run = running(replace(ONE_STANDBY, machine=("here", "boot"), local_paths=("the root at /data",)))
        run.pass_time(0.0)
        effects = run.hear(m.Register(C, min(run.state.launching), "there", 1, "other boot", ("there", 1)))
        assert [type(each.message) for each in effects if isinstance(each, Send)] == [m.Exit]
        assert run.state.deployed is not None and C not in run.state.workers
        assert "the root at /data" in run.state.standby_error

    def test_two_lost_subtasks_wait_for_one_new_worker(self) -> None:
        run = with_standby()
        run.lose(A)
        run.lose(B)
        assert launches(run.pass_time(0.0)) == 1


class TestStatus:
    def test_shows_what_a_standby_follows_and_lacks(self) -> None:
        run = with_standby()
        for number in range(1, 4):
            completed(run, number)
        run.hear(run.heartbeat(C, copies=(m.StandbyCopy(ZERO, Epoch(1), 20), m.StandbyCopy(ONE, Epoch(2), 10))))
        shown = {worker.id: worker for worker in of_run(run.state, "root", "continuous", None).workers}[C]
        assert (shown.role, shown.subtasks, shown.follows) == ("standby", (), (0, 1))
        assert (shown.lag_epochs, shown.lag_bytes) == (2, 30)

    def test_alarms_when_a_copy_lags(self) -> None:
        run = with_standby()
        completed(run)
        copied(run, C, (ZERO, 1), (ONE, 1))
        for number in range(2, LAG_SHOWN_EPOCHS + 2):
            assert [problem.code for problem in problems(run.state)] == []
            completed(run, number)
        (problem,) = problems(run.state)
        assert problem.code == "standby_lags" and f"lacks the last {LAG_SHOWN_EPOCHS} epochs" in problem.what

    def test_alarms_when_standbys_fail(self) -> None:
        run = with_standby()
        for _ in range(3):
            run.lose(C)
            run.pass_time(5.0)
            run.register(C)
        (problem,) = problems(run.state)
        assert problem.code == "standbys_fail" and "3 times" in problem.what and "stream closed" in problem.what


@dataclass
class Word:
    word: str


def counting(standbys: int) -> hf.App:
    app = hf.App("counting", standbys=standbys)
    words = app.source("words", hf.Generator(Word, lambda i: Word("a"), count=1))
    words.key_by("word").agg("counts", rows=hf.count()).sink(
        "out", hf.SQLite("unused.db", table="counts", key=["word"])
    )
    return app


class TestTakeover:
    @pytest.mark.parametrize("crashes", [1, 3])
    def test_continues_from_the_copy(self, crashes: int) -> None:
        with TestDriver(counting(1), seed=crashes) as t:
            for number in range(crashes):
                t.push("words", [Word(word) for word in ("a", "b", "c", "d")], partition=number)
                t.checkpoint()
                t.push("words", [Word("a"), Word("e")], partition=number)
                t.crash(number % 2)
                how = {h.subtask: h.how for h in t.cluster.driver.state.workers.values() if h.subtask is not None}
                assert how == {number % 2: "promoted", 1 - number % 2: "rolled back"}
                t.recover()
            t.checkpoint()
            assert {row["word"]: row["rows"] for row in t.rows("out")} == {
                "a": 2 * crashes, "b": crashes, "c": crashes, "d": crashes, "e": crashes
            }  # fmt: skip

    def test_a_restore_that_fails_once_is_repeated(self, monkeypatch: pytest.MonkeyPatch) -> None:
        failed = list[int]()

        def restore(state: Any, plan: Any, target: Any, read: Any, advanced: Any) -> None:
            if not failed:
                failed.append(1)
                advanced(1, 2)
                raise Unavailable("the root is away", not_done="", next_step="")
            compaction.restore(state, plan, target, read, advanced)

        monkeypatch.setattr(opening, "restore", restore)
        with TestDriver(counting(1)) as t:
            t.push("words", [Word("a"), Word("b")])
            last = t.checkpoint()
            t.advance("5s")
            copies = [copy.epoch for h in t.cluster.driver.state.workers.values() for copy in h.heartbeat.copies]
            assert failed and copies == [last, last]

    def test_is_refused_in_microbatch_mode(self) -> None:
        with pytest.raises(hf.ConfigError, match="standbys is 1, but in microbatch mode no worker stays"):
            TestDriver(counting(1), mode="microbatch")

    def test_restores_after_a_rewind_below_the_copy(self) -> None:
        with TestDriver(counting(1)) as t:
            t.push("words", [Word("a"), Word("b")])
            first = t.checkpoint()
            t.push("words", [Word("a"), Word("b")])
            t.checkpoint()
            t.advance("2s")
            member = next(m for m in t.cluster.members.values() if m.loop._following.stock())
            taken = member.loop._following
            t.rewind(first)
            assert all(copy.epoch > first for copy in taken.stock()), "its copies are of epochs that are no more"
            t.crash(0)
            how = {h.subtask: h.how for h in t.cluster.driver.state.workers.values() if h.subtask is not None}
            assert how[ZERO] == "restored"
            t.recover()
            t.checkpoint()
            assert {row["word"]: row["rows"] for row in t.rows("out")} == {"a": 2, "b": 2}
