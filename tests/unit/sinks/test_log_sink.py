"""The embedded log as a target: made or checked before the start, placed by key or in turn, settled when in doubt."""

from __future__ import annotations

import pickle
import shutil
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.errors import AlreadyExists, ConfigError, Damaged, Unavailable
from holdfast.model import Epoch, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract.target import AlreadyDelivered, Delivered
from holdfast.sinks.log.sink import LogSink, LogTarget, misfit, writer_name
from holdfast.storage.log.log import LogReader, LogWriter, create_log, read_meta
from holdfast.storage.log.partitioning import partitions_of
from holdfast.storage.objects import LocalObjects

JOB, OTHER = "6f9b0f6e-0000-4000-8000-000000000001", "6f9b0f6e-0000-4000-8000-000000000002"
WRITER = Writer("late", Subtask(1))
SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("word", pa.utf8())])


def tag(epoch: int, timeline: int = 1) -> Tag:
    return Tag(Timeline(timeline), Epoch(epoch))


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(numbers, pa.int64()), pa.array([f"w{n}" for n in numbers])], schema=SCHEMA)


def numbers(path: str) -> dict[int, list[int]]:
    """What a reader finds, per partition that has rows."""
    reader = LogReader(LocalObjects(path))
    found: dict[int, list[int]] = {}
    for partition, end in reader.end_offsets().items():
        offset = 0
        while offset < end:
            batch, offset = reader.read(partition, offset, 1 << 30)
            assert batch is not None
            found.setdefault(partition, []).extend(batch.column("n").to_pylist())
    return found


