"""Segments of a log that writers store before a commit names them.

A name begins with the job, sink, timeline and epoch, so that one listing finds the uploads of an epoch, or those of
epochs that were never completed.

Invariants
    - An upload counts only in the log for which it was made, and only if all its objects are there.
    - What a sweep deletes no commit names: its epochs lie between the last completed epoch of a timeline and the first
      of a generation after it, so none of them is ever committed (P2).

Source: PROTOCOL P16, P23; docs/design/0056-one-committer.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
import pyarrow as pa

from holdfast.ports import ObjectStore
from holdfast.sinks.contract import Upload
from holdfast.storage.bulk import delete_each, list_behind
from holdfast.storage.log.format import DATA_FOLDER, LogMeta, LogSegment
from holdfast.storage.log.log import LogWriter

UPLOADED = "uploaded"
"""The folder below `data/`."""


class Named(msgspec.Struct, frozen=True):
    """What an upload returned."""

    log: str
    """UUID of the log."""
    segments: tuple[LogSegment, ...]
    """In order; their bases do not count."""


_NAMED = msgspec.json.Decoder(Named)


class LogUploader:
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
        """See Uploader.upload."""
        if self._log is None:
            self._log = LogWriter(self._store())
        meta = self._log.meta
        rows = self._placed(meta, list(batches), upload.subtask + upload.epoch)
        within = f"{UPLOADED}/{upload.job_uuid}/{upload.sink}/{upload.timeline:08d}/{upload.epoch:012d}"
        # With another number of partitions, a repeated upload has other rows in its objects.
        name = f"{upload.generation:08d}-{upload.worker}-{meta.partitions}"
        segments = self._log.stage(rows, f"{within}/{name}")
        return msgspec.json.encode(Named(meta.uuid, segments)).decode()

    def sweep(self, job_uuid: str, sink: str, timeline: int, after: int, before: int) -> None:
        """See Uploader.sweep."""
        store = self._store()
        folder = _folder(job_uuid, sink, timeline)
        gone = [f"{folder}/{epoch:012d}/" for epoch in (after + 1, before)]
        listed = list_behind(store, folder, gone[0])
        delete_each(store, [path for path in listed if path < gone[1]])


def found(
    store: ObjectStore, log: str, job_uuid: str, sink: str, timeline: int, epoch: int, uploads: Sequence[str | None]
) -> list[tuple[LogSegment, ...] | None]:
    """Return the segments of each upload of an epoch; None if it is not in this log."""
    known = [None if each is None else _NAMED.decode(each) for each in uploads]
    if all(each is None for each in known):
        return [None for _ in known]
    stored = set(store.list(f"{_folder(job_uuid, sink, timeline)}/{epoch:012d}"))
    return [
        each.segments
        if each is not None and each.log == log and stored.issuperset(s.path for s in each.segments)
        else None
        for each in known
    ]


def _folder(job_uuid: str, sink: str, timeline: int) -> str:
    return f"{DATA_FOLDER}/{UPLOADED}/{job_uuid}/{sink}/{timeline:08d}"
