"""The changelog as a topic on real Spark: with the segments deleted that it has confirmed, nothing is lost."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from kafka_server import KafkaServer
from running import IN_BOTH_MODES_SLOWLY, differences, make_input, running
from test_kills import CLUSTER, RATE, ROWS, kill_worker

import holdfast as hf
from holdfast.checkpoint.repository import Repository
from holdfast.model import CHANGELOG
from holdfast.runtime.config.settings import CONTINUOUS
from holdfast.sinks.changelogs import Changelog
from holdfast.storage.objects import LocalObjects

pytestmark = pytest.mark.e2e


def forget_state(folder: Path, changelog: Changelog) -> tuple[int, int]:
    """Delete local folders, and the segments whose epochs the topic has confirmed; return how many went and stay."""
    root = LocalObjects(folder / "root" / "counting")
    job = Repository(root).read_log()
    assert job is not None
    manifest = Repository(root).load_manifest(job.completed[-1].body.manifest)
    confirmed = changelog.open(job.uuid).delivered
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
    return len(segments) - len(owed), len(owed)


def killed_and_restored(tmp_path: Path, mode: str, given: str, changelog: Changelog) -> None:
    """Kill a worker, then the whole job; the topic restores the state for another parallelism."""
    frame = make_input(tmp_path, ROWS // 2 if mode == CONTINUOUS else 4 * ROWS)
    with running(tmp_path, *CLUSTER, *RATE, COUNTING_CHANGELOG=given) as run:
        run.wait_until_running(ROWS // 20)
        if mode == CONTINUOUS:
            kill_worker(run, 0)
        run.wait_for(lambda p: (p["records_in"] or 0) >= ROWS // 5 and p["epoch"] >= 4, "some epochs")
        run.kill_group(signal.SIGKILL)
    gone, owed = forget_state(tmp_path, changelog)
    assert gone > owed
    with running(tmp_path, *CLUSTER, "--parallelism", "3", COUNTING_CHANGELOG=given) as run:
        assert run.finish() == 0, run.errors()
        assert {worker["how"] for worker in run.lines[-1]["workers"]} <= {"restored", "as batches", None}
    assert differences(tmp_path, frame) == []
    forget_state(tmp_path, changelog)
    users = frame.group_by("user").len().height
    assert hf.state("counting", "users", root=str(tmp_path / "root")).height == users


@IN_BOTH_MODES_SLOWLY
def test_the_topic_alone_restores_the_state_after_the_whole_job_was_killed(tmp_path: Path, mode: str) -> None:
    killed_and_restored(tmp_path, mode, "log", hf.Log(tmp_path / "changelog").changelog())
    table = hf.log(tmp_path / "changelog", as_table=True).collect()
    state = hf.state("counting", "users", root=str(tmp_path / "root"))
    assert table.filter(table["operator"] == "users").height == state.height


@pytest.mark.kafka
@IN_BOTH_MODES_SLOWLY
def test_so_does_a_topic_of_kafka(tmp_path: Path, mode: str, kafka: KafkaServer) -> None:
    changelog = hf.Kafka(kafka.servers, f"{kafka.topic()}-state")
    killed_and_restored(tmp_path, mode, f"{kafka.servers}/{changelog.place.topic}", changelog.changelog())
