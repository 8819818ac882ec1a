"""The catalogue of one source: which files it has, in which order, at which positions.

Layout below the source's folder in the job's root:

    catalogue.json                      names the folder of the catalogue that the job reads (`FileCatalogueHead`)
    files-<random>/0/00000000           files that one listing found (`FileListing`), numbered without gaps
    files-<random>/1/00000000           the objects 0 to 63 of level 0 as one; a level above packs 64 of the one below

Packs only save requests: the objects that they hold stay, so a pack that a killed driver did not write is not missed.

Invariants
    - The catalogue only grows, by conditional creates; all readers see the same files in the same order.
    - File n is in partition n mod `partitions`, and begins where the file before it in that partition ends.
    - Its name is in the catalogue once.

Source: docs/decisions/0080-files-source.md.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from holdfast.errors import AlreadyExists, NotFound
from holdfast.ports import ObjectStore
from holdfast.runtime.sources import objects
from holdfast.runtime.sources.objects import decoded, encoded
from holdfast.storage.folders import FolderFile

FORMAT_VERSION = 1
FILES_PER_LISTING = 10_000
PACKED = 64
"""How many objects of a level one object of the next level holds."""
LEVELS = 4


class FileCatalogueHead(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of `catalogue.json`: what a catalogue is of. It never changes."""

    folder: str
    path: str
    format: str
    partitions: int
    bounded: bool
    v: int = FORMAT_VERSION


class FileEntry(msgspec.Struct, frozen=True, array_like=True):
    """A file in the catalogue.

    Args:
        span: How many positions it takes: rows, or bytes of text.
    """

    name: str
    size: int
    version: str
    span: int

    @property
    def file(self) -> FolderFile:
        """The file as it was listed."""
        return FolderFile(self.name, self.size, self.version)


class FileListing(msgspec.Struct, frozen=True):
    """Contents of an object: files that follow those of the objects before it."""

    files: tuple[FileEntry, ...]
    v: int = FORMAT_VERSION


class FilePosition(NamedTuple):
    """Where a position lies: in the file `number` of its partition, which begins at `start`."""

    number: int
    entry: FileEntry
    start: int


_HEAD, _LISTING = msgspec.json.Decoder(FileCatalogueHead), msgspec.json.Decoder(FileListing)


def read_head(store: ObjectStore) -> FileCatalogueHead | None:
    """Return what `catalogue.json` says; None before there is one. Raises Damaged, ConfigError."""
    return objects.read_head(store, _HEAD, FORMAT_VERSION)


class FileCatalogue:
    """A catalogue as one process knows it. Not safe to share between threads.

    Args:
        store: The source's folder.
    """

    def __init__(self, store: ObjectStore, head: FileCatalogueHead) -> None:
        self._store, self._head = store, head
        self._objects = 0
        self._files = 0
        self._entries: dict[str, FileEntry] = {}
        self._parts: list[list[FileEntry]] = [[] for _ in range(head.partitions)]
        self._ends: list[list[int]] = [[] for _ in range(head.partitions)]
        self._hashes: list[list[bytes]] = [[] for _ in range(head.partitions)]

    def __len__(self) -> int:
        return self._files

    def get(self, name: str) -> FileEntry | None:
        """Return the file with this name; None if the catalogue does not have it."""
        return self._entries.get(name)

    def refresh(self) -> None:
        """Read what was appended. Raises Damaged, Unavailable."""
        while (found := self._next()) is not None:
            level, listing = found
            self._take(listing.files)
            self._objects += PACKED**level

    def append(self, entries: Sequence[FileEntry]) -> bool:
        """Append files; false if another process has appended some: nothing was written then. Raises Unavailable."""
        assert 0 < len(entries) <= FILES_PER_LISTING
        listing = FileListing(tuple(entries))
        try:
            self._store.create(self._path(0, self._objects), encoded(listing))
        except AlreadyExists:
            return False
        self._take(listing.files)
        self._objects += 1
        self._pack()
        return True

    def end(self, partition: int) -> int:
        """Return the position after the last file of a partition."""
        return self._ends[partition][-1] if self._ends[partition] else 0

    def place(self, partition: int, offset: int) -> FilePosition | None:
        """Return the file that holds a position; None at the end."""
        ends = self._ends[partition]
        number = bisect_right(ends, offset)
        if number == len(ends):
            return None
        return FilePosition(number, self._parts[partition][number], ends[number - 1] if number else 0)

    def begun(self, partition: int, offset: int) -> int:
        """Return how many files of a partition begin before a position above 0."""
        return min(len(self._ends[partition]), 1 + bisect_left(self._ends[partition], offset))

    def hash_of(self, partition: int, count: int) -> str | None:
        """Return the hash over the first files of a partition, at least one; None if it has fewer."""
        hashes = self._hashes[partition]
        return hashes[count - 1].hex() if 0 < count <= len(hashes) else None

    def whole_from(self, partition: int, there: dict[str, FolderFile]) -> int:
        """Return the lowest position from which on all files are there as they were listed."""
        parts, ends = self._parts[partition], self._ends[partition]
        for number in reversed(range(len(parts))):
            if parts[number].span and there.get(parts[number].name) != parts[number].file:
                return ends[number]
        return 0

    def _next(self) -> tuple[int, FileListing] | None:
        """Return the largest object that follows what is known, and its level; None if there is none."""
        for level in reversed(range(LEVELS)):
            if self._objects % PACKED**level == 0:
                path = self._path(level, self._objects // PACKED**level)
                try:
                    return level, decoded(_LISTING, self._store.get(path), path, FORMAT_VERSION)
                except NotFound:
                    continue
        return None

    def _take(self, entries: Sequence[FileEntry]) -> None:
        for entry in entries:
            partition = self._files % self._head.partitions
            self._entries[entry.name] = entry
            hashes = self._hashes[partition]
            before = hashes[-1] if hashes else self._head.folder.encode()
            self._parts[partition].append(entry)
            hashes.append(hashlib.blake2b(before + msgspec.json.encode(entry), digest_size=16).digest())
            self._ends[partition].append(self.end(partition) + entry.span)
            self._files += 1

    def _pack(self) -> None:
        """Write the packs that the newest object completes."""
        for level in range(1, LEVELS):
            if self._objects % PACKED**level:
                return
            first = self._objects // PACKED ** (level - 1) - PACKED
            parts = [self._path(level - 1, first + number) for number in range(PACKED)]
            try:
                found = [decoded(_LISTING, self._store.get(path), path, FORMAT_VERSION) for path in parts]
            except NotFound:  # the driver that was to write one was killed
                return
            whole = FileListing(tuple(entry for each in found for entry in each.files))
            self._store.put(self._path(level, first // PACKED), encoded(whole))

    def _path(self, level: int, number: int) -> str:
        return f"{self._head.folder}/{level}/{number:08d}"
