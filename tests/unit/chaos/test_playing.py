"""Many seeds: few are in progress at a time, and an interrupt ends those and keeps the finished ones."""

from __future__ import annotations

import gc
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest
from patience import WALL_S

from holdfast.chaos.commands import chaos as cli
from holdfast.chaos.explore.playing import SEEDS_MAX, _no_interrupt, play_all
from holdfast.chaos.explore.report import Summary, verdict_line
from holdfast.chaos.mutants import mutation
from holdfast.chaos.mutants.mutants import MUTANTS
from holdfast.chaos.sim.faults.faults import Fault
from holdfast.chaos.sim.jobs.workload import PLANS_MAX, plan_of
from holdfast.runtime.cli.main import main
from holdfast.runtime.cli.reporting import INTERRUPTED


def interrupted_after(seeds: int) -> Callable[[int], None]:
    """Return a function that interrupts, as the terminal would, after this many seeds."""

    def played(so_far: int) -> None:
        if so_far == seeds:
            raise KeyboardInterrupt

    return played


@pytest.fixture
def unfrozen() -> Iterator[None]:
    """Undo for one test what tests/conftest.py does for all."""
    gc.unfreeze()
    yield
    gc.freeze()


class TestGarbage:
    @pytest.mark.usefixtures("unfrozen")
    @pytest.mark.parametrize("seeds", [1, 2])
    def test_is_collected_as_before_after_the_last_seed_or_an_interrupt(self, seeds: int) -> None:
        before = gc.get_threshold(), gc.get_freeze_count()
        during = []

        def played(so_far: int) -> None:
            during.append((gc.get_threshold(), gc.get_freeze_count() > 0))
            interrupted_after(2)(so_far)

        try:
            play_all(range(seeds), workers=1, played=played)
        except KeyboardInterrupt:
            assert seeds == 2

        assert all(thresholds != before[0] and frozen for thresholds, frozen in during) and len(during) == seeds
        assert (gc.get_threshold(), gc.get_freeze_count()) == before

    def test_objects_frozen_before_a_play_stay_frozen(self) -> None:
        gc.freeze()
        play_all(range(1), workers=1)
        assert gc.get_freeze_count() > 0


class TestPlaying:
    @pytest.mark.parametrize("workers", [1, 2])
    def test_few_seeds_are_in_flight_and_an_interrupt_keeps_finished_ones(self, workers: int) -> None:
        summary = Summary()
        with pytest.raises(KeyboardInterrupt):
            play_all(range(SEEDS_MAX), workers, played=interrupted_after(2), into=summary)
        assert summary.runs == 2

    def test_several_processes_count_the_same_as_one(self) -> None:
        alone, together = play_all(range(5), 1), play_all(range(5), 2)
        assert alone.as_json() == together.as_json()


