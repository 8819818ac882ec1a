"""Wrong versions of the storage with one mistake each, which cases of this tier must catch."""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa

from holdfast.checkpoint import joblog, repository
from holdfast.errors import AlreadyExists
from holdfast.model import Tag
from holdfast.runtime.worker import compaction
from holdfast.sinks.contract.target import EpochOutput, Outcome
from holdfast.sinks.sql.target import SqlTarget
from holdfast.state.local.image import Image
from holdfast.storage import local
from holdfast.storage.local import LocalObjects


def _replace(module: ModuleType, name: str, value: object) -> None:
    setattr(module, name, value)


def file_not_synced() -> None:
    """An object gets its name before its bytes are durable."""

    def written(folder: Path, data: bytes, mode: int) -> Path:
        temporary = folder / f".tmp-{uuid.uuid4().hex}"
        with open(temporary, "xb") as file:
            file.write(data)
        return temporary

    local._write_temporary = written


def folder_not_synced() -> None:
    """A name is reported as created before the folder is durable."""
    local._sync_folder = lambda folder: None


def written_in_place() -> None:
    """An object is written under its final name."""

    def put(self: LocalObjects, path: str, data: bytes) -> None:
        target = self._writable_target(path)
        with open(target, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        local._sync_folder(target.parent)

    def create(self: LocalObjects, path: str, data: bytes) -> None:
        if (self.root / path).exists():
            raise AlreadyExists(path)
        put(self, path, data)

    LocalObjects.put, LocalObjects.create = put, create  # type: ignore[method-assign]


def hash_not_verified() -> None:
    """Objects that a manifest names are read without verifying size and hash."""

    _replace(repository, "verified", lambda data, ref: data)
    read = repository.read_verified
    _replace(compaction, "open_verified", lambda store, ref: pa.BufferReader(read(store, ref)))


def record_hash_not_verified() -> None:
    """Any JSON is accepted as a record of the job log."""
    _replace(joblog, "fits_hash", lambda data: True)


def image_not_verified() -> None:
    """An image is used without comparing it with its hashes."""

    def verify(self: Image) -> None:
        """Look at nothing."""

    Image.verify = verify  # type: ignore[method-assign]


def tag_before_its_rows() -> None:
    """SQLite commits the tag before the rows."""
    real = SqlTarget.deliver_together

    def deliver(self: SqlTarget, epochs: Sequence[EpochOutput], known: Tag | None = None) -> Outcome:
        def fault(point: Any) -> None:
            if point == "after_tag":
                db = self._connection.db
                assert isinstance(db, sqlite3.Connection)
                db.execute("COMMIT")
                db.execute("BEGIN IMMEDIATE")

        self._fault = fault
        return real(self, epochs, known)

    SqlTarget.deliver_together = deliver  # type: ignore[method-assign]


MUTANTS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        file_not_synced,
        folder_not_synced,
        written_in_place,
        hash_not_verified,
        record_hash_not_verified,
        image_not_verified,
        tag_before_its_rows,
    )
}


def install(name: str) -> None:
    """Install a mutant in this process, or none."""
    if name:
        MUTANTS[name]()
