"""Objects of S3 that are read side by side and deleted by the thousand, by s3fs with a bucket in memory."""

from __future__ import annotations

import asyncio
import io
from collections import Counter
from typing import Any

import pytest
from botocore.exceptions import ClientError  # type: ignore[import-untyped]
from counted import PAGE
from fsspec.asyn import sync_wrapper
from s3fs import core
from s3fs.errors import translate_boto_error

from holdfast.errors import AlreadyExists, Unavailable
from holdfast.storage import remote
from holdfast.storage.bulk import DELETED_MAX, BulkStore, Page, create_many, delete_each, get_each, list_behind
from holdfast.storage.objects import FsspecObjects, LocalObjects, MemoryObjects


class Body(io.BytesIO):
    """The content of an answer, as aiobotocore gives it."""

    async def read(self, size: int | None = -1, /) -> bytes:  # type: ignore[override]
        return super().read(size)


class Bucket:
    """What S3 keeps."""

    def __init__(self) -> None:
        self.objects = dict[str, bytes]()
        self.requests = Counter[str]()
        self.stuck = dict[str, str]()
        """Keys that cannot be deleted, with S3's code for the reason."""
        self.unreadable: set[str] = set()
        self.unwritable: set[str] = set()
        self.reading = self.reading_most = self.writing = self.writing_most = 0

    async def call(self, method: str, *more: dict[str, Any], **asked: Any) -> dict[str, Any]:
        """Stand for S3FileSystem._call_s3."""
        self.requests[method] += 1
        match method:
            case "get_object":
                self.reading += 1
                self.reading_most = max(self.reading_most, self.reading)
                await asyncio.sleep(0.001)
                self.reading -= 1
                if asked["Key"] in self.unreadable:
                    raise OSError("503, slow down")
                if asked["Key"] not in self.objects:
                    raise FileNotFoundError(asked["Key"])
                return {"Body": Body(self.objects[asked["Key"]])}
            case "delete_objects":
                keys = [each["Key"] for each in asked["Delete"]["Objects"]]
                assert asked["Bucket"] == "bucket" and 0 < len(keys) <= 1_000
                for key in keys:
                    if key not in self.stuck:
                        self.objects.pop(key, None)
                failed = [{"Key": key, "Code": self.stuck[key]} for key in keys if key in self.stuck]
                return {"Errors": failed} if failed else {}
            case "put_object":
                self.writing += 1
                self.writing_most = max(self.writing_most, self.writing)
                await asyncio.sleep(0.001)
                self.writing -= 1
                if asked["Key"] in self.unwritable:
                    raise OSError("refused")
                self.objects[asked["Key"]] = bytes(asked["Body"])
                return {}
            case "list_objects_v2":
                found = sorted(key for key in self.objects if key.startswith(asked["Prefix"]))
                found = [key for key in found if key > asked["StartAfter"]]
                return {"Contents": [{"Key": key} for key in found[:PAGE]], "IsTruncated": len(found) > PAGE}
        raise AssertionError(method)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Bucket:
    made = Bucket()

    async def call(_files: Any, *asked: Any, **more: Any) -> dict[str, Any]:
        return await made.call(*asked, **more)

    monkeypatch.setattr(core.S3FileSystem, "_call_s3", call)
    monkeypatch.setattr(core.S3FileSystem, "call_s3", sync_wrapper(call))
    return made


@pytest.fixture
def store(bucket: Bucket) -> FsspecObjects:
    return FsspecObjects("s3://bucket/root")


class TestReads:
    def test_those_that_exist_are_returned_and_read_side_by_side(self, store: FsspecObjects, bucket: Bucket) -> None:
        bucket.objects = {f"root/log/{n}": b"%d" % n for n in range(0, 200, 2)}
        found = get_each(store, [f"log/{n}" for n in range(200)])
        assert found == {f"log/{n}": b"%d" % n for n in range(0, 200, 2)}
        assert 1 < bucket.reading_most <= remote.TOGETHER_MAX

    def test_a_read_is_one_request(self, store: FsspecObjects, bucket: Bucket) -> None:
        """By default s3fs asks for the size first."""
        bucket.objects = {"root/a": b"1", "root/b": b"2"}
        assert store.get("a") == b"1" and get_each(store, ["a", "b"]) == {"a": b"1", "b": b"2"}
        assert bucket.requests == {"get_object": 3}

    def test_one_that_cannot_be_read_is_an_error_and_not_missing(self, store: FsspecObjects, bucket: Bucket) -> None:
        bucket.objects, bucket.unreadable = {"root/a": b"1", "root/b": b"2"}, {"root/b"}
        with pytest.raises(Unavailable, match="reading b in s3://bucket/root failed"):
            get_each(store, ["a", "b"])

    def test_an_error_of_the_program_passes_unchanged(self, store: FsspecObjects, bucket: Bucket) -> None:
        bucket.objects = {"root/a": None}  # type: ignore[dict-item]
        bucket.objects["root/a"] = 7  # type: ignore[assignment]
        with pytest.raises(TypeError):
            get_each(store, ["a"])


class TestWrites:
    def test_are_side_by_side(self, store: FsspecObjects, bucket: Bucket) -> None:
        objects = {f"staged/{n}": b"%d" % n for n in range(100)}
        create_many(store, objects)
        assert bucket.objects == {f"root/{path}": data for path, data in objects.items()}
        assert 1 < bucket.writing_most <= remote.TOGETHER_MAX

    def test_one_that_fails_is_named_and_keeps_no_other_from_being_written(
        self, store: FsspecObjects, bucket: Bucket
    ) -> None:
        bucket.unwritable = {"root/b"}
        with pytest.raises(Unavailable, match="writing b in s3://bucket/root failed"):
            create_many(store, {"a": b"1", "b": b"2", "c": b"3"})
        assert bucket.objects == {"root/a": b"1", "root/c": b"3"}

    def test_nothing_to_write_is_no_request(self, store: FsspecObjects, bucket: Bucket) -> None:
        create_many(store, {})
        assert not bucket.requests


