"""A rewind of a job that nobody runs: what others see of it in `live.json`."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from words_job import Words

from holdfast.checkpoint.repository import Repository
from holdfast.errors import Damaged
from holdfast.model import Epoch
from holdfast.runtime import rewind_run
from holdfast.runtime.master import RewindWanted
from holdfast.runtime.rewind_run import rewind_stopped


class Live:
    """What is said, and by which thread: threads overtake each other, what one thread says stays in order."""

    def __init__(self) -> None:
        self.said: list[tuple[str, threading.Thread]] = []

    def tell(self, told: Mapping[str, Any]) -> None:
        self.said.append((told["state"], threading.current_thread()))

    def ends_as(self, state: str) -> bool:
        """Return whether this is what remains, after more was said by the same thread."""
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


def rewind(words: Words, live: Live, timeout_s: float = 60.0) -> None:
    asked = RewindWanted(Epoch(words.epochs[0]), True)
    rewind_stopped(Repository(words.store), words.job, asked, words.plan.sinks, timeout_s, live.tell)


class TestLastWords:
    def test_of_a_rewind_are_not_overtaken_by_earlier_ones(self, words: Words) -> None:
        live = Live()
        rewind(words, live)
        assert live.ends_as("stopped")

    def test_of_one_that_fails_are_not_overtaken_either(self, words: Words) -> None:
        with (words.folder / "out.db").open("r+b") as file:
            file.seek(100)
            file.write(b"\xff" * 3900)
        live = Live()
        with pytest.raises(Damaged):
            rewind(words, live)
        assert live.ends_as("failed")
