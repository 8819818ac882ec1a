"""Readers of source partitions: one that reads ahead in the background, and one that reads when it is asked.

A background lane reads the batch after the one that the worker works on, so that the operator thread seldom waits for
a disk or a network. The operator thread takes the result; no other thread touches a reader.

Invariants
    - Records are handed over in order, each once; the offsets are those that reading one after the other gives.
    - A read ahead never reports that there was no record, or that the source was unreachable: it may be out of date.
      Any other error is kept, as a source may notice only once that it changed.
    - Records that the source no longer confirms (`take`) are read again.
    - The readers of a source keep at most `bytes_max` ahead of the worker, besides the bytes that the worker has asked
      for.

Pure: the lane does the reading. Source: docs/decisions/0032-connectors.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from holdfast.errors import Unavailable
from holdfast.ports import Lane

AHEAD_BYTES_MAX = 64 << 20
"""Bytes that the readers of one source may keep in memory ahead of a worker."""


@dataclass(frozen=True)
class Read:
    """Result of one read.

    Args:
        batch: Records, as `OpenSource.read` describes them; None: there were none.
        following: The offset after them; without records, the offset to read from next: after a gap, if there was one.
        token: A value by which the source recognises whether it still confirms them.
        lost: Only without records: the source has removed the records before `following`, and its policy is to
            continue.
    """

    batch: pa.RecordBatch | None
    following: int
    token: object = None
    lost: bool = False


class InlineLane:
    """A lane that does the work before `submit` returns."""

    def submit(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        """Do the work, and hand over its result."""
        result: object
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - handed to the reader, which raises it
            result = error
        done(result)


class Ahead:
    """How the readers of one source read in the background, and how many bytes they may keep.

    Args:
        lane: Does the reading.
        bytes_max: 0 reads nothing before it is asked for.
        watch: Returns a lane that waits for records; None: the worker looks for them from time to time.
        alone_for: For this many epochs, read in the thread that asks, and nothing ahead: then only code that this
            thread has marked runs (docs/decisions/0121). None: always.
    """

    def __init__(
        self,
        lane: Lane,
        bytes_max: int = AHEAD_BYTES_MAX,
        watch: Callable[[], Lane] | None = None,
        alone_for: int | None = 0,
    ) -> None:
        self._lane, self._left, self._watch, self._watched = lane, bytes_max, watch, False
        self._alone_for = alone_for
        self.used = False
        """Whether a reader reads ahead, so that the source serves lanes too."""

    @property
    def alone(self) -> bool:
        """Return whether reads run in the thread that asks for them."""
        return self._alone_for is None or self._alone_for > 0

    def epoch_closed(self) -> None:
        """Count an epoch: reads are alone for some."""
        if self._alone_for:
            self._alone_for -= 1

    @property
    def lane(self) -> Lane:
        """Return the lane that does the next read."""
        return InlineLane() if self.alone else self._lane

    def watch(self, wait: Callable[[], object]) -> None:
        """Have a lane call `wait`, unless one of the source's readers waits already; its result wakes the worker."""
        if self._watch is None or self._watched:
            return
        self._watched = True

        def ended(result: object) -> None:
            self._watched = False
            if isinstance(result, BaseException):
                raise result

        self._watch().submit(wait, ended)

    def reserve(self, size: int) -> bool:
        """Return whether this many bytes may be read ahead; if so, they are taken."""
        if self.alone or size > self._left:
            return False
        self._left -= size
        return True

    def release(self, size: int) -> None:
        """Give back bytes that were taken."""
        self._left += size


def inline() -> Ahead:
    """Return a way to read without a background: for tests, the simulator, and readers of a whole range."""
    return Ahead(InlineLane(), 0, alone_for=None)


class DirectReader:
    """Reads when it is asked: for records that are computed, or in memory already."""

    def __init__(self, read: Callable[[int, int], Read], offset: int) -> None:
        self._read, self._offset = read, offset

    def poll(self, bytes_max: int) -> Read | None:
        """See PartitionReader.poll."""
        found = self._read(self._offset, bytes_max)
        self._offset = found.following
        return found

    def close(self) -> None:
        """Nothing is held."""


class ReaderAhead:
    """Reads the next batch while the worker is busy with the last one.

    Args:
        read: Reads from an offset, at most this many bytes; called in the lane.
        take: Called in the operator thread when records are about to be handed over; returns whether the source still
            confirms them. May raise.
        offset: Where to begin.
        wait: Waits for a short time, or until it is worth reading again; None: the source cannot signal it. It is
            called in a separate lane when there were no records, so that the worker need not look for them all the
            time.
    """

    def __init__(
        self,
        read: Callable[[int, int], Read],
        take: Callable[[int, Read], bool],
        offset: int,
        ahead: Ahead,
        wait: Callable[[], object] | None = None,
    ) -> None:
        self._read, self._take, self._offset, self._ahead, self._wait = read, take, offset, ahead, wait
        ahead.used = True
        self._answer: Read | BaseException | None = None
        self._pending = self._closed = False
        self._reserved = 0

    def poll(self, bytes_max: int) -> Read | None:
        """See PartitionReader.poll."""
        if self._answer is None and not self._pending:
            self._ask(bytes_max)
        answer, self._answer = self._answer, None
        if answer is None:
            return None
        self._release()
        if isinstance(answer, BaseException):
            raise answer
        if answer.batch is None:
            self._offset = answer.following
            if self._wait is not None:
                self._ahead.watch(self._wait)
            return answer
        if not self._take(self._offset, answer):
            return self.poll(bytes_max)  # asked for again, so the answer is up to date
        self._offset = answer.following
        if self._ahead.reserve(bytes_max):
            self._reserved = bytes_max
            self._ask(bytes_max)
        return answer

    def close(self) -> None:
        """Drop records that were read ahead or are still being read."""
        self._closed, self._answer = True, None
        self._release()

    def _ask(self, bytes_max: int) -> None:
        offset, ahead, self._pending = self._offset, self._reserved > 0, True

        def work() -> Read | None:
            return None if self._closed else self._read(offset, bytes_max)

        def done(result: object) -> None:
            self._pending = False
            if self._closed:
                return
            assert isinstance(result, Read | BaseException), "a source gives records or fails"
            nothing = isinstance(result, Unavailable) or (isinstance(result, Read) and result.batch is None)
            if ahead and nothing:
                self._release()
            else:
                self._answer = result

        self._ahead.lane.submit(work, done)

    def _release(self) -> None:
        self._ahead.release(self._reserved)
        self._reserved = 0
