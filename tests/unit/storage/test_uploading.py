"""Objects of S3 that are uploaded while they are written, by s3fs with a bucket in memory."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from fsspec.asyn import sync_wrapper
from patience import WALL_S
from s3fs import core

from holdfast.errors import AlreadyExists, Unavailable
from holdfast.storage import uploading
from holdfast.storage.objects import FsspecObjects


class Bucket:
    """What S3 keeps."""

    def __init__(self) -> None:
        self.objects = dict[str, bytes]()
        self.parts = dict[str, dict[int, bytes]]()
        self.refuses: set[str] = set()
        self.uploading = self.uploading_most = 0
        self.may_upload, self.begun = threading.Event(), threading.Semaphore(0)
        self.may_upload.set()

    async def call(self, method: str, *more: dict[str, Any], **asked: Any) -> dict[str, Any]:
        """Stand for S3FileSystem._call_s3."""
        if method == "upload_part":
            self.begun.release()
            self.uploading += 1
            self.uploading_most = max(self.uploading_most, self.uploading)
            while not self.may_upload.is_set():
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.02 if asked["PartNumber"] % 2 else 0)  # they end in another order
            self.uploading -= 1
        if method in self.refuses:
            raise OSError(f"{method} refused")
        if asked.get("IfNoneMatch") == "*" and asked["Key"] in self.objects:
            raise FileExistsError("PreconditionFailed")
        match method:
            case "create_multipart_upload":
                self.parts[asked["Key"]] = {}
                return {"UploadId": asked["Key"]}
            case "upload_part":
                self.parts[asked["UploadId"]][asked["PartNumber"]] = bytes(asked["Body"])
                return {"ETag": str(len(asked["Body"]))}
            case "complete_multipart_upload":
                parts = self.parts.pop(asked["UploadId"])
                named = asked["MultipartUpload"]["Parts"]
                assert [part["PartNumber"] for part in named] == sorted(parts)
                assert [part["ETag"] for part in named] == [str(len(parts[number])) for number in sorted(parts)]
                assert {len(parts[number]) for number in sorted(parts)[:-1]} <= {uploading.PART_BYTES}
                self.objects[asked["Key"]] = b"".join(parts[number] for number in sorted(parts))
                return {}
            case "abort_multipart_upload":
                assert not self.uploading, "a part that arrives later would stay"
                del self.parts[asked["UploadId"]]
                return {}
            case "put_object":
                self.objects[asked["Key"]] = bytes(asked["Body"])
                return {}
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
    return FsspecObjects("s3://bucket/jobs")


def block(number: int) -> bytes:
    return bytes([number]) * (3 << 20)


class TestUploading:
    @pytest.mark.parametrize("blocks", [1, 2, 3, 6, 8])
    def test_gives_an_object_with_what_was_written(self, store: FsspecObjects, bucket: Bucket, blocks: int) -> None:
        with store.writing("a/b") as file:
            for number in range(blocks):
                assert file.write(block(number)) == len(block(number))
                assert not bucket.objects
        assert bucket.objects == {"jobs/a/b": b"".join(block(number) for number in range(blocks))}
        assert not bucket.parts

    def test_uploads_parts_while_others_are_written(self, store: FsspecObjects, bucket: Bucket) -> None:
        bucket.may_upload.clear()
        with store.writing("a") as file:
            for number in range(7):  # two parts, and a third one that is not full
                file.write(block(number))
            for _ in range(uploading.IN_FLIGHT):
                assert bucket.begun.acquire(timeout=WALL_S)
            bucket.may_upload.set()
            for number in range(7, 20):
                file.write(block(number))
        assert bucket.objects["jobs/a"] == b"".join(block(number) for number in range(20))
        assert bucket.uploading_most == uploading.IN_FLIGHT

    @pytest.mark.parametrize("refuses", ["create_multipart_upload", "upload_part", "complete_multipart_upload"])
    def test_leaves_nothing_if_the_store_refuses(self, store: FsspecObjects, bucket: Bucket, refuses: str) -> None:
        bucket.refuses = {refuses}
        says = f"writing a in s3://bucket/jobs failed: .*{refuses} refused"
        with pytest.raises(Unavailable, match=says), store.writing("a") as file:
            for number in range(12):
                file.write(block(number))
        assert not bucket.objects and not bucket.parts

    def test_a_small_object_that_is_refused_is_reported(self, store: FsspecObjects, bucket: Bucket) -> None:
        bucket.refuses = {"put_object"}
        with pytest.raises(Unavailable, match="put_object refused"), store.writing("a") as file:
            file.write(b"small")

    def test_a_refusal_of_a_part_ends_the_writing_early(self, store: FsspecObjects, bucket: Bucket) -> None:
        bucket.refuses = {"upload_part"}
        written = 0
        with pytest.raises(Unavailable), store.writing("a") as file:
            for number in range(12):
                file.write(block(number))
                written += 1
        assert written < 12

    @pytest.mark.parametrize("blocks", [1, 7])
    @pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt(), OSError("disk")], ids=repr)
    def test_leaves_nothing_and_passes_an_error_within_the_block(
        self, store: FsspecObjects, bucket: Bucket, error: BaseException, blocks: int
    ) -> None:
        with pytest.raises(type(error)) as caught, store.writing("a") as file:
            for number in range(blocks):
                file.write(block(number))
            raise error
        assert caught.value is error
        assert not bucket.objects and not bucket.parts

    def test_an_error_within_the_block_passes_even_if_the_upload_cannot_be_aborted(
        self, store: FsspecObjects, bucket: Bucket, caplog: pytest.LogCaptureFixture
    ) -> None:
        bucket.refuses = {"abort_multipart_upload"}
        with pytest.raises(ValueError, match="bad"), store.writing("a") as file:
            for number in range(7):
                file.write(block(number))
            raise ValueError("bad")
        assert not bucket.objects
        assert "parts of bucket/jobs/a stay in the store" in caplog.text

    def test_a_part_has_the_size_that_s3_wants(self) -> None:
        assert uploading.PART_BYTES >= 5 << 20


class TestAnObjectThatExists:
    @pytest.mark.parametrize("blocks", [1, 8])
    def test_is_not_replaced(self, store: FsspecObjects, bucket: Bucket, blocks: int) -> None:
        bucket.objects["jobs/a"] = b"old"
        with pytest.raises(AlreadyExists), store.writing("a") as file:
            for number in range(blocks):
                file.write(block(number))
        assert bucket.objects == {"jobs/a": b"old"} and not bucket.parts
