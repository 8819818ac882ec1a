"""`hf.Files` on a real S3 server: what is listed, ETags, many pages, a server that does not answer; and as a sink."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from s3_store import S3Store, s3_store

import holdfast as hf
from holdfast.errors import Damaged, Unavailable
from holdfast.model import Epoch, Subtask, Tag, Timeline, Writer
from holdfast.runtime.sources.files.formats import FormatName
from holdfast.runtime.sources.files.reading import OpenFiles
from holdfast.sinks.contract.sink import Rewinding
from holdfast.sinks.contract.target import AlreadyDelivered, Delivered
from holdfast.storage.objects import FsspecObjects, open_objects

pytestmark = [pytest.mark.s3, pytest.mark.toxiproxy]
NUMBERS = pa.schema([pa.field("n", pa.int64(), nullable=False)])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Store]:
    with s3_store(tmp_path_factory.mktemp("s3")) as running:
        yield running


@dataclass
class Bucket:
    """A prefix for one test, and who writes below it."""

    url: str
    inbox: FsspecObjects

    def put(self, name: str, data: bytes) -> None:
        self.inbox.put(name, data)


@pytest.fixture
def bucket(server: S3Store, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Bucket:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    url = server.url(request.node.name.replace("[", "-").replace("]", ""))
    return Bucket(url, FsspecObjects(f"{url}/in"))


def in_parquet(*numbers: int) -> bytes:
    written = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": numbers}), written, row_group_size=2)
    return bytes(written.getvalue())


def in_csv(*numbers: int) -> bytes:
    return "\n".join(["n", *map(str, numbers)]).encode()


def opened(bucket: Bucket, form: FormatName, *, again: bool = True) -> OpenFiles:
    """List and open the files as a start of a job does; its root is in the bucket, too."""
    source = hf.Files(f"{bucket.url}/in", NUMBERS, form, partitions=1).source()
    source.check()
    return source.in_folder(f"{bucket.url}/jobs/numbers/sources/rows").copied(again=again).open()


def numbers(opened: OpenFiles, offset: int = 0) -> list[int]:
    found = list[int]()
    while True:
        batch, following = opened.read(0, offset, 1 << 20)
        if following == offset:
            return found
        found += [] if batch is None else batch.column(0).to_pylist()
        offset = following


class TestFiles:
    @pytest.mark.parametrize("form", ["parquet", "csv"])
    def test_are_read_once_and_new_ones_after_them(self, bucket: Bucket, form: FormatName) -> None:
        written = in_parquet if form == "parquet" else in_csv
        bucket.put("day=1/b", written(1, 2, 3))
        bucket.put("_SUCCESS", b"x")
        bucket.put("day=1/_temporary/c", b"x")
        with closing(opened(bucket, form)) as first:
            assert numbers(first) == [1, 2, 3]
            bucket.put("day=0/a", written(4))
            assert first.partitions() == [0] and numbers(first) == [1, 2, 3, 4]
            identity = first.identity(0, first.end_offsets()[0])
        with closing(opened(bucket, form, again=False)) as again:
            assert again.changed(identity) is None and numbers(again) == [1, 2, 3, 4]

    def test_replaced_files_are_refused_by_their_etag(self, bucket: Bucket) -> None:
        bucket.put("a", in_csv(1, 2))
        with closing(opened(bucket, "csv")) as files:
            bucket.put("a", in_csv(1, 3))
            for asked in (files.partitions, lambda: files.read(0, 0, 100)):
                with pytest.raises(Damaged, match="file a of folder s3://.*: it was replaced or changed"):
                    asked()

    def test_files_replaced_during_a_read_are_refused(self, bucket: Bucket) -> None:
        bucket.put("a", in_csv(*range(1_000_000)))
        with closing(opened(bucket, "csv")) as files:
            _, following = files.read(0, 0, 1_000)
            bucket.put("a", in_csv(*range(1, 1_000_001)))
            with pytest.raises((Damaged, Unavailable)):
                while following < files.end_offsets()[0]:
                    _, following = files.read(0, following, 100_000)
            with pytest.raises(Damaged, match="file a of folder s3://.*"):
                files.read(0, following, 100_000)

    def test_a_listing_of_more_than_one_page_has_all_files(self, bucket: Bucket) -> None:
        bucket.inbox.create_many({f"f{n:04}": b'{"n": %d}\n' % n for n in range(1_100)})
        with closing(opened(bucket, "jsonl")) as files:
            end = sum(len(b'{"n": %d}\n' % n) for n in range(1_100))
            assert files.end_offsets() == {0: end} and numbers(files, end - 20) == [1_099]

    def test_files_on_an_unresponsive_server_are_unavailable(self, bucket: Bucket, server: S3Store) -> None:
        bucket.put("a", in_csv(1))
        with closing(opened(bucket, "csv")) as files:
            server.reachable(False)
            try:
                for asked in (files.partitions, lambda: files.read(0, 0, 100), lambda: files.whole_from(0)):
                    with pytest.raises(Unavailable):
                        asked()
            finally:
                server.reachable(True)
            assert files.partitions() == [0] and numbers(files) == [1]

    def test_leave_no_request_to_a_worker_that_waits_but_one_per_look(self, bucket: Bucket, server: S3Store) -> None:
        bucket.put("a", in_csv(1))
        with closing(opened(bucket, "csv")) as files:
            assert numbers(files) == [1]
            before = server.requests()
            end = files.end_offsets()[0]
            for _ in range(50):
                assert files.read(0, end, 100) == (None, end)
            asked = server.requests() - before
            assert asked["ListObjectsV2"] == 0 and asked["GetObject"] <= 3, asked

    def test_files_in_a_missing_bucket_are_refused(self, bucket: Bucket, tmp_path: Path) -> None:
        source = hf.Files("s3://no-such-bucket/in", NUMBERS, "csv").source().in_folder(str(tmp_path))
        with pytest.raises(Unavailable, match="no-such-bucket"):
            source.copied(again=True)
        assert open_objects(tmp_path).list("") == []


JOB, WRITER = "6f9b0f6e-0000-4000-8000-000000000001", Writer("out", Subtask(0))


def rows(*found: int) -> list[pa.RecordBatch]:
    return [pa.record_batch([pa.array(found, pa.int64())], schema=NUMBERS)]


class TestSink:
    def test_what_was_delivered_is_read_once_and_taken_back(self, bucket: Bucket) -> None:
        sink = hf.Files(f"{bucket.url}/in").sink()
        assert sink.probe(NUMBERS, None).startswith("the first start creates the folder")
        sink.prepare(NUMBERS, None)
        first, second = Tag(Timeline(1), Epoch(1)), Tag(Timeline(1), Epoch(2))
        with closing(sink.open(JOB, WRITER)) as target:
            assert target.deliver(first, rows(1, 2)) == Delivered(2)
            assert target.deliver(second, rows(3)) == Delivered(1)
        with closing(sink.open(JOB, WRITER)) as target:
            assert target.deliver(second, rows(3)) == AlreadyDelivered(second)
        with closing(opened(bucket, "parquet")) as files:
            assert numbers(files) == [1, 2, 3]
        back = Rewinding(JOB, "out", Tag(Timeline(2), Epoch(1)), (WRITER,))
        assert sink.plan_repair(back, NUMBERS, None).delete == sink.repair(back, NUMBERS, None).delete == 1
        assert sink.repair(back, NUMBERS, None).delete == 0
        with closing(opened(bucket, "parquet", again=False)) as files, pytest.raises(Damaged, match="part-0000000002-"):
            files.list_files()
        with closing(opened(bucket, "parquet")) as files:
            assert numbers(files) == [1, 2]
        assert not bucket.inbox.list("_holdfast/staging")

    def test_many_commits_are_found_without_listing_all(self, bucket: Bucket) -> None:
        sink = hf.Files(f"{bucket.url}/in").sink()
        sink.prepare(NUMBERS, None)
        with closing(sink.open(JOB, WRITER)) as target:
            for epoch in range(1, 31):
                target.deliver(Tag(Timeline(1), Epoch(epoch)), [])
        assert sink.holding(JOB, "out").newest == Tag(Timeline(1), Epoch(30))
