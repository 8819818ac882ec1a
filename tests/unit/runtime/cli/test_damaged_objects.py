"""A damaged object of the root: the message of a run names the checkpoint from which it can be computed again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from holdfast.checkpoint.repository import Repository
from holdfast.errors import Damaged, ErrorReport
from holdfast.runtime.inspect.damage import with_way_out

if TYPE_CHECKING:
    from tests.unit.runtime.cli.conftest import History

    Begin = Callable[[str], History]


def segment(epoch: int) -> str:
    return f"segments/00000001/{epoch:012d}/w1.segment"


def staged(epoch: int) -> str:
    return f"staged/00000001/{epoch:012d}/w1-out.arrow"


def found(job: History, path: str) -> ErrorReport:
    """Return what a worker reports that reads the object."""
    repository = Repository(job.store)
    log = repository.read_log()
    assert log is not None
    manifests = [repository.load_manifest(each.body.manifest) for each in log.completed]
    refs = [part for each in manifests for item in each.pending for part in item.staged.parts]
    refs += [piece.object for each in manifests for handle in each.state for piece in handle.segments]
    job.damage(path)
    with pytest.raises(Damaged) as raised:
        repository.read(next(ref for ref in refs if ref.path == path))
    return with_way_out(repository, job.name, raised.value.report())


class TestDamagedObject:
    """Each epoch of these histories needs the segments of all epochs before it, and its own staged output."""

    def test_a_damaged_epoch_is_recomputed_from_the_previous_checkpoint(self, history: Begin) -> None:
        job = history("hot")
        for epoch in (3, 4, 5, 6):
            job.checkpoint(epoch)
        error = found(job, segment(5))
        assert error.next == (
            f"restore {segment(5)} from a copy of the root and run the job again; without a copy, compute it again "
            "from epoch 4, the newest checkpoint that does not need it: holdfast rewind JOB.py --to-epoch 4, which "
            "takes the outputs back too; then run the job"
        )

    def test_damaged_staged_output_is_recomputed_from_the_previous_checkpoint(self, history: Begin) -> None:
        job = history("hot")
        for epoch in (3, 4):
            job.checkpoint(epoch)
        assert "holdfast rewind JOB.py --to-epoch 3," in found(job, staged(4)).next

    def test_an_object_needed_by_every_checkpoint_can_only_be_restored_from_a_copy(self, history: Begin) -> None:
        job = history("hot")
        for epoch in (3, 4):
            job.checkpoint(epoch)
        error = found(job, segment(3))
        assert "every retained checkpoint needs it" in error.next and "rewind" not in error.next

    def test_an_object_not_needed_by_the_last_checkpoint_keeps_its_advice(self, history: Begin) -> None:
        job = history("hot")
        for epoch in (3, 4):
            job.checkpoint(epoch)
        error = found(job, staged(3))
        assert error.object == staged(3) and "holdfast checkpoints verify JOB" in error.next

    def test_is_named_in_json_and_other_errors_lack_the_member(self) -> None:
        damaged = ErrorReport(kind="damaged", object="segments/7", what="it", not_done="nothing", next="look")
        other = ErrorReport(kind="failed", what="it", not_done="nothing", next="look")
        assert damaged.as_json()["object"] == "segments/7" and damaged.as_error().as_json() == damaged.as_json()
        assert set(other.as_json()) == {
            *("kind", "job", "operator", "epoch", "source", "partition", "offset", "what", "not_done", "next"),
        }


class TestDamagedManifest:
    def test_a_damaged_last_manifest_directs_the_start_to_the_previous_checkpoint(self, history: Begin) -> None:
        job = history("hot")
        for epoch in (3, 4):
            job.checkpoint(epoch)
        repository = Repository(job.store)
        log = repository.read_log()
        assert log is not None
        ref = log.completed[-1].body.manifest
        job.damage(ref.path)
        with pytest.raises(Damaged) as raised:
            repository.load_manifest(ref)
        assert "--to-epoch 3," in with_way_out(repository, "hot", raised.value.report()).next
