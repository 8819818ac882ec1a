"""A complete job in one thread that sends its rows to a real receiver, which fails and loses replies.

A receiver that is away, and rewinds, are in test_sink_jobs.py, as for all targets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from http_receiver import HttpReceiver, Reply
from played_jobs import WordsJob

import holdfast as hf
from holdfast.model import Tag
from holdfast.runtime.config.settings import CONTINUOUS, MICROBATCH
from holdfast.sinks.contract.target import Delivered, Outcome
from holdfast.sinks.http.requests import requests_of
from holdfast.sinks.http.target import HttpTarget

UNREADY: Reply = (503, {}, b"not yet")


class Job(WordsJob):
    """Sends rows, seven in a request."""

    def __init__(self, folder: Path, receiver: HttpReceiver, mode: str) -> None:
        self._receiver = receiver
        super().__init__(folder, mode, hf.Http(receiver.url, progress=folder / "progress", batch_rows=7))

    def row(self, n: int) -> tuple[int, str]:
        return n, f"w{n}"

    def received(self) -> list[tuple[int, str]]:
        """Return the rows of a receiver that takes each key once."""
        return sorted((row["n"], row["word"]) for row in self._receiver.rows())


@pytest.fixture(params=[CONTINUOUS, MICROBATCH])
def mode(request: pytest.FixtureRequest) -> str:
    mode: str = request.param
    return mode


def played(job: Job, receiver: HttpReceiver) -> None:
    """Play a job to its end through lost replies, refusals, crashes and other numbers of workers."""

    def fail() -> None:
        receiver.loses, receiver.replies = 2, [UNREADY]

    job.disturb(before=fail, each=40)


def tag_first(self: HttpTarget, tag: Tag, batches: Iterable[pa.RecordBatch], known: Tag | None = None) -> Outcome:
    """Deliver as it must not be done: the tag moves before the requests are answered."""
    outcome = self._progress.deliver(tag, [], known)
    if isinstance(outcome, Delivered):
        requests = requests_of(self._job, self._writer, tag, batches, self._batch_rows)
        for number, request in enumerate(requests, start=1):
            self._send(tag, number, request)
    return outcome


class TestJob:
    def test_rows_are_exact_by_key_though_workers_crash_and_replies_are_lost(
        self, tmp_path: Path, receiver: HttpReceiver, mode: str
    ) -> None:
        job = Job(tmp_path, receiver, mode)
        played(job, receiver)
        assert receiver.lost >= 3 and receiver.refused >= 2, "the faults happened"
        assert job.received() == job.said
        repeated = [key for key, count in Counter(each.key for each in receiver.taken).items() if count > 1]
        assert repeated and len(receiver.rows_with_repetitions()) > len(job.said), (
            "a lost reply is repeated with its key"
        )

    def test_a_tag_that_moves_first_loses_rows_which_the_oracle_notices(
        self, tmp_path: Path, receiver: HttpReceiver, mode: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(HttpTarget, "deliver", tag_first)
        job = Job(tmp_path, receiver, mode)
        played(job, receiver)
        assert receiver.refused and set(job.received()) < set(job.said)
