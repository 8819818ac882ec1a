"""Tasks that find their state on the machine, against counts in plain Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.model import Epoch
from holdfast.runtime.microbatch.warm import FOLDER, LocalImages, WarmState
from holdfast.runtime.testing.batches import Faults
from holdfast.testing import TestDriver
from tests.unit.runtime.microbatch.test_jobs import app, expected, shown, visit


class Machine:
    """The images of one machine, and how often tasks restored everything from the root."""

    def __init__(self, root: Path) -> None:
        self.root, self.opened = root, 0

    def on(self, t: TestDriver) -> None:
        clock, images = t.cluster.clock, LocalImages(self.root, "machine", "boot")
        t.cluster.local = lambda: WarmState(t.cluster._store, clock, clock.pass_by, images)

    def images(self) -> list[Path]:
        return sorted(self.root.glob(f"machine/boot/*/{FOLDER}/*"))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "local")


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

    def test_are_exact_after_a_crash_and_a_rewind(self, machine: Machine) -> None:
        with TestDriver(app()) as t:
            machine.on(t)
            t.push("visits", [visit(number) for number in range(10)])
            epoch = t.checkpoint()
            t.push("visits", [visit(number) for number in range(10, 40)])
            t.checkpoint()
            t.crash()
            t.recover()
            assert shown(t) == expected(range(40))
            t.rewind(Epoch(epoch))
            t.checkpoint()
            assert shown(t) == expected(range(40))
