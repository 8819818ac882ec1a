"""A second run is refused while a driver renews `live.json`, whatever time and other values the file contains."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from master_runs import completed, opened, running

from holdfast.checkpoint import joblog
from holdfast.errors import Fenced
from holdfast.model import JobUuid
from holdfast.runtime.execution.checks.ordered import refuse
from holdfast.runtime.execution.checks.second_run import refusal
from holdfast.runtime.job import status
from holdfast.runtime.job.live import understood
from holdfast.runtime.wire.presence import myself
from holdfast.storage.objects import MemoryObjects
from tests.unit.runtime.test_explain import shown

JOB = joblog.Job(JobUuid("job"), "counts", 128, 0, 2)
HOUR_US = 3_600_000_000
TOO_LONG_S = 60.0


class Watch:
    """A store with a live.json, and a clock that moves when the caller sleeps."""

    def __init__(self, ahead_us: int = 0, *, renewed: bool = False) -> None:
        self.store, self.now, self.notes = MemoryObjects(), 0.0, list[str]()
        self._at, self._renewed = time.time_ns() // 1000 + ahead_us, renewed
        self.write()

    def write(self) -> None:
        said = shown(running(), driver=myself("owner", self._at))
        self.store.put("live.json", json.dumps(said).encode())

    def sleep(self, seconds: float) -> None:
        assert self.now < TOO_LONG_S, "it waits without end"
        self.now += seconds
        if self._renewed:
            self._at += round(seconds * 1e6)
            self.write()

    def refuse(self) -> None:
        refuse(refusal(self.store, JOB, self.notes.append, lambda: self.now, self.sleep))


class TestLiveJsonFromTheFuture:
    def test_a_future_live_json_without_renewal_is_awaited_no_longer_than_any_other(self) -> None:
        watch = Watch(HOUR_US)
        watch.refuse()
        assert 5.0 < watch.now < 6.0

    def test_a_future_live_json_that_is_renewed_indicates_a_live_driver(self) -> None:
        watch = Watch(HOUR_US, renewed=True)
        with pytest.raises(Fenced, match="is running on"):
            watch.refuse()
        assert watch.now < 1.0

    def test_is_awaited_with_a_message(self) -> None:
        watch = Watch(HOUR_US)
        watch.refuse()
        (note,) = watch.notes
        assert "waiting up to 5 s" in note and "still runs counts" in note


DAMAGED: list[Any] = [
    [],
    7,
    None,
    "running",
    {},
    {"driver": None},
    {"driver": {}},
    {"driver": {"host": "here"}},
    {"driver": {"host": None, "pid": None, "at": None}},
    {"driver": []},
    {"generation": "1"},
    {"state": None},
    {"state": "odd"},
    {"workers": None},
    {"workers": [None]},
    {"workers": [{}]},
    {"sources": {}},
    {"sources": [{}]},
    {"restarts": None},
    {"restarts": [{}]},
    {"problems": [{}]},
    {"waiting": [{}]},
    {"open_epoch": {}},
    {"ended": None},
    {"failures": {}},
    {"backlog": [{}]},
    {"repairing": [{}]},
    {"timeline": []},
    {"schema": 2},
]


class TestForeignLiveJson:
    @pytest.mark.parametrize("damaged", DAMAGED, ids=str)
    def test_is_not_used(self, damaged: Any) -> None:
        whole = shown(running(), driver=myself("owner", 1))
        said = {**whole, **damaged} if damaged and isinstance(damaged, dict) else damaged
        assert understood(json.dumps(said).encode()) is None

    @pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 100_000])
    def test_need_not_be_json(self, data: bytes) -> None:
        assert understood(data) is None

    def test_does_not_delay_a_run(self) -> None:
        watch = Watch()
        watch.store.put("live.json", b"[]")
        watch.refuse()
        assert watch.now == 0.0


class TestStatusOfADriver:
    def test_is_understood_in_every_phase(self) -> None:
        closed = running()
        completed(closed)
        for run in (opened(), running(), closed):
            said = shown(run, driver=myself("owner", 1))
            read = understood(json.dumps(said).encode())
            assert read is not None and read.as_json() == json.loads(json.dumps(said))

    def test_has_the_fields_of_the_documented_status_in_their_order(self) -> None:
        run = running()
        completed(run)
        assert list(shown(run)) == [
            "schema",
            "job",
            "root",
            "state",
            "reason",
            "mode",
            "generation",
            "timeline",
            "checkpoint",
            "driver",
            "workers",
            "sources",
            "sinks",
            "operators",
            "late",
            "restarts",
            "rewind_horizon",
            "problems",
            "job_uuid",
            "key_groups",
            "epochs",
            "records_in",
            "epochs_given_up",
            "parallelism",
            "checkpoint_every_ms",
            "ending",
            "savepoints_waiting",
            "appending",
            "open_epoch",
            "older_output_left",
            "launching",
            "next_launch_ms",
            "failures",
            "backlog",
            "waiting",
            "ended",
            "listing_ms",
            "epoch_ms",
        ]

    def test_from_the_log_alone_lacks_fields_that_only_a_driver_can_fill(self) -> None:
        job = running().state.job
        shown = status.of_log(job, "counts", "/data/counts").as_json()
        assert list(shown)[-2:] == ["job_uuid", "key_groups"] and "waiting" not in shown