class Doubtful(LocalObjects):
    """Commits take effect, or not, and the reply is lost."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.fault = "none"

    def create(self, path: str, data: bytes) -> None:
        if self.fault == "none":
            super().create(path, data)
        elif self.fault == "lost":
            with suppress(AlreadyExists):  # The answer to a second send is lost as well.
                super().create(path, data)
        if self.fault != "none":
            raise Unavailable("the reply was lost", next_step="try again")


@pytest.fixture
def sink(tmp_path: Path) -> LogSink:
    made = LogSink(str(tmp_path / "log"))
    made.prepare(SCHEMA, None)
    return made


class TestChecking:
    def test_the_sink_checks_its_owner_and_can_be_pickled(self, sink: LogSink) -> None:
        assert sink.ownership is sink and not sink.traits.keyed
        given = LogSink("/data/log", ("n",), 2, SCHEMA)
        assert pickle.loads(pickle.dumps(given)) == given  # noqa: S301

    def test_columns_other_than_the_expected_ones_are_refused(self) -> None:
        expected = pa.schema([pa.field("n", pa.int32())])
        with pytest.raises(ConfigError, match=r"needed are n:int32\?, the stream has n:int64, word:string\?"):
            LogSink("/data/log", expected=expected).check(SCHEMA, None)

    @pytest.mark.parametrize(
        ("key", "partitions", "why"),
        [
            (("absent",), 4, "key column 'absent'"),
            (("real",), 4, "'real' of type Float64 cannot be a key"),
            (None, 0, "0 partitions were requested"),
        ],
    )
    def test_a_log_that_cannot_be_created_is_refused_before_the_start(
        self, key: tuple[str, ...] | None, partitions: int, why: str
    ) -> None:
        with pytest.raises(ConfigError, match=why):
            LogSink("/data/log", key, partitions).check(SCHEMA.append(pa.field("real", pa.float64())), None)

    def test_a_column_that_is_nullable_only_in_the_stream_is_refused(self) -> None:
        strict = pa.schema([SCHEMA.field("n"), pa.field("word", pa.utf8(), nullable=False)])
        assert misfit(SCHEMA, strict) == "['word'] may be null in the stream only"
        assert misfit(strict, SCHEMA) is None

    def test_a_null_in_a_column_that_forbids_it_is_refused_before_staging(self) -> None:
        batch = pa.record_batch([pa.array([1, None]), pa.array(["a", "b"])], schema=SCHEMA)
        with pytest.raises(ConfigError, match="1 rows have no value in the column 'n'"):
            LogSink("/data/log").accept(batch)


class TestPreparing:
    def test_a_missing_log_is_created_with_the_columns_of_the_stream(self, tmp_path: Path) -> None:
        LogSink(str(tmp_path / "log"), ("n",), 3).prepare(SCHEMA, None)
        meta = read_meta(LocalObjects(tmp_path / "log"))
        assert meta is not None
        assert (meta.schema, meta.partitions, meta.key) == (SCHEMA, 3, ("n",))

    def test_an_existing_log_keeps_its_key_and_partitions(self, tmp_path: Path) -> None:
        create_log(LocalObjects(tmp_path / "log"), SCHEMA, 7, ["word"])
        LogSink(str(tmp_path / "log")).prepare(SCHEMA, None)
        meta = read_meta(LocalObjects(tmp_path / "log"))
        assert meta is not None
        assert (meta.partitions, meta.key) == (7, ("word",))

    def test_another_key_is_refused(self, tmp_path: Path) -> None:
        create_log(LocalObjects(tmp_path / "log"), SCHEMA, key=["word"])
        with pytest.raises(ConfigError, match=r"partitioned by \['word'\], the sink by \['n'\]"):
            LogSink(str(tmp_path / "log"), ("n",)).prepare(SCHEMA, None)

    def test_other_columns_are_refused(self, sink: LogSink) -> None:
        with pytest.raises(ConfigError, match="the log does not take the stream's columns"):
            sink.prepare(SCHEMA.remove(1), None)

    def test_a_sealed_log_is_refused(self, sink: LogSink) -> None:
        LogWriter(LocalObjects(sink.path)).seal()
        with pytest.raises(ConfigError, match="sealed"):
            sink.prepare(SCHEMA, None)


class TestOwner:
    def test_a_job_finds_its_own_tags_in_order(self, sink: LogSink) -> None:
        sink.open(JOB, WRITER).deliver(tag(3), [rows(1)])
        sink.check_owner(JOB, "late")

    def test_tags_of_another_job_under_the_same_name_are_refused(self, sink: LogSink) -> None:
        sink.open(OTHER, WRITER).deliver(tag(57), [rows(1)])
        for job in (JOB, None):
            with pytest.raises(ConfigError, match=f"another job, {OTHER}, up to epoch 57"):
                sink.check_owner(job, "late")

    def test_tags_of_other_sinks_and_plain_writers_are_ignored(self, sink: LogSink) -> None:
        sink.open(OTHER, Writer("early", Subtask(0))).deliver(tag(1), [rows(1)])
        LogWriter(LocalObjects(sink.path)).append_tagged({0: pa.table(rows(2))}, "late", tag(1))
        sink.check_owner(JOB, "late")

    def test_the_name_in_the_log_contains_job_sink_and_subtask(self, sink: LogSink) -> None:
        sink.open(JOB, WRITER).deliver(tag(3), [])
        assert [(t.writer, t.tag) for t in LogReader(LocalObjects(sink.path)).tags()] == [(f"{JOB}/late/1", tag(3))]


class TestPlacing:
    def test_the_key_decides_the_partition(self, tmp_path: Path) -> None:
        sink = LogSink(str(tmp_path / "log"), ("word",), 3)
        sink.prepare(SCHEMA, None)
        sink.open(JOB, WRITER).deliver(tag(1), [rows(*range(10)), rows(*range(20, 5, -1))])
        for partition, found in numbers(sink.path).items():
            expected = [*range(10), *range(20, 5, -1)]
            words = pa.table({"word": [f"w{n}" for n in expected]})
            places = partitions_of(words, ["word"], 3)
            assert found == [n for n, place in zip(expected, places, strict=True) if place == partition]

    def test_batches_without_a_key_go_to_partitions_in_turn(self, sink: LogSink) -> None:
        target = sink.open(JOB, WRITER)
        target.deliver(tag(1), [rows(1), rows(2), rows(3), rows(4), rows(5)])
        target.deliver(tag(2), [rows(6)])
        assert numbers(sink.path) == {2: [1, 5], 3: [2, 6], 0: [3], 1: [4]}

    def test_an_epoch_is_appended_to_its_partitions_in_one_commit(self, sink: LogSink) -> None:
        sink.open(JOB, WRITER).deliver(tag(1), [rows(n) for n in range(8)])
        assert LogReader(LocalObjects(sink.path)).end_offsets() == {0: 2, 1: 2, 2: 2, 3: 2}
        assert LocalObjects(sink.path).list("commits") == ["commits/00000000000000000001.json"]

    def test_several_writers_append_to_one_log(self, sink: LogSink) -> None:
        left, right = sink.open(JOB, Writer("late", Subtask(0))), sink.open(JOB, WRITER)
        for n in range(1, 4):
            assert left.deliver(tag(n), [rows(n)]) == Delivered(1)
            assert right.deliver(tag(n), [rows(10 * n)]) == Delivered(1)
        assert sorted(n for found in numbers(sink.path).values() for n in found) == [1, 2, 3, 10, 20, 30]


class TestDoubt:
    @pytest.mark.parametrize("fault", ["lost", "not sent"])
    def test_reading_the_tag_settles_the_outcome_of_an_append(self, sink: LogSink, fault: str) -> None:
        store = Doubtful(sink.path)
        target = LogTarget(sink.where, lambda: store, JOB, WRITER, pause=lambda _: None)
        store.fault = fault
        with pytest.raises(Unavailable):
            target.deliver(tag(1), [rows(1)])
        with pytest.raises(Unavailable):
            target.delivered()
        store.fault = "none"
        assert target.delivered() == tag(1)
        assert target.deliver(tag(1), [rows(1)]) == AlreadyDelivered(tag(1))
        assert numbers(sink.path) == {2: [1]}

    def test_an_append_in_doubt_is_dropped_if_the_successor_made_it(self, sink: LogSink) -> None:
        store = Doubtful(sink.path)
        zombie = LogTarget(sink.where, lambda: store, JOB, WRITER, pause=lambda _: None)
        store.fault = "not sent"
        with pytest.raises(Unavailable):
            zombie.deliver(tag(1), [rows(1)])
        store.fault = "none"
        assert sink.open(JOB, WRITER).deliver(tag(1), [rows(1)]) == Delivered(1)
        assert zombie.delivered() == tag(1)
        assert numbers(sink.path) == {2: [1]}


class TestReplacedLog:
    def test_a_log_recreated_under_an_open_target_is_detected(self, sink: LogSink) -> None:
        target = sink.open(JOB, WRITER)
        target.deliver(tag(1), [rows(1)])
        shutil.rmtree(sink.path)
        sink.prepare(SCHEMA, None)
        with pytest.raises(Unavailable, match="replaced while it was open"):
            target.deliver(tag(2), [rows(2)])
        assert (target.delivered(), numbers(sink.path)) == (None, {})

    def test_a_deleted_log_ends_the_delivery_and_says_how_to_go_on(self, sink: LogSink) -> None:
        target = sink.open(JOB, WRITER)
        target.deliver(tag(1), [rows(1)])
        shutil.rmtree(sink.path)
        with pytest.raises(Unavailable, match="deleted") as caught:
            target.deliver(tag(2), [rows(2)])
        assert "job's folder too" in caught.value.next_step, "a start alone is refused: rows were delivered"
        for each in (target, sink.open(JOB, WRITER)):
            with pytest.raises(Damaged, match="the log was deleted") as ended:
                each.delivered()
            assert "bring the log back from a backup and start the job" in ended.value.next_step
        assert not Path(sink.path).exists()


class TestNames:
    def test_two_jobs_never_share_a_name(self) -> None:
        assert writer_name(JOB, WRITER) != writer_name(OTHER, WRITER)
