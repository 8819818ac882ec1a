"""`hf.Console`: prints rows where the job was started.

Workers are other processes, so a delivery writes its lines to a file in the job's own folder, named by its tag; the
driver prints and removes the files (runtime/execution/results.py). The tags are in a SQLite file beside them.

Invariants
    - The lines are in place before the tag moves, and a delivery that is repeated writes the same file again: every row
      is printed, and printed again only if a process died between printing it and moving the tag.
    - Printed rows cannot be taken back: a rewind moves the tags and prints rows again.

Source: PROTOCOL P17.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.errors import Unavailable
from holdfast.model import Tag, Writer
from holdfast.sinks.contract.owners import Claim, Holding, Ownership
from holdfast.sinks.contract.sink import Repair, Repairs, Rewinding, Sink
from holdfast.sinks.contract.target import DELETE, OP, Outcome, Target
from holdfast.sinks.sql.target import SqlTarget
from holdfast.sinks.sqlite.sink import SQLite
from holdfast.traits import SinkTraits

SUFFIX = ".lines"
_TAGS = "tags"
_NO_ROWS = pa.schema([pa.field("nothing", pa.int64())])
"""The table beside the tags, which stays empty."""


class Console(Repairs, Ownership, Sink):
    """A sink that prints rows, for a first look at a stream. Every row is printed at least once.

    A row that is deleted is printed with its key, after `deleted`. In a notebook the rows are in the cell's output,
    else on standard output.
    """

    key = None

    def __init__(self) -> None:
        self.path = ""
        self._upsert_key: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        return "Console()"

    @property
    def where(self) -> str:
        return "the console"

    @property
    def traits(self) -> SinkTraits:
        local_paths = (self.path,) if self.path else ()
        return SinkTraits(kind="Console", local_paths=local_paths, place={"path": self.path})

    def bound(self, folder: str, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Console:
        """Return the sink as a run uses it: with its files in this folder."""
        sink = Console()
        sink.path, sink._upsert_key = folder, upsert_key
        return sink

    def check(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        """Every row can be printed."""

    def prepare(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        Path(self.path).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._tags().prepare(_NO_ROWS, None)

    def open(self, job_uuid: str, writer: Writer, claim: Claim | None = None) -> ConsoleTarget:
        return ConsoleTarget(Path(self.path), self._upsert_key, self._tags().open(job_uuid, writer, claim), writer)

    def holding(self, job_uuid: str, name: str) -> Holding:
        return self._tags().holding(job_uuid, name)

    def plan_repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        """No row is taken back."""
        return self._tags().plan_repair(rewinding, _NO_ROWS, None)

    def repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        """Moves the tags."""
        return self._tags().repair(rewinding, _NO_ROWS, None)

    def _tags(self) -> SQLite:
        return SQLite(os.path.join(self.path, "tags.db"), _TAGS)


class ConsoleTarget(Target):
    """One writer's way to the console. See contract.Target."""

    def __init__(self, folder: Path, key: tuple[str, ...] | None, tags: SqlTarget, writer: Writer) -> None:
        self._folder, self._key, self._tags, self._writer = folder, key, tags, writer

    def delivered(self) -> Tag | None:
        return self._tags.delivered()

    def deliver(self, tag: Tag, batches: Iterable[pa.RecordBatch], known: Tag | None = None) -> Outcome:
        standing = self._tags.delivered()
        if standing is None or standing < tag:
            self._write(tag, "".join(f"{line}\n" for batch in batches for line in lines_of(batch, self._key)))
        return self._tags.deliver(tag, (), known)

    def forget(self, through: Tag) -> None:
        self._tags.forget(through)

    def close(self) -> None:
        self._tags.close()

    def _write(self, tag: Tag, text: str) -> None:
        if not text:
            return
        file = self._folder / f"{tag.timeline:010d}-{tag.epoch:016d}-{self._writer.subtask:05d}{SUFFIX}"
        partial = file.with_suffix(".partial")
        try:
            partial.write_text(text, encoding="utf-8")
            os.replace(partial, file)
        except OSError as error:
            raise Unavailable(
                f"{file} cannot be written: {error.strerror or error}",
                not_done="the rows of this epoch are not printed yet",
                next_step="free space on that disk, or make the folder writable; delivery is retried",
            ) from error


def lines_of(batch: pa.RecordBatch, key: tuple[str, ...] | None) -> Iterator[str]:
    """Return a line per row: `shop=north sales=2`; for a row that is deleted its key, after `deleted`."""
    for row in batch.to_pylist():
        if row.pop(OP, None) == DELETE:
            yield f"deleted {_text({name: row[name] for name in key or row})}"
        else:
            yield _text(row)


def _text(row: dict[str, Any]) -> str:
    return " ".join(f"{name}={_value(value)}" for name, value in row.items())


def _value(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        return value if value.isprintable() and value and " " not in value else repr(value)
    return value.isoformat() if isinstance(value, datetime) else str(value)
