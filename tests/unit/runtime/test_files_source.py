"""`hf.Files`: which files are read, in which order, at which positions, and what is refused."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast.errors import Damaged, Unavailable
from holdfast.runtime.plan.source import same_from
from holdfast.runtime.rows.dead_letters import ERROR, FORM, RAW
from holdfast.runtime.sources.files.catalogue import PACKED, FileCatalogue, FileCatalogueHead, FileEntry
from holdfast.runtime.sources.files.reading import OpenFiles
from holdfast.runtime.sources.files.source import FilesSource
from holdfast.runtime.sources.reading import split
from holdfast.storage.folders import FolderFile, open_folder
from holdfast.storage.hashed import with_hash
from holdfast.storage.objects import LocalObjects, MemoryObjects

ANY = 1 << 20
NUMBERS = pa.schema([pa.field("n", pa.int64(), nullable=False)])


@dataclass
class Bid:
    auction: int
    price: float
    at: datetime
    channel: str = "web"
    note: str | None = None


def lines(*numbers: int) -> bytes:
    return b"".join(b'{"n": %d}\n' % n for n in numbers)


class Inbox:
    """A folder of files, and the jobs that read it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._jobs = folder / "inbox", folder / "jobs"
        self.folder.mkdir()

    def put(self, name: str, data: bytes) -> Path:
        """Write a file beside the folder, and rename it into place."""
        path, beside = self.folder / name, self.folder.parent / "writing"
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(data)
        return beside.rename(path)

    def put_table(self, name: str, table: pa.Table, **options: Any) -> Path:
        """Write a Parquet file."""
        written = pa.BufferOutputStream()
        pq.write_table(table, written, **options)
        return self.put(name, bytes(written.getvalue()))

    def source(self, form: Any = "jsonl", schema: Any = NUMBERS, job: str = "a", **more: Any) -> FilesSource:
        """Return the source of a job, before a start."""
        return (
            hf.Files(self.folder, schema, form, **{"partitions": 1, **more}).source().in_folder(str(self._jobs / job))
        )

    @contextmanager
    def opened(self, *given: Any, **more: Any) -> Iterator[OpenFiles]:
        """List the files as the first start of a job does, and open them."""
        with closing(self.source(*given, **more).copied(again=True).open()) as found:
            yield found


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    return Inbox(tmp_path)


def read(opened: OpenFiles, partition: int = 0, offset: int = 0, bytes_max: int = ANY) -> dict[int, Any]:
    """Return the rows from a position on, by their positions."""
    found: dict[int, Any] = {}
    while True:
        batch, following = opened.read(partition, offset, bytes_max)
        if following == offset:
            return found
        if batch is not None:
            rows, given = split(batch)
            places = range(offset, following) if given is None else given.tolist()
            found.update(zip(places, rows.to_pylist(), strict=True))
        offset = following


def numbers(opened: OpenFiles, partition: int = 0) -> list[int]:
    return [row["n"] for row in read(opened, partition).values()]


