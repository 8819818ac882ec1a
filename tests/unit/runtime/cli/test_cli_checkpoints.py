"""`holdfast checkpoints`: the checkpoints that a job can be restored from, and whether they are intact."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from holdfast.checkpoint import folds
from holdfast.checkpoint.repository import record_path
from holdfast.errors import Damaged
from holdfast.runtime.inspect.log_end import read_whole_log

if TYPE_CHECKING:
    from tests.unit.runtime.cli.conftest import Ended, History

    Holdfast = Callable[..., Ended]
    Begin = Callable[[str], History]


@pytest.fixture
def job(history: Begin) -> History:
    """A job with the checkpoints of epochs 5, 6 and 9."""
    begun = history("hot")
    for epoch in (5, 6, 9):
        begun.checkpoint(epoch)
    return begun


class TestList:
    def test_json_has_the_fields_of_the_contract(self, holdfast: Holdfast, job: History) -> None:
        listed = holdfast("checkpoints", "list", "hot", "--json").json
        assert [each["epoch"] for each in listed] == [5, 6, 9]
        assert set(listed[0]) == {
            "epoch",
            "timeline",
            "kind",
            "name",
            "at",
            "duration_ms",
            "bytes_new",
            "bytes_total",
            "offsets",
            "verified",
        }
        assert listed[2]["offsets"] == {"words": {"0": 900, "1": 450}}
        assert listed[0]["verified"] is None

    def test_the_newest_can_be_chosen_and_the_rest_is_mentioned(self, holdfast: Holdfast, job: History) -> None:
        ended = holdfast("checkpoints", "list", "hot", "--last", "2")
        assert [line.split()[0] for line in ended.out.splitlines()] == ["epoch", "6", "9"]
        assert "newest 2 of 3" in ended.err

    def test_a_count_below_one_is_refused(self, holdfast: Holdfast, job: History) -> None:
        assert holdfast("checkpoints", "list", "hot", "--last", "0").status == 2

    def test_a_job_without_checkpoints_has_an_empty_list(self, holdfast: Holdfast, history: Begin) -> None:
        history("new")
        assert holdfast("checkpoints", "list", "new", "--json").json == []
        assert "has not completed a checkpoint" in holdfast("checkpoints", "list", "new").err


class TestShow:
    def test_latest_is_the_last_completed(self, holdfast: Holdfast, job: History) -> None:
        shown = holdfast("checkpoints", "show", "hot", "latest", "--json").json
        assert (shown["epoch"], shown["follows"], shown["generation"]) == (9, 6, 1)
        [subtask] = shown["state"]
        assert [segment["epoch"] for segment in subtask["segments"]] == [5, 6, 9]
        assert subtask["segment_bytes"] == shown["bytes_total"]
        assert shown["pending"][0] | {"bytes": 0} == {
            "sink": "out",
            "subtask": 0,
            "timeline": 1,
            "epoch": 9,
            "rows": 3,
            "bytes": 0,
        }

    def test_text_names_positions_and_segments(self, holdfast: Holdfast, job: History) -> None:
        lines = [line.split() for line in holdfast("checkpoints", "show", "hot", "6").out.splitlines()]
        assert ["words", "1", "300"] in lines
        assert any(line and line[-1].endswith("000000000006/w1.segment") for line in lines)

    def test_an_epoch_in_a_gap_names_its_neighbours(self, holdfast: Holdfast, job: History) -> None:
        ended = holdfast("checkpoints", "show", "hot", "7")
        assert ended.status == 2
        assert "the nearest: 6 and 9" in ended.err

    @pytest.mark.parametrize("epoch", ["last", "-1x", "1.5"])
    def test_an_argument_that_is_no_epoch_is_refused(self, holdfast: Holdfast, job: History, epoch: str) -> None:
        ended = holdfast("checkpoints", "show", "hot", "--", epoch)
        assert ended.status == 2
        assert "is neither an epoch nor a savepoint" in ended.err

    def test_a_job_without_checkpoints_has_nothing_to_show(self, holdfast: Holdfast, history: Begin) -> None:
        history("new")
        ended = holdfast("checkpoints", "show", "new", "latest")
        assert ended.status == 2
        assert "has not completed a checkpoint" in ended.err


class TestVerify:
    def test_undamaged_checkpoints_are_reported_as_undamaged(self, holdfast: Holdfast, job: History) -> None:
        ended = holdfast("checkpoints", "verify", "hot", "--json")
        assert ended.status == 0
        assert ended.json | {"bytes": 0} == {
            "job": "hot",
            "checkpoints": 3,
            "objects": 9,
            "bytes": 0,
            "damaged": [],
            "newest_whole_epoch": 9,
        }

    def test_a_flipped_bit_in_a_segment_damages_every_checkpoint_that_needs_it(
        self, holdfast: Holdfast, job: History
    ) -> None:
        path = "segments/00000001/000000000006/w1.segment"
        job.damage(path)
        ended = holdfast("checkpoints", "verify", "hot", "--json")
        assert ended.status == 4
        [broken] = ended.json["damaged"]
        assert (broken["path"], broken["kind"], broken["epochs"]) == (path, "segment", [6, 9])
        assert ended.json["newest_whole_epoch"] == 5

    def test_a_missing_object_is_damage(self, holdfast: Holdfast, job: History) -> None:
        job.store.delete("staged/00000001/000000000009/w1-out.arrow")
        ended = holdfast("checkpoints", "verify", "hot")
        assert ended.status == 4
        assert "is missing" in ended.out
        assert "the newest intact checkpoint is epoch 6" in ended.err
        assert "Not done: nothing was changed." in ended.err

    def test_a_damaged_manifest_is_named(self, holdfast: Holdfast, job: History) -> None:
        path = next(path for path in job.store.list("manifests") if "000000000006" in path)
        job.damage(path)
        [broken] = holdfast("checkpoints", "verify", "hot", "--json").json["damaged"]
        assert (broken["kind"], broken["path"], broken["epochs"]) == ("manifest", path, [6])

    def test_a_segment_with_the_right_hash_must_also_be_readable(self, holdfast: Holdfast, job: History) -> None:
        job.checkpoint(10, torn=True)
        ended = holdfast("checkpoints", "verify", "hot", "--epoch", "10", "--json")
        assert ended.status == 4
        assert [(each["kind"], each["epochs"]) for each in ended.json["damaged"]] == [("segment", [10])]

    def test_one_checkpoint_can_be_chosen(self, holdfast: Holdfast, job: History) -> None:
        job.damage("segments/00000001/000000000009/w1.segment")
        assert holdfast("checkpoints", "verify", "hot", "--epoch", "6").status == 0
        assert holdfast("checkpoints", "verify", "hot", "--epoch", "9").status == 4

    def test_objects_that_no_checkpoint_names_are_listed(self, holdfast: Holdfast, job: History) -> None:
        assert holdfast("checkpoints", "verify", "hot", "--orphans", "--json").json["orphans"] == []
        job.store.put("segments/00000001/000000000008/w9.segment", b"given up")
        job.store.put("base/00000001/000000000009/w1.segment", b"on its way")
        ended = holdfast("checkpoints", "verify", "hot", "--orphans", "--json")
        assert (ended.status, ended.json["orphans"]) == (
            0,
            [
                {"path": "segments/00000001/000000000008/w9.segment", "swept_next": True},
                {"path": "base/00000001/000000000009/w1.segment", "swept_next": False},
            ],
        )

    def test_a_job_without_a_checkpoint_has_nothing_to_verify(self, holdfast: Holdfast, history: Begin) -> None:
        history("new")
        ended = holdfast("checkpoints", "verify", "new")
        assert (ended.status, ended.out) == (0, "new: there is no checkpoint to verify yet\n")


class TestTruncatedLog:
    @pytest.fixture
    def cut(self, job: History) -> History:
        """The newest two records are missing, their objects are not."""
        for path in job.store.list("log")[-2:]:
            job.store.delete(path)
        return job

    def test_is_damage_with_evidence_and_the_next_step(self, holdfast: Holdfast, cut: History) -> None:
        ended = holdfast("checkpoints", "verify", "hot")
        assert ended.status == 4
        assert ended.out.count("the job log was cut short: manifests/00000001/") == 2
        assert "restore the missing records below log/ from a copy" in ended.err
        assert "belongs to an epoch after 5, the last one in the log" in ended.out
        assert "holdfast rewind JOB.py --to-epoch 5" in ended.err

    def test_is_found_by_verify_below_a_stored_fold_too(
        self, holdfast: Holdfast, job: History, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No start reads these records while the fold is there."""
        monkeypatch.setattr(folds, "EVERY", 2)
        stored = job.repository.read_log()
        assert stored is not None
        job.repository.store_fold(stored)
        job.store.delete(record_path(3))
        assert job.repository.read_log() == stored
        ended = holdfast("checkpoints", "verify", "hot")
        assert ended.status == 4 and record_path(3) in ended.err

    def test_can_have_undamaged_checkpoints(self, holdfast: Holdfast, cut: History) -> None:
        shown = holdfast("checkpoints", "verify", "hot", "--json").json
        assert {each["kind"] for each in shown["damaged"]} == {"log"}
        assert shown["newest_whole_epoch"] == 5

    def test_is_not_started(self, cut: History) -> None:
        with pytest.raises(Damaged, match="job log of 'hot' was cut short or restored from an older copy") as refused:
            read_whole_log("hot", cut.store, cut.repository)
        assert "not started" in refused.value.not_done

    def test_a_missing_truncated_log_is_not_a_new_job(self, cut: History) -> None:
        for path in cut.store.list("log"):
            cut.store.delete(path)
        with pytest.raises(Damaged, match="manifests/00000001/ has 3 objects; the log ends at generation 0"):
            read_whole_log("hot", cut.store, cut.repository)

    def test_is_detected_from_the_last_status_of_its_driver(self, job: History) -> None:
        job.live(checkpoint={"epoch": 12})
        with pytest.raises(Damaged, match="live.json names generation 1 and epoch 12; the log ends at 1 and 9"):
            read_whole_log("hot", job.store, job.repository)

    @pytest.mark.parametrize(
        "said", [b"[]", b"{", b"null", b'{"generation": null}', b'{"generation": 1, "checkpoint": []}', b"[" * 100_000]
    )
    def test_is_not_inferred_from_an_unreadable_status(self, job: History, said: bytes) -> None:
        job.store.put("live.json", said)
        assert read_whole_log("hot", job.store, job.repository) == job.repository.read_log()

    def test_is_not_inferred_from_the_status_of_another_job(self, job: History) -> None:
        job.live(checkpoint={"epoch": 12}, job_uuid="another")
        assert read_whole_log("hot", job.store, job.repository) == job.repository.read_log()
