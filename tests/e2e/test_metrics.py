"""The metrics of a run on Spark, scraped from its driver and printed by the command line."""

from __future__ import annotations

import os
import socket
import sys
import urllib.request
from pathlib import Path

import pytest
from patience import WALL_S, wait
from patience import run as run_command
from prometheus_client.openmetrics import parser
from running import make_input, running

from holdfast.runtime.config.settings import CONTINUOUS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1_200)]


def free_port() -> int:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port: int = chosen.getsockname()[1]
        return port


def test_a_run_serves_its_metrics_and_the_command_prints_the_same_names(tmp_path: Path, mode: str) -> None:
    def names(text: str) -> dict[str, float]:
        families = parser.text_string_to_metric_families(text)
        return {sample.name: sample.value for family in families for sample in family.samples}

    def scraped() -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WALL_S) as reply:
            return names(reply.read().decode())

    make_input(tmp_path, 100_000)
    port = free_port()
    slow = ("--max-records-per-second", "500")
    with running(tmp_path, *slow, HOLDFAST_METRICS_PORT=str(port)) as run:
        run.wait_until_running()
        served: dict[str, float] = {}

        def is_whole() -> bool:
            served.update(scraped())
            return "holdfast_sink_delivered_epoch" in served  # a series begins with its first value

        wait(is_whole, "the first delivery", run.process.pid)
        command = [sys.executable, "-m", "holdfast.runtime.cli.main", "status", "counting", "--format", "openmetrics"]
        root = {"HOLDFAST_ROOT": str(tmp_path / "root")}
        status, printed, errors = run_command(command, tmp_path, "the command", os.environ | root)
        assert status == 0, errors
        later = scraped()
    assert served["holdfast_checkpoint_duration_seconds_count"] >= 1
    assert served["holdfast_workers"] == 2
    assert "holdfast_records_total" in served
    assert ("holdfast_worker_memory_bytes" in served) is (mode == CONTINUOUS), "processes of tasks come and go"
    assert set(served) <= set(names(printed)) <= set(later)
