"""A file whose parts are uploaded on a thread while the next one is written.

Memory: the part that is written and the one that is uploaded, twice each in s3fs.

Source: docs/design/0042-streamed-segments.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import NoReturn, Protocol

PART_BYTES = 8 << 20


class Target(Protocol):
    """An object that becomes visible, whole, when it is closed: a file of s3fs."""

    closed: bool

    def write(self, data: bytearray, /) -> int:
        """Upload a part."""

    def close(self) -> None:
        """Upload what is left and make the object visible."""

    def discard(self) -> None:
        """Remove the uploaded parts."""


class Uploading:
    """A file to write; see `uploading`."""

    def __init__(self, target: Target) -> None:
        self._target, self._part = target, bytearray()
        self._uploaded: Future[int] | None = None
        self.failed = False
        """The store refused a part, or the end of the object."""

    def write(self, data: bytes, /) -> int:
        """Take bytes of the object. Raises what went wrong with the part before."""
        self._part += data
        if len(self._part) >= PART_BYTES:
            self._await()
            part, self._part, self._uploaded = self._part, bytearray(), Future[int]()
            threading.Thread(target=self._upload, args=(part, self._uploaded), name="upload", daemon=True).start()
        return len(data)

    def flush(self) -> None:
        """Parts leave when they are full."""

    def finish(self) -> None:
        """Upload the last part; the object is visible then."""
        self._await()
        try:
            self._target.write(self._part)
            self._target.close()
        except BaseException:
            self.failed = True
            raise

    def abandon(self) -> None:
        """Remove what was uploaded, as far as the store still answers."""
        with suppress(Exception):
            self._await()
        with suppress(Exception):
            self._target.discard()
        self._target.closed = True  # or its finalizer would complete the object

    def _await(self) -> None:
        if self._uploaded is not None:
            self._uploaded.result()

    def _upload(self, part: bytearray, uploaded: Future[int]) -> None:
        try:
            uploaded.set_result(self._target.write(part))
        except BaseException as error:  # noqa: BLE001 - raised again by the next `write`
            self.failed = True
            uploaded.set_exception(error)


@contextmanager
def uploading(target: Target, refused: Callable[[BaseException], NoReturn]) -> Iterator[Uploading]:
    """Give a file to write. The object becomes visible when the block ends without an error, and not before.

    Args:
        refused: Raises what stands for an error of the store. Other errors within the block pass unchanged.
    """
    file = Uploading(target)
    try:
        yield file
        file.finish()
    except Exception as error:
        file.abandon()
        if file.failed:
            refused(error)
        raise
    except BaseException:
        file.abandon()
        raise
