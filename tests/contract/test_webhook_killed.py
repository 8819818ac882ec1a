"""`holdfast capture` as a process: killed at any moment, beside another one, and stopped."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from logged import rows_in
from patience import WALL_S, wait_for_end

from holdfast.storage.log.log import read_meta
from holdfast.storage.objects import LocalObjects

pytestmark = pytest.mark.thorough

JOB = """
from dataclasses import dataclass

import holdfast as hf


@dataclass
class Payment:
    id: str
    cents: int


app = hf.App("payments")
source = hf.Webhook("127.0.0.1:0", hf.Log("log", partitions=2), Payment, path="/in", key="header:Key")
app.source("payments", source).sink("out", hf.Log("out"))
"""
KEYS = [f"k{number}" for number in range(120)]
AT_ONCE = 16
Answers = dict[str, str]


class Receiver:
    """A process of `holdfast capture`."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "holdfast.runtime.cli.main", "capture", "job.py", "--json"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
        self.listening = self._line()

    def kill(self) -> None:
        self.process.kill()
        assert wait_for_end(self.process, "a killed process") == -signal.SIGKILL

    def stop(self) -> dict[str, Any]:
        """Stop it with SIGTERM; return its last line."""
        self.process.send_signal(signal.SIGTERM)
        last = self._line()
        assert wait_for_end(self.process, "a stopped process") == 0
        return last

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(WALL_S)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the process ended early"
        found: dict[str, Any] = json.loads(line)
        return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a job."""
    (tmp_path / "job.py").write_text(JOB)
    return tmp_path


@contextmanager
def receiving(folder: Path) -> Iterator[Receiver]:
    process = Receiver(folder)
    try:
        yield process
    finally:
        process.close()


def stored(folder: Path) -> Counter[str]:
    """Return how often each key is in the log."""
    store, found = LocalObjects(folder / "log"), Counter[str]()
    if read_meta(store) is None:
        return found
    return Counter(row["webhook_key"] for row in rows_in(store))


class Senders:
    """Sends requests, several side by side, and notes which were answered 200."""

    def __init__(self) -> None:
        self.answers = Answers()

    def send(self, keys: list[str], urls: list[str], receiver: Receiver, kill_after: int | None = None) -> None:
        """Send each key to each URL.

        Args:
            kill_after: Kill the process after so many answers; None: every request is answered.
        """
        asyncio.run(self._send([(key, url) for key in keys for url in urls], receiver, kill_after))

    async def _send(self, requests: list[tuple[str, str]], receiver: Receiver, kill_after: int | None) -> None:
        left, answered = iter(requests), 0

        async def sender(session: aiohttp.ClientSession) -> None:
            nonlocal answered
            for key, url in left:
                if (status := await _post(session, url, key)) is not None:
                    self.answers.setdefault(key, status)
                    answered += 1
                elif kill_after is None:
                    raise AssertionError(f"{key} was not answered")
                if answered == kill_after and receiver.process.poll() is None:
                    receiver.kill()

        async with aiohttp.ClientSession() as session:
            await asyncio.gather(*(sender(session) for _ in range(AT_ONCE)))


async def _post(session: aiohttp.ClientSession, url: str, key: str) -> str | None:
    """Send a request; return its answer, None if there was none."""
    try:
        async with session.post(url, data=b'{"id":"x","cents":1}', headers={"Key": key}) as answer:
            assert answer.status == 200
            body: dict[str, str] = await answer.json()
            return body["status"]
    except aiohttp.ClientError:
        return None


LONGER = pytest.mark.slow


@pytest.mark.parametrize(
    ("kills", "seed"), [(2, 0), pytest.param(4, 0, marks=LONGER), pytest.param(4, 1, marks=LONGER)]
)
def test_killed_at_any_moment_it_has_stored_each_answered_key_once(folder: Path, kills: int, seed: int) -> None:
    chance, senders, found = random.Random(seed), Senders(), Counter[str]()
    for _ in range(kills):
        with receiving(folder) as process:
            assert process.listening == {
                "event": "listening",
                "source": "payments",
                "url": process.listening["url"],
                "log": str(folder / "log"),
                "known_keys": len(found),
            }
            left = [key for key in KEYS if key not in senders.answers]
            again = chance.sample(sorted(senders.answers), min(10, len(senders.answers)))
            batch = chance.sample(left + again, len(left + again))
            senders.send(batch, [process.listening["url"]], process, chance.randrange(1, 40))
        found = stored(folder)
        assert set(senders.answers) <= set(found) and set(found.values()) <= {1}
    with receiving(folder) as process:
        senders.send(KEYS, [process.listening["url"]], process)
        ended = {"stored": len(KEYS) - len(found), "repeated": len(found), "refused": 0}
        others = {"overloaded": 0, "full": 0, "unreachable": 0, "stopping": 0}
        assert process.stop() == {"event": "stopped", "source": "payments", **ended, **others}
    assert stored(folder) == Counter(KEYS)


def test_two_processes_for_one_log_store_each_key_once(folder: Path) -> None:
    senders = Senders()
    with receiving(folder) as one, receiving(folder) as two:
        senders.send(KEYS, [one.listening["url"], two.listening["url"]], one)
        counts = [one.stop(), two.stop()]
    assert stored(folder) == Counter(KEYS)
    assert sum(each["stored"] for each in counts) == sum(each["repeated"] for each in counts) == len(KEYS)
