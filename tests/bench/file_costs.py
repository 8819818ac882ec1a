"""What a source and a target of files cost when they have very many: the catalogue, a listing, a delivery."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pyarrow as pa

import holdfast as hf
from holdfast.model import Epoch, JobUuid, Subtask, Tag, Timeline, Writer
from holdfast.runtime.sources.files.catalogue import FILES_PER_LISTING, FileCatalogue, FileCatalogueHead, FileEntry
from holdfast.runtime.sources.files.formats import Format
from holdfast.runtime.sources.files.reading import OpenFiles
from holdfast.sinks.contract.sink import Sink
from holdfast.sinks.contract.target import Delivered
from holdfast.storage.folders import FolderFile, ReadFile
from holdfast.storage.objects import MemoryObjects

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])
HEAD = FileCatalogueHead(folder="files-1", path="in", format="jsonl", partitions=4, bounded=False)
FILE_BYTES = 1_000


class Names:
    """A folder that is listed only. See folders.Folder."""

    def __init__(self, files: int) -> None:
        self.names = [FolderFile(f"2026-11-28/{number:09d}.jsonl", FILE_BYTES, "1") for number in range(files)]

    def check(self) -> None:
        """There is such a folder."""

    def files(self) -> list[FolderFile]:
        """Return all files."""
        return list(self.names)

    def look(self, name: str) -> FolderFile | None:
        """Return a file as it was listed."""
        return next((each for each in self.names if each.name == name), None)

    def opened(self, file: FolderFile) -> ReadFile | None:
        """No file is read."""
        raise AssertionError(file)

    def verify(self, file: FolderFile) -> bool:
        """No file changes."""
        return True


@cache
def filled(files: int) -> MemoryObjects:
    """Return the folder of a source that has listed so many files, all at once."""
    store = MemoryObjects()
    catalogue, entries = FileCatalogue(store, HEAD), [FileEntry(*each, span=FILE_BYTES) for each in Names(files).names]
    for first in range(0, files, FILES_PER_LISTING):
        assert catalogue.append(entries[first : first + FILES_PER_LISTING])
    return store


@cache
def opened(files: int) -> OpenFiles:
    """Return the source of a driver that knows so many files."""
    form = Format("jsonl", SCHEMA, {})
    catalogue = FileCatalogue(filled(files), HEAD)
    return OpenFiles(
        Names(files), "in", catalogue, form, partitions=HEAD.partitions, bounded=False, lists=True, every_s=0.0
    )


def a_listing(files: int) -> Callable[[], object]:
    """List the folder while nothing is new."""
    source = opened(files)
    return source.partitions


def an_opening(files: int) -> Callable[[], object]:
    """Read the catalogue, as each worker does when it is deployed."""
    store = filled(files)
    return lambda: FileCatalogue(store, HEAD).refresh()


def a_position(files: int) -> Callable[[], object]:
    """Find the file of a position, the identity of what was read, and the ends: per read, epoch and heartbeat."""
    source, middle = opened(files), files // 8 * FILE_BYTES

    def work() -> None:
        assert source._catalogue.place(1, middle) is not None
        assert source.identity(1, middle).startswith("files 1 ")
        assert set(source.end_offsets()) == set(range(HEAD.partitions))

    return work


def a_delivery(make: Callable[[Path], Sink], deliveries: int) -> Callable[[], object]:
    """Deliver an epoch of one file to a target that has those of so many epochs."""
    folder = tempfile.TemporaryDirectory(prefix="file-costs-")
    sink = make(Path(folder.name) / "out")
    sink.prepare(SCHEMA, None)
    target, epoch = sink.open(JobUuid("6f1d2c9e000040008000000000000001"), Writer("out", Subtask(0))), 0

    def deliver() -> None:
        nonlocal epoch
        epoch += 1
        rows = pa.record_batch([pa.array([epoch])], schema=SCHEMA)
        assert target.deliver(Tag(Timeline(1), Epoch(epoch)), [rows]) == Delivered(1)
        assert folder  # deleted with this function

    for _ in range(deliveries):
        deliver()
    return deliver


def to_files(folder: Path) -> Sink:
    """A folder of Parquet files."""
    return hf.Files(folder, SCHEMA).sink()


def to_delta(folder: Path) -> Sink:
    """A Delta table."""
    return hf.Delta(folder)


def to_iceberg(folder: Path) -> Sink:
    """An Iceberg table, with its catalogue in a file."""
    return hf.Iceberg("lake.out", f"sqlite:///{folder}/catalog.db", folder)
