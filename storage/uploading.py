"""An object of S3 whose parts are uploaded while later ones are written.

Requests run on the event loop of s3fs. At most one part is being written and IN_FLIGHT are being uploaded.

Source: docs/decisions/0042-streamed-segments.md; S3's multipart upload.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, NoReturn

_log = logging.getLogger(__name__)

PART_BYTES = 8 << 20
"""S3 wants at least 5 MiB, and at most 10,000 parts."""
IN_FLIGHT = 2


class ObjectUpload:
    """A file to write; see `uploading`.

    Args:
        files: The S3FileSystem of s3fs.
        path: Bucket and key.
        failures: Errors that `files` raises if the store refuses or does not answer.
    """

    def __init__(self, files: Any, path: str, failures: tuple[type[BaseException], ...]) -> None:
        self._files, self._path, self._failures = files, path, failures
        self._refusals: tuple[type[BaseException], ...] = (*failures, FileExistsError)
        bucket, key, _ = files.split_path(path)
        self._place = {"Bucket": bucket, "Key": key}
        self._part = bytearray()
        self._upload: str | None = None
        self._sent, self._done = deque[Future[dict[str, Any]]](), list[dict[str, Any]]()
        self.refused: BaseException | None = None
        """The first such error."""

    def write(self, data: bytes, /) -> int:
        """Take bytes of the object. Raises the error of an earlier part."""
        self._part += data
        while len(self._part) >= PART_BYTES:
            self._send()
        return len(data)

    def flush(self) -> None:
        """Parts leave when they are full."""

    def finish(self) -> None:
        """Upload the rest and wait for all parts; the object is visible then."""
        if self._upload is None:
            self._asked(self._files.pipe_file, self._path, self._part, mode="create")
            return
        if self._part:
            self._send()
        while self._sent:
            self._await()
        parts = {"Parts": self._done}
        self._call("complete_multipart_upload", MultipartUpload=parts, UploadId=self._upload, IfNoneMatch="*")

    def abandon(self) -> None:
        """Remove uploaded parts, as far as the store still answers."""
        wait(self._sent)  # a part that arrives after the abort would stay
        if self._upload is not None:
            try:
                self._call("abort_multipart_upload", UploadId=self._upload)
            except self._failures as error:
                _log.warning("parts of %s stay in the store, unseen: %s", self._path, error)

    def _send(self) -> None:
        """Begin to upload the next part."""
        if self._upload is None:
            self._upload = self._call("create_multipart_upload")["UploadId"]
        if len(self._sent) == IN_FLIGHT:
            self._await()
        part = bytes(memoryview(self._part)[:PART_BYTES])  # some stores want parts of one size
        del self._part[:PART_BYTES]
        number = len(self._done) + len(self._sent) + 1
        request = self._files._call_s3(
            "upload_part", Body=part, PartNumber=number, UploadId=self._upload, **self._place
        )
        self._sent.append(asyncio.run_coroutine_threadsafe(request, self._files.loop))

    def _await(self) -> None:
        """Wait for the oldest part that is being uploaded."""
        answer = self._asked(self._sent[0].result)
        self._sent.popleft()
        self._done.append({"PartNumber": len(self._done) + 1, "ETag": answer["ETag"]})

    def _call(self, method: str, **more: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._asked(self._files.call_s3, method, **self._place, **more)
        return answer

    def _asked(self, ask: Callable[..., Any], *what: Any, **more: Any) -> Any:
        try:
            return ask(*what, **more)
        except self._refusals as error:
            self.refused = self.refused or error
            raise


@contextmanager
def uploading(
    files: Any, path: str, failures: tuple[type[BaseException], ...], refused: Callable[[BaseException], NoReturn]
) -> Iterator[ObjectUpload]:
    """Give a file to write. The object becomes visible when the block ends without an error, and not before.

    Args:
        files, path, failures: See ObjectUpload.
        refused: Raises the error that represents an error of the store. Other errors within the block pass unchanged.
    """
    file = ObjectUpload(files, path, failures)
    try:
        yield file
        file.finish()
    except BaseException as error:
        by_the_store = error is file.refused
        file.abandon()
        if by_the_store:
            refused(error)
        raise
