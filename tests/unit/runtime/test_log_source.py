"""The embedded log as a source: found, checked, read to its end and known to have ended."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from counted import BulkObjects

from holdfast.errors import ConfigError, Unavailable
from holdfast.runtime.plan.source import OpenSource, Source
from holdfast.runtime.rows.schema import schema_of
from holdfast.runtime.sources.log import Log, OpenLog
from holdfast.storage.log.log import LogReader, LogWriter, create_log
from holdfast.storage.objects import LocalObjects

ANY_BYTES = 1 << 30


@dataclass
class Word:
    n: int
    word: str | None


@dataclass
class Other:
    n: float
    size: int


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64()), "word": pa.array([None] * len(numbers), pa.utf8())})


@pytest.fixture
def writer(tmp_path: Path) -> LogWriter:
    create_log(LocalObjects(tmp_path / "log"), schema_of(Word), partitions=2)
    return LogWriter(LocalObjects(tmp_path / "log"))


class TestLog:
    def test_a_log_with_the_expected_columns_passes_the_check(self, writer: LogWriter, tmp_path: Path) -> None:
        source: Source = Log(tmp_path / "log", Word).source()
        source.check()
        assert source.schema == schema_of(Word)

    def test_without_a_schema_it_has_the_columns_of_the_log(self, writer: LogWriter, tmp_path: Path) -> None:
        assert Log(tmp_path / "log").source().schema == schema_of(Word)

    def test_a_missing_log_names_the_command_that_creates_it(self, tmp_path: Path) -> None:
        source = Log(tmp_path / "log", Word, key=["n"], partitions=3).source()
        for refused in (source.check, source.open):
            with pytest.raises(ConfigError, match="no log exists at") as caught:
                refused()
        assert caught.value.next_step == (
            f'create it: holdfast log create {tmp_path}/log --schema "n:int64,word:string?" --partitions 3 --key n'
        )
        assert not (tmp_path / "log").exists()

    def test_other_columns_are_refused_one_by_one(self, writer: LogWriter, tmp_path: Path) -> None:
        with pytest.raises(ConfigError) as caught:
            Log(tmp_path / "log", Other).source().check()
        assert "n: expected double, found int64" in caught.value.what
        assert "size: expected int64, but it is missing" in caught.value.what

    def test_a_relative_path_is_resolved_when_the_source_is_created(
        self, writer: LogWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        source = Log("log", Word).source()
        monkeypatch.chdir("/")
        source.check()
        assert source.path == str(tmp_path / "log")

    def test_a_pickled_copy_reads_the_same_rows(self, writer: LogWriter, tmp_path: Path) -> None:
        writer.append({0: rows(1)})
        travelled = copy.deepcopy(Log(tmp_path / "log", Word).source())
        assert travelled.open().end_offsets() == {0: 1, 1: 0}


class TestOpenLog:
    @pytest.fixture
    def opened(self, writer: LogWriter, tmp_path: Path) -> OpenSource:
        writer.append({0: rows(1, 2), 1: rows(3)})
        return Log(tmp_path / "log", Word).source().open()

    def test_the_source_has_the_partitions_and_ends_of_the_log(self, opened: OpenSource) -> None:
        assert opened.partitions() == [0, 1]
        assert opened.end_offsets() == {0: 2, 1: 1}
        assert opened.retention_start(0) == 0

    def test_a_read_gives_rows_and_the_next_offset(self, opened: OpenSource) -> None:
        batch, following = opened.read(0, 1, ANY_BYTES)
        assert batch is not None and batch.column("n").to_pylist() == [2]
        assert following == 2

    def test_a_read_at_the_end_finds_rows_appended_since(self, opened: OpenSource, writer: LogWriter) -> None:
        assert opened.read(0, 2, ANY_BYTES) == (None, 2)
        writer.append({0: rows(9)})
        batch, following = opened.read(0, 2, ANY_BYTES)
        assert batch is not None and batch.column("n").to_pylist() == [9]
        assert following == 3

    def test_the_end_of_an_open_log_is_not_the_end(self, opened: OpenSource) -> None:
        assert not opened.ended(0, 2)

    def test_a_sealed_log_has_ended_once_it_is_read_to_its_end(self, opened: OpenSource, writer: LogWriter) -> None:
        writer.seal()
        assert opened.read(0, 2, ANY_BYTES) == (None, 2)
        assert opened.ended(0, 2)
        assert not opened.ended(1, 0)

    def test_batches_stay_valid_after_the_source_is_closed(self, opened: OpenSource) -> None:
        batch, _ = opened.read(0, 0, ANY_BYTES)
        opened.close()
        assert batch is not None and batch.column("n").to_pylist() == [1, 2]

    def test_the_source_has_the_identity_of_the_log(self, opened: OpenSource, writer: LogWriter) -> None:
        assert writer.meta.uuid in opened.identity(0, 1)


class TestLooks:
    """Where a request costs a round trip, a worker seldom looks for new commits, and once for all partitions."""

    def opened(self, every_s: float) -> tuple[BulkObjects, LogWriter, OpenLog, list[float]]:
        store, now = BulkObjects(), [0.0]
        create_log(store, schema_of(Word), partitions=2)
        writer = LogWriter(store)
        return store, writer, OpenLog(LogReader(store), every_s, lambda: now[0]), now

    def test_all_partitions_share_one_look(self) -> None:
        store, writer, log, now = self.opened(every_s=0.1)
        for _ in range(10):
            assert log.read(0, 0, ANY_BYTES) == (None, 0)
            store.requests.clear()
            assert log.read(1, 0, ANY_BYTES) == (None, 0)
            assert not store.requests
            now[0] += 0.01
        writer.append({0: rows(1), 1: rows(2)})
        now[0] += 0.1
        assert log.read(1, 0, ANY_BYTES)[1] == 1
        assert log.read(0, 0, ANY_BYTES)[1] == 1

    def test_a_look_that_failed_is_not_an_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        store, writer, log, _ = self.opened(every_s=0.1)
        writer.append({0: rows(1)})

        def away(path: str) -> bytes:
            raise Unavailable(f"{path} cannot be read", next_step="wait")

        with monkeypatch.context() as broken:
            broken.setattr(store, "get", away)
            for _ in range(2):
                with pytest.raises(Unavailable):
                    log.end_offsets()
        assert log.read(0, 0, ANY_BYTES)[1] == 1

    def test_a_sealed_log_is_not_asked_again(self) -> None:
        store, writer, log, _ = self.opened(every_s=0.0)
        writer.append({0: rows(1)})
        writer.seal()
        assert log.read(0, 0, ANY_BYTES)[1] == 1
        store.requests.clear()
        assert log.read(0, 1, ANY_BYTES) == (None, 1) and log.ended(0, 1)
        assert log.end_offsets() == {0: 1, 1: 0}
        assert not store.requests
