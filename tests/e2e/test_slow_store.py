"""Jobs whose root and logs are in an S3 store that is slow, breaks connections and goes away."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import wait
from running import Run, differences, lasts, make_input, running
from s3_store import S3Store, s3_store

pytestmark = [pytest.mark.e2e, pytest.mark.s3, pytest.mark.toxiproxy]

LOCAL = ("--master", "local[4]")
RATE = ("--max-records-per-second", "10000")
ROWS = 120_000
AWAY_S = 10.0


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Store]:
    with s3_store(tmp_path / "s3") as running:
        for name, value in running.environment().items():
            monkeypatch.setenv(name, value)
        yield running


def epochs_go_on(run: Run) -> None:
    """Wait until three more epochs are completed."""
    last = run.lines[-1]["epoch"]
    run.wait_for(lambda p: p["epoch"] >= last + 3, f"epochs after {last}")


def quiet(store: S3Store) -> Counter[str]:
    """Wait until the server has logged no request for a second, and return how many there were."""
    while True:
        before = store.requests()
        lasts(1.0)
        if store.requests() == before:
            return before


def test_a_store_that_is_slow_breaks_connections_and_goes_away_costs_only_time(tmp_path: Path, store: S3Store) -> None:
    at = store.url("jobs")
    frame = make_input(at, ROWS)
    store.toxic("latency", latency=100, jitter=20)
    with running(tmp_path, *LOCAL, *RATE, COUNTING_STORE=at, COUNTING_CHANGELOG="yes") as run:
        before = run.wait_until_running(1_000)
        os.kill(before["workers"][0]["pid"], signal.SIGKILL)
        run.wait_for(lambda p: p["state"] == "running" and p["generation"] > before["generation"], "a new generation")
        epochs_go_on(run)

        asked = store.requests()
        store.toxic("limit_data", bytes=200)  # answers are cut off: some requests took effect
        wait(lambda: (store.requests() - asked)["PutObject"] > 3, "objects that were written without an answer")
        store.untoxic("limit_data")
        epochs_go_on(run)

        store.reachable(False)
        asked, epoch = quiet(store), run.lines[-1]["epoch"]
        lasts(AWAY_S)
        assert not store.requests() - asked
        assert run.lines[-1]["epoch"] <= epoch + 2 and run.lines[-1]["records_in"] < ROWS  # sources wait
        assert "root_refused" in [problem["code"] for problem in run.lines[-1]["problems"]]
        store.reachable(True)
        epochs_go_on(run)

        store.untoxic("latency")
        assert run.finish() == 0, run.errors()
    assert len(run.lines[-1]["restarts"]) == 1  # the kill; no fault of the store restarts anything
    assert differences(tmp_path, frame, store=at) == []


def strikes(run: Run, store: S3Store, rng: random.Random) -> dict[str, Callable[[], None]]:
    """Return the faults of this test, by name; each has fired when it returns."""

    def kill() -> None:
        worker = rng.choice([worker for worker in run.lines[-1]["workers"] if worker["subtasks"]])
        generation = run.lines[-1]["generation"]
        os.kill(worker["pid"], signal.SIGKILL)
        run.wait_for(lambda p: p["generation"] > generation, "a new generation")

    def without_answers() -> None:
        asked = store.requests()
        store.toxic("limit_data", bytes=rng.choice([1, 200, 2_000]))
        wait(lambda: (store.requests() - asked).total() > 10, "requests without an answer")
        store.untoxic("limit_data")

    def slower() -> None:
        store.toxic("bandwidth", rate=rng.choice([20, 200]))
        asked = store.requests()
        wait(lambda: (store.requests() - asked).total() > 20, "slow requests")
        store.untoxic("bandwidth")

    def away() -> None:
        store.reachable(False)
        lasts(rng.choice([1.0, 8.0, 30.0]))
        store.reachable(True)

    def restarted() -> None:
        store.stop()
        store.start()

    return {strike.__name__: strike for strike in (kill, without_answers, slower, away, restarted)}


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_many_faults_of_store_and_workers_lose_and_duplicate_nothing(tmp_path: Path, store: S3Store) -> None:
    """For MINUTES, 15 by default; prints what it did, and what an epoch asked of the store."""
    minutes, rng = float(os.environ.get("MINUTES", "15")), random.Random(7)
    at, rows, fired = store.url("jobs"), int(minutes * 60 * 12_000), Counter[str]()
    frame = make_input(at, rows)
    store.toxic("latency", latency=100, jitter=20)
    with running(tmp_path, *LOCAL, *RATE, COUNTING_STORE=at, HOLDFAST_RESTART_FAILURES_MAX="1000") as run:
        run.wait_until_running(1_000)
        began, asked, before = time.monotonic(), store.requests(), store.requests("/manifests/")
        every = strikes(run, store, rng)
        while len(fired) < len(every) or time.monotonic() < began + minutes * 60:
            assert run.lines[-1]["records_in"] < rows * 0.95, "the input was too short"
            name = rng.choice([each for each in every if not fired[each]] or list(every))
            every[name]()
            fired[name] += 1
            epochs_go_on(run)
        requests, epochs = store.requests() - asked, (store.requests("/manifests/") - before)["PutObject"]
        store.untoxic("latency")
        run.process.send_signal(signal.SIGINT)
        assert run.finish() == 0, run.errors()
        assert run.lines[-1]["state"] == "stopped"
    with running(tmp_path, *LOCAL, COUNTING_STORE=at) as run:  # reads the rest at full speed
        assert run.finish(1_800) == 0, run.errors()
    per_epoch = ", ".join(f"{kind} {count / epochs:.1f}" for kind, count in requests.most_common())
    print(f"\nfaults: {dict(fired)}; epochs: {epochs}; requests per epoch: {per_epoch}")
    assert differences(tmp_path, frame, store=at) == []
