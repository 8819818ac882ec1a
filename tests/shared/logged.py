"""A log in a folder, and what can happen to it between two reads."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.model import Epoch, Tag, Timeline
from holdfast.ports import ObjectStore
from holdfast.storage.log.compaction import Compactor, Wishes
from holdfast.storage.log.log import LogReader, LogWriter, create_log
from holdfast.storage.log.voids import TakeBack
from holdfast.storage.objects import LocalObjects

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("word", pa.utf8())])
WRITER = "writer"


@dataclass
class Logged:
    """A log with a key and one partition, or without a key and with two."""

    folder: Path
    keyed: bool = False

    def __post_init__(self) -> None:
        self.create()

    @property
    def store(self) -> LocalObjects:
        return LocalObjects(self.folder)

    def create(self) -> None:
        create_log(self.store, SCHEMA, 1 if self.keyed else 2, ["n"] if self.keyed else None)

    def append(self, *numbers: int, partition: int = 0) -> None:
        LogWriter(self.store).append({partition: rows(*numbers)})

    def deliver(self, epoch: int, *numbers: int, timeline: int = 1) -> None:
        """Append as a job does, so that a rewind can take the rows back."""
        tag = Tag(Timeline(timeline), Epoch(epoch))
        assert LogWriter(self.store).append_tagged({0: rows(*numbers)}, WRITER, tag) is not None

    def rewind(self, epoch: int, timeline: int = 2) -> None:
        """Take back what was delivered after this epoch."""
        back = TakeBack(Tag(Timeline(timeline), Epoch(epoch)), (WRITER,), lambda _: False)
        LogWriter(self.store).take_back(back)

    def recreate(self) -> None:
        shutil.rmtree(self.folder)
        self.create()

    def copy(self) -> None:
        """Copy the log as it is now, for `restore`."""
        shutil.copytree(self.folder, self.folder.with_suffix(".copy"))

    def restore(self) -> None:
        shutil.rmtree(self.folder)
        shutil.copytree(self.folder.with_suffix(".copy"), self.folder)

    def compact(self) -> None:
        compactor = Compactor(self.store, pause=lambda _: None)
        while compactor.compact(Wishes(0, 10**15, 0.0)).more:
            pass


def rows(*numbers: int) -> pa.Table:
    return pa.Table.from_pylist([{"n": number, "word": f"w{number}"} for number in numbers], schema=SCHEMA)


def rows_in(log: ObjectStore | Path | str, partition: int | None = None) -> list[dict[str, Any]]:
    """Return the rows that a log has, partition by partition, or those of one partition; without what is void."""
    reader = LogReader(LocalObjects(log) if isinstance(log, Path | str) else log)
    found: list[dict[str, Any]] = []
    for number in range(reader.meta.partitions) if partition is None else (partition,):
        batch, offset = reader.read(number, 0, 1 << 20)
        while batch is not None:
            found += batch.to_pylist()
            batch, offset = reader.read(number, offset, 1 << 20)
    return found
