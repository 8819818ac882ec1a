"""Whole jobs whose sink is written as rows come: no row is lost, and the last row of a key is its last value."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from played_jobs import RandomJob

import holdfast as hf
from holdfast.checkpoint.manifest import Confirmed, Manifest
from holdfast.errors import ConfigError
from holdfast.model import Epoch, Generation, JobUuid, SnapshotHandle, Subtask, Tag, Timeline, Writer
from holdfast.runtime.execution.checks import microbatch
from holdfast.runtime.execution.checks.ordered import refuse
from holdfast.runtime.execution.checks.targets import written_immediately
from holdfast.runtime.plan.compiler import render
from holdfast.runtime.plan.immediate import is_immediate, not_to_grow
from holdfast.runtime.plan.model import Plan
from holdfast.runtime.rows.schema import schema_of
from holdfast.runtime.testing.cluster import Cluster, MemberPorts
from holdfast.runtime.testing.lanes import VirtualClock
from holdfast.runtime.wire import messages as m
from holdfast.runtime.wire.channels import MemoryNetwork
from holdfast.runtime.worker import immediate
from holdfast.runtime.worker.immediate import ImmediateWrites
from holdfast.runtime.worker.local.opened import MemoryState
from holdfast.sinks.contract.immediate import AheadTarget, ImmediateTarget, Origin, Owner
from holdfast.sinks.memory.repeating import RepeatingTable
from holdfast.storage.log.log import create_log
from holdfast.storage.objects import LocalObjects, MemoryObjects
from holdfast.testing import TestDriver

PARTITIONS = 4


@dataclass
class Said:
    word: str
    n: int


class Hostile(RepeatingTable):
    """A table that loses requests and replies.

    Args:
        ahead: It takes writes before others are confirmed.
    """

    def __init__(self, rng: random.Random, ahead: bool) -> None:
        super().__init__(None)
        self.random, self.ahead = rng, ahead
        self.most_under_way = 0

    def open_immediate(self, owner: Owner) -> ImmediateTarget:
        return HostileTarget(self, super().open_immediate(owner))

    def open_ahead(self, owner: Owner) -> AheadTarget | None:
        return HostileAhead(self) if self.ahead else None


class HostileTarget:
    def __init__(self, table: Hostile, inner: ImmediateTarget) -> None:
        self._table, self._inner = table, inner
        self.fence, self.forget, self.close = inner.fence, inner.forget, inner.close

    def write(self, origin: Origin, offset: int, batches: Sequence[pa.RecordBatch]) -> int:
        self._lose("request")
        written = self._inner.write(origin, offset, batches)
        self._lose("reply")
        return written

    def _lose(self, what: str) -> None:
        if self._table.random.random() < 0.2:
            raise hf.Unavailable(f"the {what} was lost", next_step="try again")


class HostileAhead(AheadTarget):
    """Puts rows of the writes that are under way into the table as it likes, but in order; confirms some, or fails.

    After a failure it puts all that is not confirmed again.
    """

    def __init__(self, table: Hostile) -> None:
        self._table, self._writes, self._put = table, deque[Sequence[pa.RecordBatch]](), 0
        """How many of the first writes are in the table."""

    def fence(self, starts: Mapping[Origin, int]) -> None:
        """Nothing can be fenced."""

    def write(self, origin: Origin, offset: int, batches: Sequence[pa.RecordBatch]) -> int:
        raise AssertionError("writes are taken ahead")

    def forget(self, committed: Mapping[Origin, int]) -> bool:
        return False

    @property
    def room(self) -> int:
        return 3 - len(self._writes)

    def begin(self, batches: Sequence[pa.RecordBatch]) -> None:
        assert self.room
        self._writes.append(list(batches))
        self._table.most_under_way = max(self._table.most_under_way, len(self._writes))

    def advance(self, wait_s: float) -> int:
        rng = self._table.random
        while self._put < len(self._writes) and rng.random() >= 0.3:
            self._table.put(self._writes[self._put])
            self._put += 1
        if rng.random() < 0.2:
            self._put = 0
            raise hf.Unavailable("a record was refused", next_step="try again")
        done = min(self._put, int(rng.random() * 4))
        for _ in range(done):
            self._writes.popleft()
        self._put -= done
        return done

    def ring(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        self._writes.clear()


def topic(**given: Any) -> Any:
    return hf.Kafka("b.example:9092", "out", delivery="at-least-once", **given)


def app_of(folder: Path) -> hf.App:
    """A job that copies rows, and counts them by word behind a shuffle."""
    app = hf.App("words", root=str(folder / "root"))
    said = app.source("said", hf.Log(folder / "input", Said))
    said.sink("copy", topic())
    counted = said.key_by("word").agg("counted", emit="each", rows=hf.count(), last=hf.max("n"))
    counted.sink("counts", topic())
    return app


class Job(RandomJob):
    """The job, its input and what came out."""

    steps_max = 40

    def __init__(self, folder: Path, seed: int, ahead: bool = False) -> None:
        self.random, self.said = random.Random(seed), list[Said]()
        self.create_input(folder, schema_of(Said), PARTITIONS)
        plan = app_of(folder).plan()
        self.tables = {spec.name: Hostile(self.random, ahead) for spec in plan.sinks}
        sinks = tuple(replace(spec, sink=self.tables[spec.name]) for spec in plan.sinks)
        for spec in sinks:
            spec.sink.prepare(spec.schema, spec.upsert_key)
        self.cluster = Cluster(
            replace(plan, sinks=sinks), 2, seed, MemoryObjects(), 1.0, {"said": tuple(range(PARTITIONS))}
        )
        self.cluster.begin()

    def say(self, count: int) -> None:
        """Add rows; a word has one partition."""
        place = self.random.randrange(PARTITIONS)
        rows = [Said(f"w{place}", len(self.said) + i) for i in range(count)]
        self.said += rows
        self.input.append({place: pa.Table.from_pylist([vars(row) for row in rows], schema=schema_of(Said))})

    def per_word(self, sink: str, column: str) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for row in self.tables[sink].rows():
            found.setdefault(row["word"], []).append(row[column])
        return found

    def expected(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for row in self.said:
            found.setdefault(row.word, []).append(row.n)
        return found


def goes_back_but_skips_nothing(found: list[int], given: list[int]) -> bool:
    """Return whether rows come in order, apart from steps back to a row before, and end with the last."""
    place = {n: i for i, n in enumerate(given)}
    reached = -1
    for n in found:
        if place[n] > reached + 1:
            return False
        reached = max(reached, place[n])
    return reached == len(given) - 1 and found[-1] == given[-1]


class TestAnyFailure:
    @pytest.mark.parametrize("ahead", [False, True], ids=["one at a time", "ahead"])
    @pytest.mark.parametrize("seed", range(6))
    def test_no_row_is_lost_and_each_key_ends_with_its_last(
        self, tmp_path: Path, seed: int, ahead: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(immediate, "AHEAD_ROWS_MIN", 1)
        job = Job(tmp_path, seed, ahead)
        for _ in range(12):
            job.say(job.random.randrange(1, 20))
            match job.random.randrange(6):
                case 0:
                    job.crash()
                case 1:
                    job.cluster.replace_driver()
                case 2:
                    job.cluster.pass_time(1.5)
                case _:
                    for _ in range(job.random.randrange(30)):
                        job.cluster.step()
        job.finish()
        expected, copied, counted = job.expected(), job.per_word("copy", "n"), job.per_word("counts", "rows")
        assert copied.keys() == expected.keys() == counted.keys()
        for word, given in expected.items():
            assert goes_back_but_skips_nothing(copied[word], given)
            assert goes_back_but_skips_nothing(counted[word], list(range(1, len(given) + 1)))

    def test_has_several_writes_under_way(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """In the plays above, the seed decides whether it comes to that."""
        monkeypatch.setattr(immediate, "AHEAD_ROWS_MIN", 1)
        most = 0
        for seed in range(4):
            job = Job(tmp_path / str(seed), seed, ahead=True)
            for _ in range(4):
                job.say(10)
                for _ in range(job.random.randrange(30)):
                    job.cluster.step()
            job.finish()
            most = max(most, *(table.most_under_way for table in job.tables.values()))
        assert most > 1

    def test_without_a_failure_every_row_comes_once(self, tmp_path: Path) -> None:
        job = Job(tmp_path, 0)
        job.random.random = lambda: 1.0  # type: ignore[method-assign]
        for _ in range(5):
            job.say(10)
            job.cluster.pass_time(0.5)
        job.finish()
        assert job.per_word("copy", "n") == job.expected()

    def test_rows_behind_a_shuffle_are_visible_before_their_epoch_is_committed(self, tmp_path: Path) -> None:
        job = Job(tmp_path, 0)
        job.say(10)
        for _ in range(10_000):
            if sum(map(len, job.per_word("counts", "rows").values())) >= 10:
                break
            if not job.cluster.step():
                job.cluster.clock.now += 0.05
        assert [max(each) for each in job.per_word("counts", "rows").values()] == [10]
        assert job.cluster.driver.state.job.base_epoch == 0

    def test_an_epoch_waits_until_its_rows_are_written(self, tmp_path: Path) -> None:
        job = Job(tmp_path, 0)
        job.cluster.settle()
        job.random.random = lambda: 0.0  # type: ignore[method-assign]
        job.say(10)
        job.cluster.pass_time(20.0)
        assert job.cluster.driver.state.job.base_epoch < job.cluster.driver.state.job.first_epoch
        job.random.random = lambda: 1.0  # type: ignore[method-assign]
        job.finish()
        assert {word: set(found) for word, found in job.per_word("copy", "n").items()} == {
            word: set(given) for word, given in job.expected().items()
        }

    def test_sources_stop_when_the_backlog_is_full(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(immediate, "QUEUE_BYTES_MAX", 1)
        job = Job(tmp_path, 0)
        job.cluster.settle()
        job.random.random = lambda: 0.0  # type: ignore[method-assign]
        for _ in range(8):
            job.say(10)
            job.cluster.pass_time(1.0)
        workers = job.cluster.driver.state.workers.values()
        assert sum(hosted.heartbeat.progress.records_in for hosted in workers) <= 2 * 10
        assert "delivery" in {held for hosted in workers for held in hosted.heartbeat.progress.held_by}


class TestAhead:
    """One worker's writes, as their target is asked for them."""

    def test_rows_wait_for_a_confirmation_unless_they_are_many(self, tmp_path: Path) -> None:
        writes = Writes(tmp_path)
        writes.say(10)
        writes.say(20)
        assert writes.said == ["begin 10"]
        writes.say(immediate.AHEAD_ROWS_MIN - 20)
        assert writes.said == ["begin 10", "ring"], "the lane waits, and is to take them"
        writes.step(0)
        assert writes.said[2:] == [f"begin {immediate.AHEAD_ROWS_MIN}"]
        writes.step(1)
        writes.say(5)
        writes.step(0)
        assert writes.said[3:] == [], "few rows wait, with one write under way"
        writes.step(1)
        assert writes.said[3:] == ["begin 5"]

    def test_no_confirmation_is_awaited_while_another_can_begin(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(immediate, "WRITE_ROWS_MAX", 1)
        writes = Writes(tmp_path)
        for _ in range(6):
            writes.say(immediate.AHEAD_ROWS_MIN)
        for _ in range(4):
            writes.step(0)
        assert [wait_s == 0.0 for wait_s in writes.waits] == [False, True, False, False]

    def test_no_more_are_begun_than_there_is_room_for(self, tmp_path: Path) -> None:
        writes = Writes(tmp_path)
        for _ in range(5):
            writes.say(immediate.AHEAD_ROWS_MIN)
            writes.step(0)
        assert writes.said.count(f"begin {immediate.AHEAD_ROWS_MIN}") == 3

    def test_an_epoch_is_written_when_all_writes_before_it_are_confirmed(self, tmp_path: Path) -> None:
        writes, written = Writes(tmp_path), list[str]()
        writes.say(10)
        writes.writes.when_in(lambda: written.append("first"))
        writes.say(immediate.AHEAD_ROWS_MIN)
        writes.step(0)
        writes.writes.when_in(lambda: written.append("second"))
        assert written == []
        writes.step(1)
        assert written == ["first"]
        writes.step(1)
        assert written == ["first", "second"]

    def test_an_error_is_reported_until_something_is_confirmed(self, tmp_path: Path) -> None:
        writes = Writes(tmp_path)
        writes.say(10)
        writes.step(hf.Unavailable("the brokers are away", next_step="nothing"))
        assert list(writes.writes.errors()) == ["copy"]
        [retry] = writes.timers
        retry()
        writes.step(1)
        assert writes.writes.errors() == {} and writes.said == ["begin 10"]

    def test_a_new_generation_ends_a_wait(self, tmp_path: Path) -> None:
        writes = Writes(tmp_path)
        writes.say(10)
        writes.deploy(2)
        assert writes.said == ["begin 10", "ring"]


class Writes:
    """The writes of one worker; what its target says of them is given by hand."""

    def __init__(self, folder: Path) -> None:
        create_log(LocalObjects(folder / "input"), schema_of(Said), PARTITIONS)
        app = hf.App("words", root=str(folder / "root"))
        app.source("said", hf.Log(folder / "input", Said)).sink("copy", topic())
        plan = app.plan()
        [spec] = plan.sinks
        self.said, self.next, self.waits = list[str](), list[int | Exception](), list[float]()
        self.timers = list[Callable[[], object]]()
        self.ports = MemberPorts(VirtualClock(), MemoryObjects(), MemoryNetwork(), MemoryState(), lambda _: None)
        plan = replace(plan, sinks=(replace(spec, sink=Given(self)),))
        self.writes = ImmediateWrites(plan, self.ports, lambda _, then: self.timers.append(then), self.fail)
        self.deploy(1)
        self.lanes()

    def deploy(self, generation: int) -> None:
        handle = SnapshotHandle(Subtask(0), (0, 128), (), Epoch(0), ())
        number = Generation(generation)
        given = JobUuid("j"), number, Timeline(1), Epoch(1), Epoch(0), m.ActiveRole(Subtask(0)), (), handle, (), (), ()
        self.writes.deploy(m.Deploy(*given))

    def say(self, count: int) -> None:
        self.writes.collect("copy", pa.RecordBatch.from_pylist([{"word": "a", "n": 0}] * count, schema_of(Said)))

    def step(self, answer: int | Exception) -> None:
        """Let the lane's wait end with an answer."""
        self.next.append(answer)
        self.lanes()
        assert not self.next

    def lanes(self) -> None:
        for lane in self.ports.lanes.waiting():
            lane.step()

    def fail(self, error: BaseException) -> None:
        raise error


class Given(RepeatingTable):
    """A table whose target does as a test says."""

    def __init__(self, writes: Writes) -> None:
        super().__init__(None)
        self._given = writes

    def open_ahead(self, owner: Owner) -> AheadTarget:
        return GivenTarget(self._given)


class GivenTarget(HostileAhead):
    def __init__(self, given: Writes) -> None:
        self._given, self._writes = given, deque[Sequence[pa.RecordBatch]]()

    def begin(self, batches: Sequence[pa.RecordBatch]) -> None:
        self._writes.append(batches)
        self._given.said.append(f"begin {sum(each.num_rows for each in batches)}")

    def advance(self, wait_s: float) -> int:
        self._given.waits.append(wait_s)
        answer = self._given.next.pop(0)
        if isinstance(answer, Exception):
            raise answer
        for _ in range(answer):
            self._writes.popleft()
        return answer

    def ring(self) -> None:
        self._given.said.append("ring")


class TestPlan:
    def plan(self, tmp_path: Path) -> Plan:
        create_log(LocalObjects(tmp_path / "input"), schema_of(Said), PARTITIONS)
        return app_of(tmp_path).plan()

    def test_a_sink_is_written_immediately_from_anywhere(self, tmp_path: Path) -> None:
        plan = self.plan(tmp_path)
        assert all(is_immediate(spec) for spec in plan.sinks)
        assert render(plan).endswith(
            "written immediately: copy (at least once), counts (at least once); other sinks at the commit"
        )

    def test_sources_may_get_partitions(self, tmp_path: Path) -> None:
        assert not_to_grow(self.plan(tmp_path)) == {}

    def test_dead_letters_are_refused(self) -> None:
        app = hf.App("words", dlq=topic())
        app.source("said", hf.Generator(Said, lambda n: Said("a", n), count=1)).sink("out", hf.Console())
        with pytest.raises(ConfigError, match="dead letters are delivered at the commit"):
            app.plan()

    def test_microbatch_mode_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="is written immediately") as caught:
            refuse(microbatch.refusal(self.plan(tmp_path)))
        assert "leave delivery= out" in caught.value.next_step

    def test_a_sink_that_was_delivered_at_the_commit_needs_another_name(self, tmp_path: Path) -> None:
        done = (Confirmed(Writer("counts", Subtask(0)), Tag(Timeline(1), Epoch(3))),)
        sources = (JobUuid("a"), Generation(1), Timeline(1), Epoch(3), Epoch(2), 1, 128)
        before = Manifest(*sources, positions=(), state=(), pending=(), confirmed=done, operators=())
        with pytest.raises(ConfigError, match="sink 'counts' was written at each commit until now"):
            refuse(written_immediately.refusal(self.plan(tmp_path), before))

    def test_a_stream_that_replaces_rows_needs_a_key(self, tmp_path: Path) -> None:
        app = hf.App("words")
        said = app.source("said", hf.Generator(Said, lambda n: Said("a", n), count=1))
        counted = said.key_by("word").agg("counted", rows=hf.count())
        with pytest.raises(ConfigError, match="key"):
            counted.sink("counts", topic())


class TestInTheTestDriver:
    def test_rows_come_again_after_a_crash(self, tmp_path: Path) -> None:
        create_log(LocalObjects(tmp_path / "input"), schema_of(Said), PARTITIONS)
        with TestDriver(app_of(tmp_path)) as t:
            t.push("said", [Said("a", 1)])
            t.checkpoint()
            t.push("said", [Said("a", 2)])
            assert [row["n"] for row in t.rows("copy")] == [1, 2]
            t.crash(0)
            t.recover()
            t.checkpoint()
            assert [row["n"] for row in t.rows("copy")] == [1, 2, 2]
            assert t.rows("counts")[-1] == {"word": "a", "rows": 2, "last": 2}
