"""A real job under real faults of every family: each fires, the job recovers, and every row is right."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from running import JOB, differences, make_input

from holdfast.chaos.judge.findings import Context, Finding
from holdfast.chaos.live import running as live
from holdfast.chaos.live.faults.proxy import find_server
from holdfast.chaos.live.faults.scenario import parse

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

ROWS = 120_000
FAULTS = (
    "worker-kill",
    "worker-stop",
    "worker-disk-full",
    "daemon-kill",
    "driver-kill",
    "driver-pause",
    "control-blackhole",
    "data-reset",
    "data-latency",
    "older-object-corrupt",
)
RECOVERIES_LEAST = 2
"""Four of the kinds cause a recovery each, but one that strikes during a recovery shares it."""
ENDED_BY = ("worker-kill", "worker-stop", "daemon-kill", "driver-kill")
"""These end the generation: a killed worker sends no more acks, and a stop outlasts the tolerated silence."""
LEFT_OVER = 2
"""Epochs of an ended generation that may still be reported: one already acked, one completed just before."""


def test_a_job_under_kills_full_disks_cut_streams_and_damage_gives_correct_rows(
    tmp_path: Path,
) -> None:
    (tmp_path / "whole").mkdir()
    frame = make_input(tmp_path / "whole", ROWS)

    def check(context: Context) -> Iterator[Finding]:
        wrong = differences(Path(context.out), frame)
        with closing(sqlite3.connect(Path(context.out) / "out.db")) as database:
            counted = int(database.execute("SELECT sum(n) FROM users").fetchone()[0])
        lost, twice = max(0, frame.height - counted), max(0, counted - frame.height)
        yield Finding("tables", not wrong, "I1", lost, twice, None, "; ".join(wrong))

    raw = {
        "duration": "32s",
        "seed": 8,
        "every": "200ms..2s",
        "platform": "processes",
        "faults": dict.fromkeys(FAULTS, 1),
        "job": {
            "environment": {
                "COUNTING_FOLDER": "{out}",
                "HOLDFAST_SILENT_AFTER_MS": "3s",
                "HOLDFAST_SESSION_TIMEOUT_MS": "4s",
                "HOLDFAST_TLS": "on",
            }
        },
        "drive": {"from": str(tmp_path / "whole" / "input"), "to": "{out}/input"},
        "observe": [{"sqlite": "{out}/out.db", "grows": ["users", "pages"]}],
        "wait": {"start": "4m", "recover": "4m"},
    }
    toxiproxy = find_server() is not None
    assert toxiproxy, "Toxiproxy's server is missing; build it: tools/bootstrap.sh toxiproxy"
    scenario = parse(raw, "every family", toxiproxy=toxiproxy, checked_elsewhere=True)
    journal = live.run(scenario, JOB, tmp_path / "out", check=check, progress=print)
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    assert (lines[-1]["kind"], lines[-1]["verdict"]) == ("end", "held"), lines[-1]
    fired = {line["fault"] for line in lines if line["kind"] == "fault" and line["phase"] == "fired"}
    assert fired == set(FAULTS)
    for line in lines:
        if line["kind"] == "fault" and line["phase"] == "fired" and line["fault"] in ENDED_BY:
            before, after = generations(lines, struck_at(line))
            assert len(after) > LEFT_OVER and min(after[LEFT_OVER:]) > before[-1], (line, before[-1], after)
    assert sum(line["kind"] == "recovery" for line in lines) >= RECOVERIES_LEAST
    tables = next(line for line in lines if line["kind"] == "check" and line["name"] == "tables")
    assert (tables["lost"], tables["duplicated"]) == (0, 0)
    observed = [line for line in lines if line["kind"] == "check" and line["name"] == "observer"]
    assert observed and all(line["passed"] for line in observed)


def struck_at(fired: dict[str, Any]) -> float:
    """Return when the fault struck: the end of a killed process is reported some time later."""
    gone = re.search(r" gone within (\d+) ms$", fired["detail"])
    assert (gone is not None) == fired["fault"].endswith("kill"), fired
    return float(fired["at_ms"]) - (float(gone[1]) if gone else 0)


def generations(lines: list[dict[str, Any]], at_ms: float) -> tuple[list[int], list[int]]:
    """Return the generations of the epochs, from the job's own log, before that moment and after it."""
    epochs = [line for line in lines if line["kind"] == "epoch"]
    before = [epoch["generation"] for epoch in epochs if epoch["at_ms"] < at_ms]
    return before, [epoch["generation"] for epoch in epochs[len(before) :]]
