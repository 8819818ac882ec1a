"""How long a job that cannot run keeps retrying with the default settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from master_runs import RULES, A, B, Run, completed, opened, replaced, running

import holdfast as hf
from holdfast.checkpoint import joblog
from holdfast.model import EPOCHS_GIVEN_UP_MAX, Generation, WorkerId
from holdfast.runtime.config.settings import resolve
from holdfast.runtime.driver.events import CreateRecord, End, Launch
from holdfast.runtime.driver.failover import ALIKE_MAX, launch_allowed_at
from holdfast.runtime.driver.state import Rules
from holdfast.runtime.processes.host import unexpected
from holdfast.runtime.wire import messages as m

MINUTE = 60.0


def rules() -> Rules:
    """Return the rules that a run without any setting has."""
    settings = resolve(hf.App("job"))
    return replace(
        RULES,
        restart_failures_max=settings.restart_failures_max,
        restart_window=settings.restart_window_ms / 1000,
        restart_backoff_first=settings.restart_backoff_first_ms / 1000,
        restart_backoff_max=settings.restart_backoff_max_ms / 1000,
    )


def ended(run: Run) -> str | None:
    """Return the cause that ended the run, None while it continues."""
    ends = [effect for effect in run.effects if isinstance(effect, End)]
    return None if not ends else getattr(ends[0].error, "what", "")


def fail_every_launch(
    run: Run, attempt_s: float, until_s: float, said: Callable[[int], str] = lambda number: f"attempt {number}"
) -> float:
    """Let every started worker end after this time; return how long the run lasted."""
    began, number, due = run.now, 0, 0.0
    while ended(run) is None and run.now - began < until_s:
        run.pass_time(0.1)
        last = max((effect.number for effect in run.effects if isinstance(effect, Launch)), default=0)
        if last > number and due == 0.0:
            due = run.now + attempt_s
        if due and run.now >= due:
            number, due = last, 0.0
            run.end_launch(number, said(number))
    return run.now - began


class TestByDefault:
    def test_a_job_that_always_fails_immediately_ends_after_minutes_with_its_cause(self) -> None:
        run = opened(replace(rules(), key_ranges=((0, 128),)))
        took = fail_every_launch(run, 0.0, 60 * MINUTE)
        assert took == pytest.approx(333, abs=5)
        assert ended(run) == "a worker could not be started: attempt 1"

    @pytest.mark.parametrize(("noticed_after_s", "seconds"), [(0.0, 336), (5.0, 368)])
    def test_streams_that_are_cut_repeatedly_are_restored_for_minutes(
        self, noticed_after_s: float, seconds: int
    ) -> None:
        run = running(rules())
        began = run.now
        while ended(run) is None:
            run.pass_time(noticed_after_s)
            run.beat(A, broken=True)
            while not any(isinstance(e, CreateRecord | End) for e in run.pass_time(0.1)):
                pass
            if ended(run) is None:
                run.append()
                run.ready(A, B)
        assert run.now - began == pytest.approx(seconds, abs=12)
        assert ended(run) == "a data channel broke between live workers"

    def test_attempts_longer_than_seven_seconds_each_are_repeated_without_limit(self) -> None:
        run = opened(replace(rules(), key_ranges=((0, 128),)))
        fail_every_launch(run, 7.0, 20 * MINUTE)
        assert ended(run) is None


def many(workers: int) -> tuple[Run, list[WorkerId]]:
    """Return a job that runs on so many workers."""
    names = [WorkerId(chr(ord("a") + number)) for number in range(workers)]
    run = opened(replace(rules(), key_groups=workers, key_ranges=tuple((n, n + 1) for n in range(workers))))
    run.pass_time(0.0)
    run.register(*names)
    run.ready(*names)
    return run, names


MISSING = "ModuleNotFoundError: No module named 'helpers'"


class TestAnErrorOfTheCode:
    """No worker can run the code: the run ends soon, and not after the minutes that an unreachable host is given."""

    def one(self) -> Run:
        return opened(replace(rules(), key_ranges=((0, 128),)))

    def test_at_every_start_ends_the_run_in_seconds_with_its_cause_and_what_to_do(self) -> None:
        run = self.one()
        took = fail_every_launch(run, 1.0, MINUTE, lambda _: MISSING)
        assert took == pytest.approx(8.0, abs=1.5) and len(run.state.failures) == ALIKE_MAX
        [over] = [effect for effect in run.effects if isinstance(effect, End)]
        assert over.outcome == "failed" and over.error is not None and over.error.kind == "failed"
        assert over.error.what == f"a worker could not be started: {MISSING}; 6 workers in a row ended with this error"
        assert "--py-files" in over.error.next and "resumes" in over.error.next

    def test_may_be_a_library_that_the_root_of_the_job_needs(self) -> None:
        run = self.one()
        fail_every_launch(run, 1.0, MINUTE, lambda _: "ConfigError: s3:// needs s3fs; install it: pip install s3fs")
        assert len(run.state.failures) == ALIKE_MAX and "pip install s3fs; 6 workers" in (ended(run) or "")

    def test_is_recognised_although_it_names_addresses_of_objects(self) -> None:
        run = self.one()
        fail_every_launch(
            run, 1.0, MINUTE, lambda number: f"TypeError: <Shop object at 0x7f{number:010x}> has no len()"
        )
        assert len(run.state.failures) == ALIKE_MAX

    @pytest.mark.parametrize("said", [lambda n: f"NameError: name 'x{n}' is not defined", lambda n: "OSError: no room"])
    def test_does_not_end_it_soon_if_it_changes_or_may_pass(self, said: Callable[[int], str]) -> None:
        run = self.one()
        fail_every_launch(run, 1.0, MINUTE, said)
        assert ended(run) is None and len(run.state.failures) > ALIKE_MAX

    def test_in_a_worker_that_knows_no_generation_yet_is_the_cause_of_its_loss(self) -> None:
        run = running(rules())
        run.hear(m.Failed(A, Generation(0), unexpected(TypeError("no shop")), permanent=False))
        assert A not in run.state.workers
        assert [failure.error.what for failure in run.state.failures] == ["TypeError: no shop"]
        run.end_launch(1, "TypeError: no shop")
        assert [failure.code for failure in run.state.failures] == ["TypeError: no shop"]

    def test_a_code_error_reported_by_spark_after_the_stream_closed_counts(self) -> None:
        run = running(rules())
        for _ in range(ALIKE_MAX - 1):
            [launch] = [hosted.launch for worker, hosted in run.state.workers.items() if worker == A]
            run.lose(A)
            run.end_launch(launch, MISSING)
            run.pass_time(MINUTE)
            replaced(run, A)
        assert ended(run) is None
        [launch] = [hosted.launch for worker, hosted in run.state.workers.items() if worker == A]
        run.lose(A)
        assert ended(run) is None
        run.end_launch(launch, MISSING)
        assert ended(run) == f"stream closed ({MISSING}); 6 workers in a row ended with this error"

    def test_before_and_after_a_completed_epoch_are_not_in_a_row(self) -> None:
        run = running(rules())
        for _ in range(2):
            for _ in range(ALIKE_MAX - 1):
                run.hear(m.Failed(A, run.state.job.generation, unexpected(TypeError("no shop")), permanent=False))
                run.pass_time(20.0)
                replaced(run, A)
            assert ended(run) is None
            completed(run, run.state.job.starts[-1].first_epoch)
        assert len(run.state.failures) == 2 * (ALIKE_MAX - 1)


class TestSeveralWorkersLostTogether:
    def test_all_are_replaced_together(self) -> None:
        run, workers = many(8)
        before = run.state.launches
        for worker in workers:
            run.lose(worker, "its executor ended")
        run.pass_time(0.1)
        assert run.state.launches == before + 8

    def test_any_number_of_workers_lost_together_is_one_failure(self) -> None:
        run, workers = many(60)
        for worker in workers:
            run.lose(worker)
        assert ended(run) is None
        assert len(run.state.failures) == 1

    def test_losses_noticed_while_the_next_generation_gathers_are_the_same_failure(self) -> None:
        run, (a, b, *_) = many(3)
        run.lose(a)
        run.pass_time(0.1)
        run.append()
        run.lose(b)
        assert len(run.state.failures) == 1

    def test_a_replacement_that_is_lost_too_is_another_failure(self) -> None:
        run, (a, *_) = many(3)
        run.lose(a)
        run.pass_time(0.1)
        run.end_launch(run.state.launches)
        assert len(run.state.failures) == 2

    def test_a_loss_after_every_subtask_was_ready_again_is_another_failure(self) -> None:
        run, (a, b, c) = many(3)
        run.lose(a)
        run.pass_time(0.1)
        run.append()
        run.register(WorkerId("d"))
        run.ready(b, c, WorkerId("d"))
        run.lose(b)
        assert len(run.state.failures) == 2

    def test_workers_that_could_not_be_started_together_are_one_failure(self) -> None:
        run = opened(replace(rules(), key_ranges=((0, 64), (64, 128))))
        run.pass_time(0.0)
        run.end_launch(1)
        run.end_launch(2)
        assert len(run.state.failures) == 1


class TestCompletedEpoch:
    def test_resets_the_growing_waits(self) -> None:
        """The next failure is answered immediately, as the first one was."""
        run = running(replace(rules(), restart_failures_max=100))
        for _ in range(4):
            run.lose(A)
            run.pass_time(MINUTE)
            replaced(run, A)
        assert launch_allowed_at(run.state) > run.state.failures[-1].at
        completed(run, run.state.job.starts[-1].first_epoch)
        run.lose(A)
        assert launch_allowed_at(run.state) <= run.now
        assert any(isinstance(effect, Launch) for effect in run.pass_time(0.0))


class TestWaits:
    """Before a launch, and before broken channels are recovered: they double until an epoch completes."""

    def test_before_a_launch(self) -> None:
        run = opened(replace(RULES, restart_failures_max=100, key_ranges=((0, 128),)))
        run.pass_time(0.0)
        waits = []
        for number in range(1, 7):
            run.end_launch(number)
            before = run.now
            while not any(isinstance(e, Launch) for e in run.pass_time(0.25)):
                pass
            waits.append(run.now - before)
        assert waits == [0.25, 0.5, 1.0, 2.0, 4.0, 4.0]

    def test_after_a_broken_channel(self) -> None:
        rules = replace(RULES, restart_failures_max=100, restart_backoff_first=0.5, restart_backoff_max=4.0)
        run, waits = running(rules), []
        for _ in range(8):
            run.beat(A, broken=True)
            waits.append(1)
            while not any(isinstance(effect, CreateRecord) for effect in run.pass_time(1.1)):
                waits[-1] += 1
            run.append()
            run.ready(A, B)
        assert waits == [1, 1, 1, 1, 2, 4, 4, 4]


class TestRecoveries:
    def test_are_over_when_every_subtask_is_ready(self) -> None:
        run = running()
        run.lose(B, "stream closed")
        run.now += 2.0
        replaced(run)
        (restart,) = run.state.restarts
        assert (restart.at, restart.cause, restart.generation, restart.ready_after) == (100.0, "stream closed", 2, 2.0)
        assert run.state.recovering_since is None

    def test_are_forced_by_too_many_epochs_that_were_given_up_in_a_row(self) -> None:
        """P2"""
        run = running()
        starts: list[CreateRecord] = []
        for _ in range(50 * EPOCHS_GIVEN_UP_MAX):
            starts += [effect for effect in run.pass_time(1.0) if isinstance(effect, CreateRecord)]
            if starts:
                break
        (start,) = starts
        assert run.state.given_up == EPOCHS_GIVEN_UP_MAX
        assert isinstance(start.record.body, joblog.GenerationStarted)
        assert start.record.body.first_epoch == 1 + EPOCHS_GIVEN_UP_MAX
        assert start.record.body.cause == "100 epochs in a row were not completed"
