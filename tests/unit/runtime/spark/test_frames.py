"""`hf.SparkFrame`: the copy that a job reads, with a DataFrame whose tasks run here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle

import holdfast as hf
from holdfast.runtime.plan.source import OpenSource
from holdfast.runtime.spark.tables import frames
from holdfast.runtime.spark.tables.frames import PATH, FrameSource
from holdfast.storage.log.log import create_log
from holdfast.storage.objects import open_objects

COLUMNS = pa.schema([pa.field("k", pa.int64()), pa.field("word", pa.string())])
Appending = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass
class Frame:
    """A DataFrame: partitions of rows, and how often Spark runs the task of each."""

    parts: list[range]
    attempts: dict[int, int] = field(default_factory=dict)
    computed: int = 0

    def toDF(self, *names: str) -> Frame:
        assert names == ("c0", "c1")
        return self

    def mapInArrow(self, function: Appending, schema: str) -> SimpleNamespace:
        assert schema == "segments binary"
        return SimpleNamespace(collect=lambda: self._run(function))

    def _run(self, function: Appending) -> list[SimpleNamespace]:
        self.computed += 1
        return [self._task(function, number) for number in range(len(self.parts))]

    def _task(self, function: Appending, number: int) -> SimpleNamespace:
        for _ in range(self.attempts.get(number, 1)):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(TaskContext, "get", lambda: SimpleNamespace(partitionId=lambda: number))
                (last,) = [batch.to_pylist()[0]["segments"] for batch in function(self._batches(number))]
        return SimpleNamespace(segments=last)

    def _batches(self, number: int) -> Iterator[pa.RecordBatch]:
        rows = list(self.parts[number])
        for first in range(0, len(rows), 4):
            taken = rows[first : first + 4]
            yield pa.record_batch([pa.array(taken, pa.int64()), pa.array(map(str, taken), pa.string())], COLUMNS.names)


def source(folder: Path, frame: Any) -> FrameSource:
    return FrameSource(COLUMNS, 3, frame=frame).in_folder(str(folder))


def remaining(folder: Path) -> list[str]:
    """Return the names below a folder that are an object or hold one."""
    return sorted(path.name for path in folder.iterdir() if path.is_file() or any(path.rglob("*.json")))


def rows(opened: OpenSource) -> list[int]:
    found: list[int] = []
    for partition, end in opened.end_offsets().items():
        offset = 0
        while offset < end:
            batch, offset = opened.read(partition, offset, 1 << 20)
            found += [] if batch is None else batch.column("k").to_pylist()
        assert opened.ended(partition, end)
    return sorted(found)


class TestCopy:
    def test_holds_every_row_and_has_an_end(self, tmp_path: Path) -> None:
        opened = source(tmp_path, Frame([range(10), range(0), range(10, 17), range(17, 30)])).copied(again=True).open()
        assert opened.partitions() == [0, 1, 2]
        assert rows(opened) == list(range(30))

    def test_the_copy_of_a_frame_without_rows_is_empty(self, tmp_path: Path) -> None:
        assert rows(source(tmp_path, Frame([range(0)])).copied(again=True).open()) == []
        assert rows(source(tmp_path, Frame([])).copied(again=True).open()) == []

    def test_attempts_that_spark_repeats_add_nothing(self, tmp_path: Path) -> None:
        given = source(tmp_path, Frame([range(10), range(10, 20)], attempts={0: 3, 1: 2}))
        assert rows(given.copied(again=True).open()) == list(range(20))

    def test_is_one_commit_however_many_partitions_there_are(self, tmp_path: Path) -> None:
        source(tmp_path, Frame([range(number, number + 1) for number in range(100)])).copied(again=True)
        assert len(list(tmp_path.glob("log-*/commits/*.json"))) == 2, "the rows, and the seal"

    def test_is_read_by_later_starts(self, tmp_path: Path) -> None:
        frame = Frame([range(10)])
        source(tmp_path, frame).copied(again=True)
        frame.parts = [range(99)]
        later = source(tmp_path, frame).copied(again=False)
        assert rows(later.open()) == rows(source(tmp_path, None).open()) == list(range(10))
        assert frame.computed == 1

    def test_is_made_again_while_no_checkpoint_refers_to_it(self, tmp_path: Path) -> None:
        source(tmp_path, Frame([range(10)])).copied(again=True)
        again = source(tmp_path, Frame([range(3)])).copied(again=True)
        assert rows(again.open()) == rows(source(tmp_path, None).open()) == [0, 1, 2]
        assert len(remaining(tmp_path)) == 2

    def test_a_run_reads_the_copy_that_its_start_chose(self, tmp_path: Path) -> None:
        first = source(tmp_path, Frame([range(10)])).copied(again=True)
        second = source(tmp_path, Frame([range(3)])).copied(again=True)
        assert rows(second.open()) == [0, 1, 2]
        with pytest.raises(hf.ConfigError, match="no log"):
            first.open()

    def test_a_copy_killed_before_completion_is_removed(self, tmp_path: Path) -> None:
        create_log(open_objects(str(tmp_path / "log-begun")), COLUMNS, 3)
        source(tmp_path, Frame([range(5)])).copied(again=True)
        assert "log-begun" in remaining(tmp_path), "another start may be at it"
        given = source(tmp_path, None).copied(again=False)
        assert remaining(tmp_path) == sorted([PATH, json.loads((tmp_path / PATH).read_text())["log"]])
        assert rows(given.open()) == list(range(5))

    @pytest.mark.parametrize("text", ["", "{}", '{"log": 1}'])
    def test_whose_record_is_damaged_is_reported(self, tmp_path: Path, text: str) -> None:
        (tmp_path / PATH).write_text(text)
        with pytest.raises(hf.errors.Damaged, match=r"copy\.json"):
            source(tmp_path, Frame([range(5)])).copied(again=False)

    def test_a_copy_of_a_newer_version_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / PATH).write_text('{"log": "log-1", "v": 2}')
        with pytest.raises(hf.ConfigError, match="has version 2"):
            source(tmp_path, Frame([range(5)])).open()


class TestFrameSource:
    def test_workers_get_no_frame(self, tmp_path: Path) -> None:
        given = source(tmp_path, Frame([range(3)])).copied(again=True)
        sent: FrameSource = cloudpickle.loads(cloudpickle.dumps(given))  # type: ignore[no-untyped-call]
        assert (sent.frame, sent) == (None, given)
        assert rows(sent.open()) == [0, 1, 2]

    def test_reads_the_columns_that_the_job_names(self, tmp_path: Path) -> None:
        given = replace(source(tmp_path, Frame([range(3)])), expected=pa.schema([COLUMNS.field("word")]))
        given = given.copied(again=True)
        assert given.schema.names == ["word"]
        batch, _ = given.open().read(0, 0, 1 << 20)
        assert batch is not None and batch.column("word").to_pylist() == ["0", "1", "2"]

    @pytest.mark.parametrize("column", [pa.field("other", pa.int64()), pa.field("k", pa.string())])
    def test_columns_that_the_frame_lacks_are_refused(self, tmp_path: Path, column: pa.Field) -> None:
        with pytest.raises(hf.ConfigError, match=f"{column.name}: expected"):
            replace(source(tmp_path, None), expected=pa.schema([column])).check()

    def test_columns_that_the_copy_lacks_are_refused(self, tmp_path: Path) -> None:
        source(tmp_path, Frame([range(3)])).copied(again=True)
        grown = pa.schema([*COLUMNS, pa.field("more", pa.int64())])
        with pytest.raises(hf.ConfigError, match="was made with other columns: more: expected"):
            replace(source(tmp_path, None), columns=grown).copied(again=False).open()

    def test_a_machine_that_lacks_the_folder_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(hf.ConfigError, match="has no folder"):
            frames._check_reaches(str(tmp_path / "elsewhere"))

    def test_is_not_read_before_it_was_copied(self, tmp_path: Path) -> None:
        with pytest.raises(hf.ConfigError, match="was not copied"):
            source(tmp_path, Frame([range(3)])).open()

    @pytest.mark.parametrize("frame", [None, [1, 2], "orders"])
    def test_only_frames_are_taken(self, frame: Any) -> None:
        with pytest.raises(hf.ConfigError, match="is not a DataFrame of Spark"):
            hf.SparkFrame(frame)
