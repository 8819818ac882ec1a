"""Jobs whose root and logs are in an S3 store that is slow, breaks connections and goes away."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import IN_BOTH_MODES_SLOWLY, Run, differences, kill_task, make_input, running
from s3_store import S3Store, s3_store

pytestmark = [pytest.mark.e2e, pytest.mark.s3, pytest.mark.toxiproxy]

LOCAL = ("--master", "local[4]")
ROWS = 120_000
RATE = ("--max-records-per-second", "10000")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Store]:
    with s3_store(tmp_path / "s3") as running:
        for name, value in running.environment().items():
            monkeypatch.setenv(name, value)
        yield running


def test_a_slow_store_that_breaks_connections_and_goes_away_costs_only_time(tmp_path: Path, store: S3Store) -> None:
    at = store.url("jobs")
    frame = make_input(at, ROWS)
    store.toxic("latency", latency=100, jitter=20)
    with running(tmp_path, *LOCAL, *RATE, COUNTING_STORE=at) as run:
        import time
        t0=time.time()
        before = run.wait_until_running(1_000)
        print("running", time.time()-t0, before["epoch"])
        os.kill(before["workers"][0]["pid"], signal.SIGKILL)
        run.wait_for(lambda p: p["state"] == "running" and p["generation"] > before["generation"], "a new generation")
        print("recovered", time.time()-t0)
        after = run.wait_for(lambda p: p["epoch"] > before["epoch"] + 2, "epochs")
        print("epochs", time.time()-t0, after["epoch"])
        store.toxic("reset_peer", timeout=50)
        time.sleep(5)
        store.untoxic("reset_peer")
        print("reset", time.time()-t0, run.lines[-1]["epoch"], run.lines[-1]["state"])
        after = run.wait_for(lambda p, n=run.lines[-1]["epoch"]: p["epoch"] > n + 2, "epochs")
        print("after reset", time.time()-t0, run.lines[-1]["epoch"], run.lines[-1]["state"])
        store.reachable(False)
        time.sleep(30)
        print("away", time.time()-t0, run.lines[-1]["epoch"], run.lines[-1]["state"], run.lines[-1]["restarts"], run.lines[-1].get("problems"))
        store.reachable(True)
        after = run.wait_for(lambda p, n=run.lines[-1]["epoch"]: p["epoch"] > n + 2, "epochs")
        print("back", time.time()-t0, run.lines[-1]["epoch"], run.lines[-1]["state"])
        store.untoxic("latency")
        assert run.finish() == 0, run.errors()
        print("finished", time.time()-t0)
        print(store.requests())
    assert differences(tmp_path, frame, store=at) == []
