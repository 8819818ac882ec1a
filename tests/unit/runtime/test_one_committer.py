"""Whole jobs with three writers whose logs get one commit per epoch, from one committer.

Through lost replies, killed workers and drivers, rescaling, rewinds, and starts that take over from an earlier version,
which committed per writer.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import cluster_steps
import pyarrow as pa
import pytest
from logged import rows_in
from played_jobs import RandomJob

import holdfast as hf
from holdfast.model import Epoch, Tag, Writer
from holdfast.runtime.config.settings import CONTINUOUS, MICROBATCH
from holdfast.runtime.plan.model import Plan
from holdfast.runtime.rows.schema import schema_of
from holdfast.runtime.testing.cluster import Cluster
from holdfast.runtime.worker.loop import Limits
from holdfast.sinks.contract.owners import Claim
from holdfast.sinks.log.sink import LogSink, LogTarget
from holdfast.sinks.log.uploads import UPLOADED
from holdfast.storage.log.commits import Commits
from holdfast.storage.log.format import Commit
from holdfast.storage.log.log import read_meta
from holdfast.storage.objects import LocalObjects, MemoryObjects
from holdfast.traits import SinkTraits

COPY, TOTALS = "copy", "totals"


@dataclass
class Said:
    n: int
    word: str


AWAY = set[int]()
"""Writers that cannot reach their target."""


class AwayTarget(LogTarget):
    def delivered(self) -> Tag | None:
        if self._writer.subtask in AWAY:
            raise hf.Unavailable("the log is unreachable", next_step="try again")
        return super().delivered()


class NamedLog(LogSink):
    """A log that some writers cannot reach."""

    def open(self, job_uuid: str, writer: Writer, claim: Claim | None = None) -> LogTarget:
        return AwayTarget(self.where, lambda: LocalObjects(self.path), job_uuid, writer, claim=claim)


class EarlierLog(NamedLog):
    """A log as a version before the one committer wrote to it: every writer commits its own output."""

    @property
    def traits(self) -> SinkTraits:
        return replace(super().traits, commits_once=False)


def with_logs(plan: Plan, kind: type[LogSink]) -> Plan:
    """Return the plan with sinks of this kind for its logs."""
    sinks = []
    for spec in plan.sinks:
        assert isinstance(spec.sink, LogSink)
        sinks.append(replace(spec, sink=kind(spec.sink.path, spec.sink.key)))
    return replace(plan, sinks=tuple(sinks))


class Job(RandomJob):
    """Copies rows, and counts them by word."""

    def __init__(self, folder: Path, mode: str = CONTINUOUS, seed: int = 0, *, earlier: bool = False) -> None:
        self.random, self.folder, self.said = random.Random(seed), folder, list[tuple[int, str]]()
        self.create_input(folder, schema_of(Said), 6)
        app = hf.App("words", checkpoint_every="1s")
        rows = app.source("rows", hf.Log(folder / "input", Said))
        rows.sink(COPY, hf.Log(folder / COPY, partitions=2))
        counted = rows.key_by("word").agg("counted", rows=hf.count(), total=hf.sum("n"))
        counted.sink(TOTALS, hf.Log(folder / TOTALS, key=["word"], partitions=2))
        for spec in app.plan().sinks:
            spec.sink.prepare(spec.schema, spec.upsert_key)
        self.plan = with_logs(app.plan(), NamedLog)
        plan = with_logs(self.plan, EarlierLog) if earlier else self.plan
        self.cluster = Cluster(plan, 3, seed, MemoryObjects(), 1.0, {"rows": tuple(range(6))}, mode)
        self.cluster.begin()

    def say(self, count: int) -> None:
        for partition in range(6):
            rows = [(self.random.randrange(100), f"w{self.random.randrange(9)}") for _ in range(count)]
            self.said += rows
            table = pa.Table.from_pylist([{"n": n, "word": word} for n, word in rows], schema=schema_of(Said))
            self.input.append({partition: table})

    def run(self, *counts: int) -> None:
        for count in counts:
            self.say(count)
            self.cluster.pass_time(2.0)

    def start_again(self, parallelism: int = 3, *, earlier: bool = False) -> None:
        """Kill the driver, and start this version or an earlier one."""
        self.some_steps()
        cluster_steps.rescale(self.cluster, parallelism, self.plan.key_groups)
        self.cluster.replace_driver(with_logs(self.plan, EarlierLog) if earlier else self.plan)

    def read(self) -> int:
        """Return how many rows the sources have read."""
        workers = self.cluster.driver.state.workers.values()
        return sum(at.offset for hosted in workers for at in hosted.heartbeat.progress.positions)

    def commits(self, log: str) -> Iterator[Commit]:
        """Yield the commits that have output, in order."""
        store = LocalObjects(self.folder / log)
        meta = read_meta(store)
        assert meta is not None
        commits = Commits(store, meta)
        for sequence in range(1, commits.tail.sequence + 1):
            if (commit := commits.at(sequence)).tag is not None:
                yield commit

    def writers(self, log: str) -> set[str]:
        return {commit.tag.writer.rpartition("/")[2] for commit in self.commits(log) if commit.tag is not None}

    def copied(self) -> Counter[tuple[int, str]]:
        return Counter((row["n"], row["word"]) for row in rows_in(self.folder / COPY))

    def check(self) -> None:
        assert self.copied() == Counter(self.said)
        rows, totals = Counter[str](), Counter[str]()
        for n, word in self.said:
            rows[word] += 1
            totals[word] += n
        table = hf.log(self.folder / TOTALS, as_table=True).collect().rows()
        assert sorted(table) == sorted((word, rows[word], totals[word]) for word in rows)


@pytest.fixture(autouse=True)
def everyone_there() -> None:
    AWAY.clear()


@pytest.fixture(params=[CONTINUOUS, MICROBATCH])
def mode(request: pytest.FixtureRequest) -> str:
    mode: str = request.param
    return mode


class TestALogWithThreeWriters:
    def test_gets_one_commit_per_epoch_with_the_rows_of_all(self, tmp_path: Path, mode: str) -> None:
        job = Job(tmp_path, mode)
        job.run(20, 20, 20)
        job.finish()
        job.check()
        for log in (COPY, TOTALS):
            tags = [commit.tag.tag for commit in job.commits(log) if commit.tag is not None]
            assert len(tags) == len(set(tags)) >= 3
            assert job.writers(log) == {"0"}

    def test_shows_no_epoch_of_one_writer_beside_another_epoch_of_another(self, tmp_path: Path, mode: str) -> None:
        """P25 promises it per writer; here every commit adds up to the records of whole epochs."""
        job = Job(tmp_path, mode)
        job.run(*[7] * 6)
        job.finish()
        manifests = {
            done.body.epoch: job.cluster.repository.load_manifest(done.body.manifest)
            for done in job.cluster.driver.state.job.completed
        }
        read = {epoch: sum(at.offset for at in manifest.positions) for epoch, manifest in manifests.items()}
        shown = 0
        for commit in job.commits(COPY):
            shown += sum(segment.rows for segment in commit.segments)
            assert commit.tag is not None and shown == read[commit.tag.tag.epoch]

    def test_names_what_workers_uploaded_and_stores_no_row_again(self, tmp_path: Path) -> None:
        job = Job(tmp_path)
        job.cluster.limits = Limits(upload_from=0)
        job.cluster.replace_driver(job.plan)
        job.run(20, 20)
        job.finish()
        job.check()
        for log in (COPY, TOTALS):
            paths = [segment.path for commit in job.commits(log) for segment in commit.segments]
            assert paths and all(path.startswith(f"data/{UPLOADED}/") for path in paths)
            assert sorted(LocalObjects(tmp_path / log).list("data")) == sorted(paths)
            workers = {path.rpartition("/")[2].split("-")[1] for path in paths}
            assert len(workers) == 3

    def test_stops_all_sources_while_its_committer_cannot_deliver(self, tmp_path: Path, mode: str) -> None:
        """P18: other workers have nothing of their own in a queue."""
        job = Job(tmp_path, mode)
        job.cluster.change_rules(staged_bytes_max=1)
        job.cluster.replace_driver(job.plan)
        job.run(20)
        AWAY.add(0)
        job.start_again()
        job.run(5, 5, 5)
        before = job.read()
        job.run(5, 5)
        assert job.read() == before < len(job.said)
        AWAY.clear()
        job.finish()
        job.check()

    def test_gets_small_output_of_all_writers_as_one_segment_per_partition(self, tmp_path: Path) -> None:
        job = Job(tmp_path)
        job.run(20, 20)
        job.finish()
        for commit in job.commits(TOTALS):
            partitions = [segment.partition for segment in commit.segments]
            assert len(partitions) == len(set(partitions)) <= 2

    @pytest.mark.parametrize("upload_from", [0, 1 << 30])
    @pytest.mark.parametrize("seed", range(4))
    def test_holds_every_row_once_through_any_faults(
        self, tmp_path: Path, mode: str, seed: int, upload_from: int
    ) -> None:
        job = Job(tmp_path, mode, seed)
        job.cluster.limits = Limits(upload_from=upload_from)
        rng = random.Random(seed)
        for _ in range(8):
            job.say(rng.randrange(1, 9))
            job.cluster.pass_time(rng.choice((0.3, 1.1, 2.0)))
            rng.choice((job.crash, job.some_steps, lambda: job.start_again(rng.choice((1, 2, 3)))))()
        job.finish()
        job.check()


class TestAStartAfterAnEarlierVersion:
    def test_delivers_what_it_left_under_its_own_tags_first(self, tmp_path: Path, mode: str) -> None:
        job = Job(tmp_path, mode, earlier=True)
        job.run(20, 20)
        job.start_again()
        job.run(20)
        job.finish()
        job.check()
        newest: dict[str, Tag] = {}
        since: Epoch | None = None
        for commit in job.commits(TOTALS):
            assert commit.tag is not None
            if commit.tag.writer.endswith("/0"):
                newest[commit.tag.writer] = commit.tag.tag
            else:
                since = max(since or Epoch(0), commit.tag.tag.epoch)
        assert since is not None and max(newest.values()).epoch > since

    def test_shows_nothing_newer_before_all_that_it_left_is_in(self, tmp_path: Path, mode: str) -> None:
        """P20: a key of another writer would else go back to its older row."""
        job = Job(tmp_path, mode, earlier=True)
        AWAY.update({1, 2})
        job.run(20, 20)
        job.start_again()
        base = job.cluster.driver.state.job.base_epoch
        job.run(20, 20)
        assert job.cluster.driver.state.job.base_epoch == base
        assert job.writers(TOTALS) == {"0"}
        AWAY.clear()
        job.finish()
        job.check()
        assert job.writers(TOTALS) == {"0", "1", "2"}

    @pytest.mark.parametrize("seed", range(6))
    def test_continues_exactly_once_however_often_versions_take_turns(
        self, tmp_path: Path, mode: str, seed: int
    ) -> None:
        """An earlier version refuses the manifests; here it plays a later one whose sink lost the trait."""
        job = Job(tmp_path, mode, seed, earlier=True)
        rng = random.Random(seed)
        for _ in range(6):
            job.say(rng.randrange(1, 9))
            job.cluster.pass_time(rng.choice((0.3, 1.1, 2.0)))
            job.start_again(rng.choice((2, 3, 3)), earlier=rng.random() < 0.5)
        job.start_again()
        job.finish()
        job.check()

    def test_can_be_rewound_to_before_it(self, tmp_path: Path, mode: str) -> None:
        job = Job(tmp_path, mode, earlier=True)
        job.run(10, 10)
        base = job.cluster.driver.state.job.base_epoch
        job.run(10)
        job.start_again()
        job.run(10, 10)
        job.rewind(base)
        job.run(10)
        job.finish()
        job.check()
        tail = list(job.commits(TOTALS))[-1]
        assert {known.tag.timeline for known in tail.tags} == {2}, "the tags of all writers have moved"
