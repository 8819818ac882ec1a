"""Tasks that find their state on the machine, against counts in plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.checkpoint import repository
from holdfast.errors import JobFailed, Unavailable
from holdfast.model import Epoch, ObjectRef
from holdfast.ports import ObjectStore
from holdfast.runtime.microbatch import task
from holdfast.runtime.microbatch.ranges import ROWS_FIRST, Pace
from holdfast.runtime.plan.memory import Budget
from holdfast.runtime.testing.batches import TaskFaults
from holdfast.runtime.worker import compaction
from holdfast.runtime.worker.local import images as image_folders
from holdfast.runtime.worker.local import opened, warm
from holdfast.runtime.worker.local.home import Home
from holdfast.runtime.worker.local.images import IMAGES, LocalImages
from holdfast.runtime.worker.local.warm import WarmState
from holdfast.state.paging.swap import SwapMemory
from holdfast.state.store import StateStore
from holdfast.testing import TestDriver
from tests.unit.runtime.microbatch.test_jobs import app, crash_and_rewind, expected, shown, visit


@dataclass
class Page:
    page: int


class Machine:
    """The images of one machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.did = Counter[str]()
        """How many tasks restored everything, and how many brought an image up to date."""

    def on(self, t: TestDriver, budget: Budget | None = None) -> None:
        clock, images = t.cluster.clock, LocalImages(Home(self.root, "machine", "boot"), budget)
        assert t.cluster.batches is not None
        t.cluster.batches.jobs.budget = budget
        t.cluster.local = lambda: WarmState(clock, clock.pass_by, images)

    def images(self) -> list[Path]:
        return sorted(self.root.glob(f"machine/boot/*/{IMAGES}/*"))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine, restore, follow = Machine(tmp_path / "local"), compaction.restore, StateStore.follow

    def restored(*given: Any) -> None:
        machine.did["restored"] += 1
        restore(*given)

    def followed(store: StateStore, epoch: Epoch, segments: Iterable[Any]) -> None:
        machine.did["brought up"] += 1
        follow(store, epoch, segments)

    monkeypatch.setattr(image_folders, "unfit", lambda folder: "")  # tests may keep their folders in memory
    monkeypatch.setattr(warm, "restore", restored)
    monkeypatch.setattr(StateStore, "follow", followed)
    return machine


def count_forty(t: TestDriver) -> None:
    """Count visits in two epochs, of which the second may find an image."""
    for first in (0, 20):
        t.push("visits", [visit(number) for number in range(first, first + 20)])
        t.checkpoint()
    assert shown(t) == expected(range(40))


