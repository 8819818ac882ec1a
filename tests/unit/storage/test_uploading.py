"""Objects of S3 that are uploaded while they are written, with the files of s3fs and a bucket in memory."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

from holdfast.errors import Unavailable
from holdfast.storage import uploading
from holdfast.storage.objects import FsspecObjects

core = pytest.importorskip("s3fs.core", reason="the extra s3 is not installed")
MINIMUM = 5 << 20
"""S3 refuses smaller parts, but for the last."""


class Bucket:
    """What S3 keeps."""

    def __init__(self) -> None:
        self.objects = dict[str, bytes]()
        self.parts = dict[str, dict[int, bytes]]()
        self.refuses: set[str] = set()
        self.may_upload, self.uploads = threading.Event(), threading.Semaphore(0)
        self.may_upload.set()

    def call(self, file: Any, method: str, *more: dict[str, Any], **asked: Any) -> dict[str, Any]:
        """Stand for S3File._call_s3."""
        if method == "upload_part":
            self.uploads.release()
            assert self.may_upload.wait(10)
        if method in self.refuses:
            raise OSError(f"{method} refused")
        match method:
            case "create_multipart_upload":
                self.parts[asked["Key"]] = {}
                return {"UploadId": asked["Key"]}
            case "upload_part":
                self.parts[asked["UploadId"]][asked["PartNumber"]] = bytes(asked["Body"])
                return {"ETag": "tag"}
            case "complete_multipart_upload":
                parts = self.parts.pop(asked["UploadId"])
                numbers = [part["PartNumber"] for part in asked["MultipartUpload"]["Parts"]]
                assert all(len(parts[number]) >= MINIMUM for number in numbers[:-1])
                self.objects[asked["Key"]] = b"".join(parts[number] for number in numbers)
                return {}
            case "put_object":
                self.objects[asked["Key"]] = bytes(asked["Body"])
                return {}
        raise AssertionError(method)

    def abort(self, _bucket: str, _key: str, upload: str) -> None:
        """Stand for S3FileSystem.abort_mpu."""
        self.parts.pop(upload, None)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Bucket:
    made = Bucket()
    monkeypatch.setattr(core.S3File, "_call_s3", lambda file, *asked, **more: made.call(file, *asked, **more))
    monkeypatch.setattr(core.S3FileSystem, "abort_mpu", lambda _files, *asked: made.abort(*asked))
    return made


@pytest.fixture
def store(bucket: Bucket) -> FsspecObjects:
    return FsspecObjects("s3://bucket/root")


def block(number: int) -> bytes:
    return bytes([number]) * (3 << 20)


class TestUploading:
    @pytest.mark.parametrize("blocks", [1, 2, 3, 6, 8])
    def test_gives_an_object_with_what_was_written(self, store: FsspecObjects, bucket: Bucket, blocks: int) -> None:
        with store.writing("a/b") as file:
            for number in range(blocks):
                assert file.write(block(number)) == len(block(number))
                assert not bucket.objects
        assert bucket.objects == {"root/a/b": b"".join(block(number) for number in range(blocks))}
        assert not bucket.parts

    def test_uploads_a_part_while_the_next_one_is_written(self, store: FsspecObjects, bucket: Bucket) -> None:
        bucket.may_upload.clear()
        with store.writing("a") as file:
            for number in range(3):
                file.write(block(number))
            assert bucket.uploads.acquire(timeout=10)
            file.write(block(3))  # the upload of the first part has not ended
            bucket.may_upload.set()
        assert len(bucket.objects["root/a"]) == 4 * len(block(0))

    @pytest.mark.parametrize("refuses", ["create_multipart_upload", "upload_part", "complete_multipart_upload"])
    def test_leaves_nothing_if_the_store_refuses(self, store: FsspecObjects, bucket: Bucket, refuses: str) -> None:
        bucket.refuses = {refuses}
        says = f"writing a in s3://bucket/root failed: .*{refuses} refused"
        with pytest.raises(Unavailable, match=says), store.writing("a") as file:
            for number in range(12):
                file.write(block(number))
        bucket.refuses = set()
        gc.collect()
        assert not bucket.objects and not bucket.parts

    def test_a_refusal_of_a_part_ends_the_writing_early(self, store: FsspecObjects, bucket: Bucket) -> None:
        bucket.refuses = {"upload_part"}
        written = 0
        with pytest.raises(Unavailable), store.writing("a") as file:
            for number in range(12):
                file.write(block(number))
                written += 1
        assert written < 7

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
        del file
        gc.collect()
        assert not bucket.objects and not bucket.parts

    def test_a_part_has_the_size_that_s3_wants(self) -> None:
        assert uploading.PART_BYTES >= MINIMUM
