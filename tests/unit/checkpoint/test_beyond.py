"""Objects beyond the end of a job log: those that prove a truncated log, and those that prove nothing."""

from __future__ import annotations

from functools import reduce

import pytest

from holdfast.checkpoint.beyond import Beyond, LastWord, beyond
from holdfast.checkpoint.joblog import Body, CheckpointCompleted, GenerationStarted, Job, JobCreated, Record, fold
from holdfast.model import Epoch, Generation, JobUuid, ObjectRef, Timeline


def record(seq: int, generation: int, body: Body) -> Record:
    return Record(seq, JobUuid("1"), Generation(generation), Timeline(1), f"driver{generation}", 0, body)


def manifest(generation: int, epoch: int, owner: str = "") -> str:
    return f"manifests/{generation:08d}/{epoch:012d}-{owner or f'driver{generation}'}.json"


def completed(seq: int, generation: int, epoch: int, follows: int) -> Record:
    ref = ObjectRef(manifest(generation, epoch), 1, "")
    return record(seq, generation, CheckpointCompleted(Epoch(epoch), Epoch(follows), ref, 1, 1, 1))


def folded(*records: Record) -> Job:
    job = reduce(fold, records, None)
    assert job is not None
    return job


RECORDS = (
    record(1, 0, JobCreated("job", 8)),
    record(2, 1, GenerationStarted(Epoch(1), Epoch(0), "here", "started")),
    completed(3, 1, 1, 0),
    completed(4, 1, 2, 1),
    record(5, 2, GenerationStarted(Epoch(103), Epoch(2), "here", "started again")),
    completed(6, 2, 103, 2),
    completed(7, 2, 104, 103),
)
STORED = (manifest(1, 1), manifest(1, 2), manifest(2, 103), manifest(2, 104))
LIVE = LastWord(Generation(2), Epoch(104))


def paths(job: Job | None, *listed: str, live: LastWord | None = None) -> list[str]:
    return [each.path for each in beyond(job, listed, live)]


class TestCompleteLog:
    def test_has_no_objects_beyond_it(self) -> None:
        assert beyond(folded(*RECORDS), STORED, LIVE) == []

    def test_may_lack_a_manifest_whose_driver_ended_before_the_append(self) -> None:
        assert beyond(folded(*RECORDS), (*STORED, manifest(2, 105)), LIVE) == []

    def test_may_have_manifests_that_are_stored_as_differences(self) -> None:
        stored = (*STORED[:3], manifest(2, 104).replace(".json", "-delta.json"))
        assert beyond(folded(*RECORDS), stored, LIVE) == []

    def test_may_have_manifests_left_by_older_drivers(self) -> None:
        """A recovery gave the epochs up that were being decided."""
        assert beyond(folded(*RECORDS), (*STORED, manifest(1, 3), manifest(1, 4, "zombie")), LIVE) == []

    def test_may_have_foreign_files_beside_it(self) -> None:
        assert beyond(folded(*RECORDS), (*STORED, "manifests/readme.txt", "manifests/9/1.json"), LIVE) == []

    def test_may_be_ahead_of_the_last_status(self) -> None:
        for live in (None, LastWord(Generation(2), Epoch(103)), LastWord(Generation(1), Epoch(300))):
            assert beyond(folded(*RECORDS), STORED, live) == []

    def test_a_job_that_never_existed_has_no_objects_beyond_its_log(self) -> None:
        assert beyond(None, (), None) == []


class TestTruncatedLog:
    @pytest.mark.parametrize("kept", [1, 2, 3, 4])
    def test_lacks_a_generation_that_stored_objects(self, kept: int) -> None:
        found = beyond(folded(*RECORDS[:kept]), STORED, None)
        assert "manifests/00000002/" in [each.path for each in found]

    def test_is_reported_with_the_number_of_objects_beyond_it(self) -> None:
        assert beyond(folded(*RECORDS[:4]), STORED, None) == [
            Beyond("manifests/00000002/", "manifests/00000002/ has 2 objects; the log ends at generation 1")
        ]

    def test_lacks_two_epochs_of_its_newest_generation(self) -> None:
        """A driver decides one epoch at a time."""
        assert paths(folded(*RECORDS[:5]), *STORED) == [manifest(2, 103), manifest(2, 104)]

    def test_lacks_an_epoch_that_the_last_status_names(self) -> None:
        assert paths(folded(*RECORDS[:6]), *STORED) == []
        assert paths(folded(*RECORDS[:6]), *STORED, live=LIVE) == ["live.json"]

    def test_lacks_a_generation_that_the_last_status_names(self) -> None:
        assert paths(folded(*RECORDS[:4]), live=LastWord(Generation(2), Epoch(2))) == ["live.json"]

    def test_a_continued_truncated_log_has_another_drivers_manifests_in_its_generation(self) -> None:
        other = manifest(2, 103, "another")
        assert paths(folded(*RECORDS), *STORED, other) == [other]

    def test_may_have_no_record_at_all(self) -> None:
        assert paths(None, *STORED, live=LIVE) == ["manifests/00000001/", "manifests/00000002/", "live.json"]

    def test_is_detected_from_objects_of_every_kind(self) -> None:
        segment = "segments/00000003/000000000205/w1.segment"
        assert paths(folded(*RECORDS), *STORED, segment) == ["segments/00000003/"]