class TestResults:
    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize(
        "faults",
        [TaskFaults(), TaskFaults(losses=0.3), TaskFaults(twice=0.7), TaskFaults(fails=0.1)],
        ids=["none", "output lost after it was read", "tasks run twice", "jobs fail"],
    )
    def test_are_exact(self, machine: Machine, faults: TaskFaults, seed: int) -> None:
        with TestDriver(app(), parallelism=3, seed=seed) as t:
            machine.on(t)
            assert t.cluster.batches is not None
            t.cluster.batches.jobs.faults = TaskFaults(faults.losses, faults.twice, faults.fails)
            for first in range(0, 60, 15):
                t.push("visits", [visit(number) for number in range(first, first + 15)], partition=first % 4)
                t.checkpoint()
                assert shown(t) == expected(range(first + 15))
            assert len(machine.images()) == 6
            assert machine.did["restored"] == 6, "once per subtask and layer with state"
            assert machine.did["brought up"] > 6

    def test_are_exact_after_a_crash_and_a_rewind(self, machine: Machine) -> None:
        with TestDriver(app()) as t:
            machine.on(t)
            crash_and_rewind(t)

    def test_are_exact_where_a_machine_still_has_an_image_of_an_epoch_that_a_rewind_left(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(Pace, "rows_max", lambda _pace, _since_s: 10)
        other = Machine(tmp_path / "other")
        with TestDriver(app()) as t:
            epochs = list[Epoch]()
            for first, on in ((0, machine), (10, machine), (20, other), (30, other)):
                on.on(t)
                t.push("visits", [visit(number) for number in range(first, first + 10)])
                epochs.append(t.checkpoint())
            assert other.images(), "as of the third epoch"
            machine.on(t)
            t.rewind(epochs[0])
            assert shown(t) == expected(range(20)), "the first epoch of a generation is closed at once"
            other.on(t)  # its image is of the epoch that read on from there, before the rewind
            t.checkpoint()
            assert shown(t) == expected(range(30))
            t.checkpoint()
            assert shown(t) == expected(range(40))


class TestWithoutAnImage:
    def test_a_task_restores_from_the_root(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        refused = list[str]()

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(warm, "_warn", refused.append)
        monkeypatch.setattr("holdfast.state.local.image.Image.finish", full)
        with TestDriver(app()) as t:
            machine.on(t)
            for first in range(0, 60, 20):
                t.push("visits", [visit(number) for number in range(first, first + 20)])
                t.checkpoint()
                assert shown(t) == expected(range(first + 20))
            assert refused and "No space left" in refused[0]
            assert machine.images() == [], "what could not be finished takes no room"

    def test_a_file_system_in_memory_takes_none(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        warned = list[str]()
        monkeypatch.setattr(warm, "_warn", warned.append)
        monkeypatch.setattr(image_folders, "unfit", lambda folder: f"{folder} is on tmpfs, whose files are memory")
        with TestDriver(app()) as t:
            machine.on(t)
            count_forty(t)
        assert machine.images() == []
        assert warned and "tmpfs" in warned[0] and "set TMPDIR" in warned[0]

    def test_it_stays_while_the_root_is_away(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        with TestDriver(app()) as t:
            machine.on(t)
            for first in (0, 20):
                t.push("visits", [visit(number) for number in range(first, first + 20)])
                t.checkpoint()
            restored, read, refused = machine.did["restored"], repository.open_verified, list[object]()

            def away(store: ObjectStore, ref: ObjectRef) -> object:
                if len(refused) < 3:
                    refused.append(ref)
                    raise Unavailable("the root is away", not_done="", next_step="")
                return read(store, ref)

            monkeypatch.setattr("holdfast.runtime.worker.compaction.open_verified", away)
            t.push("visits", [visit(number) for number in range(40, 60)])
            t.checkpoint()
            assert shown(t) == expected(range(60))
            assert len(refused) == 3 and machine.did["restored"] == restored

    def test_a_machine_without_a_boot_id_has_none(self, machine: Machine) -> None:
        with TestDriver(app()) as t:
            clock, images = t.cluster.clock, LocalImages(Home(machine.root, "machine", ""))
            t.cluster.local = lambda: WarmState(clock, clock.pass_by, images)
            count_forty(t)
            assert not machine.root.exists()


class TestABudget:
    def test_smaller_than_the_state_is_kept_to_with_exact_results(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settled, dropped = SwapMemory.settle, Counter[str]()

        def settle(memory: SwapMemory) -> None:
            before = memory.dropped_regions
            settled(memory)
            dropped["regions"] += memory.dropped_regions - before
            dropped["over"] += memory.swapping

        monkeypatch.setattr(SwapMemory, "settle", settle)
        job = hf.App("visits", checkpoint_every="1s", mode="microbatch")
        pages = job.source("visits", hf.Log("unused", Page)).key_by("page").agg("pages", visits=hf.count())
        pages.sink("out", hf.SQLite("unused.db", table="pages", key=["page"]))
        wanted, budget = Counter[int](), Budget(24 << 20, 0)
        assert budget.tables == 2 << 20
        monkeypatch.setattr(image_folders, "_others_bytes", lambda: 0)  # the process is larger than the budget
        with TestDriver(job) as t:
            machine.on(t, budget)
            for epoch in range(4):
                rows = [{"page": number * 7_919 % 40_000} for number in range(epoch * 9_000, epoch * 9_000 + 20_000)]
                wanted.update(row["page"] for row in rows)
                t.push("visits", rows)
                t.checkpoint()
            assert {row["page"]: row["visits"] for row in t.rows("out")} == wanted
        assert dropped["over"] and dropped["regions"]

    def test_for_changes_that_is_exceeded_makes_the_next_epoch_read_less(self, machine: Machine) -> None:
        with TestDriver(app()) as t:
            machine.on(t, Budget(1_600, 0))
            assert t.cluster.batches is not None
            for first in range(0, 60, 30):
                t.push("visits", [visit(number) for number in range(first, first + 30)])
                t.checkpoint()
            assert shown(t) == expected(range(60))
            assert t.cluster.batches.host._pace.rows < ROWS_FIRST

    def test_an_address_space_budget_exceeded_by_files_leaves_the_state_in_memory(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def none_left(*_: object) -> None:
            raise MemoryError("1,074,790,400 bytes of address space: Cannot allocate memory")

        warned = list[str]()
        monkeypatch.setattr(warm, "_warn", warned.append)
        monkeypatch.setattr("holdfast.state.paging.private.PrivateFiles.over", none_left)
        monkeypatch.setattr("holdfast.state.local.image.Image.private", none_left)
        with TestDriver(app()) as t:
            machine.on(t)
            count_forty(t)
        assert warned and "held in memory whatever its size" in warned[0] and "address space" in warned[0]

    @pytest.mark.parametrize(("room", "where"), [(opened, "restore"), (task, "segment_job")])
    def test_an_address_space_budget_exceeded_by_state_ends_the_job_and_names_the_setting(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch, room: Any, where: str
    ) -> None:
        def none_left(*_: object) -> None:
            raise MemoryError("2,097,152 bytes of address space: Cannot allocate memory")

        with TestDriver(app()) as t:
            t.push("visits", [visit(number) for number in range(10)])
            t.checkpoint()
            monkeypatch.setattr(room, where, none_left)
            t.push("visits", [visit(number) for number in range(10, 20)])
            with pytest.raises(JobFailed, match="has no memory left: 2,097,152 bytes") as error:
                t.checkpoint()
            assert "spark.executor.pyspark.memory" in error.value.next_step


class TestTheEndOfAJob:
    def test_removes_its_images(self, machine: Machine) -> None:
        with TestDriver(app()) as t:
            machine.on(t)
            for first in (0, 20):
                t.push("visits", [visit(number) for number in range(first, first + 20)])
                t.checkpoint()
            assert machine.images()
            t.finish()
            assert shown(t) == expected(range(40))
            assert machine.images() == []
