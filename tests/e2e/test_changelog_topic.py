"""The changelog as a topic on real Spark: with the segments deleted that it has confirmed, nothing is lost."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from kafka_server import KafkaServer
from patience import wait
from running import IN_BOTH_MODES_SLOWLY, differences, make_input, running
from test_kills import RATE, ROWS, kill_worker

import holdfast as hf
from holdfast.checkpoint.repository import Repository
from holdfast.errors import Unavailable
from holdfast.model import CHANGELOG
from holdfast.runtime.config.settings import CONTINUOUS
from holdfast.sinks.contract.changelogs import Changelog, OpenChangelog
from holdfast.storage.objects import LocalObjects

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1_800)]


def forget_state(folder: Path, changelog: Changelog) -> int:
    """Delete local folders, and the segments whose epochs the topic has confirmed; return how many went."""
    root = LocalObjects(folder / "root" / "counting")
    job = Repository(root).read_log()
    assert job is not None
    manifest = Repository(root).load_manifest(job.completed[-1].body.manifest)
    confirmed = opened(changelog, job.uuid).delivered
    owed = {
        part.path
        for item in manifest.pending
        if item.writer.sink == CHANGELOG and item.tag.epoch > confirmed.get(item.writer.subtask, 0)
        for part in item.staged.parts
    }
    segments = root.list("segments")
    for path in segments:
        if path not in owed:
            root.delete(path)
    assert not root.list("base") and not root.list("merged")
    for local in folder.glob("holdfast-*"):
        shutil.rmtree(local)
    return len(segments) - len(owed)


def opened(changelog: Changelog, job_uuid: str) -> OpenChangelog:
    """Open a topic. A transaction that a killed process left open hides its tags for a minute, until brokers end it."""

    def look() -> OpenChangelog | None:
        try:
            return changelog.open(job_uuid)
        except Unavailable:
            return None

    found: OpenChangelog = wait(look, "a topic without an open transaction")
    return found


def has_delivered(folder: Path, changelog: Changelog, epoch: int) -> bool:
    """Return whether the topic holds the changes of an epoch."""
    job = Repository(LocalObjects(folder / "root" / "counting")).read_log()
    return job is not None and max(opened(changelog, job.uuid).delivered.values(), default=0) >= epoch


def killed_and_restored(tmp_path: Path, rows: int, mode: str, given: str, changelog: Changelog) -> None:
    """Kill a worker, then the whole job; the topic restores the state for another parallelism."""
    frame = make_input(tmp_path, rows)
    with running(tmp_path, *RATE, COUNTING_CHANGELOG=given) as run:
        run.wait_until_running(ROWS // 20)
        if mode == CONTINUOUS:
            kill_worker(run, 0)
        seen = run.wait_for(lambda p: (p["records_in"] or 0) >= ROWS // 5 and p["epoch"] >= 4, "some epochs")
        wait(lambda: has_delivered(tmp_path, changelog, seen["epoch"]), "the delivery of their changes")
        run.kill_group(signal.SIGKILL)
    assert forget_state(tmp_path, changelog), "the topic holds the changes of some epochs alone"
    with running(tmp_path, "--parallelism", "3", COUNTING_CHANGELOG=given) as run:
        assert run.finish() == 0, run.errors()
        assert {worker["how"] for worker in run.lines[-1]["workers"]} <= {"restored", "as batches", None}
    assert differences(tmp_path, frame) == []
    forget_state(tmp_path, changelog)
    users = frame.group_by("user").len().height
    assert hf.state("counting", "users", root=str(tmp_path / "root")).height == users


@IN_BOTH_MODES_SLOWLY
def test_the_topic_alone_restores_the_state_after_the_whole_job_was_killed(tmp_path: Path, mode: str) -> None:
    rows = ROWS if mode == CONTINUOUS else 4 * ROWS
    killed_and_restored(tmp_path, rows, mode, "log", hf.Log(tmp_path / "changelog").changelog())
    table = hf.log(tmp_path / "changelog", as_table=True).collect()
    state = hf.state("counting", "users", root=str(tmp_path / "root"))
    assert table.filter(table["operator"] == "users").height == state.height


@pytest.mark.kafka
@pytest.mark.slow
@IN_BOTH_MODES_SLOWLY
def test_so_does_a_topic_of_kafka(tmp_path: Path, mode: str, kafka: KafkaServer) -> None:
    changelog = hf.Kafka(kafka.servers, f"{kafka.topic()}-state")
    killed_and_restored(tmp_path, 4 * ROWS, mode, f"{kafka.servers}/{changelog.place.topic}", changelog.changelog())
