from __future__ import annotations

import hashlib
import json
from typing import Any

from holdfast.chaos.sim.checks.history import History
from holdfast.storage.objects import MemoryObjects


class Written:
    """A log that a History reads."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.history = History(lambda rule, what: self.found.append(rule))
        self.objects = MemoryObjects()
        self.standing = (0, 0)
        self._records = 0

    def append(self, generation: int, owner: str, **body: Any) -> None:
        self._records += 1
        timeline = self.history.timeline + (body["kind"] == "Rewound")
        record = {"seq": self._records, "job_uuid": "j", "generation": generation, "owner": owner, "body": body}
        record["timeline"] = timeline
        path = f"log/{self._records:020d}.json"
        self.history.record(path, json.dumps(record).encode(), self.objects, lambda sink, subtask: self.standing)

    def start(self, generation: int, owner: str, first_epoch: int, base_epoch: int = 0) -> None:
        self.append(generation, owner, kind="GenerationStarted", first_epoch=first_epoch, base_epoch=base_epoch)

    def complete(self, generation: int, owner: str, epoch: int, stored: bool = True, **manifest: Any) -> None:
        whole = {"epoch": epoch, "positions": [], "state": [], "pending": [], "confirmed": [], **manifest}
        data = json.dumps(whole).encode()
        path = f"manifests/{epoch}"
        ref = {"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        if stored:
            self.objects.put(path, data)
        follows = self.history.lineage[-1] if self.history.lineage else 0
        self.append(generation, owner, kind="CheckpointCompleted", epoch=epoch, follows=follows, manifest=ref)

    def rewind(self, generation: int, owner: str, first_epoch: int, base_epoch: int) -> None:
        self.append(generation, owner, kind="Rewound", first_epoch=first_epoch, base_epoch=base_epoch)


def started() -> Written:
    written = Written()
    written.append(0, "d1", kind="JobCreated")
    written.start(1, "d1", 1)
    written.history.triggered(1, 1, "d1")
    return written


PENDING = {
    "writer": {"sink": "out", "subtask": 0},
    "tag": {"timeline": 1, "epoch": 1},
    "staged": {"parts": []},
}


class TestHistory:
    def test_a_right_log_is_accepted(self) -> None:
        written = started()
        written.complete(1, "d1", 1)
        written.start(2, "d2", 102, base_epoch=1)
        assert written.found == []

    def test_an_append_by_an_overtaken_driver_is_found(self) -> None:
        written = started()
        written.start(2, "d2", 102)
        written.complete(1, "d1", 1)
        assert "I7 fence" in written.found

    def test_a_manifest_that_is_not_stored_is_found(self) -> None:
        written = started()
        written.complete(1, "d1", 1, stored=False)
        assert written.found == ["I8 objects"]

    def test_an_epoch_number_used_by_two_generations_is_found(self) -> None:
        written = started()
        written.start(2, "d2", 1)
        written.history.triggered(2, 1, "d2")
        assert written.found == ["I6 epochs", "I6 epochs"]

    def test_a_base_that_is_not_the_last_epoch_is_found(self) -> None:
        written = started()
        written.complete(1, "d1", 1)
        written.start(2, "d2", 102, base_epoch=0)
        assert written.found == ["P5"]

    def test_forgotten_output_is_found_unless_it_is_in_the_target(self) -> None:
        for standing, expected in (((0, 0), ["P18"]), ((1, 1), [])):
            written = started()
            written.standing = standing
            written.complete(1, "d1", 1, pending=[PENDING])
            written.history.triggered(1, 2, "d1")
            written.complete(1, "d1", 2)
            assert written.found == expected

    def test_a_record_after_the_end_is_found(self) -> None:
        written = started()
        written.append(1, "d1", kind="Finished")
        written.start(2, "d2", 102)
        assert "P13" in written.found


class TestKeeping:
    def kept(self) -> Written:
        """Epochs 1 to 3; the first has a name, the second has expired."""
        written = started()
        for epoch in (1, 2, 3):
            written.history.triggered(1, epoch, "d1")
            written.complete(1, "d1", epoch)
        written.append(1, "somebody", kind="SavepointNamed", epoch=1, name="v1")
        written.append(1, "d1", kind="Expired", through=2)
        return written

    def test_a_savepoint_is_kept_when_other_checkpoints_expire(self) -> None:
        written = self.kept()
        written.history.deleted("manifests/2")
        assert written.found == []
        written.history.deleted("manifests/1")
        assert written.found == ["P16 sweep"]

    def test_a_log_start_that_omits_a_savepoint_is_found(self) -> None:
        completed = [{"body": {"epoch": 1}}, {"body": {"epoch": 3}}]
        for savepoints, expected in (([{"name": "v1", "epoch": 1}], []), ([], ["P7"])):
            written = self.kept()
            written.append(1, "d1", kind="LogStart", job={"completed": completed, "savepoints": savepoints})
            assert written.found == expected

    def test_a_name_for_an_expired_checkpoint_and_a_reused_name_are_found(self) -> None:
        for epoch, name in ((2, "v2"), (3, "v1")):
            written = self.kept()
            written.append(1, "somebody", kind="SavepointNamed", epoch=epoch, name=name)
            assert written.found == ["P6"]


class TestRewinds:
    def rewound(self) -> Written:
        written = started()
        written.complete(1, "d1", 1)
        written.history.triggered(1, 2, "d1")
        written.complete(1, "d1", 2)
        written.rewind(2, "d2", 103, base_epoch=1)
        return written

    def test_the_job_continues_from_the_base_on_a_new_timeline(self) -> None:
        written = self.rewound()
        written.history.triggered(2, 103, "d2")
        written.complete(2, "d2", 103)
        assert written.found == []
        assert (written.history.lineage, written.history.bases) == ([1, 103], {2: 1})

    def test_an_abandoned_checkpoint_cannot_be_a_base(self) -> None:
        written = self.rewound()
        written.rewind(3, "d3", 204, base_epoch=2)
        assert "P16" in written.found

    def test_a_rewind_starts_a_generation(self) -> None:
        written = self.rewound()
        written.rewind(2, "d2", 204, base_epoch=1)
        assert written.found == ["I6 generations"]


class TestSweep:
    def test_a_sweep_deletes_objects_that_no_retained_epoch_needs(self) -> None:
        written = started()
        for epoch in ("segments/00000001/000000000001", "staged/00000001/000000000009", "merged/00000001/000000000001"):
            written.objects.put(f"{epoch}/w1", b"it")
        written.history.swept(1, {2}, written.objects)
        assert written.found == ["I8 orphans"]  # an open epoch and a merge may still be named
        written.history.swept(2, {2}, written.objects)
        assert written.found == ["I8 orphans"] * 4
