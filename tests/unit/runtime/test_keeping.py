"""A long history with minimal retention: storage stays bounded, and kept checkpoints can be restored."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace

import pytest

import holdfast as hf
from holdfast.checkpoint.bases import Thresholds, pieces
from holdfast.checkpoint.catalogue import Retention
from holdfast.checkpoint.joblog import Job, Record, SavepointNamed
from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import ConfigError
from holdfast.model import Epoch, Generation, WorkerId
from holdfast.runtime.execution.checks import savepoint
from holdfast.runtime.execution.checks.ordered import refuse
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.testing.driver import TestDriver
from holdfast.state.keys.keygroups import range_of
from holdfast.state.store import Identity, Piece, StateStore

pytestmark = pytest.mark.thorough

KEPT, SEGMENTS, RECORDS, GROUPS = 3, 6, 12, 16
Totals = dict[int, int]


@dataclass
class Order:
    customer: int
    amount: int


def app() -> hf.App:
    made = hf.App("orders", key_groups=GROUPS)
    orders = made.source("orders", hf.Generator(Order, lambda i: Order(i, 1), count=1))
    totals = orders.key_by("customer").agg("totals", total=hf.sum("amount"))
    totals.sink("out", hf.SQLite("unused.db", table="totals", key=["customer"]))
    return made


class LongLife:
    """One job and what its state must be at each epoch."""

    def __init__(self, seed: int, parallelism: int = 2) -> None:
        self.random = random.Random(seed)
        self.driver = TestDriver(app(), parallelism, seed)
        self.plan: Plan = app().plan()
        cluster = self.driver.cluster
        cluster.limits = replace(cluster.limits, merging=Thresholds(4_000, SEGMENTS))
        cluster.change_rules(retention=Retention(KEPT, 0, RECORDS))
        self.totals: Totals = {}
        self.at: dict[Epoch, Totals] = {}

    def epoch(self) -> None:
        rows = [Order(self.random.randrange(30), self.random.randint(-9, 9)) for _ in range(self.random.randint(1, 6))]
        self.driver.push("orders", rows, self.random.randrange(4))
        for row in rows:
            self.totals[row.customer] = self.totals.get(row.customer, 0) + row.amount
        self.at[self.driver.checkpoint()] = dict(self.totals)

    def expected(self, epoch: Epoch) -> Totals:
        """Return the totals as of the newest push that the epoch holds; epochs without a push change nothing."""
        return self.at[max(each for each in self.at if each <= epoch)]

    def crash(self) -> None:
        self.driver.crash(self.random.randrange(len(self.driver.cluster.rules.key_ranges)))
        self.driver.recover()

    def savepoint(self, name: str) -> Epoch:
        """Let the driver take one; nothing was pushed since the last epoch."""
        loop = self.driver.cluster.driver
        reply = loop.asked("savepoint", {"name": name}, loop.state.job.generation, Generation(1))
        assert reply is not None and reply["accepted"]
        self.driver.advance("2s")
        return self.epoch_of(name)

    def name_last(self, name: str) -> Epoch:
        """Name the last checkpoint as a process other than the driver."""
        job = self.job
        body = SavepointNamed(job.base_epoch, name)
        record = Record(job.next_seq, job.uuid, job.generation, job.timeline, "somebody", 0, body)
        assert self.driver.cluster.repository.create_record(record) == record
        return self.epoch_of(name)

    def epoch_of(self, name: str) -> Epoch:
        found = self.job.savepoint(name)
        assert found is not None
        return found.epoch

    def start_again(self, parallelism: int) -> None:
        ranges = tuple(range_of(i, parallelism, GROUPS) for i in range(parallelism))
        self.driver.cluster.change_rules(key_ranges=ranges)
        self.driver.cluster.replace_driver()
        self.driver.advance("2s")

    @property
    def job(self) -> Job:
        job = self.driver.cluster.repository.read_log()
        assert job is not None
        return job

    def manifests(self) -> list[Manifest]:
        return [self.driver.cluster.repository.load_manifest(c.body.manifest) for c in self.job.completed]

    def restored(self, manifest: Manifest) -> Totals:
        found: Totals = {}
        for handle in manifest.state:
            identity = Identity(manifest.job_uuid, manifest.generation, manifest.timeline, WorkerId("reader"))
            specs = [operator.table for operator in self.plan.operators]
            store = StateStore(identity, specs, GROUPS, handle.key_groups)
            objects = self.driver.cluster.repository._store
            read = (Piece(objects.get(p.object.path), p.key_groups or handle.key_groups) for p in pieces(handle))
            store.restore(manifest.epoch, read)
            table = store.table(self.plan.operators[0].id)
            slots = table.present()
            keys, totals = table.key_columns(slots)[0].to_pylist(), table.column("total.sum")[slots].tolist()
            found |= dict(zip(keys, totals, strict=True))
        return found

    def stored(self) -> Counter[str]:
        return Counter(path.partition("/")[0] for path in self.driver.cluster.repository._store.list(""))


class TestLongHistory:
    @pytest.mark.parametrize("seed", range(3))
    def test_storage_stays_bounded_and_every_kept_checkpoint_can_be_restored(self, seed: int) -> None:
        life = LongLife(seed)
        with life.driver:
            for number in range(120):
                life.epoch()
                if number % 17 == 16:
                    life.crash()
                if number % 10 != 9:
                    continue
                manifests = life.manifests()
                assert KEPT <= len(manifests) <= KEPT + 2
                for manifest in manifests:
                    assert life.restored(manifest) == life.expected(manifest.epoch)
                    assert all(len(pieces(handle)) <= SEGMENTS + 6 for handle in manifest.state)
            stored = life.stored()
            starts = life.job.generation
            assert stored["log"] <= 1 + starts + 3 * RECORDS
            assert stored["manifests"] <= KEPT + 3
            assert stored["segments"] + stored["merged"] <= 2 * (SEGMENTS + 6 + KEPT + 3)
            assert 0 < stored["base"] <= 2 * (KEPT + 1) + starts
            assert stored["staged"] <= 2 * (KEPT + 3)

    @pytest.mark.parametrize("seed", range(3))
    def test_bases_follow_the_key_groups_over_changes_of_parallelism(self, seed: int) -> None:
        life = LongLife(seed)
        with life.driver:
            for parallelism in (1, 3, 2, 1, 4, 2):
                for _ in range(life.random.randint(2, 14)):
                    life.epoch()
                life.start_again(parallelism)
            life.epoch()
            for manifest in life.manifests():
                assert life.restored(manifest) == life.expected(manifest.epoch)

    def test_a_starting_driver_reads_a_pruned_log(self) -> None:
        life = LongLife(7)
        with life.driver:
            for _ in range(60):
                life.epoch()
            assert life.driver.cluster.repository.records()[0].seq > 60
            life.start_again(2)
            life.epoch()
            assert life.restored(life.manifests()[-1]) == life.totals
            assert life.stored()["log"] <= 1 + life.job.generation + 3 * RECORDS

    @pytest.mark.parametrize("seed", range(3))
    def test_savepoints_survive_retention_pruning_and_new_drivers(self, seed: int) -> None:
        """P16: the checkpoint, all that it names, and the name."""
        life = LongLife(seed)
        with life.driver:
            for _ in range(5):
                life.epoch()
            pinned = {"asked": life.savepoint("asked")}
            for _ in range(10):
                life.epoch()
            pinned["named"] = life.name_last("named")
            for number in range(60):
                life.epoch()
                if number == 20:
                    life.crash()
                if number == 40:
                    life.start_again(3)
            assert life.driver.cluster.repository.records()[0].seq > 40
            assert {each.name: each.epoch for each in life.job.savepoints} == pinned
            manifests = life.manifests()
            assert set(pinned.values()) <= {manifest.epoch for manifest in manifests}
            assert len(manifests) <= len(pinned) + KEPT + 2
            for manifest in manifests:
                assert life.restored(manifest) == life.expected(manifest.epoch)
            assert life.stored()["manifests"] <= len(pinned) + KEPT + 3

    def test_a_run_resumes_from_a_savepoint_of_a_pruned_log(self) -> None:
        life = LongLife(11)
        with life.driver:
            for _ in range(60):
                life.epoch()
            assert life.driver.cluster.repository.records()[0].seq > 60
            life.name_last("last")
            refuse(savepoint.refusal("orders", life.job, "last"))
            life.start_again(2)
            assert life.job.starts[-1].base_epoch == life.epoch_of("last")
            life.epoch()
            assert life.restored(life.manifests()[-1]) == life.totals

    def test_an_older_savepoint_of_a_pruned_log_is_refused_by_name(self) -> None:
        life = LongLife(12)
        with life.driver:
            life.epoch()
            life.savepoint("early")
            for _ in range(60):
                life.epoch()
            with pytest.raises(ConfigError, match="has moved on since"):
                refuse(savepoint.refusal("orders", life.job, "early"))
