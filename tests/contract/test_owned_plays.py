"""Plays of the production loop in which a target is restored under a job, or two roots of a job run at the same time.

A seed chooses the events and their order: records, kills of a worker or of the driver, the backup, the restore, the
copy of the root. All records are in one partition, so a target may only ever show the first records, each exactly
once. The same plays must catch wrong versions of the rules.

Source: PROTOCOL P1, P17, P24; docs/decisions/0021-owned-targets.md.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.chaos.mutants.mutation import Mutant, Swap, applied
from holdfast.runtime.testing.cluster import Cluster
from holdfast.sinks.contract.owners import Claim, Held
from holdfast.sinks.memory import sink as memory
from holdfast.sinks.memory.sink import MemorySink
from tests.unit.runtime.test_owned_targets import Said, Site

SEEDS = range(6)
STEPS = 8


class MemorySite(Site):
    """A target in memory, shared by all jobs of the site."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "memory")
        self.table = MemorySink()

    def app(self, root: str) -> hf.App:
        app = hf.App("words", root=str(self.folder / root))
        app.source("rows", hf.Log(self.folder / "input", Said)).sink("copy", self.table)
        return app

    def numbers(self) -> list[int]:
        return [int(row["n"]) for row in self.table.rows()]

    def back_up(self) -> Callable[[], None]:
        names = ("_added", "_tags", "_before", "_owners", "_horizon", "_numbered")
        kept = {name: copy.deepcopy(getattr(self.table, name)) for name in names}
        return lambda: vars(self.table).update(copy.deepcopy(kept))

    def check(self) -> None:
        assert self.numbers() == list(range(len(self.numbers()))), "a record is missing or appears twice"


def disturb(chance: random.Random, cluster: Cluster) -> None:
    if cluster.driver.outcome is None and chance.random() < 0.5:
        if chance.random() < 0.3:
            cluster.replace_driver()
        elif cluster.members:
            cluster.crash(chance.choice(list(cluster.members)))


def restored(folder: Path, seed: int) -> str:
    """Play a restore of a target under its running job; return how the job ended."""
    chance, site = random.Random(seed), MemorySite(folder)
    cluster = site.start()
    backed_up, restored_at = sorted(chance.sample(range(1, STEPS - 1), 2))
    restore: Callable[[], None] = lambda: None
    for step in range(STEPS):
        if step == backed_up:
            restore = site.back_up()
        if step == restored_at:
            restore()
        disturb(chance, cluster)
        site.say(cluster)
        site.check()
    return "runs" if cluster.driver.outcome is None else getattr(cluster.driver.outcome[1], "kind", "None")


def copied(folder: Path, seed: int) -> list[str]:
    """Play two roots of one job against one target; return how each ended."""
    chance, site = random.Random(seed), MemorySite(folder)
    clusters = [site.start()]
    copied_at = chance.randrange(1, 4)
    for step in range(STEPS):
        if step == copied_at:
            site.copy_root("staging")
            clusters.append(site.start("staging"))
        chance.shuffle(clusters)
        for cluster in clusters:
            disturb(chance, cluster)
            site.say(cluster, 2)
            site.check()
    return ["runs" if c.driver.outcome is None else getattr(c.driver.outcome[1], "kind", "None") for c in clusters]


def copied_again(folder: Path, seed: int) -> list[str]:
    """Play a root and a copy of it that is started again whenever its run ends, although the target refuses it."""
    chance, site = random.Random(seed), MemorySite(folder)
    original = site.start()
    for step in range(STEPS):
        if step == 1:
            site.copy_root("staging")
            copied = site.start_despite_targets("staging")
        if step > 1 and copied.driver.outcome is not None:
            copied = site.start_despite_targets("staging")
        clusters = [original, *([copied] if step else [])]
        chance.shuffle(clusters)
        for cluster in clusters:
            disturb(chance, cluster)
            site.say(cluster, 2)
            site.check()
    return ["runs" if c.driver.outcome is None else getattr(c.driver.outcome[1], "kind", "None") for c in clusters]


MUTANTS = [
    (
        Mutant(
            "owner-of-a-target-ignored",
            "P1, P17",
            "any owner of a target is taken over from",
            (Swap(Claim, "must_take_over", lambda _: _takes_any_over),),
        ),
        copied,
    ),
    (
        Mutant(
            "what-an-owner-completed-ignored",
            "P1, P17",
            "a known owner of a target is taken over from, however far its tags are",
            (Swap(Claim, "must_take_over", lambda right: lambda claim, *at: right(claim, *at[:2], lambda: None)),),
        ),
        copied_again,
    ),
    (
        Mutant(
            "standing-tag-not-compared",
            "P24",
            "a delivery moves the tag from wherever it stands",
            (Swap(memory, "check_continues", lambda _: lambda *_args: None),),
        ),
        restored,
    ),
]


def _takes_any_over(claim: Claim, _where: str, held: Held | None, _newest: object) -> bool:
    return held is None or held.owner != claim.owner


class TestTargetRestoredWhileTheJobRuns:
    def test_the_target_never_shows_a_gap_and_the_job_ends(self, tmp_path: Path) -> None:
        endings = [restored(tmp_path / str(seed), seed) for seed in SEEDS]
        assert set(endings) <= {"damaged", "runs"} and "damaged" in endings


class TestTwoRootsOfOneJob:
    def test_one_run_ends_and_no_record_is_lost_or_duplicated(self, tmp_path: Path) -> None:
        for seed in SEEDS:
            endings = copied(tmp_path / str(seed), seed)
            assert max(endings) == "runs" and set(endings) & {"fenced", "damaged"}, f"seed {seed}: {endings}"


class TestACopyThatStartsAgain:
    def test_no_record_is_lost_or_duplicated(self, tmp_path: Path) -> None:
        endings = [copied_again(tmp_path / str(seed), seed) for seed in SEEDS]
        assert {"runs", "damaged"} <= {ending for each in endings for ending in each}, endings


class TestWrongVersions:
    @pytest.mark.parametrize(("mutant", "play"), MUTANTS, ids=[f"{m.name}-{play.__name__}" for m, play in MUTANTS])
    def test_are_caught(self, tmp_path: Path, mutant: Mutant, play: Callable[[Path, int], object]) -> None:
        with applied(mutant), pytest.raises(AssertionError, match="missing or appears twice"):
            for seed in SEEDS:
                play(tmp_path / str(seed), seed)
