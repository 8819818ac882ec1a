"""Open files: the driver lists them into the catalogue, a worker reads them by it.

Invariants
    - One thread at a time uses the open files, and one the catalogue; the operator thread never waits for a file.
    - A read counts only if the file still has the version that the catalogue names.
    - Only a connection of a run's driver appends to the catalogue: others are made of a source that does not list, or
      are never asked for their partitions.

Source: runtime/plan/source.py; docs/decisions/0080-files-source.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from threading import Lock
from typing import NamedTuple

import pyarrow as pa

from holdfast.errors import Damaged, HoldfastError, Where
from holdfast.runtime.plan.ahead import Ahead, Read, ReaderAhead
from holdfast.runtime.plan.source import OFFSETS, OpenSource, PartitionReader
from holdfast.runtime.sources.files.catalogue import FILES_PER_LISTING, FileCatalogue, FileEntry, FilePosition
from holdfast.runtime.sources.files.contents import Contents, FilePiece, WrongFile
from holdfast.runtime.sources.files.formats import Format
from holdfast.storage.folders import Folder, FolderFile, ReadFile

LEFT_OUT_BEFORE, LEFT_OUT_AFTER = (".", "_"), (".tmp", ".crc")
COMPRESSED = (".gz", ".bz2", ".zst", ".xz", ".lz4", ".snappy")
OPENED_TOGETHER = 16
"""How many files are opened at the same time when they are listed: in a bucket each takes some requests."""
_NOT_READ = "no more records were read; the job is at its last checkpoint"


def is_data(file: FolderFile) -> bool:
    """Return whether a file is read: it is not empty, and its name does not mark it as unfinished or as no data."""
    return file.size > 0 and not is_left_out(file.name.split("/"))


def is_left_out(names: Sequence[str]) -> bool:
    """Return whether files are not read for their name, or for that of a folder on the way to them."""
    hidden = any(name.startswith(LEFT_OUT_BEFORE) for name in names)
    return hidden or (bool(names) and names[-1].endswith(LEFT_OUT_AFTER))


class _Open(NamedTuple):
    """The file that a partition reads now."""

    number: int
    handle: ReadFile
    contents: Contents


class OpenFiles(OpenSource):
    """Files that are open. It may be used again after `close`, which closes files only.

    Args:
        folder: Where the files are.
        where: The same, for messages.
        bounded: Whether no file is ever added.
        lists: Whether `partitions` lists the files.
        every_s: How long it waits at least between two looks for more of the catalogue.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        folder: Folder,
        where: str,
        catalogue: FileCatalogue,
        form: Format,
        *,
        partitions: int,
        bounded: bool,
        lists: bool,
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._where, self._catalogue, self._form = folder, where, catalogue, form
        self._partitions, self._bounded, self._lists = range(partitions), bounded, lists
        self._every_s, self._clock, self._next_look = every_s, clock, 0.0
        self._lock, self._catalogue_lock = Lock(), Lock()
        self._open: dict[int, _Open] = {}
        with self._catalogue_lock:
            self._catalogue.refresh()

    def identity(self, partition: int, offset: int) -> str:
        """Return the hash over the files that begin before the position."""
        count = self._catalogue.begun(partition, offset)
        return f"files {partition} {count} {self._catalogue.hash_of(partition, count)}"

    def changed(self, identity: str) -> str | None:
        kind, *rest = identity.split(" ")
        if kind != "files" or len(rest) != 3:
            return f"it is files, but a {kind} was read"
        partition, count, expected_hash = int(rest[0]), int(rest[1]), rest[2]
        with self._catalogue_lock:
            self._catalogue.refresh()
            found = self._catalogue.hash_of(partition, count) if partition in self._partitions else None
        if found == expected_hash:
            return None
        return f"the catalogue of {self._where} in the job's folder does not have the files that were read"

    def partitions(self) -> list[int]:
        """Return the partitions, which never change. The driver's connection lists new files."""
        if self._lists and not self._bounded:
            with self._lock:
                self.list_files()
        return list(self._partitions)

    def end_offsets(self) -> dict[int, int]:
        """Return the ends of the catalogue as it is now: a run whose end lies further on must not stop before it."""
        self._look(now=True)
        return {partition: self._catalogue.end(partition) for partition in self._partitions}

    def retention_start(self, partition: int) -> int:
        """Return 0: a file that was removed before it was read is an error, and nothing is skipped."""
        return 0

    def whole_from(self, partition: int) -> int:
        """Files that were read may go."""
        with self._lock, self._catalogue_lock:
            self._catalogue.refresh()
            return self._catalogue.whole_from(partition, {file.name: file for file in self._folder.files()})

    def read(self, partition: int, offset: int, max_bytes: int) -> tuple[pa.RecordBatch | None, int]:
        found = self._fetch(partition, offset, max_bytes)
        return found.batch, found.following

    def reader(self, partition: int, offset: int, ahead: Ahead) -> PartitionReader:
        known = partial(self._known, partition)
        return ReaderAhead(partial(self._fetch, partition), lambda _offset, _read: True, offset, ahead, known=known)

    def ended(self, partition: int, offset: int) -> bool:
        return self._bounded and offset >= self._catalogue.end(partition)

    def close(self) -> None:
        with self._lock:
            for each in self._open.values():
                each.handle.close()
            self._open.clear()

    def list_files(self) -> int:
        """Append new files to the catalogue, sorted by name; return how many it has.

        Raises:
            Damaged: a file of the catalogue has changed, or a new one cannot be read.
            Unavailable: the folder or the catalogue is unreachable.
        """
        with self._catalogue_lock:
            self._catalogue.refresh()
            found = sorted(filter(is_data, self._folder.files()))
            new = [file for file in found if self._is_new(file)]
            while new:
                entries = self._entries(new[:FILES_PER_LISTING])
                if entries and not self._catalogue.append(entries):
                    self._catalogue.refresh()  # another driver was faster
                    new = [file for file in new if self._is_new(file)]
                else:
                    new = new[FILES_PER_LISTING:]
            return len(self._catalogue)

    def _is_new(self, file: FolderFile) -> bool:
        known = self._catalogue.get(file.name)
        if known is not None and known.file != file:
            raise self._refused(file.name, _difference(known.file, file), RESTORE)
        return known is None

    def _entries(self, files: Sequence[FolderFile]) -> list[FileEntry]:
        """Return the entries of files, in order. Files that change while they are opened wait for the next listing."""
        with ThreadPoolExecutor(OPENED_TOGETHER) as pool:
            try:
                return [entry for entry in pool.map(self._entry, files) if entry is not None]
            except HoldfastError:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _entry(self, file: FolderFile) -> FileEntry | None:
        if self._form.is_text and file.name.endswith(COMPRESSED):
            raise self._refused(file.name, "it is compressed, and text cannot be read from a byte on then", MOVE)
        if not self._form.is_opened_to_list:
            return FileEntry(*file, span=file.size)
        if (handle := self._folder.opened(file)) is None:
            return None
        with closing(handle):
            try:
                return FileEntry(*file, span=self._form.span(handle, file))
            except WrongFile as wrong:
                if not self._folder.verify(file):
                    return None
                raise self._refused(file.name, str(wrong), MEND) from wrong

    def _fetch(self, partition: int, offset: int, max_bytes: int) -> Read:
        with self._catalogue_lock:
            place = self._catalogue.place(partition, offset)
        if place is None:
            self._look()
        return self._known(partition, offset, max_bytes)

    def _known(self, partition: int, offset: int, max_bytes: int) -> Read:
        with self._catalogue_lock:
            place = self._catalogue.place(partition, offset)
        if place is None:
            return Read(None, offset)
        with self._lock:
            try:
                piece = self._piece(partition, place, offset - place.start, max_bytes)
            except HoldfastError:
                self._close(partition)
                raise
            if piece.following >= place.entry.span:
                self._close(partition)
        return Read(_with_offsets(piece, place.start), place.start + piece.following)

    def _piece(self, partition: int, place: FilePosition, at: int, max_bytes: int) -> FilePiece:
        file = place.entry.file
        where = Where(partition=partition, offset=place.start + at)
        try:
            piece = self._contents(partition, place).read(at, max_bytes)
        except WrongFile as wrong:
            if not self._folder.verify(file):
                raise self._changed(file, where) from wrong
            raise self._refused(file.name, str(wrong), REPLACE, where) from wrong
        if not self._folder.verify(file):
            raise self._changed(file, where)
        return piece

    def _contents(self, partition: int, place: FilePosition) -> Contents:
        open_file = self._open.get(partition)
        if open_file is None or open_file.number != place.number:
            self._close(partition)
            if (handle := self._folder.opened(place.entry.file)) is None:
                raise self._changed(place.entry.file, Where(partition=partition, offset=place.start))
            open_file = self._open[partition] = _Open(place.number, handle, self._form.contents(handle, place.entry))
        return open_file.contents

    def _close(self, partition: int) -> None:
        if (held := self._open.pop(partition, None)) is not None:
            held.handle.close()

    def _look(self, *, now: bool = False) -> None:
        """Look for more of the catalogue, unless it was done a moment ago and need not be `now`."""
        with self._catalogue_lock:
            at = self._clock()
            if not self._bounded and (now or at >= self._next_look):
                self._catalogue.refresh()
                self._next_look = at + self._every_s

    def _changed(self, file: FolderFile, where: Where) -> Damaged:
        now = self._folder.look(file.name)
        what = "it no longer exists, and was not read to its end" if now is None else _difference(file, now)
        return self._refused(file.name, what, RESTORE, where)

    def _refused(self, name: str, why: str, next_step: str, where: Where | None = None) -> Damaged:
        what = f"file {name} of {self._where}: {why}"
        return Damaged(what, not_done=_NOT_READ, next_step=next_step, where=where or Where())


RESTORE = (
    "restore the file as it was listed, with its time of change, or remove it if the job has read all of it; write "
    "other records to files with new names, and rename these into the folder when they are complete"
)
MEND = "replace the file by one that can be read, or move it out of the folder; then start the job again"
REPLACE = (
    "restore the bytes that were written, with the time of change. A job that has a checkpoint cannot leave out a "
    "listed file: to read the folder without it, move it elsewhere and give the job another name"
)
MOVE = "move the file out of the folder, and put it there again decompressed; then start the job again"


def _difference(listed: FolderFile, now: FolderFile) -> str:
    if listed.size != now.size:
        return f"it has {now.size:,} bytes, but had {listed.size:,} when it was listed"
    return f"it was replaced or changed since it was listed (version {now.version}, was {listed.version})"


def _with_offsets(piece: FilePiece, start: int) -> pa.RecordBatch | None:
    batch = piece.rows
    if batch is None or piece.offsets is None:
        return batch
    offsets = pa.array(piece.offsets + start, pa.int64())
    return pa.RecordBatch.from_arrays([*batch.columns, offsets], names=[*batch.schema.names, OFFSETS])
