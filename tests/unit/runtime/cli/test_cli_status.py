"""`holdfast status` and `holdfast jobs`: the log decides, `live.json` adds current values."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from holdfast.errors import ConfigError
from holdfast.runtime.inspect.stored import open_job
from holdfast.runtime.wire.presence import myself

if TYPE_CHECKING:
    from tests.unit.runtime.cli.conftest import Ended, History

    Holdfast = Callable[..., Ended]
    Begin = Callable[[str], History]

FIELDS = {
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
    "restarts",
    "rewind_horizon",
    "problems",
}
MINUTE_US = 60_000_000


def now_us() -> int:
    return time.time_ns() // 1000


class TestStatus:
    def test_a_running_job_shows_the_status_of_its_driver(self, holdfast: Holdfast, history: Begin) -> None:
        job = history("hot")
        job.checkpoint(5)
        job.live()
        shown = holdfast("status", "hot", "--json").json
        assert set(shown) >= FIELDS
        assert (shown["state"], shown["driver"]["pid"], shown["workers"][0]["id"]) == ("running", os.getpid(), "w1")
        assert shown["sources"][0]["lag"] == 300

    def test_the_last_checkpoint_is_read_from_the_log(self, holdfast: Holdfast, history: Begin) -> None:
        job = history("hot").live()
        job.checkpoint(5)
        shown = holdfast("status", "hot", "--json").json
        assert shown["checkpoint"]["epoch"] == 5
        assert set(shown["checkpoint"]) == {"epoch", "at", "age_ms", "duration_ms", "bytes"}
        assert shown["checkpoint"]["age_ms"] >= 0

    @pytest.mark.parametrize(("end", "state"), [("stop", "stopped"), ("finish", "finished")])
    def test_an_ended_job_is_described_from_the_log_alone(
        self, holdfast: Holdfast, history: Begin, end: str, state: str
    ) -> None:
        job = history("hot").live("running")
        job.checkpoint(5)
        getattr(job, end)()
        shown = holdfast("status", "hot", "--json").json
        assert set(shown) >= FIELDS
        assert (shown["state"], shown["workers"], shown["problems"]) == (state, [], [])

    def test_lost_offsets_have_a_column_where_there_are_any(self, holdfast: Holdfast, history: Begin) -> None:
        job = history("hot")
        job.checkpoint(5)
        rows = [{"name": "words", "partition": p, "offset": 700, "lost": lost} for p, lost in ((0, 0), (1, 1_234))]
        job.live(sources=rows[:1])
        (headers,) = [line for line in holdfast("status", "hot").out.splitlines() if "partition" in line]
        assert headers.split() == ["name", "partition", "offset", "end", "lag"]
        job.live(sources=rows)
        shown = holdfast("status", "hot").out
        (headers,) = [line for line in shown.splitlines() if "partition" in line]
        assert headers.split() == ["name", "partition", "offset", "end", "lag", "lost"] and "1,234" in shown
        assert [row["lost"] for row in holdfast("status", "hot", "--json").json["sources"]] == [0, 1_234]

    def test_offsets_of_text_are_shown_as_bytes(self, holdfast: Holdfast, history: Begin) -> None:
        job = history("hot")
        job.checkpoint(5)
        row = {"name": "lines", "partition": 0, "offset": 41_332_209, "end_offset": 41_332_309, "lag": 100}
        job.live(sources=[row | {"unit": "bytes"}])
        shown = holdfast("status", "hot").out
        assert "41,332,209 B  41,332,309 B  100 B" in shown
        assert holdfast("status", "hot", "--json").json["sources"][0]["unit"] == "bytes"

    def test_a_stopped_job_shows_the_unit_that_its_checkpoint_records(self, holdfast: Holdfast, history: Begin) -> None:
        job = history("hot")
        job.checkpoint(5, shape={"sources": {"words": {"counts": "bytes"}}})
        job.stop()
        assert "500 B" in holdfast("status", "hot").out
        assert [row["unit"] for row in holdfast("status", "hot", "--json").json["sources"]] == ["bytes", "bytes"]

    @pytest.mark.parametrize("flags", [(), ("--json",)])
    @pytest.mark.parametrize(("end", "state"), [("stop", "stopped"), ("finish", "finished")])
    def test_watching_ends_with_the_job(
        self, holdfast: Holdfast, history: Begin, end: str, state: str, flags: tuple[str, ...]
    ) -> None:
        job = history("hot")
        job.checkpoint(5)
        getattr(job, end)()
        ended = holdfast("status", "hot", "--watch", *flags)
        assert ended.status == 0
        assert ended.out.count(state) == 1
        assert ended.err.startswith(f"hot has ended ({state}): ")

    def test_an_ended_job_shows_the_positions_of_its_last_checkpoint(self, holdfast: Holdfast, history: Begin) -> None:
        job = history("hot")
        job.checkpoint(5)
        job.stop()
        shown = holdfast("status", "hot", "--json").json
        positions = [(at["partition"], at["offset"], at["lag"]) for at in shown["sources"]]
        assert positions == [(0, 500, None), (1, 250, None)]
        assert shown["sinks"] == [{"name": "out", "staged_epoch": 5, "delivered_epoch": 5, "error": None}]

    def test_a_driver_that_is_silent_makes_the_job_unreachable(self, holdfast: Holdfast, history: Begin) -> None:
        job = history("hot")
        job.live(at_us=now_us() - MINUTE_US)
        shown = holdfast("status", "hot", "--json").json
        assert shown["state"] == "unreachable"
        assert shown["driver"]["seen_ms"] >= 60_000
        assert [problem["code"] for problem in shown["problems"]] == ["unreachable"]

    def test_a_driver_that_is_silent_because_the_root_is_full_is_reported_so(
        self, holdfast: Holdfast, history: Begin, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job = history("hot")
        job.live(at_us=now_us() - MINUTE_US)
        monkeypatch.setattr("holdfast.runtime.cli.operate.history.free_bytes", lambda _folder: 0)
        shown = holdfast("status", "hot", "--json").json
        assert (shown["state"], [each["code"] for each in shown["problems"]]) == ("unreachable", ["root_refused"])
        assert f"the disk of {job.folder} is full" in shown["reason"]
        assert "free space" in shown["problems"][0]["next"]

    def test_a_driver_that_runs_here_and_does_not_report_is_not_called_silent(
        self, holdfast: Holdfast, history: Begin
    ) -> None:
        """As while the store is away: its process is there, and what it would say cannot be written."""
        at = now_us() - MINUTE_US
        history("hot").live(driver=msgspec.to_builtins(myself("a", at)))
        shown = holdfast("status", "hot", "--json").json
        [problem] = shown["problems"]
        assert (shown["state"], problem["code"]) == ("unreachable", "root_refused")
        assert f"(pid {os.getpid()} on " in problem["what"] and "has not been able to report to" in problem["what"]
        assert "make sure that the root takes writes" in problem["next"]
        assert "root_refused" in holdfast("explain", "hot", "--json").out

    def test_a_driver_whose_process_has_ended_is_not_awaited(self, holdfast: Holdfast, history: Begin) -> None:
        job = history("hot").live()
        live = json.loads((job.folder / "live.json").read_bytes())
        live["driver"]["pid"] = 2**22 + 1  # above what Linux gives to a process
        job.live(driver=live["driver"])
        shown = holdfast("status", "hot", "--json").json
        assert shown["state"] == "unreachable"
        assert shown["reason"].endswith("no longer runs")

    def test_the_status_of_an_older_generation_is_ignored(self, holdfast: Holdfast, history: Begin) -> None:
        job = history("hot").live()
        job.start("a worker was lost", at_us=now_us() - MINUTE_US)
        shown = holdfast("status", "hot", "--json").json
        assert (shown["state"], shown["generation"], shown["driver"]) == ("unreachable", 2, None)

    def test_a_generation_that_has_just_started_is_not_called_unreachable(
        self, holdfast: Holdfast, history: Begin
    ) -> None:
        history("hot").live().start("a worker was lost", at_us=now_us() + MINUTE_US)
        shown = holdfast("status", "hot", "--json").json
        assert (shown["state"], shown["reason"]) == ("recovering", "a worker was lost")

    def test_a_failed_job_stays_failed_with_its_cause(self, holdfast: Holdfast, history: Begin) -> None:
        problem = {"code": "failed", "what": "no such column", "next": "correct it"}
        history("hot").live("failed", reason="no such column", problems=[problem], at_us=now_us() - 60 * MINUTE_US)
        ended = holdfast("status", "hot")
        assert ended.out.startswith("hot: failed (no such column)\n")
        assert "Next: correct it" in ended.err

    def test_recoveries_have_their_time_in_the_log(self, holdfast: Holdfast, history: Begin) -> None:
        job = history("hot").start("worker w1 was silent", at_us=now_us() - MINUTE_US)
        job.live(restarts=[{"at": 12, "cause": "worker w1 was silent", "generation": 2, "recovery_ms": 600}])
        [restart] = holdfast("status", "hot", "--json").json["restarts"]
        assert restart["recovery_ms"] == 600
        assert restart["at"] > MINUTE_US

    def test_unknown_values_are_not_shown_as_zero(self, holdfast: Holdfast, history: Begin) -> None:
        job = history("hot")
        job.checkpoint(5)
        job.stop()
        lines = [line.split() for line in holdfast("status", "hot").out.splitlines()]
        assert ["words", "0", "500", "-", "-"] in lines

    def test_an_unknown_job_is_refused_with_the_existing_jobs(self, holdfast: Holdfast, history: Begin) -> None:
        history("hot")
        history("late")
        ended = holdfast("status", "cold")
        assert ended.status == 2
        assert "there is no job 'cold'" in ended.err
        assert "jobs here: hot, late" in ended.err

    @pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc"])
    def test_a_name_never_leads_out_of_the_root(self, root: Path, name: str) -> None:
        with pytest.raises(ConfigError, match="there is no job"):
            open_job(str(root), name)

    def test_a_file_in_place_of_a_name_is_explained(self, holdfast: Holdfast, root: Path) -> None:
        assert "not its file" in holdfast("status", "job.py").err

    def test_a_damaged_log_is_damage(self, holdfast: Holdfast, history: Begin) -> None:
        job = history("hot")
        (job.folder / "log" / f"{2:020d}.json").write_text("{")
        ended = holdfast("status", "hot")
        assert ended.status == 4
        assert "cannot be read" in ended.err

    def test_a_damaged_manifest_is_a_problem_and_hides_nothing_else(self, holdfast: Holdfast, history: Begin) -> None:
        job = history("hot")
        job.checkpoint(5)
        job.stop()
        record = job.repository.records()[-2]
        job.damage(record.body.manifest.path)  # type: ignore[union-attr]
        ended = holdfast("status", "hot", "--json")
        assert (ended.status, ended.json["state"]) == (0, "stopped")
        assert ended.json["problems"][0]["code"] == "damaged"


class TestJobs:
    def test_every_job_has_a_line(self, holdfast: Holdfast, history: Begin) -> None:
        stopped = history("late")
        stopped.checkpoint(5)
        stopped.stop()
        history("hot").live()
        lines = [line.split()[:3] for line in holdfast("jobs").out.splitlines()[1:]]
        assert lines == [["hot", "running", "-"], ["late", "stopped", "5"]]

    def test_json_is_a_list_of_objects(self, holdfast: Holdfast, history: Begin) -> None:
        history("hot").live()
        [shown] = holdfast("jobs", "--json").json
        assert (shown["job"], shown["state"], shown["generation"]) == ("hot", "running", 1)

    def test_a_root_that_does_not_exist_has_no_jobs(self, holdfast: Holdfast, root: Path) -> None:
        ended = holdfast("jobs")
        assert (ended.status, ended.out) == (0, "")
        assert "there are no jobs" in ended.err
        assert not root.exists()

    def test_a_job_with_a_damaged_log_does_not_hide_the_others(self, holdfast: Holdfast, history: Begin) -> None:
        history("hot").live()
        (history("broken").folder / "log" / f"{1:020d}.json").write_text("{")
        ended = holdfast("jobs")
        assert ended.status == 4
        assert [line.split()[:2] for line in ended.out.splitlines()[1:]] == [["broken", "damaged"], ["hot", "running"]]


class TestUntrustedLiveJson:
    @pytest.mark.parametrize("data", [b"[]", b"null", b"{", b'{"schema":1,"driver":{}}', b'{"schema":1,"driver":null}'])
    @pytest.mark.parametrize("command", [("status", "hot"), ("jobs",), ("explain", "hot"), ("events", "hot")])
    def test_is_ignored(self, holdfast: Holdfast, history: Begin, data: bytes, command: tuple[str, ...]) -> None:
        job = history("hot")
        job.checkpoint(5)
        job.store.put("live.json", data)
        ended = holdfast(*command)
        assert (ended.status, "unexpected" in ended.err) == (0, False)

    @pytest.mark.parametrize(("ahead_us", "codes"), [(MINUTE_US, ["clock_ahead"]), (0, [])])
    def test_with_a_time_in_the_future_does_not_prove_a_live_driver(
        self, holdfast: Holdfast, history: Begin, ahead_us: int, codes: list[str]
    ) -> None:
        history("hot").live(at_us=now_us() + ahead_us)
        shown = holdfast("status", "hot", "--json").json
        assert [problem["code"] for problem in shown["problems"]] == codes

    def test_does_not_hide_that_no_driver_was_seen(self, holdfast: Holdfast, history: Begin) -> None:
        job = history("hot").start(at_us=now_us() - MINUTE_US)
        job.live(workers=None)
        ended = holdfast("stop", "hot")
        assert ended.status == 5
        assert "the driver of generation 2, started" in ended.err


class TestFormats:
    def test_openmetrics_contains_the_status_of_the_driver(self, holdfast: Holdfast, history: Begin) -> None:
        history("hot").live(delays={kind: {"bounds_ms": [10], "counts": [1, 2], "sum_ms": 9} for kind in DELAYS})
        ended = holdfast("status", "hot", "--format", "openmetrics")
        assert ended.status == 0
        assert 'holdfast_records_total{job="hot",partition="0",source="words"} 700.0' in ended.out
        assert 'holdfast_recovery_duration_seconds_count{job="hot"} 3.0' in ended.out
        assert ended.out.endswith("# EOF\n")

    def test_format_json_equals_the_json_flag(self, holdfast: Holdfast, history: Begin) -> None:
        history("hot").checkpoint(5)
        shown = holdfast("status", "hot", "--format", "json").json
        assert shown["checkpoint"]["epoch"] == holdfast("status", "hot", "--json").json["checkpoint"]["epoch"] == 5

    def test_delays_in_an_unknown_form_are_ignored(self, holdfast: Holdfast, history: Begin) -> None:
        history("hot").live(delays={"checkpoint": [1]})
        assert holdfast("status", "hot").status == 0
        assert holdfast("status", "hot", "--json").json["sources"] == []


DELAYS = ("checkpoint", "recovery")