class TestFailures:
    def test_failures_not_shown_in_full_are_listed_and_the_rest_counted(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(cli, "FAILURES_SHOWN", 0)
        monkeypatch.setattr(cli, "FAILURES_NAMED", 2)
        [mutant] = [mutant for mutant in MUTANTS if mutant.name == "stale-ack-reused-number"]
        with mutation.applied(mutant):
            failed = play_all(range(4), 1).failed
            assert main(["chaos", "simulate", "--seeds", "4"]) == 1
        assert len(failed) > 2
        lines = capsys.readouterr().out.splitlines()
        named = [line for line in lines if line.startswith("seed ")]
        assert [line.split(" failed: ")[0] for line in named] == [f"seed {run.seed}" for run in failed[:2]]
        assert all(run.violations[0][:20] in line for line, run in zip(named, failed[:2], strict=True))
        assert f"{len(failed) - 2} more failed; --json names every one" in lines

    def test_the_verdict_comes_first(self, capsys: pytest.CaptureFixture[str]) -> None:
        [mutant] = [mutant for mutant in MUTANTS if mutant.name == "stages-kept"]
        with mutation.applied(mutant):
            failed = [run.seed for run in play_all(range(2), 1).failed]
            assert main(["chaos", "simulate", "--seeds", "2"]) == 1
            verdict = f"VIOLATED: {len(failed)} of 2 seeds failed\nseed {failed[0]} failed; "
            assert capsys.readouterr().out.startswith(verdict)
            assert main(["chaos", "replay", "--seed", str(failed[0])]) == 1
            assert capsys.readouterr().out.startswith("FAILED  growth: ")
        assert main(["chaos", "simulate", "--seeds", "2"]) == 0
        assert capsys.readouterr().out.startswith("HELD: 2 seeds\n")

    def test_seeds_that_prove_too_little_have_not_held(self) -> None:
        summary = Summary(runs=40)
        summary.armed[Fault.WORKER_KILLED] = 40
        assert verdict_line(summary) == "NOT PROVEN: 40 seeds held, but faults were armed and never struck"
        assert verdict_line(summary, 50).startswith("INTERRUPTED after 40 of 50 seeds")


class TestInterrupt:
    def test_the_summary_so_far_is_shown_as_that_of_an_interrupted_run(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(cli, "_telling", lambda seeds, began: interrupted_after(2))
        assert main(["chaos", "simulate", "--seeds", "9"]) == INTERRUPTED
        reported = capsys.readouterr()
        assert reported.out.startswith("INTERRUPTED after 2 of 9 seeds: nothing is known about the others\n2 seeds, ")
        assert "next run" not in reported.err

    @pytest.mark.parametrize("to", ["the command", "everybody"])
    def test_an_interrupt_ends_every_player(self, to: str) -> None:
        with simulating() as (process, players):
            if to == "everybody":  # as a terminal does
                os.killpg(process.pid, signal.SIGINT)
            else:
                process.send_signal(signal.SIGINT)
            out, err = process.communicate()
        assert process.returncode == INTERRUPTED
        reported = json.loads(out)
        assert (reported["interrupted"], reported["passed"]) == (True, False)
        assert err == ""
        assert psutil.wait_procs(players, timeout=WALL_S)[1] == []

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a_player_starts_completely_even_if_another_thread_gets_the_signal(self, number: signal.Signals) -> None:
        """Otherwise it would read half of its start-up data and print a traceback."""
        over, started = threading.Event(), False
        came, comes = os.pipe()
        os.set_blocking(comes, False)
        before, no_fd = signal.signal(number, raise_interrupt), signal.set_wakeup_fd(comes)
        thread = threading.Thread(target=over.wait)
        thread.start()  # blocks no signal, like the threads of a numeric library
        try:
            with pytest.raises(KeyboardInterrupt), _no_interrupt():
                os.kill(os.getpid(), number)
                assert os.read(came, 1) == bytes([number])  # some thread has taken it
                started = True
        finally:
            over.set()
            thread.join()
            signal.set_wakeup_fd(no_fd)
            os.close(came)
            os.close(comes)
            assert signal.signal(number, before) is raise_interrupt
        assert started

    def test_a_terminated_command_ends_its_players_and_leaves_nothing(self) -> None:
        with simulating() as (process, players):
            process.terminate()
            out, err = process.communicate()
        assert (process.returncode, out, err) == (128 + signal.SIGTERM, "", "")
        assert psutil.wait_procs(players, timeout=WALL_S)[1] == []


def raise_interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


@contextmanager
def simulating() -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """Play for up to two minutes, in a separate process group; yield the playing processes."""
    command = [sys.executable, "-m", "holdfast.runtime.cli.main", "chaos", "simulate", "--json", "--seeds", "100000"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pause, pipe = threading.Event(), subprocess.PIPE
    with subprocess.Popen(
        [*command, "--workers", "2"], env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        guard = threading.Timer(120, process.kill)
        guard.start()
        try:
            players: list[psutil.Process] = []
            while len(players) < 3:  # two that play, and Python's own that cleans up after them
                assert process.poll() is None
                pause.wait(0.05)
                players = psutil.Process(process.pid).children()
            yield process, players
        finally:
            process.kill()
            guard.cancel()


def test_a_process_that_plays_many_seeds_keeps_a_bounded_number_of_plans() -> None:
    for upserts in ((), ("by_key",), ("by_bucket",)):
        for flags in itertools.product((False, True), repeat=4):
            plan_of(upserts, None, None, False, *flags)
    found = plan_of.cache_info()
    assert found.misses > PLANS_MAX
    assert found.currsize <= PLANS_MAX