class TestFiles:
    def test_are_read_in_the_order_of_the_listings_and_then_of_their_names(self, inbox: Inbox) -> None:
        inbox.put("b", lines(3, 4))
        inbox.put("a/z", lines(1, 2))
        with inbox.opened() as opened:
            assert numbers(opened) == [1, 2, 3, 4]
            inbox.put("a/a", lines(5))
            assert numbers(opened) == [1, 2, 3, 4], "no listing, no new file"
            assert opened.partitions() == [0] and numbers(opened) == [1, 2, 3, 4, 5]

    def test_are_dealt_out_to_partitions_in_turn(self, inbox: Inbox) -> None:
        for n in range(5):
            inbox.put(f"f{n}", lines(n))
        with inbox.opened(partitions=2) as opened:
            assert opened.partitions() == [0, 1]
            assert (numbers(opened, 0), numbers(opened, 1)) == ([0, 2, 4], [1, 3])

    def test_hidden_unfinished_and_empty_files_are_skipped(self, inbox: Inbox) -> None:
        for name in ("_SUCCESS", ".part-0.crc", "a.tmp", "part-0.crc", "_temporary/0/part-1", "b/.staging/c"):
            inbox.put(name, b"no data")
        empty = inbox.put("empty", b"")
        inbox.put("part-0", lines(1))
        with inbox.opened() as opened:
            assert numbers(opened) == [1]
            empty.unlink()
            inbox.put("empty", lines(2))
            opened.partitions()
            assert numbers(opened) == [1, 2]

    def test_files_may_be_deleted_after_they_are_read(self, inbox: Inbox) -> None:
        first = inbox.put("a", lines(1))
        with inbox.opened() as opened:
            assert numbers(opened) == [1]
            first.unlink()
            inbox.put("b", lines(2))
            opened.partitions()
            assert [row["n"] for row in read(opened, offset=9).values()] == [2]
            assert opened.retention_start(0) == 0 and opened.whole_from(0) == len(lines(1))
            assert same_from(opened, 0) == len(lines(1))

    def test_files_in_a_missing_folder_are_not_treated_as_deleted(self, inbox: Inbox) -> None:
        inbox.put("a", lines(1))
        with inbox.opened() as opened:
            inbox.folder.rename(inbox.folder.parent / "unmounted")
            for asked in (opened.partitions, lambda: opened.read(0, 0, ANY), lambda: opened.whole_from(0)):
                with pytest.raises(Unavailable, match="the folder .* does not exist"):
                    asked()
            (inbox.folder.parent / "unmounted").rename(inbox.folder)
            assert numbers(opened) == [1]

    @pytest.mark.parametrize("form", ["parquet", "jsonl"])
    def test_files_deleted_before_they_are_read_are_an_error(self, inbox: Inbox, form: str) -> None:
        path = inbox.put_table("a", pa.table({"n": [1, 2]})) if form == "parquet" else inbox.put("a", lines(1, 2))
        with inbox.opened(form) as opened:
            path.unlink()
            with pytest.raises(Damaged, match="file a of folder .*: it no longer exists, and was not read to its end"):
                opened.read(0, 0, ANY)

    def test_files_changed_during_a_read_are_an_error(self, inbox: Inbox) -> None:
        path = inbox.put("a", lines(1, 2, 3))
        with inbox.opened() as opened:
            _, following = opened.read(0, 0, 1)
            with path.open("r+b") as file:
                file.write(lines(7, 8, 9))
            os.utime(path, ns=(1, 1))
            with pytest.raises(Damaged, match="it was replaced or changed since it was listed"):
                opened.read(0, following, ANY)

    @pytest.mark.parametrize("data", [lines(1, 2, 3), lines(9)], ids=["appended to", "replaced"])
    def test_files_changed_after_they_were_read_are_an_error_at_the_next_listing(
        self, inbox: Inbox, data: bytes
    ) -> None:
        inbox.put("a", lines(1))
        with inbox.opened() as opened:
            assert numbers(opened) == [1]
            os.utime(inbox.put("a", data), ns=(1, 1))
            with pytest.raises(Damaged, match="file a of folder") as caught:
                opened.partitions()
            assert "restore the file as it was listed" in caught.value.next_step

    def test_files_written_during_a_listing_wait_for_the_next_listing(
        self, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        inbox.put_table("a", pa.table({"n": [1]}))
        whole = inbox.put_table("writing.tmp", pa.table({"n": [2]}))
        with inbox.opened("parquet") as opened:
            path = inbox.put("b", whole.read_bytes()[:40])
            verify = opened._folder.verify

            def verified(file: FolderFile) -> bool:
                path.write_bytes(whole.read_bytes())
                return verify(file)

            monkeypatch.setattr(opened._folder, "verify", verified)
            opened.partitions()
            monkeypatch.undo()
            assert numbers(opened) == [1]
            opened.partitions()
            assert numbers(opened) == [1, 2]

    def test_files_deleted_during_a_listing_are_skipped(self, inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
        inbox.put_table("a", pa.table({"n": [1]}))
        inbox.put_table("b", pa.table({"n": [2]}))
        with inbox.opened("parquet") as opened:
            listed = opened._folder.files
            inbox.put_table("c", pa.table({"n": [3]}))

            def files() -> list[FolderFile]:
                found = listed()
                (inbox.folder / "c").unlink()
                return found

            monkeypatch.setattr(opened._folder, "files", files)
            opened.partitions()
            assert numbers(opened) == [1, 2]

    def test_files_restored_with_their_modification_time_are_the_same(self, inbox: Inbox) -> None:
        path = inbox.put("a", lines(1))
        about = path.stat()
        with inbox.opened() as opened:
            path.unlink()
            os.utime(inbox.put("a", lines(1)), ns=(about.st_atime_ns, about.st_mtime_ns))
            assert opened.partitions() == [0] and numbers(opened) == [1] and opened.whole_from(0) == 0

    def test_below_a_url_are_read_alike(self, tmp_path: Path) -> None:
        fs = fsspec.filesystem("memory")
        fs.pipe_file(f"{tmp_path}/in/a", lines(1, 2))
        source = hf.Files(f"memory:/{tmp_path}/in", NUMBERS, "jsonl", partitions=1).source()
        with closing(source.in_folder(str(tmp_path / "job")).copied(again=True).open()) as opened:
            fs.pipe_file(f"{tmp_path}/in/b", lines(3))
            opened.partitions()
            assert numbers(opened) == [1, 2, 3]
            fs.rm_file(f"{tmp_path}/in/a")
            with pytest.raises(Damaged, match="it no longer exists"):
                opened.read(0, 0, ANY)


class TestStarts:
    def test_continue_the_catalogue(self, inbox: Inbox) -> None:
        inbox.put("b", lines(1))
        with inbox.opened() as opened:
            identity = opened.identity(0, 1)
        inbox.put("a", lines(2))
        with closing(inbox.source().copied(again=False).open()) as again:
            assert again.changed(identity) is None and again.end_offsets() == {0: len(lines(1))}
            assert again.partitions() == [0] and numbers(again) == [1, 2]

    def test_without_a_checkpoint_make_another_catalogue(self, inbox: Inbox) -> None:
        inbox.put("b", lines(1))
        with inbox.opened() as opened:
            identity = opened.identity(0, 1)
        inbox.put("a", lines(2))
        with inbox.opened() as again:
            assert numbers(again) == [2, 1]
            assert "does not have the files that were read" in (again.changed(identity) or "")
        kept = [path for path in (inbox.folder.parent / "jobs" / "a").rglob("*") if path.is_file()]
        assert sorted(path.name for path in kept) == ["00000000", "catalogue.json"], "the former one is removed"

    def test_a_bounded_source_reads_what_the_first_start_lists_and_ends(self, inbox: Inbox) -> None:
        inbox.put("a", lines(1))
        with inbox.opened(bounded=True) as opened:
            inbox.put("b", lines(2))
            assert opened.partitions() == [0] and numbers(opened) == [1]
            assert opened.ended(0, 9) and not opened.ended(0, 8)
        with closing(inbox.source(bounded=True).copied(again=False).open()) as again:
            assert again.partitions() == [0] and numbers(again) == [1]

    def test_a_bounded_source_needs_files(self, inbox: Inbox) -> None:
        inbox.put("_SUCCESS", b"x")
        with pytest.raises(hf.ConfigError, match="holds no files, and a source with bounded=True would read nothing"):
            inbox.source(bounded=True).copied(again=True)

    def test_with_other_arguments_are_refused(self, inbox: Inbox) -> None:
        inbox.put("a", lines(1))
        inbox.source().copied(again=True)
        with pytest.raises(hf.ConfigError, match="partitions was 1 and is 2, bounded was False and is True"):
            inbox.source(partitions=2, bounded=True).copied(again=False)

    def test_are_refused_without_the_folder(self, inbox: Inbox) -> None:
        inbox.folder.rmdir()
        with pytest.raises(hf.ConfigError, match="inbox does not exist"):
            inbox.source().check()

    def test_starts_of_other_commands_list_nothing(self, inbox: Inbox) -> None:
        with pytest.raises(hf.ConfigError, match="were not listed yet"):
            inbox.source().open()
        inbox.put("a", lines(1))
        with inbox.opened():
            inbox.put("b", lines(2))
            with closing(inbox.source().open()) as other:
                assert other.partitions() == [0] and numbers(other) == [1]


class TestCatalogue:
    HEAD = FileCatalogueHead(folder="files-1", path="in", format="jsonl", partitions=3, bounded=False)

    def entry(self, n: int) -> FileEntry:
        return FileEntry(f"f{n}", 10, "v", 10)

    def filled(self, store: Any, count: int) -> FileCatalogue:
        catalogue = FileCatalogue(store, self.HEAD)
        for n in range(count):
            assert catalogue.append([self.entry(n)])
        return catalogue

    def test_a_catalogue_of_many_listings_opens_with_few_requests(self) -> None:
        class Counted(MemoryObjects):
            asked = 0

            def get(self, path: str) -> bytes:
                self.asked += 1
                return super().get(path)

        store, count = Counted(), 2 * PACKED * PACKED + PACKED + 3
        written, store.asked = self.filled(store, count), 0
        again = FileCatalogue(store, self.HEAD)
        again.refresh()
        assert store.asked < 20
        for partition in range(3):
            assert again.end(partition) == written.end(partition)
            held = count // 3 + (partition < count % 3)
            assert again.hash_of(partition, held) == written.hash_of(partition, held) is not None

    def test_a_catalogue_without_one_pack_is_still_readable(self) -> None:
        store = MemoryObjects()
        self.filled(store, PACKED + 1)
        store.delete("files-1/1/00000000")
        again = FileCatalogue(store, self.HEAD)
        again.refresh()
        assert len(again) == PACKED + 1

    def test_has_one_append_at_a_time(self) -> None:
        store = MemoryObjects()
        one, other = self.filled(store, 2), FileCatalogue(store, self.HEAD)
        other.refresh()
        assert one.append([self.entry(2)])
        assert not other.append([self.entry(3)])
        other.refresh()
        assert other.append([self.entry(3)]) and len(other) == 4
        one.refresh()
        assert [one.hash_of(p, 1) for p in range(3)] == [other.hash_of(p, 1) for p in range(3)]

    def test_is_read_further_by_workers_that_are_open(self, inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("holdfast.runtime.sources.files.source.LOOK_EVERY_S", 3600.0)
        inbox.put("a", lines(1))
        source = inbox.source().copied(again=True)
        with closing(source.open()) as driver, closing(source.open()) as worker:
            assert numbers(worker) == [1]
            inbox.put("b", lines(2))
            driver.partitions()
            assert worker.read(0, 9, ANY) == (None, 9), "it has looked within the hour"
            assert worker.end_offsets() == {0: 18} and numbers(worker) == [1, 2]

    def test_lists_a_file_once_with_two_drivers(self, inbox: Inbox) -> None:
        inbox.put("a", lines(1))
        source = inbox.source().copied(again=True)
        with closing(source.open()) as one, closing(source.open()) as other:
            inbox.put("b", lines(2))
            one.partitions()
            inbox.put("c", lines(3))
            other.partitions()
            one.partitions()
            assert numbers(one) == numbers(other) == [1, 2, 3]

    def test_a_damaged_catalogue_is_refused(self, inbox: Inbox) -> None:
        inbox.put("a", lines(1))
        source = inbox.source().copied(again=True)
        assert source.head is not None and source.folder is not None
        path = Path(source.folder, source.head.folder, "0", "00000000")
        path.write_bytes(path.read_bytes().replace(b'"a"', b'"b"'))
        with pytest.raises(Damaged, match="its hash does not match its bytes"):
            source.open()

    def test_a_catalogue_of_a_newer_version_is_refused(self) -> None:
        store = MemoryObjects()
        newer = FileCatalogue(store, self.HEAD)
        newer.append([self.entry(0)])
        data = store.get("files-1/0/00000000")
        store.put("files-1/0/00000000", with_hash(data.replace(b'"v":1', b'"v":2').split(b',"xxh3"')[0] + b"}"))
        with pytest.raises(hf.ConfigError, match="has version 2"):
            FileCatalogue(store, self.HEAD).refresh()

    def test_names_positions_that_lie_in_no_file(self) -> None:
        catalogue = self.filled(MemoryObjects(), 7)
        assert [catalogue.begun(0, offset) for offset in (1, 10, 11, 20, 21, 30)] == [1, 1, 2, 2, 3, 3]
        assert catalogue.place(0, 30) is None and catalogue.hash_of(0, 4) is None


class TestPositions:
    def test_positions_of_text_rows_are_byte_offsets(self, inbox: Inbox) -> None:
        inbox.put("a", b'{"n": 1}\r\n\n  \n{"n": 2}\n{"n": 3}')
        inbox.put("b", lines(4))
        expected = {0: 1, 14: 2, 23: 3, 31: 4}
        with inbox.opened() as opened:
            for bytes_max in (1, 9, 20, ANY):
                found = read(opened, bytes_max=bytes_max)
                assert {at: row["n"] for at, row in found.items()} == expected
            for offset in range(40):
                found = read(opened, offset=offset)
                assert {at: row["n"] for at, row in found.items()} == {a: n for a, n in expected.items() if a >= offset}

    @pytest.mark.parametrize("bytes_max", [1, 40, ANY])
    def test_positions_of_parquet_rows_are_row_numbers(self, inbox: Inbox, bytes_max: int) -> None:
        for first in (0, 100):
            inbox.put_table(f"f{first:03}", pa.table({"n": range(first, first + 100)}), row_group_size=30)
        inbox.put_table("f050", pa.table({"n": pa.array([], pa.int64())}))
        with inbox.opened("parquet") as opened:
            assert opened.end_offsets() == {0: 200}
            for offset in (0, 1, 29, 30, 95, 99, 100, 131, 199):
                found = read(opened, 0, offset, bytes_max)
                assert {at: row["n"] for at, row in found.items()} == {n: n for n in range(offset, 200)}

    def test_parquet_reads_return_no_more_bytes_than_requested(self, inbox: Inbox) -> None:
        texts = ["x" * (10 if n % 7 else 4_000) for n in range(2_000)]
        inbox.put_table("a", pa.table({"text": texts}))
        with inbox.opened("parquet", pa.schema([("text", pa.string())])) as opened:
            offset, found = 0, list[str]()
            while offset < 2_000:
                batch, offset = opened.read(0, offset, 10_000)
                assert batch is not None and (batch.nbytes <= 10_000 or batch.num_rows == 1)
                found += batch.column(0).to_pylist()
            assert found == texts


class TestJsonLines:
    def test_are_read_as_the_values_of_topics_are(self, inbox: Inbox) -> None:
        at = "2026-01-01T00:00:00Z"
        records: list[dict[str, Any]] = [
            {"auction": 1, "price": 2, "at": at, "unknown": []},
            {"auction": "1", "price": 2.5, "at": at},
            {"auction": 2, "price": 2.5, "at": at, "channel": "app", "note": "n"},
        ]
        data = b"".join(json.dumps(each).encode() + b"\n" for each in records)
        inbox.put("a", data)
        with inbox.opened("jsonl", Bid) as opened:
            good, bad, more = read(opened).values()
        assert (good["auction"], good["price"], good["channel"], good["note"]) == (1, 2.0, "web", None)
        assert (more["channel"], more["note"], more["at"]) == ("app", "n", datetime(2026, 1, 1, tzinfo=UTC))
        where = data.index(b'{"auction": "1"')
        assert f"(file a, byte {where})" in bad[ERROR] and bad["auction"] is None

    def test_json_lines_of_any_length_are_read_in_chunks(self, inbox: Inbox) -> None:
        inbox.put("a", b'{"n": 1, "x": "%s"}\n' % (b"x" * 300_000) + lines(2))
        with inbox.opened() as opened:
            assert [row["n"] for row in read(opened, bytes_max=1_000).values()] == [1, 2]

    def test_json_lines_over_the_limit_are_refused(self, inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("holdfast.runtime.sources.files.text.LINE_BYTES_MAX", 1 << 10)
        inbox.put("a", lines(1) + b"x" * 3_000)
        with inbox.opened() as opened, pytest.raises(Damaged, match="the line at byte 9 is longer than"):
            read(opened, bytes_max=100)

    def test_compressed_json_lines_are_refused_with_the_file(self, inbox: Inbox) -> None:
        inbox.put("a.jsonl.gz", b"x")
        with pytest.raises(Damaged, match=r"file a\.jsonl\.gz of folder .*: it is compressed"):
            inbox.source().copied(again=True)


class TestCsv:
    def test_is_read_by_its_header(self, inbox: Inbox) -> None:
        header = b"\xef\xbb\xbfchannel,at,more,note,price,auction\n"
        inbox.put("a", header + b'"a, ""b""",2026-01-01T00:00:00Z,x,,2.5,1\n,2026-01-01T01:00:00+01:00,x,"",3, 2\n')
        inbox.put("b", b"auction,price,at,channel,note\n3,1,2026-01-01T00:00:00Z,c,n")
        at = datetime(2026, 1, 1, tzinfo=UTC)
        with inbox.opened("csv", Bid) as opened:
            rows = read(opened)
            assert list(rows.values()) == [
                {"auction": 1, "price": 2.5, "at": at, "channel": 'a, "b"', "note": None},
                {"auction": 2, "price": 3.0, "at": at, "channel": "", "note": ""},
                {"auction": 3, "price": 1.0, "at": at, "channel": "c", "note": "n"},
            ]
            for offset in rows:
                assert read(opened, offset=offset) == {at: row for at, row in rows.items() if at >= offset}

    @pytest.mark.parametrize(
        ("line", "why"),
        [
            (b"x", "invalid value 'x'"),
            (b"1.5", "invalid value '1.5'"),
            (b"1,2", "Expected 1 columns, got 2"),
            (b'"1', "a value has no closing quote in its line"),
            (b"1\r2", "it has a carriage return within it"),
            (b'""', "invalid value|is empty"),
            (b"\xff", "invalid"),
        ],
    )
    def test_refuses_a_line_for_itself(self, inbox: Inbox, line: bytes, why: str) -> None:
        inbox.put("a", b"n\n" + b"7\n" * 9 + line + b"\n" + b"8\n" * 4)
        with inbox.opened("csv") as opened:
            rows = read(opened)
        bad = rows.pop(20)
        assert [row["n"] for row in rows.values()] == [7] * 9 + [8] * 4
        assert re.search(why, bad[ERROR]) and bad[ERROR].endswith("(file a, byte 20)"), bad
        assert (bad[FORM], bad[RAW]) == ("bytes" if line == b"\xff" else "text", line)

    @pytest.mark.parametrize(
        ("header", "why"),
        [
            (b"m\n1\n", "its header lacks n; it has m"),
            (b"n,n\n1,2\n", "'n' is there twice"),
            (b"\xff\n", "its header cannot be read"),
            (b'"n\n1\n', "its header cannot be read"),
        ],
    )
    def test_with_another_header_is_refused_when_it_is_listed(self, inbox: Inbox, header: bytes, why: str) -> None:
        inbox.put("0", b"n\n1\n")
        with inbox.opened("csv") as opened:
            bad = inbox.put("a", header)
            with pytest.raises(Damaged, match=f"file a of folder .*: .*{why}"):
                opened.partitions()
            bad.unlink()
            inbox.put("a", b"n\n2\n")
            opened.partitions()
            assert numbers(opened) == [1, 2]

    def test_without_rows_has_none(self, inbox: Inbox) -> None:
        inbox.put("a", b"n")
        inbox.put("b", b"n\n")
        inbox.put("c", b"n\n4")
        with inbox.opened("csv") as opened:
            assert numbers(opened) == [4]

    def test_refuses_columns_that_it_does_not_have(self) -> None:
        with pytest.raises(hf.ConfigError, match=r"column 'l' is list<item: int64>, which CSV does not have"):
            hf.Files("in", pa.schema([("l", pa.list_(pa.int64()))]), "csv")


class TestParquet:
    def test_gives_wider_types_and_finer_times_without_loss(self, inbox: Inbox) -> None:
        fine = pa.array([1_000_000_000], pa.timestamp("ns", "Europe/Paris"))
        written = {
            "i": pa.array([1], pa.int32()),
            "f": pa.array([1.5], pa.float32()),
            "s": pa.array(["x"], pa.large_string()).dictionary_encode(),
            "t": fine,
        }
        inbox.put_table("a", pa.table(written))
        schema = pa.schema(
            [("t", pa.timestamp("us", "UTC")), ("s", pa.string()), ("i", pa.int64()), ("f", pa.float64())]
        )
        with inbox.opened("parquet", schema) as opened:
            (row,) = read(opened).values()
            assert row == {"t": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "s": "x", "i": 1, "f": 1.5}

    def test_with_times_that_do_not_fit_is_refused_with_the_rows(self, inbox: Inbox) -> None:
        inbox.put_table("a", pa.table({"t": pa.array([0, 1], pa.timestamp("ns", "UTC"))}))
        wrong = pytest.raises(Damaged, match=r"file a of folder .*: column 't' in rows 1 to 2: .*lose data")
        with inbox.opened("parquet", pa.schema([("t", pa.timestamp("us", "UTC"))])) as opened, wrong:
            opened.read(0, 0, ANY)

    def test_keeps_a_null_for_the_job_to_refuse(self, inbox: Inbox) -> None:
        inbox.put_table("a", pa.table({"n": [1, None]}))
        with inbox.opened("parquet") as opened:
            assert numbers(opened) == [1, None]

    @pytest.mark.parametrize(
        ("columns", "why"),
        [
            ({"m": [1]}, "column 'n' is missing: it has m"),
            ({"n": ["1"]}, "column 'n' is string, but the job reads int64"),
            ({"n": pa.array([1], pa.uint64())}, "column 'n' is uint64, but the job reads int64"),
            ({"n": [1.0]}, "column 'n' is double, but the job reads int64"),
        ],
    )
    def test_with_other_columns_is_refused_when_it_is_listed(
        self, inbox: Inbox, columns: dict[str, Any], why: str
    ) -> None:
        inbox.put_table("a", pa.table(columns))
        with pytest.raises(Damaged, match=f"file a of folder .*: {why}"):
            inbox.source("parquet").copied(again=True)

    def test_a_file_that_is_not_parquet_is_refused_at_listing(self, inbox: Inbox) -> None:
        inbox.put("a", b"not at all Parquet")
        with pytest.raises(Damaged, match="file a of folder .*: it cannot be read as Parquet"):
            inbox.source("parquet").copied(again=True)

    def test_damaged_parquet_is_refused_with_file_and_row(self, inbox: Inbox) -> None:
        path = inbox.put_table("a", pa.table({"n": range(1_000)}), use_dictionary=False, compression="zstd")
        data, about = bytearray(path.read_bytes()), path.stat()
        data[100:400] = bytes(300)
        path.write_bytes(data)
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
        with inbox.opened("parquet") as opened:
            with pytest.raises(Damaged, match=r"file a of folder .*: row 1 or a later one cannot be read") as caught:
                opened.read(0, 0, ANY)
            assert (caught.value.where.partition, caught.value.where.offset) == (0, 0)


class TestArguments:
    @pytest.mark.parametrize(
        ("make", "why"),
        [
            (lambda: hf.Files("in", NUMBERS, "arrow"), "the format is 'arrow'"),  # type: ignore[arg-type]
            (lambda: hf.Files("in", NUMBERS, "csv", partitions=0), "partitions is 0"),
            (lambda: hf.Files(), "lacks 'path'"),  # type: ignore[call-arg]
            (lambda: hf.Files("in").source(), "does not say which columns to read"),
            (lambda: hf.Files("in", NUMBERS, "csv").sink(), "is a sink, which writes Parquet"),
            (lambda: hf.Files("in", NUMBERS, bounded=True).sink(), "only a source has an end"),
            (lambda: hf.Files("in", file_bytes=1), "file_bytes is 1"),
            (lambda: hf.Files("s3://key:secret@bucket/in", NUMBERS, "csv"), "holds a password"),
            (lambda: hf.Files("gopher://x/in", NUMBERS, "csv").source().check(), "unknown scheme 'gopher'"),
        ],
    )
    def test_unusable_arguments_of_a_file_source_are_refused(self, make: Callable[[], object], why: str) -> None:
        with pytest.raises(hf.ConfigError, match=why):
            make()

    def test_decide_the_traits(self, tmp_path: Path) -> None:
        here = hf.Files(tmp_path / "in", NUMBERS, "csv").source()
        assert here.traits.local_paths == (str(tmp_path / "in"),) and here.traits.copied
        there = hf.Files("s3://bucket/in/", NUMBERS, "csv").source()
        assert there.traits.local_paths == () and there.traits.place == {"path": "s3://bucket/in"}
        assert replace(there, folder="/job").traits.local_paths == ("/job",)


def test_a_local_folder_names_files_with_slashes(tmp_path: Path) -> None:
    LocalObjects(tmp_path).put("a/b/c", b"x")
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b" / "c")
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    for url in (f"file://{tmp_path}", f"file://localhost{tmp_path}"):
        found = open_folder(url).files()
        assert sorted((each.name, each.size) for each in found) == [("a/b/c", 1), ("link", 1)]
