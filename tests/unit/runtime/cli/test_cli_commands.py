"""`holdfast events`, `explain`, `savepoint` and `completion`, the ways to stop, and what `run` refuses."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.checkpoint import joblog
from holdfast.errors import AlreadyExists, Unavailable
from holdfast.runtime.cli.main import COMMANDS
from holdfast.runtime.cli.operate.savepoint import name_last
from holdfast.runtime.execution.checks import savepoint
from holdfast.runtime.execution.checks.ordered import refuse
from holdfast.runtime.inspect.stored import Stored, open_job
from holdfast.runtime.job import requests
from holdfast.runtime.job.requests import Inbox, JobRequest

if TYPE_CHECKING:
    from tests.unit.runtime.cli.conftest import Ended, History

    Holdfast = Callable[..., Ended]
    Begin = Callable[[str], History]


def with_log_start(root: Path, history: Begin) -> Stored:
    """A job with the savepoints `old` and `new`; of its log only what cannot be pruned is left, and a `LogStart`."""
    job = history("hot")
    for epoch, name in ((5, "old"), (6, None), (7, "new")):
        job.checkpoint(epoch)
        if name is not None:
            name_last(open_job(str(root), "hot"), name, "x", 1)
            job._seq += 1
    job._append(joblog.Expired(job._epochs[1]))
    job._append(joblog.LogStart(open_job(str(root), "hot").job))
    job.repository.prune(job._seq, set())
    return open_job(str(root), "hot")


@contextmanager
def driver(job: History, does: Callable[[JobRequest], dict[str, Any]]) -> Iterator[None]:
    """Answers the first request as a driver would, in a thread."""
    over = threading.Event()

    def answer() -> None:
        inbox = Inbox(job.store)
        while not (found := inbox.poll()) and not over.is_set():
            pass
        for request in found:
            inbox.answer(request, {"generation": request.generation, "reason": None} | does(request))

    answering = threading.Thread(target=answer)
    answering.start()
    try:
        yield
    finally:
        over.set()
        answering.join()


def three_parts(ended: Ended, status: int) -> str:
    assert (ended.status, ended.out) == (status, "")
    what, not_done, next_step = ended.err.splitlines()
    assert not_done.startswith("Not done: ") and next_step.startswith("Next: ")
    return what


class TestEvents:
    def test_starts_restarts_savepoints_and_ends_have_cause_and_duration(
        self, holdfast: Holdfast, history: Begin
    ) -> None:
        job = history("hot")
        job.checkpoint(5)
        job.start("worker w1 was killed")
        job.checkpoint(107)
        job.stop()
        holdfast("savepoint", "hot", "v1")
        shown = holdfast("events", "hot", "--json").json
        reported = [(each["event"], each["epoch"], each["cause"], each["savepoint"]) for each in shown]
        assert reported == [
            ("created", None, None, None),
            ("started", None, "started", None),
            ("restarted", 5, "worker w1 was killed", None),
            ("stopped", 107, None, None),
            ("savepoint", 107, None, "v1"),
        ]
        assert [each["first_checkpoint_ms"] is None for each in shown] == [True, False, False, True, True]
        assert shown[2]["duration_ms"] is None  # only its driver would know
        assert shown[3]["duration_ms"] == 0

    def test_a_start_that_skips_numbers_reports_the_next_epoch_and_the_reason(
        self, holdfast: Holdfast, history: Begin
    ) -> None:
        job = history("hot")
        job.checkpoint(5)
        assert "epoch numbers skip" not in holdfast("events", "hot").err
        assert "epoch numbers skip" not in holdfast("checkpoints", "list", "hot").err
        job.start("worker w1 was killed")
        job.checkpoint(107)
        ended = holdfast("events", "hot")
        assert "worker w1 was killed; epochs from 106 on" in ended.out
        assert "epoch numbers skip 100 at every start" in ended.err
        assert "epoch numbers skip 100 at every start" in holdfast("checkpoints", "list", "hot").err

    def test_the_recovery_time_is_that_of_the_driver(self, holdfast: Holdfast, history: Begin) -> None:
        job = history("hot").start("worker w1 was killed")
        job.live(restarts=[{"at": 1.0, "cause": "worker w1 was killed", "generation": 2, "recovery_ms": 640}])
        assert holdfast("events", "hot", "--json").json[-1]["duration_ms"] == 640
        assert "640 ms" in holdfast("events", "hot").out

    def test_checkpoints_are_listed_on_request(self, holdfast: Holdfast, history: Begin) -> None:
        job = history("hot")
        job.checkpoint(5)
        assert "checkpoint" not in [each["event"] for each in holdfast("events", "hot", "--json").json]
        assert holdfast("events", "hot", "--all", "--json", "--last", "1").json[0]["event"] == "checkpoint"
        assert "these are the newest 1 of 3" in holdfast("events", "hot", "--all", "--last", "1").err

    def test_pruned_events_are_listed_as_far_as_the_log_start_holds_them(
        self, holdfast: Holdfast, history: Begin, root: Path
    ) -> None:
        """P7"""
        with_log_start(root, history)
        shown = holdfast("events", "hot", "--all", "--json").json
        assert [(each["event"], each["epoch"], each["savepoint"]) for each in shown] == [
            ("created", None, None),
            ("started", None, None),
            ("checkpoint", 5, None),
            ("savepoint", 5, "old"),
            ("checkpoint", 7, None),
            ("savepoint", 7, "new"),
        ]
        assert shown[1]["first_checkpoint_ms"] is not None
        assert {each["seq"] for each in shown} == {None}
        assert "old" in holdfast("events", "hot").out

    def test_a_count_of_zero_and_an_unknown_job_are_wrong_use(self, holdfast: Holdfast, history: Begin) -> None:
        history("hot")
        assert "--last is 0" in three_parts(holdfast("events", "hot", "--last", "0"), 2)
        assert "no job 'cold'" in three_parts(holdfast("events", "cold"), 2)


class TestExplain:
    def test_a_silent_driver_is_reported_with_the_next_step(self, holdfast: Holdfast, history: Begin) -> None:
        history("hot").live(at_us=time.time_ns() // 1000 - 60_000_000)
        ended = holdfast("explain", "hot")
        assert ended.status == 0
        assert ended.out.startswith("hot: unreachable\n- the job's driver is silent: ")
        assert "\n  Next: " in ended.out

    def test_json_has_what_and_next_of_every_finding(self, holdfast: Holdfast, history: Begin) -> None:
        sink = {"name": "out", "staged_epoch": 5, "delivered_epoch": None, "error": "no such table"}
        history("hot").live(sinks=[sink])
        shown = holdfast("explain", "hot", "--json").json
        assert (shown["job"], shown["state"]) == ("hot", "running")
        assert [(each["code"], each["problem"]) for each in shown["findings"]] == [("sink_error", True)]

    def test_a_run_that_was_ended_immediately_is_stopped(self, holdfast: Holdfast, history: Begin) -> None:
        history("hot").live("stopped", reason="it was ended immediately, without a last checkpoint", at_us=1)
        assert holdfast("status", "hot", "--json").json["state"] == "stopped"
        assert "ended immediately" in holdfast("explain", "hot").out


class TestSavepoint:
    def test_the_last_checkpoint_of_a_stopped_job_gets_the_name(self, holdfast: Holdfast, history: Begin) -> None:
        job = history("hot")
        job.checkpoint(5)
        job.checkpoint(6)
        job.stop()
        shown = holdfast("savepoint", "hot", "v1", "--json").json
        assert (shown["name"], shown["epoch"], shown["taken"]) == ("v1", 6, False)
        listed = holdfast("checkpoints", "list", "hot", "--json").json
        assert [(each["kind"], each["name"]) for each in listed] == [("checkpoint", None), ("savepoint", "v1")]
        assert "savepoint" in holdfast("checkpoints", "list", "hot").out
        assert holdfast("checkpoints", "show", "hot", "v1", "--json").json["epoch"] == 6
        assert holdfast("status", "hot", "--json").json["state"] == "stopped"

    def test_the_last_checkpoint_of_a_finished_job_gets_the_name(self, holdfast: Holdfast, history: Begin) -> None:
        job = history("hot")
        job.checkpoint(5)
        job.finish()
        assert holdfast("savepoint", "hot", "v1").out == "hot: savepoint v1 is epoch 5\n"

    def test_a_running_job_receives_a_request(self, holdfast: Holdfast, history: Begin) -> None:
        job = history("hot").live()
        job.checkpoint(5)

        def take(request: JobRequest) -> dict[str, Any]:
            log = job.repository.read_log()
            assert log is not None
            body = joblog.SavepointNamed(log.base_epoch, request.args["name"])
            job.repository.create_record(
                joblog.Record(log.next_seq, log.uuid, log.generation, log.timeline, "x", 0, body)
            )
            return {"accepted": request.kind == "savepoint"}

        with driver(job, take):
            shown = holdfast("savepoint", "hot", "v1", "--json").json
        assert (shown["epoch"], shown["taken"], shown["state"]) == (5, True, "running")

    def test_a_refusal_by_the_driver_is_refused(self, holdfast: Holdfast, history: Begin) -> None:
        job = history("hot").live()
        with driver(job, lambda _: {"accepted": False, "reason": "the run is over"}):
            assert "the run is over" in three_parts(holdfast("savepoint", "hot", "v1"), 2)

    def test_a_request_refused_at_the_end_of_its_run_is_refused(
        self, holdfast: Holdfast, history: Begin, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        history("hot").live()
        refusal = {"accepted": False, "reason": "the run failed before the request was carried out"}
        answers = iter([{"accepted": True}, refusal])
        monkeypatch.setattr(requests, "answer_to", lambda store, name: next(answers))
        assert "the run failed before the request was carried out" in three_parts(holdfast("savepoint", "hot", "v1"), 2)

    def test_a_driver_that_does_not_answer_is_unavailable(self, holdfast: Holdfast, history: Begin) -> None:
        history("hot").live()
        what = three_parts(holdfast("savepoint", "hot", "v1", "--timeout", "0ms"), 5)
        assert "no driver has answered" in what

    def test_a_name_can_be_given_only_once(self, holdfast: Holdfast, history: Begin) -> None:
        job = history("hot")
        job.checkpoint(5)
        job.stop()
        holdfast("savepoint", "hot", "v1")
        assert "already has a savepoint 'v1': epoch 5" in three_parts(holdfast("savepoint", "hot", "v1"), 2)
        assert holdfast("savepoint", "hot", "v2").status == 0
        assert holdfast("checkpoints", "list", "hot", "--json").json[0]["name"] == "v1, v2"

    @pytest.mark.parametrize("name", ["", "7", "a b", "../x", "-x", "latest", "x" * 101])
    def test_an_invalid_name_is_refused(self, holdfast: Holdfast, history: Begin, name: str) -> None:
        history("hot").checkpoint(5)
        assert holdfast("savepoint", "hot", "--", name).status == 2

    def test_a_job_without_a_checkpoint_has_nothing_to_name(self, holdfast: Holdfast, root: Path) -> None:
        from tests.unit.runtime.cli.conftest import NOW_US, History

        History(root, "hot").create().start(at_us=NOW_US - 60_000_000)
        assert "has not completed a checkpoint" in three_parts(holdfast("savepoint", "hot", "v1"), 2)

    def test_the_savepoint_is_listed_and_undamaged_after_others_expired(self, holdfast: Holdfast, root: Path) -> None:
        """P16"""
        from tests.unit.runtime.cli.conftest import NOW_US, History

        # Started long ago: a job that started just now might be running, and the command would send it a request.
        job = History(root, "hot").create().start(at_us=NOW_US - 60_000_000)
        job.checkpoint(5)
        assert holdfast("savepoint", "hot", "v1").status == 0
        job._seq += 1
        job.checkpoint(6)
        job.checkpoint(7)
        job._append(joblog.Expired(job._epochs[-2]))
        listed = holdfast("checkpoints", "list", "hot", "--json").json
        assert [(each["epoch"], each["name"]) for each in listed] == [(5, "v1"), (7, None)]
        assert holdfast("checkpoints", "show", "hot", "v1", "--json").json["epoch"] == 5
        assert holdfast("checkpoints", "verify", "hot", "--epoch", "v1").status == 0

    def test_an_unknown_outcome_is_settled_by_the_owner_token(
        self, history: Begin, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """P4"""
        job = history("hot")
        job.checkpoint(5)
        stored = open_job(str(root), "hot")
        create, reported = stored.store.create, [Unavailable("reply lost", next_step="again")]

        def lossy(path: str, data: bytes) -> None:
            try:
                create(path, data)
            except AlreadyExists:
                assert not reported
                raise
            if reported:
                raise reported.pop()

        monkeypatch.setattr(stored.store, "create", lossy)
        assert name_last(stored, "v1", "me", 1).savepoints == (joblog.Savepoint("v1", job._epochs[-1]),)
        log = job.repository.read_log()
        assert log is not None and len(log.savepoints) == 1


class TestWaysToStop:
    @pytest.mark.parametrize(("flag", "how"), [("--finish", "finish"), ("--now", "now")])
    def test_the_request_contains_the_kind_of_stop(
        self, holdfast: Holdfast, history: Begin, flag: str, how: str
    ) -> None:
        job = history("hot").live()
        holdfast("stop", "hot", flag, "--timeout", "0ms")
        [request] = Inbox(job.store).poll()
        assert (request.kind, request.args) == ("stop", {"how": how})

    def test_stop_now_ends_when_the_driver_reports_the_end(self, holdfast: Holdfast, history: Begin) -> None:
        job = history("hot").live()
        job.checkpoint(5)

        def leave(_: JobRequest) -> dict[str, Any]:
            job.live("stopped", reason="it was ended immediately, without a last checkpoint")
            return {"accepted": True}

        with driver(job, leave):
            ended = holdfast("stop", "hot", "--now")
        assert (ended.status, ended.out) == (0, "hot: stopped at epoch 5\n")
        assert "no last checkpoint was taken" in ended.err

    def test_a_refusal_by_the_driver_is_reported(self, holdfast: Holdfast, history: Begin) -> None:
        job = history("hot").live()
        with driver(job, lambda _: {"accepted": False, "reason": "the job is already stopping"}):
            assert "already stopping" in three_parts(holdfast("stop", "hot", "--finish"), 2)

    def test_a_job_that_is_not_running_cannot_be_finished(self, holdfast: Holdfast, history: Begin) -> None:
        job = history("hot")
        job.checkpoint(5)
        job.stop()
        assert "only a run can finish it" in three_parts(holdfast("stop", "hot", "--finish"), 2)
        assert holdfast("stop", "hot", "--now").status == 0

    def test_a_finished_job_needs_no_stop(self, holdfast: Holdfast, history: Begin) -> None:
        job = history("hot")
        job.checkpoint(5)
        job.finish()
        assert holdfast("stop", "hot", "--finish").status == 0


class TestRunFrom:
    def job(self, root: Path, history: Begin) -> joblog.Job:
        job = history("hot")
        job.checkpoint(5)
        name_last(open_job(str(root), "hot"), "old", "x", 1)
        job._seq += 1
        job.checkpoint(6)
        name_last(open_job(str(root), "hot"), "new", "x", 1)
        return open_job(str(root), "hot").job

    def test_a_run_can_start_from_the_last_checkpoint(self, root: Path, history: Begin) -> None:
        refuse(savepoint.refusal("hot", self.job(root, history), "new"))

    def test_the_savepoint_may_be_recorded_in_a_log_start(self, root: Path, history: Begin) -> None:
        refuse(savepoint.refusal("hot", with_log_start(root, history).job, "new"))

    def test_an_older_savepoint_needs_a_rewind_first(self, root: Path, history: Begin) -> None:
        with pytest.raises(Exception, match="has moved on since"):
            refuse(savepoint.refusal("hot", self.job(root, history), "old"))

    @pytest.mark.parametrize("started", [True, False])
    def test_an_unknown_savepoint_is_refused(self, root: Path, history: Begin, started: bool) -> None:
        job = self.job(root, history) if started else None
        with pytest.raises(Exception, match="has no savepoint 'v9'"):
            refuse(savepoint.refusal("hot", job, "v9"))


class TestCompletion:
    @pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
    def test_every_command_is_in_the_script(self, holdfast: Holdfast, shell: str) -> None:
        ended = holdfast("completion", shell)
        assert ended.status == 0
        assert all(command in ended.out for command in COMMANDS)
        assert "drop-state" in ended.out
        assert holdfast("completion", shell, "--json").json == {"shell": shell, "script": ended.out.rstrip("\n")}

    @pytest.mark.parametrize(
        ("typed", "offered"),
        [
            ("sav", "savepoint"),
            ("checkpoints v", "verify"),
            ("checkpoints list --la", "--last"),
            ("run --progress pl", "plain"),
            ("stop --fin", "--finish"),
            ("completion z", "zsh"),
        ],
    )
    def test_bash_completes_partial_words(self, holdfast: Holdfast, typed: str, offered: str) -> None:
        script = holdfast("completion", "bash").out
        words = f"holdfast {typed}".split()
        ask = f'COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}; _holdfast; echo "${{COMPREPLY[*]}}"'
        done = subprocess.run(["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, check=True)
        assert done.stdout.split() == [offered]
