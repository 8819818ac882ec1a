"""A rewind of a stopped job, as other processes see it in `live.json`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from words_job import Words

from holdfast.checkpoint.repository import Repository
from holdfast.errors import ConfigError, Damaged, Unavailable
from holdfast.model import Epoch
from holdfast.runtime.cli.main import main
from holdfast.runtime.driver.state import RewindWanted
from holdfast.runtime.job.live import Status
from holdfast.runtime.plan.model import SinkSpec
from holdfast.runtime.rewind import stopped as rewind_run
from holdfast.runtime.rewind.stopped import check_in_time, rewind_stopped
from holdfast.sinks.contract.sink import Repair, Rewinding
from holdfast.sinks.sqlite.sink import SQLite


class Live:
    """The statuses written, with their thread: threads overtake each other, those of one thread stay in order."""

    def __init__(self) -> None:
        self.said: list[tuple[str, threading.Thread]] = []

    def tell(self, reported: Status) -> None:
        self.said.append((reported.state, threading.current_thread()))

    def ends_as(self, state: str) -> bool:
        """Return whether this status remains the last one, after the same thread wrote more."""
        last, before = self.said[-1], self.said[-2]
        return last[0] == state and before == ("recovering", last[1])


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Words:
    monkeypatch.setattr(rewind_run, "TELL_EVERY_S", 0.0)
    job = Words(tmp_path)
    job.say(a=1, b=2)
    job.say(a=10, c=3)
    job.stop()
    return job


def rewind(words: Words, live: Live, sinks: Sequence[SinkSpec] | None = None, timeout_s: float = 60.0) -> None:
    asked = RewindWanted(Epoch(words.epochs[0]), True)
    rewind_stopped(Repository(words.store), words.job, asked, sinks or words.plan.sinks, timeout_s, live.tell)


class TestLastStatus:
    def test_the_last_status_of_a_rewind_is_not_overwritten_by_an_earlier_status(self, words: Words) -> None:
        live = Live()
        rewind(words, live)
        assert live.ends_as("stopped")

    def test_the_last_status_of_a_failed_rewind_is_not_overwritten_by_an_earlier_status(self, words: Words) -> None:
        with (words.folder / "out.db").open("r+b") as file:
            file.seek(100)
            file.write(b"\xff" * 3900)
        live = Live()
        with pytest.raises(Damaged):
            rewind(words, live)
        assert live.ends_as("failed")


class TestTimeout:
    def test_a_timeout_too_short_for_repairs_is_refused_before_any_write(self, words: Words) -> None:
        to = ("--to-epoch", str(words.epochs[0]), "--apply")
        assert main(["rewind", words.file, *to, "--timeout", "1ms"]) == 2
        assert words.job.timeline == 1
        assert main(["rewind", words.file, *to]) == 0

    def test_names_the_option_and_a_sufficient_value(self) -> None:
        with pytest.raises(ConfigError, match="takes about 90 s, longer than --timeout 60s") as refused:
            check_in_time("hot", 90.0, 60.0)
        assert "--timeout 180s" in refused.value.next_step
        check_in_time("hot", 59.0, 60.0)
        check_in_time("hot", None, 60.0)

    def test_does_not_report_a_busy_target_as_unreachable(self, words: Words) -> None:
        busy = Busy(words.folder / "out.db", "totals", ["word"])
        sinks = [replace(spec, sink=busy) if spec.name == "out" else spec for spec in words.plan.sinks]
        with pytest.raises(Unavailable) as late:
            rewind(words, Live(), sinks, timeout_s=2.0)
        busy.may_end.set()
        assert "out: in progress, or no answer yet" in late.value.what
        assert "reachable" not in late.value.next_step and "--timeout" in late.value.next_step


class Busy(SQLite):
    """A target whose repair takes until the test lets it end."""

    may_end = threading.Event()

    def repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        self.may_end.wait()
        return super().repair(rewinding, schema, upsert_key)
