import resource
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

import holdfast as hf
from holdfast.errors import Unavailable
from holdfast.ports import ObjectStore
from holdfast.runtime.cli.start import run
from holdfast.runtime.cli.start.plan import default_memory
from holdfast.runtime.config.settings import Settings, resolve
from holdfast.runtime.execution.checks.ordered import refuse
from holdfast.runtime.operators.aggregates.aggregate import AggregateOperator
from holdfast.runtime.operators.contract import KeyGroups
from holdfast.runtime.operators.process.operator import ProcessOperator
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.plan.memory import MIB, Budget, channel_bytes, container_share, least, too_little_memory
from holdfast.runtime.processes import memory
from holdfast.runtime.processes.memory import budget_of, container_of, default_state_memory
from holdfast.runtime.worker.fragment import FragmentRuntime
from holdfast.runtime.worker.local.home import Home
from holdfast.runtime.worker.local.opened import LocalFolders
from holdfast.state.collections.rows import spec_of
from holdfast.state.keys.batch import KeyType
from holdfast.state.paging.swap import SwapMemory
from holdfast.state.tables.slab import PLAIN, UNLIMITED, Memory
from holdfast.state.tables.table import ColumnSpec, StateTable
from holdfast.testing import TestDriver


@dataclass
class Bid:
    """A row."""

    auction: int
    price: int


def plan() -> Plan:
    app = hf.App("bids", state_memory="1GiB")
    bids = app.source("bids", hf.Generator(Bid, lambda n: Bid(auction=n, price=n), count=1))
    keyed = bids.key_by("auction")
    counts = keyed.agg("per_auction", n=hf.count(), total=hf.sum("price"), least=hf.min("price"))
    counts.sink("out", hf.SQLite("unused.db", table="t", key=["auction"]))
    return app.plan()


def settings(**given: object) -> Settings:
    return resolve(hf.App("bids"), given)


