"""Columns are added to a log: earlier rows have nulls there, and writers without the columns continue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import ConfigError, Damaged
from holdfast.model import Epoch, Tag, Timeline
from holdfast.ports import ObjectStore
from holdfast.runtime.job.redrive import fitted
from holdfast.runtime.worker.digests import records_digested
from holdfast.storage.log.compaction import Compactor, Wishes
from holdfast.storage.log.format import Draft, before_the_first, commit_path, decode_commit, encode_commit, placed
from holdfast.storage.log.log import LogReader, LogWriter, create_log, read_meta
from holdfast.storage.objects import LocalObjects, MemoryObjects

N = pa.field("n", pa.int64(), nullable=False)
WORD, SIZE, AT = pa.field("word", pa.utf8()), pa.field("size", pa.float64()), pa.field("at", pa.date32())
FIRST, SECOND = pa.schema([N, WORD]), pa.schema([N, WORD, SIZE])
ANY_BYTES = 1 << 30


@dataclass
class Narrow:
    word: str | None
    n: int


@dataclass
class Wide:
    n: int
    size: float | None


def rows(schema: pa.Schema, *numbers: int) -> pa.Table:
    given = {"n": list(numbers), "word": [f"w{n}" for n in numbers], "size": [n / 2 for n in numbers]}
    return pa.table([pa.array(given[field.name], field.type) for field in schema], schema=schema)


def writer_of(store: ObjectStore) -> LogWriter:
    return LogWriter(store, pause=lambda _: None, wall_us=lambda: 7)


def read(reader: LogReader, partition: int = 0) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    batch, offset = reader.read(partition, 0, ANY_BYTES)
    while batch is not None:
        batch.validate(full=True)
        found += batch.to_pylist()
        batch, offset = reader.read(partition, offset, ANY_BYTES)
    return found


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    made: ObjectStore = MemoryObjects() if request.param == "memory" else LocalObjects(tmp_path / "log")
    create_log(made, FIRST, partitions=1, key=["n"])
    return made


WANTED = [{"n": 1, "word": "w1", "size": None}, {"n": 2, "word": "w2", "size": 1.0}]


class TestAddedColumns:
    def test_are_null_in_earlier_rows_and_set_in_new_ones(self, store: ObjectStore) -> None:
        writer = writer_of(store)
        writer.append({0: rows(FIRST, 1)})
        assert writer.grow(pa.schema([SIZE])) == SECOND
        writer.append({0: rows(SECOND, 2)})
        assert read(LogReader(store)) == WANTED

    def test_are_visible_to_readers_and_writers_that_were_already_open(self, store: ObjectStore) -> None:
        writer, other, reader = writer_of(store), writer_of(store), LogReader(store)
        writer.append({0: rows(FIRST, 1)})
        reader.refresh()
        assert reader.read(0, 0, 1)[1] == 1
        writer.grow(pa.schema([SIZE]))
        writer.append({0: rows(SECOND, 2)})
        reader.refresh()
        assert (read(reader), reader.meta.schema) == (WANTED, SECOND)
        other.append({0: rows(FIRST, 3)})
        other.append({0: rows(SECOND, 4)})
        reader.refresh()
        assert [row["size"] for row in read(reader)] == [None, 1.0, None, 2.0]

    def test_may_be_added_during_the_append_of_a_writer_without_them(self, store: ObjectStore) -> None:
        behind = writer_of(store)
        draft = behind._draft({0: rows(FIRST, 1)}, None)
        writer_of(store).grow(pa.schema([SIZE]))
        behind._commit(draft)
        assert read(LogReader(store)) == WANTED[:1]

    def test_are_part_of_the_meta_of_the_log(self, store: ObjectStore) -> None:
        writer_of(store).grow(pa.schema([SIZE]))
        meta = read_meta(store)
        assert meta is not None and meta.schema == SECOND and LogReader(store).meta == meta

    def test_are_added_once_and_can_be_followed_by_more(self, store: ObjectStore) -> None:
        writer = writer_of(store)
        writer.append({0: rows(FIRST, 1)})
        writer.grow(pa.schema([SIZE]))
        commits = len(store.list("commits"))
        assert writer_of(store).grow(pa.schema([SIZE])) == SECOND
        assert len(store.list("commits")) == commits
        writer.grow(pa.schema([WORD, AT]))
        assert read(LogReader(store)) == [{"n": 1, "word": "w1", "size": None, "at": None}]

    def test_survive_compactions_before_and_after(self, store: ObjectStore) -> None:
        writer = writer_of(store)
        writer.append({0: rows(FIRST, 1, 9)})
        Compactor(store).compact(Wishes(0, 0))
        writer = writer_of(store)
        writer.grow(pa.schema([SIZE]))
        writer.append({0: rows(SECOND, 2)})
        assert [row["n"] for row in read(LogReader(store))] == [1, 9, 2]
        Compactor(store).compact(Wishes(0, 0))
        assert [row["size"] for row in read(LogReader(store))] == [None, None, 1.0]

    def test_do_not_change_digests_of_older_rows(self, store: ObjectStore) -> None:
        """An audit reads old rows again, with the columns that were added since."""
        writer = writer_of(store)
        writer.append({0: rows(FIRST, 1, 2)})
        before, _ = LogReader(store).read(0, 0, ANY_BYTES)
        writer.grow(pa.schema([SIZE]))
        after, _ = LogReader(store).read(0, 0, ANY_BYTES)
        assert before is not None and after is not None and after.num_columns == 3
        assert records_digested(before, "rows") == records_digested(after, "rows")

    @pytest.mark.parametrize(
        ("columns", "says"),
        [
            (pa.schema([SIZE.with_nullable(False)]), "may not be null"),
            (pa.schema([pa.field("word", pa.int64())]), "with the type string"),
            (pa.schema([SIZE, SIZE]), "twice"),
            (pa.schema([]), "no column was given"),
        ],
    )
    def test_are_refused_where_older_rows_would_not_fit(
        self, store: ObjectStore, columns: pa.Schema, says: str
    ) -> None:
        with pytest.raises(ConfigError, match=says):
            writer_of(store).grow(columns)
        assert store.list("commits") == []

    def test_cannot_be_added_to_a_sealed_log(self, store: ObjectStore) -> None:
        writer_of(store).seal()
        with pytest.raises(ConfigError, match="is sealed"):
            writer_of(store).grow(pa.schema([SIZE]))

    def test_do_not_prevent_a_rewind_of_a_writer(self, store: ObjectStore) -> None:
        writer = writer_of(store)
        writer.append_tagged({0: rows(FIRST, 1)}, "w", Tag(Timeline(1), Epoch(1)))
        writer.grow(pa.schema([SIZE]))
        assert writer.tag_of("w") == Tag(Timeline(1), Epoch(1))


class TestJobThatDeclaresItsColumns:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        create_log(LocalObjects(tmp_path / "log"), FIRST, partitions=1)
        writer = writer_of(LocalObjects(tmp_path / "log"))
        writer.append({0: rows(FIRST, 1)})
        writer.grow(pa.schema([SIZE]))
        writer.append({0: rows(SECOND, 2)})
        return tmp_path / "log"

    @pytest.mark.parametrize("schema", [Narrow, Wide, pa.schema([N])])
    def test_ignores_columns_that_it_does_not_read(self, path: Path, schema: type | pa.Schema) -> None:
        hf.Log(path, schema).source().check()
        batch, following = hf.Log(path, schema).source().open().read(0, 0, ANY_BYTES)
        assert batch is not None and following == 1

    def test_without_a_schema_reads_all_columns(self, path: Path) -> None:
        assert hf.Log(path).source().schema == SECOND

    def test_is_refused_for_a_column_missing_from_the_log(self, path: Path) -> None:
        with pytest.raises(ConfigError, match="at: expected date32"):
            hf.Log(path, pa.schema([N, AT])).source().check()

    def test_a_sink_without_the_new_column_still_works(self, path: Path) -> None:
        for stream in (FIRST, SECOND):
            hf.Log(path).sink().prepare(stream, None)
        for stream in (pa.schema([N]), pa.schema([WORD, N]), pa.schema([*SECOND, AT])):
            with pytest.raises(ConfigError, match="does not take the stream's columns"):
                hf.Log(path).sink().prepare(stream, None)

    def test_a_dead_letter_from_before_the_addition_fits(self, path: Path) -> None:
        meta = read_meta(LocalObjects(path))
        assert meta is not None
        (record,) = rows(FIRST, 1).to_batches()
        assert fitted(record, meta).to_pylist() == WANTED[:1]


class TestTheCommit:
    def grown(self, store: ObjectStore) -> bytes:
        writer_of(store).grow(pa.schema([SIZE]))
        return store.get(commit_path(1))

    def test_is_of_format_4_like_all_later_commits(self, store: ObjectStore) -> None:
        assert self.grown(store).startswith(b'{"v":4,')
        writer_of(store).append({0: rows(FIRST, 1)})
        assert store.get(commit_path(2)).startswith(b'{"v":4,')

    def test_has_a_fixed_form(self, store: ObjectStore) -> None:
        meta = LogReader(store).meta
        commit = placed(Draft("grow", "o" * 32, 7, schema=SECOND), before_the_first(meta))
        fields = encode_commit(commit).split(b'"schema":"')[0].replace(meta.uuid.encode(), b"U")
        assert fields == (
            b'{"v":4,"log":"U","sequence":1,"kind":"grow","owner":"' + b"o" * 32 + b'","at_us":7,"ends":[0],'
            b'"segments":[],"tag":null,"tags":[],"void":0,"voids":[],"compact":0,"seal":0,"compaction":null,"grown":1,'
        )
        assert decode_commit(meta, 1, encode_commit(commit)) == commit

    @pytest.mark.parametrize(
        "schema", [pa.schema([N]), pa.schema([N, WORD, SIZE.with_nullable(False)]), pa.schema([WORD, N, SIZE])]
    )
    def test_a_commit_that_changes_existing_columns_is_damage(self, store: ObjectStore, schema: pa.Schema) -> None:
        meta = LogReader(store).meta
        commit = placed(Draft("grow", "o" * 32, 7, schema=schema), before_the_first(meta))
        store.create(commit_path(1), encode_commit(commit))
        with pytest.raises(Damaged, match="changes existing columns"):
            _ = LogReader(store).meta

    def test_whose_kind_contradicts_its_content_is_damage(self, store: ObjectStore) -> None:
        meta = LogReader(store).meta
        good = placed(Draft("grow", "o" * 32, 7, schema=SECOND), before_the_first(meta))
        for wrong in (replace(good, kind="append"), replace(good, schema=""), replace(good, grown=0)):
            with pytest.raises(Damaged, match="has columns but"):
                decode_commit(meta, 1, encode_commit(wrong))


class TestTheCommand:
    def test_adds_columns_and_shows_them(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        from holdfast.runtime.cli.main import main

        run: Callable[..., int] = main
        create_log(LocalObjects(tmp_path / "log"), FIRST)
        assert run(["log", "add-columns", str(tmp_path / "log"), "--schema", "size:double?"]) == 0
        assert "n:int64, word:string?, size:double?" in capsys.readouterr().out
        assert run(["log", "add-columns", str(tmp_path / "log"), "--schema", "more:double"]) == 2