class TestRaces:
    @pytest.mark.parametrize("condition", [{}, {"Condition": "If-None-Match"}])
    def test_a_create_that_came_second_is_told_so_by_any_store(
        self, store: FsspecObjects, monkeypatch: pytest.MonkeyPatch, condition: dict[str, str]
    ) -> None:
        """Some stores do not name the condition that failed."""

        async def refuse(*_asked: Any, **_more: Any) -> None:
            answer = {"Error": {"Code": "PreconditionFailed", "Message": "no", **condition}}
            raise translate_boto_error(ClientError(answer, "PutObject"))

        monkeypatch.setattr(core.S3FileSystem, "_call_s3", refuse)
        with pytest.raises(AlreadyExists):
            store.create("log/1", b"mine")


class TestCredentials:
    def test_credentials_that_could_not_be_renewed_make_the_store_unavailable(
        self, store: FsspecObjects, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """botocore raises a plain RuntimeError then."""

        async def refuse(*_asked: Any, **_more: Any) -> None:
            raise RuntimeError("Credentials were refreshed, but the refreshed credentials are still expired.")

        monkeypatch.setattr(core.S3FileSystem, "_call_s3", refuse)
        with pytest.raises(Unavailable, match="could not be renewed") as caught:
            store.put("a", b"x")
        assert "AWS_ACCESS_KEY_ID" in caught.value.next_step


class TestDeletions:
    def test_a_thousand_per_request(self, store: FsspecObjects, bucket: Bucket) -> None:
        bucket.objects = {f"root/segments/{n}": b"1" for n in range(2_500)} | {"root/other": b"1", "segments/0": b"1"}
        delete_each(store, [f"segments/{n}" for n in range(2_500)])
        assert set(bucket.objects) == {"root/other", "segments/0"}
        assert bucket.requests == {"delete_objects": -(-2_500 // DELETED_MAX)}

    def test_missing_objects_are_no_error(self, store: FsspecObjects, bucket: Bucket) -> None:
        bucket.stuck = {"root/gone": "NoSuchKey"}
        delete_each(store, ["gone", "never"])

    def test_an_object_that_s3_did_not_delete_is_an_error(self, store: FsspecObjects, bucket: Bucket) -> None:
        """The request succeeds, and its answer lists what failed."""
        bucket.objects, bucket.stuck = {"root/a": b"1", "root/b": b"1"}, {"root/b": "AccessDenied"}
        with pytest.raises(Unavailable, match="root/b, AccessDenied.* the store refused s3:DeleteObject"):
            delete_each(store, ["a", "b"])
        assert set(bucket.objects) == {"root/b"}

    def test_nothing_to_delete_is_no_request(self, store: FsspecObjects, bucket: Bucket) -> None:
        delete_each(store, [])
        assert not bucket.requests


class TestListings:
    def test_a_folder_is_listed_from_a_name_on_a_page_at_a_time(self, store: FsspecObjects, bucket: Bucket) -> None:
        bucket.objects = {f"root/commits/{n:04}": b"1" for n in range(1_500)} | {"root/commits2/9": b"1"}
        assert store.list_after("commits", "commits/0009") == Page([f"commits/{n:04}" for n in range(10, 1_010)], True)
        assert store.list_after("commits", "commits/1497") == Page(["commits/1498", "commits/1499"], False)
        assert store.list_after("commits", "commits/9") == Page([], False)
        assert bucket.requests == {"list_objects_v2": 3}

    def test_all_behind_a_name_are_listed_page_by_page(self, store: FsspecObjects, bucket: Bucket) -> None:
        bucket.objects = {f"root/log/{n:04}": b"1" for n in range(2_500)}
        assert list_behind(store, "log", "log/0099") == [f"log/{n:04}" for n in range(100, 2_500)]
        assert list_behind(store, "log", "log/9") == []
        assert bucket.requests == {"list_objects_v2": 3 + 1}

    def test_a_bucket_without_an_order_is_listed_whole(self, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
        store = FsspecObjects("s3://fast--use1-az4--x-s3/root")
        monkeypatch.setattr(FsspecObjects, "list", lambda self, prefix: ["commits/1", "commits/2", "commits/3"])
        assert store.list_after("commits", "commits/1") == Page(["commits/2", "commits/3"], False)
        assert not bucket.requests


class TestStoresThatCannot:
    def test_a_folder_is_read_and_deleted_one_by_one(self, tmp_path: Any) -> None:
        folder = LocalObjects(tmp_path)
        assert not isinstance(folder, BulkStore) and not isinstance(MemoryObjects(), BulkStore)
        folder.put("a/b", b"1")
        assert get_each(folder, ["a/b", "a/c"]) == {"a/b": b"1"}
        delete_each(folder, ["a/b", "a/c"])
        assert folder.list("") == []

    def test_other_stores_of_fsspec_give_the_same_answers(self) -> None:
        memory = FsspecObjects("memory://bulk")
        memory.put("a", b"1")
        assert get_each(memory, ["a", "b"]) == {"a": b"1"}
        for path in ("log/1", "log/2"):
            memory.put(path, b"1")
        assert list_behind(memory, "log", "log/1") == ["log/2"]
        delete_each(memory, ["a", "b", "log/1", "log/2"])
        assert memory.list("") == []