class TestBudget:
    @pytest.mark.parametrize("total", [100 * MIB, 512 * MIB, 8 << 30])
    def test_is_divided_without_remainder(self, total: int) -> None:
        budget = Budget(total, channels=16 * MIB)
        assert budget.channels + budget.rocks + budget.unfinished + budget.tables == total
        assert budget.tables > total // 3 and budget.early_from < budget.unfinished

    def test_leaves_every_table_its_least_when_it_is_the_least(self) -> None:
        for parallelism in (1, 2, 100):
            needed = least(plan(), parallelism, 8 * MIB)
            assert Budget(needed, channel_bytes(plan(), parallelism, 8 * MIB)).tables >= 16 * MIB

    def test_below_what_the_plan_needs_is_refused_with_the_number(self) -> None:
        refuse(too_little_memory(plan(), None, 2, 8 * MIB))
        refuse(too_little_memory(plan(), 80 * MIB, 2, 8 * MIB))
        with pytest.raises(hf.ConfigError, match="state_memory is 79MiB, and every worker .* at least 80MiB"):
            refuse(too_little_memory(plan(), 79 * MIB, 2, 8 * MIB))

    def test_the_refusal_of_a_task_budget_does_not_mention_channels(self) -> None:
        with pytest.raises(hf.ConfigError, match="needs at least 64MiB: 64MiB for 1 tables and buffers") as error:
            refuse(too_little_memory(plan(), 63 * MIB, 1, 0))
        assert error.value.next_step == "set state_memory to at least 64MiB"

    def test_by_default_gives_channels_of_a_wide_job_no_more_than_a_quarter(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(memory, "default_state_memory", lambda *_: 1024 * MIB)
        budget = budget_of(plan(), settings(parallelism=64))
        assert channel_bytes(plan(), 64, 8 * MIB) == budget.total - 16 * MIB  # they would leave next to nothing
        assert budget.channels == budget.total // 4 and budget.tables > budget.total * 2 // 5

    def test_counts_what_waits_in_channels(self) -> None:
        with pytest.raises(hf.ConfigError, match="1,264MiB: 1,200MiB for data that waits in channels"):
            refuse(too_little_memory(plan(), 80 * MIB, 4, 200 * MIB))


class TestDefault:
    def test_is_half_of_the_workers_share(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("os.cpu_count", lambda: 4)
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/meminfo").write_text("MemTotal:       16777216 kB\n")
        assert default_state_memory(2, root=tmp_path) == 4 << 30
        assert default_state_memory(100, root=tmp_path) == 2 << 30

    def test_is_shared_by_more_local_workers_than_processors(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("os.cpu_count", lambda: 2)
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/meminfo").write_text("MemTotal:       16777216 kB\n")
        assert default_state_memory(8, None, tmp_path, one_machine=True) == 1 << 30

    @pytest.mark.parametrize("version", [1, 2])
    def test_obeys_the_control_group(self, tmp_path: Path, version: int) -> None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/meminfo").write_text("MemTotal:       16777216 kB\n")
        line, folder, name = {
            1: ("4:memory:/pod/x", "sys/fs/cgroup/memory/pod", "memory.limit_in_bytes"),
            2: ("0::/pod/x", "sys/fs/cgroup/pod", "memory.max"),
        }[version]
        (tmp_path / "proc/self/cgroup").write_text(f"3:cpu:/y\n{line}\n")
        (tmp_path / folder / "x").mkdir(parents=True)
        (tmp_path / folder / "x" / name).write_text("max\n")
        (tmp_path / folder / name).write_text(f"{1 << 30}\n")
        assert default_state_memory(1, root=tmp_path) == 1 << 29

    def test_obeys_the_limit_on_address_space(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 30, 1 << 30))
        assert default_state_memory(1, root=tmp_path) == 1 << 29

    def test_obeys_the_container_even_if_no_control_group_enforces_it(self, tmp_path: Path) -> None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/meminfo").write_text("MemTotal:       16777216 kB\n")
        assert default_state_memory(1, 384 * MIB, tmp_path) == 192 * MIB
        assert default_state_memory(1, 64 << 30, tmp_path) == 8 << 30

    def test_the_default_of_a_worker_in_a_container_is_at_least_the_plans_minimum(self) -> None:
        assert budget_of(plan(), settings(), 384 * MIB).total == 192 * MIB
        assert budget_of(plan(), settings(), 10 * MIB).total == least(plan(), 1, 0)

    def test_the_default_of_a_task_has_no_share_for_channels(self) -> None:
        budget = budget_of(plan(), settings(mode="microbatch", state_memory=64 * MIB, parallelism=64))
        assert (budget.total, budget.channels) == (64 * MIB, 0)


YARN = {"spark.master": "yarn", "spark.executor.memoryOverhead": "384m", "spark.executor.cores": "2"}


class TestContainers:
    def test_containers_that_leave_enough_memory_are_accepted(self) -> None:
        assert container_of(plan(), settings(state_memory=192 * MIB), YARN) == 192 * MIB
        assert container_of(plan(), settings(parallelism=8), {"spark.master": "local[2]"}) is None

    def test_containers_that_leave_less_than_the_plans_minimum_are_refused_before_any_read(self) -> None:
        conf = {**YARN, "spark.executor.cores": "8"}
        with pytest.raises(
            hf.ConfigError, match=r"leave 48MiB to each worker \(spark.executor.memoryOverhead\)"
        ) as error:
            container_of(plan(), settings(parallelism=8), conf)
        assert "needs at least 64MiB there for its tables" in error.value.what
        assert "raise spark.executor.memoryOverhead" in error.value.next_step

    def test_do_not_matter_to_a_job_without_tables(self) -> None:
        conf = {**YARN, "spark.executor.cores": "8"}
        assert container_of(replace(plan(), operators=()), settings(parallelism=8), conf) == 48 * MIB

    def test_containers_that_leave_less_than_state_memory_are_refused(self) -> None:
        with pytest.raises(hf.ConfigError, match="state_memory is 193MiB, but .* leave 192MiB to each worker"):
            container_of(plan(), settings(state_memory=193 * MIB), YARN)


FACTOR = "spark.executor.memoryOverheadFactor"
OVERHEAD = "spark.executor.memoryOverhead"


class TestContainerShare:
    @pytest.mark.parametrize("master", ["", "local[4]", "spark://host:7077", "local-cluster[1,1,1024]"])
    def test_is_unknown_without_containers(self, master: str) -> None:
        assert container_share({"spark.master": master, OVERHEAD: "2g"}, 1) is None

    @pytest.mark.parametrize(
        ("conf", "mib", "origin"),
        [
            ({}, 384, "the minimum of " + OVERHEAD),
            ({"spark.executor.minMemoryOverhead": "512m"}, 512, "the minimum of " + OVERHEAD),
            ({"spark.executor.memory": "8g"}, 819, FACTOR + " of spark.executor.memory"),
            ({"spark.executor.memory": "8192", FACTOR: "0.5"}, 4096, FACTOR + " of spark.executor.memory"),
            ({OVERHEAD: "1024", FACTOR: "0.5"}, 1024, OVERHEAD),
            ({OVERHEAD: "1 GB"}, 1024, OVERHEAD),
        ],
    )
    @pytest.mark.parametrize("master", ["yarn", "k8s://https://host:443"])
    def test_is_what_the_container_has_beside_the_heap(
        self, master: str, conf: dict[str, str], mib: int, origin: str
    ) -> None:
        share = container_share({"spark.master": master, **conf}, 1)
        assert share is not None
        assert (share.size // MIB, share.origin, share.workers) == (mib, origin, 1)
        assert share.default == share.size // 2

    @pytest.mark.parametrize(
        ("conf", "mib"),
        [
            ({"spark.master": "yarn"}, 4096),
            ({"spark.master": "k8s://host"}, 1024),
            ({"spark.master": "k8s://host", "spark.kubernetes.resource.type": "java"}, 1024),
            ({"spark.master": "k8s://host", "spark.kubernetes.resource.type": "python"}, 4096),
        ],
    )
    def test_has_memory_for_python_where_spark_adds_it(self, conf: dict[str, str], mib: int) -> None:
        share = container_share({**conf, OVERHEAD: "1g", "spark.executor.pyspark.memory": "3g"}, 1)
        assert share is not None and share.size == mib * MIB
        assert share.origin == OVERHEAD + (" + spark.executor.pyspark.memory" if mib == 4096 else "")

    def test_the_kubernetes_share_in_client_mode_is_that_of_a_jvm_program(self) -> None:
        """In cluster mode the configuration names the factor 0.4."""
        share = container_share({"spark.master": "k8s://host", "spark.executor.memory": "10g"}, 1)
        assert share is not None and share.size == 1 << 30

    def test_the_kubernetes_share_follows_its_older_factor(self) -> None:
        conf = {
            "spark.master": "k8s://host",
            "spark.executor.memory": "10g",
            "spark.kubernetes.memoryOverheadFactor": "0.4",
        }
        share = container_share(conf, 1)
        assert share is not None and share.size == 4 << 30 and "kubernetes" in share.origin

    @pytest.mark.parametrize(
        ("cores", "cpus", "parallelism", "workers"), [(4, 1, 9, 4), (4, 2, 9, 2), (4, 1, 3, 3), (1, 2, 3, 1)]
    )
    def test_is_divided_among_the_workers_of_an_executor(
        self, cores: int, cpus: int, parallelism: int, workers: int
    ) -> None:
        conf = {
            "spark.master": "yarn",
            OVERHEAD: "4g",
            "spark.executor.cores": str(cores),
            "spark.task.cpus": str(cpus),
        }
        share = container_share(conf, parallelism)
        assert share is not None
        assert (share.workers, share.size) == (workers, (4 << 30) // workers)

    def test_the_container_share_for_a_value_invalid_in_spark_is_unknown(self) -> None:
        assert container_share({"spark.master": "yarn", OVERHEAD: "much"}, 1) is None

    def test_is_named_by_plan(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert default_memory("local[2]", 2) == ""
        assert default_memory("yarn", 2) == (
            "state_memory is not set: each worker takes at most 192.0 MiB, half of its share of the minimum of "
            "spark.executor.memoryOverhead (1 to an executor; Spark's own files of settings are not read here)"
        )
        submitted = {"spark.master": "yarn", OVERHEAD: "2g", "spark.executor.cores": "2"}
        monkeypatch.setattr(run, "submitted_conf", lambda: submitted)
        assert default_memory(None, 2) == (
            "state_memory is not set: each worker takes at most 512.0 MiB, half of its share of "
            "spark.executor.memoryOverhead (2 to an executor)"
        )


class TestLocalFolders:
    def test_say_when_state_cannot_leave_memory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("holdfast.runtime.worker.local.opened.unfit", lambda folder: f"{folder} is on tmpfs")
        LocalFolders(Home(tmp_path, "machine", "boot"), Budget(80 * MIB, 0))._memory(tmp_path)
        assert "state cannot leave memory" in caplog.text and "is on tmpfs" in caplog.text


class TestOperators:
    def test_take_whole_batches_though_their_table_is_larger_than_memory(self, tmp_path: Path) -> None:
        numbers = np.random.default_rng(3).integers(0, 3_000, 5_000)
        rows, batches = counted_with(PLAIN, numbers)
        swapped, in_swap = counted_with(SwapMemory(tmp_path, resident_max=1, tables_max=MIB), numbers)
        assert batches == in_swap == 5
        found = zip(*(part.tolist() for part in np.unique(numbers, return_counts=True)), strict=True)
        assert rows == swapped == {auction: (count, count * auction, auction) for auction, count in found}

    def test_take_few_rows_if_these_reach_keys_in_any_place(self, tmp_path: Path) -> None:
        user, name = KeyType(("u",), (pa.int64(),), (False,)), KeyType(("n",), (pa.utf8(),), (False,))
        spec = spec_of(1, "maps", user, name, [ColumnSpec("x", np.dtype(np.int64))], expiring=False)
        memory = SwapMemory(tmp_path, resident_max=1, tables_max=MIB)
        table = StateTable(spec, 8, memory=memory)
        assert table.batch_rows_max == UNLIMITED
        table.slots(spec.key.encode([pa.array(np.arange(20_000)), pa.array(["x"] * 20_000)]))
        assert memory.swapping and table.batch_rows_max < 100

    def test_the_table_with_the_least_room_bounds_the_batches_of_an_operator(self, tmp_path: Path) -> None:
        """A keyed function has a row per key in its own table, and the rows of a map by key in another."""

        class Named(hf.KeyedProcess[Any, Bid]):
            by = hf.Map(str, int)

            def on_record(self, ctx: hf.Context, r: Any) -> None:
                self.by.set("x", r.price)

        app = hf.App("bids")
        bids = app.source("bids", hf.Generator(Bid, lambda n: Bid(auction=n, price=n), count=1))
        bids.key_by("auction").process("named", Named(), to=Bid).sink("out", hf.SQLite("unused.db", table="t"))
        job, sizes = app.plan(), list[int]()
        memory = SwapMemory(tmp_path, resident_max=1, tables_max=MIB)
        tables = {each.name: StateTable(each.table, job.key_groups, memory=memory) for each in job.operators}
        groups = KeyGroups(job.key_groups, 0, job.key_groups)
        runtime = FragmentRuntime(job.fragments[-1], tables, lambda *_: None, lambda *_: None, "bids", groups)
        (operator,) = (each for each in runtime._operators if isinstance(each, ProcessOperator))
        some = operator.some

        def counted(batch: pa.RecordBatch, at: int, base: int) -> tuple[int, list[pa.RecordBatch]]:
            sizes.append(batch.num_rows)
            return some(batch, at, base)

        operator.some = counted  # type: ignore[method-assign]
        numbers = pa.array(np.arange(20_000))
        given = pa.record_batch({"auction": numbers, "price": numbers}).select(job.fragments[-1].entering(0).names)
        runtime.on_batch(given)
        assert set(sizes) == {20_000} and tables["named"].batch_rows_max == UNLIMITED
        sizes.clear()
        runtime.on_batch(given.slice(0, 300))
        assert max(sizes) == tables["named.by"].batch_rows_max < 100


def counted_with(memory: Memory, numbers: NDArray[np.int64]) -> tuple[dict[int, tuple[int, int, int]], int]:
    """Return count, sum and minimum of an aggregate by key, and how many batches its operator took."""
    job, written, taken = plan(), list[pa.RecordBatch](), list[int]()
    tables = {each.name: StateTable(each.table, job.key_groups, memory=memory) for each in job.operators}
    last = job.fragments[-1]
    runtime = FragmentRuntime(last, tables, lambda *_: None, lambda _, batch: written.append(batch), "bids")
    operator = next(each for each in runtime._operators if isinstance(each, AggregateOperator))
    on_batch = operator.on_batch

    def take(port: int, batch: pa.RecordBatch) -> None:
        taken.append(batch.num_rows)
        on_batch(port, batch)

    operator.on_batch = take  # type: ignore[method-assign]
    given = pa.record_batch({"auction": numbers, "price": numbers}).select(last.entering(0).names)
    for first in range(0, numbers.size, 1_000):
        runtime.on_batch(given.slice(first, 1_000))
    runtime.on_barrier()
    table = pa.Table.from_batches(written)
    auctions, *found = (table[name].to_pylist() for name in ("auction", "n", "total", "least"))
    return dict(zip(auctions, zip(*found, strict=True), strict=True)), len(taken)


@dataclass
class Pair:
    """A row."""

    key: int


class NoSegments:
    """A store that takes no segment while it refuses, so that no epoch completes."""

    def __init__(self, store: ObjectStore) -> None:
        self._store, self.refusing = store, False
        self.put, self.get, self.list, self.delete = store.put, store.get, store.list, store.delete

    def create(self, path: str, data: bytes) -> None:
        if self.refusing and path.startswith("segments/"):
            raise Unavailable(f"{path} cannot be written", next_step="wait")
        self._store.create(path, data)


class TestWorkerAboveItsShare:
    def test_takes_nothing_from_other_workers_until_its_epoch_completes(self) -> None:
        app = hf.App("pairs", key_groups=16)
        pairs = app.source("pairs", hf.Generator(Pair, lambda i: Pair(i), count=1))
        pairs.key_by("key").agg("counts", n=hf.count()).sink("out", hf.SQLite("x.db", table="t", key=["key"]))
        key = KeyType.of([pa.field("key", pa.int64(), nullable=False)])
        groups = key.from_ints(np.arange(9_000)).key_groups(16)
        theirs = np.flatnonzero(groups >= 8)[:4_000].tolist()  # the second worker's, read by the first one
        driver, budget = TestDriver(app, 2), Budget(64_000, 0)
        store = driver.cluster._store = NoSegments(driver.cluster._store)
        driver.cluster.limits = replace(driver.cluster.limits, budget=budget)
        with driver as t:
            store.refusing = True
            for first in range(0, len(theirs), 100):
                t.push("pairs", [{"key": number} for number in theirs[first : first + 100]])
                t.advance("250ms")
            states = [member.loop.state() for member in t.cluster.members.values()]
            unfinished = [0 if state is None else state.unfinished_bytes for state in states]
            assert budget.unfinished < max(unfinished) < 2 * budget.unfinished
            store.refusing = False
            t.checkpoint()
            assert sorted(row["key"] for row in t.rows("out")) == theirs
            assert {row["n"] for row in t.rows("out")} == {1} and t.restarts == ()
