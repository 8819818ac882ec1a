"""The changelog as a topic on real Spark: with the segments deleted that it has confirmed, nothing is lost."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from running import IN_BOTH_MODES_SLOWLY, differences, make_input, running
from test_kills import CLUSTER, RATE, ROWS, kill_worker

import holdfast as hf
from holdfast.checkpoint.repository import Repository
from holdfast.model import CHANGELOG
from holdfast.runtime.config.settings import CONTINUOUS
from holdfast.storage.log.log import LogReader
from holdfast.storage.objects import LocalObjects

pytestmark = pytest.mark.e2e


def forget_state(folder: Path) -> tuple[int, int]:
    """Delete local folders, and the segments whose epochs the topic has confirmed; return how many went and stay."""
    root = LocalObjects(folder / "root" / "counting")
    job = Repository(root).read_log()
    assert job is not None
    manifest = Repository(root).load_manifest(job.completed[-1].body.manifest)
    confirmed = {known.writer: known.tag.epoch for known in LogReader(LocalObjects(folder / "changelog")).tags()}
    owed = {
        part.path
        for item in manifest.pending
        if item.writer.sink == CHANGELOG
        and item.tag.epoch > confirmed.get(f"{manifest.job_uuid}/{CHANGELOG}/{item.writer.subtask}", 0)
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


@IN_BOTH_MODES_SLOWLY
def test_the_topic_alone_restores_the_state_after_the_whole_job_was_killed(tmp_path: Path, mode: str) -> None:
    frame = make_input(tmp_path, ROWS // 2 if mode == CONTINUOUS else 4 * ROWS)
    with running(tmp_path, *CLUSTER, *RATE, COUNTING_CHANGELOG="log") as run:
        run.wait_until_running(ROWS // 20)
        if mode == CONTINUOUS:
            kill_worker(run, 0)
        run.wait_for(lambda p: (p["records_in"] or 0) >= ROWS // 5 and p["epoch"] >= 4, "some epochs")
        run.kill_group(signal.SIGKILL)
    gone, owed = forget_state(tmp_path)
    assert gone > owed
    with running(tmp_path, *CLUSTER, "--parallelism", "3", COUNTING_CHANGELOG="log") as run:
        assert run.finish() == 0, run.errors()
        assert {worker["how"] for worker in run.lines[-1]["workers"]} <= {"restored", "as batches", None}
    assert differences(tmp_path, frame) == []
    forget_state(tmp_path)
    users = frame.group_by("user").len().height
    assert hf.state("counting", "users", root=str(tmp_path / "root")).height == users
    table = hf.log(tmp_path / "changelog", as_table=True).collect()
    assert table.filter(table["operator"] == "users").height == users
