"""Jobs whose root and logs are in an S3 store that is slow, breaks connections and goes away."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest
from patience import wait
from running import JOB, Run, differences, lasts, make_input, running, visited
from s3_store import S3Store, s3_store

import holdfast as hf
from holdfast.chaos.judge.findings import Context
from holdfast.examples import flights_check, flights_data

pytestmark = [pytest.mark.e2e, pytest.mark.s3, pytest.mark.toxiproxy]

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
    with running(tmp_path, *RATE, COUNTING_STORE=at, COUNTING_CHANGELOG="log") as run:
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
        run.wait_for(lambda p: p["epoch"] >= epoch + 5 or p["state"] == "finished", f"epochs after {epoch}, or the end")

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


@dataclass(frozen=True)
class Job:
    """A job for the long test.

    Args:
        file: Where it is.
        environment: Its own variables, for the store and the folder of local results.
        fill: Writes its input, enough for these minutes and for some beyond; returns the number of records.
        wrong: Returns the differences between its results and the oracle's.
    """

    file: Path
    environment: Callable[[S3Store, Path], dict[str, str]]
    fill: Callable[[S3Store, float], int]
    wrong: Callable[[S3Store, Path, int], list[str]]


def visits(store: S3Store, minutes: float) -> int:
    return make_input(store.url("jobs"), int(minutes * 60 * 12_000)).height


def flights(store: S3Store, _minutes: float) -> int:
    flights_data.main(store.url("jobs/events"))
    return int(hf.log(store.url("jobs/events")).select(pl.len()).collect().item())


def in_counting_tables(store: S3Store, folder: Path, rows: int) -> list[str]:
    return differences(folder, visited(rows), store=store.url("jobs"))


def in_flights(store: S3Store, folder: Path, _rows: int) -> list[str]:
    places = {"FLIGHTS_DB": str(folder / "flights.db"), "FLIGHTS_OUT": str(store.files / "jobs" / "out")}
    findings = list(flights_check.check(Context(str(folder), store.url("jobs/root"), "flights", places)))
    assert findings
    return [f"{each.name}: {each.detail}" for each in findings if not each.held]


def in_turns(store: S3Store, _folder: Path, rows: int) -> list[str]:
    numbers = visited(rows).select(user=pl.col("user").str.strip_prefix("user-").cast(pl.Int64))
    turns = numbers.with_columns(turn=pl.int_range(1, pl.len() + 1).over("user") % 10).group_by("turn")
    wanted = set(turns.agg(n=pl.len().cast(pl.Int64), users=pl.col("user").sum()).rows())
    found = set(hf.log(store.url("jobs/turns"), as_table=True).select("turn", "n", "users").collect().rows())
    return (
        [f"missing or wrong {sorted(wanted - found)}, unexpected {sorted(found - wanted)}"] if wanted != found else []
    )


JOBS = {
    "three streams": Job(JOB, lambda store, _: {"COUNTING_STORE": store.url("jobs")}, visits, in_counting_tables),
    "two shuffles": Job(
        JOB.with_name("shuffled_twice_job.py"), lambda store, _: {"COUNTING_STORE": store.url("jobs")}, visits, in_turns
    ),
    "the demo": Job(
        Path(flights_check.__file__).with_name("flights.py"),
        lambda store, folder: {
            "HOLDFAST_ROOT": store.url("jobs/root"),
            "FLIGHTS_LOG": store.url("jobs/events"),
            "FLIGHTS_DB": str(folder / "flights.db"),
            "FLIGHTS_OUT": store.url("jobs/out"),
        },
        flights,
        in_flights,
    ),
}


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("name", JOBS)
def test_many_faults_of_store_and_workers_lose_and_duplicate_nothing(tmp_path: Path, store: S3Store, name: str) -> None:
    """For MINUTES, 15 by default; prints what it did, and what an epoch asked of the store."""
    minutes, rng, job = float(os.environ.get("MINUTES", "15")), random.Random(7), JOBS[name]
    rows, fired, environment = job.fill(store, minutes), Counter[str](), job.environment(store, tmp_path)
    environment["HOLDFAST_RESTART_FAILURES_MAX"] = "1000"
    rate = ("--max-records-per-second", str(int(rows / (minutes * 60 * 1.2))))
    store.toxic("latency", latency=100, jitter=20)
    with running(tmp_path, *rate, job=job.file, **environment) as run:
        run.wait_until_running(1_000)
        began, asked, before = time.monotonic(), store.requests(), store.requests("/manifests/")
        every = strikes(run, store, rng)
        while len(fired) < len(every) or time.monotonic() < began + minutes * 60:
            assert run.lines[-1]["records_in"] < rows * 0.95, "the input was too short"
            strike = rng.choice([each for each in every if not fired[each]] or list(every))
            every[strike]()
            fired[strike] += 1
            epochs_go_on(run)
        requests, epochs = store.requests() - asked, (store.requests("/manifests/") - before)["PutObject"]
        store.untoxic("latency")
        run.process.send_signal(signal.SIGINT)
        assert run.finish() == 0, run.errors()
        assert run.lines[-1]["state"] == "stopped"
    with running(tmp_path, job=job.file, **environment) as run:  # reads the rest at full speed
        assert run.finish(1_800) == 0, run.errors()
    per_epoch = ", ".join(f"{kind} {count / epochs:.1f}" for kind, count in requests.most_common())
    print(f"\n{name}: faults: {dict(fired)}; epochs: {epochs}; requests per epoch: {per_epoch}")
    assert job.wrong(store, tmp_path, rows) == []
