"""Tasks that find their state on the machine, against counts in plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint import repository
from holdfast.errors import Unavailable
from holdfast.model import Epoch, ObjectRef
from holdfast.ports import ObjectStore
from holdfast.runtime.microbatch import warm
from holdfast.runtime.microbatch.warm import FOLDER, LocalImages, WarmState
from holdfast.runtime.testing.batches import Faults
from holdfast.runtime.worker import compaction
from holdfast.state.store import StateStore
from holdfast.testing import TestDriver
from tests.unit.runtime.microbatch.test_jobs import app, crash_and_rewind, expected, shown, visit


class Machine:
    """The images of one machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.did = Counter[str]()
        """How many tasks restored everything, and how many brought an image up to date."""

    def on(self, t: TestDriver) -> None:
        clock, images = t.cluster.clock, LocalImages(self.root, "machine", "boot")
        t.cluster.local = lambda: WarmState(t.cluster._store, clock, clock.pass_by, images)

    def images(self) -> list[Path]:
        return sorted(self.root.glob(f"machine/boot/*/{FOLDER}/*"))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine, restore, follow = Machine(tmp_path / "local"), compaction.restore, StateStore.follow

    def restored(*given: Any) -> None:
        machine.did["restored"] += 1
        restore(*given)

    def followed(store: StateStore, epoch: Epoch, segments: Iterable[Any]) -> None:
        machine.did["brought up"] += 1
        follow(store, epoch, segments)

    monkeypatch.setattr(warm, "unfit", lambda folder: "")  # tests may keep their folders in memory
    monkeypatch.setattr(warm, "restore", restored)
    monkeypatch.setattr(StateStore, "follow", followed)
    return machine


class TestResults:
    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize(
        "faults",
        [Faults(), Faults(losses=0.3), Faults(twice=0.7), Faults(fails=0.1)],
        ids=["none", "output lost after it was read", "tasks run twice", "jobs fail"],
    )
    def test_are_exact(self, machine: Machine, faults: Faults, seed: int) -> None:
        with TestDriver(app(), parallelism=3, seed=seed) as t:
            machine.on(t)
            assert t.cluster.batches is not None
            t.cluster.batches.jobs.faults = Faults(faults.losses, faults.twice, faults.fails)
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


class TestWithoutAnImage:
    def test_a_task_restores_from_the_root(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        refused = list[str]()

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(warm, "_warn", refused.append)
        monkeypatch.setattr("holdfast.state.image.Image.finish", full)
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
        monkeypatch.setattr(warm, "unfit", lambda folder: f"{folder} is on tmpfs, whose files are memory")
        with TestDriver(app()) as t:
            machine.on(t)
            for first in (0, 20):
                t.push("visits", [visit(number) for number in range(first, first + 20)])
                t.checkpoint()
            assert shown(t) == expected(range(40))
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

            monkeypatch.setattr("holdfast.runtime.microbatch.warm.open_verified", away)
            t.push("visits", [visit(number) for number in range(40, 60)])
            t.checkpoint()
            assert shown(t) == expected(range(60))
            assert len(refused) == 3 and machine.did["restored"] == restored

    def test_a_machine_without_a_boot_id_has_none(self, machine: Machine) -> None:
        with TestDriver(app()) as t:
            clock, images = t.cluster.clock, LocalImages(machine.root, "machine", "")
            t.cluster.local = lambda: WarmState(t.cluster._store, clock, clock.pass_by, images)
            for first in (0, 20):
                t.push("visits", [visit(number) for number in range(first, first + 20)])
                t.checkpoint()
            assert shown(t) == expected(range(40))
            assert not machine.root.exists()


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
