"""A bit of a checkpoint flips, in a needed or an unneeded object, and flips back."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from holdfast.chaos.live.faults.damage import NEWEST_SPARED, Flip
from holdfast.checkpoint import joblog
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.repository import Repository
from holdfast.errors import Damaged
from holdfast.model import Epoch, Generation, JobUuid, ObjectRef, SegmentRef, SnapshotHandle, Subtask, Timeline
from holdfast.storage.objects import open_objects

UUID = JobUuid("6f1d2c9e000040008000000000000001")
EPOCHS = 2 * NEWEST_SPARED + 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A job whose checkpoints share one old segment and each have one more."""
    store = open_objects(str(tmp_path))
    repository = Repository(store)

    sequence, generation = 0, Generation(0)

    def blob(path: str) -> ObjectRef:
        data = path.encode() * 50
        store.put(path, data)
        return ObjectRef(path, len(data), hashlib.sha256(data).hexdigest())

    def append(body: joblog.Body) -> None:
        nonlocal sequence
        sequence += 1
        repository.create_record(joblog.Record(sequence, UUID, generation, Timeline(1), "o", 0, body))

    append(joblog.JobCreated("job", 8))
    generation = Generation(1)
    append(joblog.GenerationStarted(Epoch(1), Epoch(0), "host", "started"))
    shared = SegmentRef(Epoch(1), Epoch(0), blob("segments/shared"))
    for number in range(1, EPOCHS + 1):
        epoch, before = Epoch(number), Epoch(number - 1)
        own = SegmentRef(epoch, before, blob(f"segments/{number}"))
        handle = SnapshotHandle(Subtask(0), (0, 8), (), Epoch(0), (shared, own))
        manifest = Manifest(UUID, generation, Timeline(1), epoch, before, 1, 8, (), (handle,), (), (), ())
        append(joblog.CheckpointCompleted(epoch, before, repository.store_manifest(manifest, "o"), 1, 1, 1))
    return tmp_path


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class TestUnneeded:
    @pytest.mark.parametrize("rank", range(0, 40, 7))
    def test_only_an_object_that_the_newest_checkpoints_do_not_name_is_struck(self, folder: Path, rank: int) -> None:
        before = files(folder)
        flip = Flip(folder, rank, None)
        assert flip.begin() and "a verified read refuses it" in (flip.evidence() or "")
        [changed] = [path for path, data in files(folder).items() if data != before[path]]
        assert changed == flip.target != "segments/shared"
        assert changed not in {f"segments/{number}" for number in range(EPOCHS - NEWEST_SPARED, EPOCHS + 1)}
        assert flip.heal() == f"{changed} is restored"
        assert files(folder) == before

    def test_a_job_without_older_checkpoints_has_no_unneeded_object(self, tmp_path: Path) -> None:
        (tmp_path / "log").mkdir()
        assert not Flip(tmp_path, 1, None).begin()

    def test_an_object_deleted_in_the_meantime_is_not_restored(self, folder: Path) -> None:
        flip = Flip(folder, 1, None)
        assert flip.begin()
        (folder / flip.target).unlink()
        assert flip.heal() == "the object was deleted meanwhile"
        assert not (folder / flip.target).exists()


class TestNewest:
    def test_a_driver_is_not_killed_while_there_is_nothing_to_damage(self, tmp_path: Path) -> None:
        (tmp_path / "log").mkdir()
        driver = psutil.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        flip = Flip(tmp_path, 0, driver)
        assert not flip.begin() and not flip.killed and driver.is_running()
        driver.communicate(b"\n")

    def test_a_driver_that_has_ended_is_not_struck_and_a_killed_one_is_reported(self, folder: Path) -> None:
        driver = psutil.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        flip = Flip(folder, 0, driver)
        assert flip.begin() and flip.killed == {driver.pid}
        flip.heal()
        driver.communicate()
        again = Flip(folder, 0, driver)
        assert not again.begin() and not again.killed

    def test_the_driver_has_ended_before_a_bit_is_flipped_for_its_successor(self, folder: Path) -> None:
        driver = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        flip = Flip(folder, 0, psutil.Process(driver.pid))
        assert flip.begin()
        assert driver.wait() == -9
        driver.communicate()
        repository = Repository(open_objects(str(folder)))
        job = repository.read_log()
        assert job is not None
        with pytest.raises(Damaged):
            repository.load_manifest(job.completed[-1].body.manifest)
        flip.heal()
        repository.load_manifest(job.completed[-1].body.manifest)
