"""Segments of a log that writers store before a commit names them.

A name begins with the job, sink, timeline and epoch. So one listing finds the uploads of an epoch, or those of epochs
that were never completed.

Invariants
    - An upload counts only in the log for which it was made, and only if all its objects are there.
    - No commit names an object that a sweep deletes: its epochs lie between the last completed epoch of a timeline and
      the first of a generation after it, so none of them is ever committed (P2); or the committer has committed its
      epoch, or a later one, without it.

Source: PROTOCOL P16, P23; docs/decisions/0056-one-committer.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from holdfast.model import Tag
from holdfast.ports import ObjectStore
from holdfast.sinks.contract.sink import Uploader
from holdfast.sinks.contract.target import Upload
from holdfast.storage.bulk import OrderedStore, delete_each, list_behind
from holdfast.storage.log.format import DATA_FOLDER, Commit, LogMeta, LogSegment, WriterTag
from holdfast.storage.log.log import LogWriter

UPLOADED = "uploaded"
"""The folder below `data/`."""
LISTED_MAX = 16
"""How many epochs are listed one by one, where a listing cannot begin at a name."""


class UploadResult(msgspec.Struct, frozen=True):
    """Result of an upload."""

    log: str
    """UUID of the log."""
    segments: tuple[LogSegment, ...]
    """In order; their bases do not count."""


_NAMED = msgspec.json.Decoder(UploadResult)


class LogUploader(Uploader):
    """Stores segments in a log without appending them. See contract.Uploader.

    Args:
        store: Opens the log's objects, at the first use.
        placed: Returns the rows of some batches per partition, as a delivery would place them.
    """

    def __init__(
        self,
        store: Callable[[], ObjectStore],
        placed: Callable[[LogMeta, list[pa.RecordBatch], int], dict[int, pa.Table]],
    ) -> None:
        self._store, self._placed = store, placed
        self._log: LogWriter | None = None

    def upload(self, upload: Upload, batches: Iterable[pa.RecordBatch]) -> str:
        if self._log is None:
            self._log = LogWriter(self._store())
        meta = self._log.meta
        rows = self._placed(meta, list(batches), upload.subtask + upload.epoch)
        within = f"{UPLOADED}/{upload.job_uuid}/{upload.sink}/{upload.timeline:08d}/{upload.epoch:012d}"
        # With another number of partitions, a repeated upload has other rows in its objects.
        name = f"{upload.generation:08d}-{upload.worker}-{meta.partitions}"
        segments = self._log.stage(rows, f"{within}/{name}")
        return msgspec.json.encode(UploadResult(meta.uuid, segments)).decode()

    def sweep(self, job_uuid: str, sink: str, timeline: int, after: int, before: int) -> None:
        store = self._store()
        folder = _folder(job_uuid, sink, timeline)
        gone = [f"{folder}/{epoch:012d}/" for epoch in (after + 1, before)]
        listed = list_behind(store, folder, gone[0])
        delete_each(store, [path for path in listed if path < gone[1]])


@dataclass(frozen=True)
class UploadPlace:
    """Where the uploads of a sink's timeline are."""

    job_uuid: str
    sink: str
    timeline: int

    def epoch(self, epoch: int) -> str:
        """Return the folder of an epoch."""
        return f"{_folder(self.job_uuid, self.sink, self.timeline)}/{epoch:012d}"

    def stored(self, store: ObjectStore, first: int, last: int) -> set[str]:
        """Return the stored objects of these epochs."""
        if not isinstance(store, OrderedStore) and last - first < LISTED_MAX:
            return {path for epoch in range(first, last + 1) for path in store.list(self.epoch(epoch))}
        listed = list_behind(store, _folder(self.job_uuid, self.sink, self.timeline), f"{self.epoch(first)}/")
        return {path for path in listed if path < f"{self.epoch(last + 1)}/"}


def found(stored: Collection[str], log: str, uploads: Sequence[str | None]) -> list[tuple[LogSegment, ...] | None]:
    """Return the segments of each upload of an epoch; None if it is not in this log.

    Args:
        stored: Paths of objects that exist.
        log: UUID of the log.
    """
    references = [None if each is None else _NAMED.decode(each) for each in uploads]
    return [
        each.segments
        if each is not None and each.log == log and all(segment.path in stored for segment in each.segments)
        else None
        for each in references
    ]


class Leftovers:
    """Uploads of decided epochs that no commit names: of attempts that lost, and of epochs that were given up.

    One writer commits all epochs of a sink, in order. So no epoch between two of its commits will ever be committed,
    and a commit names all uploads of its epoch that count. An upload may be late: the next commit finds it.
    """

    def __init__(self) -> None:
        self._last: Tag | None = None
        self._named = frozenset[str]()
        """The last epoch that was committed here, and the uploads that its commit names."""

    def first(self, standing: Tag | None, tag: Tag, tail: Commit, writer: str) -> int:
        """Return the first epoch whose folder may be swept once `tag` is committed.

        Args:
            standing: The writer's tag before.
            tail: The newest commit before.
        """
        if standing is None or standing.timeline != tag.timeline:
            self._last, self._named = None, frozenset()
            return 0 if standing is None else standing.epoch + 1
        if self._last != standing and tail.tag == WriterTag(writer, standing):
            self._last, self._named = standing, frozenset(segment.path for segment in tail.segments)
        return standing.epoch if self._last == standing else standing.epoch + 1

    def committed(self, tag: Tag, named: Iterable[str], stored: Iterable[str]) -> list[str]:
        """Take a commit; return which of the stored uploads, from the first epoch through the tag, are left over."""
        now = frozenset(named)
        gone = sorted(path for path in stored if path not in now and path not in self._named)
        self._last, self._named = tag, now
        return gone


def _folder(job_uuid: str, sink: str, timeline: int) -> str:
    return f"{DATA_FOLDER}/{UPLOADED}/{job_uuid}/{sink}/{timeline:08d}"
