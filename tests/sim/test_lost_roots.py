"""The root of a simulated job is deleted, or replaced by an older copy, at any moment and under all faults.

Source: docs/decisions/0116-roots-that-go.md.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from holdfast.chaos.sim.jobs.workload import scenario
from holdfast.chaos.sim.world import World
from holdfast.checkpoint.repository import Repository

SEEDS = range(8)
STARTS = "GenerationStarted", "Rewound"
WITHIN_S = 40.0
"""Virtual seconds in which every driver must notice."""


def records_after_loss(seed: int, *, copied: bool) -> tuple[Counter[str], list[str]]:
    """Return how many records each driver that ran at the loss has added since, and how those runs ended."""
    numbers, world = random.Random(seed), World(scenario(seed))
    world.begin()
    lost_at = numbers.uniform(1.0, 0.8 * world.scenario.heal_at)
    copied_at, copy = numbers.uniform(0.3, 0.9) * lost_at, dict[str, bytes]()
    while world.elapsed < lost_at and not world.checks.finished:
        world.schedule.step()
        if copied and not copy and world.elapsed >= copied_at:
            copy = dict(world.objects._objects)
    log = [msgspec.json.decode(world.objects.get(path)) for path in world.objects.list("log")]
    kinds = {record["body"]["kind"] for record in log}
    if "Finished" in kinds or len(log) == sum(path.startswith("log/") for path in copy):
        return Counter(), []  # there is nothing left to commit, or the copy is as good
    started = {record["owner"] for record in log if record["body"]["kind"] in STARTS}
    ran = [driver for driver in world.drivers if driver.alive and not driver.left and driver.owner in started]
    added, owners = Counter[str](), {driver.owner for driver in ran}

    def landed(path: str, data: bytes) -> None:
        if path.startswith("log/") and (owner := msgspec.json.decode(data)["owner"]) in owners:
            added[owner] += 1

    world.objects._objects = copy
    world.objects._landed, world.objects._deleted = landed, lambda _: None
    while world.elapsed < lost_at + WITHIN_S and any(driver.alive and not driver.left for driver in ran):
        world.schedule.step()
    return added, [driver.loop.outcome[0] if driver.loop.outcome else "killed" for driver in ran]


@pytest.mark.parametrize("copied", [False, True])
def test_no_driver_adds_more_than_the_record_that_was_on_its_way(copied: bool) -> None:
    ends = list[str]()
    for seed in SEEDS:
        added, how = records_after_loss(seed, copied=copied)
        assert all(count <= 1 for count in added.values()), f"seed {seed}: {added}"
        ends += how
    assert ends.count("refused") >= 2 and "stopped" not in ends and "finished" not in ends, ends


def test_a_driver_that_proves_nothing_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def proves_nothing(_: Repository, __: Any) -> None:
        """Take the root for the one that was there."""

    monkeypatch.setattr(Repository, "_prove_root", proves_nothing)
    found = [records_after_loss(seed, copied=False)[0] for seed in SEEDS]
    assert any(count > 1 for added in found for count in added.values())
