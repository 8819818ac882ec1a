"""A source that is no longer the one that the job has read: recreated, or restored from an older copy."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from words_job import ROWS, Words, visible

import holdfast as hf
from holdfast.checkpoint import manifest
from holdfast.checkpoint.repository import Repository
from holdfast.errors import Damaged
from holdfast.model import Epoch, SourcePosition, Tag, Timeline
from holdfast.runtime.config.settings import resolve
from holdfast.runtime.execution.prepare import prepare
from holdfast.runtime.rewind.sources import missing_records
from holdfast.runtime.sources.reading import open_readings
from holdfast.sinks.memory.sink import MemorySink
from holdfast.storage.log.compaction import Compactor, Wishes
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.log.voids import TakeBack
from holdfast.storage.objects import LocalObjects


def append(folder: Path, *numbers: int, partition: int = 0) -> None:
    rows = [{"word": "a", "n": number} for number in numbers]
    LogWriter(LocalObjects(str(folder))).append({partition: pa.Table.from_pylist(rows, schema=ROWS)})


def recreate(folder: Path) -> None:
    shutil.rmtree(folder)
    create_log(LocalObjects(str(folder)), ROWS)


@pytest.fixture
def words(tmp_path: Path) -> Words:
    """A job that has read three commits of its log, and a copy of the log as of the first."""
    job = Words(tmp_path)
    job.say(a=1)
    shutil.copytree(tmp_path / "rows", tmp_path / "older")
    job.say(b=2)
    job.say(c=3)
    return job


def restore(words: Words) -> None:
    shutil.rmtree(words.folder / "rows")
    shutil.copytree(words.folder / "older", words.folder / "rows")


def failed(words: Words) -> str:
    words.cluster.pass_time(5.0)
    assert words.cluster.driver.outcome is not None
    kind, error = words.cluster.driver.outcome
    assert (kind, error and error.kind) == ("failed", "damaged"), (kind, error)
    assert error is not None and "rows" in error.what
    return str(error.what)


class TestChangedLog:
    def test_a_recreated_log_is_refused_by_the_next_run(self, words: Words) -> None:
        words.stop()
        before = visible(words.folder)
        recreate(words.folder / "rows")
        for number in range(9):
            append(words.folder / "rows", number)
        words.go_on(words.code)
        assert "another log" in failed(words)
        assert visible(words.folder) == before

    def test_a_log_restored_from_an_older_copy_is_refused_if_it_ends_too_early(self, words: Words) -> None:
        words.stop()
        restore(words)
        words.go_on(words.code)
        assert "ends at commit 1" in failed(words)

    def test_a_restored_log_is_refused_even_if_as_many_rows_were_appended_since(self, words: Words) -> None:
        words.stop()
        restore(words)
        append(words.folder / "rows", 7)
        append(words.folder / "rows", 8)
        append(words.folder / "rows", 9)
        words.go_on(words.code)
        assert "commit 3 has changed" in failed(words)

    def test_a_recovery_compares_the_identity_again(self, words: Words) -> None:
        restore(words)
        append(words.folder / "rows", 7)
        append(words.folder / "rows", 8)
        words.cluster.replace_driver()
        assert "commit 3 has changed" in failed(words)

    def test_a_running_job_fails_when_the_log_continues_from_another_commit(self, words: Words) -> None:
        restore(words)
        for number in (7, 8, 9):
            append(words.folder / "rows", number)
        failed(words)

    def test_a_running_job_fails_when_the_log_was_truncated(self, words: Words) -> None:
        restore(words)
        words.cluster.pass_time(60.0)
        failed(words)

    def test_a_log_that_was_only_continued_is_read_further(self, words: Words) -> None:
        words.stop()
        append(words.folder / "rows", 4)
        words.go_on(words.code)
        words.cluster.pass_time(3.0)
        assert ["a", 2, 5] in visible(words.folder)["out"]

    def test_a_log_restored_from_a_copy_with_all_rows_read_is_read_further(self, words: Words) -> None:
        words.stop()
        shutil.copytree(words.folder / "rows", words.folder / "whole")
        append(words.folder / "rows", 4)
        shutil.rmtree(words.folder / "rows")
        shutil.move(words.folder / "whole", words.folder / "rows")
        append(words.folder / "rows", 5)
        words.go_on(words.code)
        words.cluster.pass_time(3.0)
        assert ["a", 2, 6] in visible(words.folder)["out"]

    def test_the_command_refuses_it_before_the_job_log_is_touched(self, words: Words, tmp_path: Path) -> None:
        words.stop()
        records = words.store.list("log")
        recreate(words.folder / "rows")
        app = hf.App("words", root=str(tmp_path / "root"))
        rows = app.source("rows", hf.Log(tmp_path / "rows"))
        totals = rows.key_by("word").agg("totals", rows=hf.count(), total=hf.sum("n"))
        totals.sink("out", hf.SQLite(str(tmp_path / "new.db"), table="totals", key=["word"]))
        with pytest.raises(Damaged, match="another log") as caught:
            prepare(app.plan(), resolve(app))
        next_step = caught.value.next_step
        assert "restore" in next_step and "holdfast rewind JOB.py --to-offset rows:" in next_step
        assert words.store.list("log") == records

    def test_only_a_rewind_to_a_checkpoint_before_the_copy_is_possible(self, words: Words) -> None:
        words.stop()
        restore(words)
        repository = Repository(words.store)
        assert missing_records(repository, words.job, words.epochs[0], words.plan) is None
        assert "'rows'" in str(missing_records(repository, words.job, words.epochs[1], words.plan))


class TestIdentityInTheManifest:
    def test_a_manifest_without_identities_accepts_the_identity_found(self) -> None:
        (reading,) = _read(SourcePosition("s", 0, 3))
        assert reading.identity == "one"

    def test_a_missing_identity_is_left_out(self, words: Words) -> None:
        last = Repository(words.store).load_manifest(words.job.completed[-1].body.manifest)
        with_rows = [at for at in last.positions if at.identity is not None]
        assert [at.partition for at in with_rows] == [0]
        assert b'"identity":null' not in manifest.encode(last)

    def test_the_identity_has_a_fixed_form(self) -> None:
        at, stored = SourcePosition("s", 0, 3, identity="log x"), b'{"source":"s","partition":0,"offset":3}'
        assert msgspec.json.encode(at) == stored[:-1] + b',"identity":"log x"}'
        assert msgspec.json.decode(stored, type=SourcePosition) == SourcePosition("s", 0, 3)

    def test_nothing_is_compared_if_nothing_was_read(self) -> None:
        (reading,) = _read(SourcePosition("s", 0, 0, identity="two"))
        assert reading.identity is None

    def test_another_identity_is_refused_with_source_partition_and_offset(self) -> None:
        with pytest.raises(Damaged, match="source 's': it is two") as caught:
            _read(SourcePosition("s", 0, 3, identity="two"))
        assert (caught.value.where.source, caught.value.where.offset) == ("s", 3)


class _Named:
    """A source whose identity is `one`."""

    def identity(self, partition: int, offset: int) -> str:
        return "one"

    def changed(self, identity: str) -> str | None:
        return None if identity == "one" else f"it is {identity}"


def _read(*positions: SourcePosition) -> list[Any]:
    app = hf.App("one")
    app.source("s", hf.Generator(pa.schema([pa.field("n", pa.int64())]), lambda i: (i,))).sink("out", MemorySink())
    opened: Any = {"s": _Named()}
    return open_readings(app.plan(), positions, opened)


class TestIdentityOfALog:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        create_log(LocalObjects(str(tmp_path / "log")), ROWS, key=["word"])
        for number in range(5):
            append(tmp_path / "log", number)
        return tmp_path / "log"

    def test_the_identity_is_confirmed_by_any_reader_at_any_offset(self, path: Path) -> None:
        source, other = hf.Log(path).source().open(), hf.Log(path).source().open()
        for offset in range(1, 6):
            assert other.changed(source.identity(0, offset)) is None

    def test_the_identity_is_that_of_the_first_commit_that_reaches_the_offset(self, path: Path, tmp_path: Path) -> None:
        identity = hf.Log(path).source().open().identity(0, 2)
        shutil.copytree(path, tmp_path / "copy")
        for sequence in (3, 4, 5):
            (tmp_path / "copy" / "commits" / f"{sequence:020d}.json").unlink()
        assert hf.Log(tmp_path / "copy").source().open().changed(identity) is None
        identity = hf.Log(path).source().open().identity(0, 3)
        assert "ends at commit 2" in str(hf.Log(tmp_path / "copy").source().open().changed(identity))

    def test_the_identity_is_the_same_with_and_without_a_read(self, path: Path) -> None:
        reader = hf.Log(path).source().open()
        _, following = reader.read(0, 2, 1)
        assert reader.identity(0, following) == hf.Log(path).source().open().identity(0, following)

    def test_the_identity_survives_a_compaction_and_a_seal(self, path: Path) -> None:
        before = [hf.Log(path).source().open().identity(0, offset) for offset in range(1, 6)]
        Compactor(LocalObjects(str(path))).compact(Wishes(0, 0))
        LogWriter(LocalObjects(str(path))).seal()
        assert {hf.Log(path).source().open().changed(identity) for identity in before} == {None}
        reader = hf.Log(path).source().open()
        again = hf.Log(path).source()
        assert [again.open().changed(reader.identity(0, offset)) for offset in range(1, 6)] == [None] * 5

    def test_a_copy_without_the_rewind_that_the_reader_skipped_is_another_history(
        self, path: Path, tmp_path: Path
    ) -> None:
        log = LogWriter(LocalObjects(str(path)))
        rows = pa.Table.from_pylist([{"word": "z", "n": 1}], schema=ROWS)
        log.append_tagged({0: rows}, "w", Tag(Timeline(1), Epoch(1)))
        append(path, 7)
        shutil.copytree(path, tmp_path / "copy")
        log.take_back(TakeBack(Tag(Timeline(2), Epoch(0)), ("w",), lambda _: False))
        reader = hf.Log(path).source().open()
        batch, following = reader.read(0, 5, 1 << 20)
        assert batch is not None and following == 7
        assert "ends at commit 7" in str(hf.Log(tmp_path / "copy").source().open().changed(reader.identity(0, 7)))

    def test_rows_that_were_read_and_taken_back_since_are_another_history(self, path: Path) -> None:
        log = LogWriter(LocalObjects(str(path)))
        rows = pa.Table.from_pylist([{"word": "z", "n": number} for number in range(2)], schema=ROWS)
        log.append_tagged({0: rows}, "w", Tag(Timeline(1), Epoch(1)))
        append(path, 7)
        reader = hf.Log(path).source().open()
        known = {offset: reader.identity(0, offset) for offset in range(1, 9)}
        log.take_back(TakeBack(Tag(Timeline(2), Epoch(0)), ("w",), lambda _: False))
        found = {offset: hf.Log(path).source().open().changed(identity) for offset, identity in known.items()}
        assert [offset for offset, why in found.items() if why is None] == [1, 2, 3, 4, 5]
        assert "the rows from offset 5 to before 7 of partition 0" in str(found[8])
        earlier = known[8].rsplit(" ", 2)[0]
        assert hf.Log(path).source().open().changed(earlier) is None, "a version without places stored it"
        now = hf.Log(path).source().open().identity(0, 8)
        assert hf.Log(path).source().open().changed(now) is None, "they were not read"

    def test_the_identity_at_the_readers_offset_needs_no_request(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reader = hf.Log(path).source().open()
        _, following = reader.read(0, 3, 1)
        monkeypatch.setattr(LocalObjects, "get", None)
        assert reader.identity(0, following)


class TestIdentityOfAGenerator:
    def test_another_number_of_partitions_changes_the_identity(self) -> None:
        def of(partitions: int) -> Any:
            schema = pa.schema([pa.field("n", pa.int64())])
            return hf.Generator(schema, lambda i: (i,), partitions=partitions).open()

        assert of(2).changed(of(2).identity(0, 5)) is None
        assert "2 partitions" in of(3).changed(of(2).identity(0, 5))

    def test_the_identity_differs_from_that_of_a_log(self, tmp_path: Path) -> None:
        create_log(LocalObjects(str(tmp_path / "log")), ROWS)
        append(tmp_path / "log", 1)
        log = hf.Log(tmp_path / "log").source().open()
        generator = hf.Generator(pa.schema([pa.field("n", pa.int64())]), lambda i: (i,)).open()
        assert generator.changed(log.identity(0, 1)) is not None
        assert log.changed(generator.identity(0, 1)) is not None
