"""How the job master handles reports of companions, and how status and explain show them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import get_args

import pytest
from master_runs import RULES, A, B, Run, kinds, running

import holdfast as hf
from holdfast.model import DriverProcess, WorkerId
from holdfast.runtime.api.stream import Stream
from holdfast.runtime.driver import master
from holdfast.runtime.driver.events import CreateRecord, Dismiss, End, Moment, Tick
from holdfast.runtime.driver.state import Interrupted
from holdfast.runtime.job import explain, status
from holdfast.runtime.job.live import Status
from holdfast.runtime.processes.companion import Board
from holdfast.runtime.processes.host import marks_of
from holdfast.runtime.testing import cluster
from holdfast.runtime.wire import messages as m
from holdfast.runtime.wire.vitals import At, State
from holdfast.runtime.worker.loop import WorkerLoop
from tests.unit.runtime.test_slow_functions import Played, Row, numbers

MARK = "function: map parse"
STEP = "the Python function of step 'map parse'"
SILENT_S = RULES.silent_after + 1


def vitals(
    worker: WorkerId, state: State, mark: str | None = MARK, for_ms: int = 7_000, memory: bool = False
) -> m.Vitals:
    return m.Vitals(worker, state, mark, for_ms, memory)


def shown(run: Run) -> Status:
    return status.of_run(run.state, "root", "continuous", DriverProcess(host="h", pid=1, at=0, owner="o"))


class TestWorkerReportedByItsCompanion:
    def test_is_not_silent_while_it_holds_its_interpreter(self) -> None:
        run = running()
        for _ in range(100):
            run.hear(vitals(A, "held"))
            run.pass_time(RULES.silent_after, alive=(B,))
        assert set(run.state.workers) == {A, B} and run.state.failures == ()

    def test_is_awaited_by_a_recovery_that_needs_it(self) -> None:
        """Until its interpreter is free it takes no data connection: its channels break in every generation."""
        run = running()
        run.hear(vitals(A, "held"))
        run.beat(B, broken=True)
        assert CreateRecord not in kinds(run.pass_time(60.0)) and run.state.failures == ()
        run.beat(A)
        assert CreateRecord in kinds(run.pass_time(1.0)) and len(run.state.failures) == 1

    def test_is_named_with_its_function_by_status_and_explain(self) -> None:
        run = running()
        run.hear(vitals(A, "held"))
        found = [each for each in explain.findings(shown(run)) if each.code == "slow_function"]
        assert [STEP in each.what for each in found] == [True]
        [problem] = status.of_run(run.state, "root", "continuous", None).problems
        assert problem.code == "slow_function" and STEP in problem.what and "hung_after_ms" in str(problem.next)

    @pytest.mark.parametrize(
        ("mark", "code", "named"),
        [("source: s", "slow_source", "a read of source 's'"), (None, "slow_function", "code outside Python")],
    )
    def test_is_named_even_outside_any_function(self, mark: str | None, code: str, named: str) -> None:
        run = running()
        run.hear(vitals(A, "held", mark))
        found = [each for each in explain.findings(shown(run)) if each.code == code]
        assert [named in each.what for each in found] == [True]

    def test_is_silent_if_its_companion_is_silent(self) -> None:
        run = running()
        run.hear(vitals(A, "held"))
        run.pass_time(SILENT_S, alive=(B,))
        assert set(run.state.workers) == {B}
        assert f"silent for 6.0 s, while it ran {STEP}" in run.state.failures[0].error.what

    def test_has_no_companion_report_once_it_sends_heartbeats(self) -> None:
        run = running()
        run.hear(vitals(A, "held"))
        run.beat(A)
        run.lose(A)
        assert run.state.failures[0].error.what == "stream closed"
        assert all(each.code != "slow_function" for each in explain.findings(shown(run)))

    def test_a_companion_report_on_a_dismissed_worker_changes_nothing(self) -> None:
        run = running()
        run.lose(A)
        before = run.state
        for state in get_args(State):
            assert run.hear(vitals(A, state)) == [] and run.state == before


class TestAWorkerThatEnds:
    def test_is_named_with_its_function_in_the_log_and_in_the_failure(self) -> None:
        run = running()
        run.hear(vitals(A, "ended"))
        run.lose(A, "worker a (pid 1) closed its stream")
        wanted = f"worker a (pid 1) closed its stream, while it ran {STEP}"
        assert isinstance(run.state.phase, Interrupted) and run.state.phase.cause == wanted
        (failure,) = run.state.failures
        assert failure.error.what == wanted
        assert "os._exit" in failure.error.next

    def test_for_lack_of_memory_is_reported_with_that_cause(self) -> None:
        run = running()
        run.hear(vitals(A, "ended", memory=True))
        run.lose(A)
        assert "killed a process on that machine because it ran out of memory" in run.state.failures[0].error.what

    def test_outside_user_code_is_reported_without_a_function(self) -> None:
        run = running()
        run.hear(vitals(A, "ended", mark=None))
        run.lose(A, "worker a closed its stream")
        assert run.state.failures[0].error.what == "worker a closed its stream"

    def test_a_worker_that_reported_its_own_cause_keeps_that_cause(self) -> None:
        run = running()
        run.hear(vitals(A, "held"))
        run.fail(A, "no room")
        assert run.state.failures[0].error.what == "no room"

    def test_repeatedly_fails_the_run_with_the_name_of_the_function(self) -> None:
        run = running()
        run.state = replace(run.state, rules=replace(run.state.rules, restart_failures_max=0))
        run.hear(vitals(A, "ended"))
        run.lose(A)
        (end,) = [each for each in run.effects if isinstance(each, End)]
        assert end.error is not None and STEP in end.error.what


class TestAWorkerThatHangs:
    def test_is_dismissed_and_named(self) -> None:
        run = running()
        assert any(isinstance(each, Dismiss) for each in run.hear(vitals(A, "hung", for_ms=120_400)))
        ended = "worker a (pid 1 on here) was ended: it held its interpreter for 120 s"
        assert isinstance(run.state.phase, Interrupted)
        assert run.state.phase.cause == f"{ended}, while it ran {STEP}"
        assert "hung_after_ms" in run.state.failures[0].error.next


class TestStoppedDriver:
    def test_does_not_treat_workers_as_silent(self) -> None:
        run = running()
        run.pass_time(1.0)
        run.now += 100.0
        run.take(master.step(run.state, Tick(), Moment(run.now)))
        assert set(run.state.workers) == {A, B}
        run.pass_time(SILENT_S, alive=(B,))
        assert set(run.state.workers) == {B}


class TestMarks:
    def test_are_set_while_a_function_or_source_is_called_and_are_listed_beforehand(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[str | None] = []
        monkeypatch.setattr(cluster, "WorkerLoop", partial(WorkerLoop, mark=lambda what, at=None: seen.append(what)))

        def build(app: hf.App, takes: Callable[[float], None]) -> Stream:
            def parse(row: Row) -> Row:
                seen.append("called")
                return row

            return app.source("s", numbers(3)).map(parse, to=Row)

        played = Played(build).run(5)
        assert played.keys() == [0, 1, 2]
        assert seen[:7] == ["source: s", None, MARK, "called", "called", "called", None]
        assert seen[-1] is None
        assert marks_of(played.plan) == ["source: s", MARK]

    def test_are_cleared_when_a_function_raises(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[str | None] = []
        monkeypatch.setattr(cluster, "WorkerLoop", partial(WorkerLoop, mark=lambda what, at=None: seen.append(what)))

        def build(app: hf.App, takes: Callable[[float], None]) -> Stream:
            def parse(row: Row) -> Row:
                raise ValueError(row)

            return app.source("s", numbers(3)).map(parse, to=Row)

        assert (Played(build).run(5).cluster.driver.outcome or ("",))[0] == "failed"
        assert seen[2:4] == [MARK, None]


class TestBusyOperator:
    @pytest.mark.parametrize(
        ("mark", "name", "blocked_by"), [(MARK, "map parse", "its Python function"), ("source: s", "s", "a read")]
    )
    def test_is_named_in_the_status(self, mark: str, name: str, blocked_by: str) -> None:
        run = running()
        progress = m.WorkerProgress(
            operators=tuple(m.OperatorProgress(n, 1, 1, 0) for n in ("map parse", "s", "other"))
        )
        run.hear(m.Heartbeat(A, run.generation, False, False, (), progress))
        run.hear(vitals(A, "held", mark))
        assert {row.name: row.blocked_by for row in shown(run).operators if row.blocked_by} == {name: blocked_by}

    def test_stay_when_a_function_has_no_memory_left_which_ends_the_process(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        board = Board([MARK])
        monkeypatch.setattr(cluster, "WorkerLoop", partial(WorkerLoop, mark=board.mark))

        def build(app: hf.App, takes: Callable[[float], None]) -> Stream:
            def parse(row: Row) -> Row:
                raise MemoryError

            return app.source("s", numbers(3)).map(parse, to=Row)

        with pytest.raises(MemoryError):
            Played(build).run(5)
        assert board.noted() == (MARK, At(3, 0, 0, 3))
        board.close()
