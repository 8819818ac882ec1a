"""A notebook: rows in a JSON file, as a source and as an exactly-once sink, on Holdfast's public names alone."""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import holdfast as hf
from holdfast import connectors as hc


@dataclass(frozen=True)
class Notebook:
    """Rows in a file; `app.source` reads them, `stream.sink` adds to them."""

    path: str
    columns: pa.Schema

    def source(self) -> Pages:
        return Pages(self.path, self.columns)

    def sink(self) -> Pen:
        return Pen(self.path, self.columns)


class _Side:
    def __init__(self, path: str, columns: pa.Schema) -> None:
        self.path, self.where, self.schema = os.path.abspath(path), f"notebook {path}", columns

    def load(self) -> dict[str, Any]:
        try:
            return dict(json.loads(Path(self.path).read_text()))
        except OSError as error:
            raise hf.ConfigError(f"{self.where} cannot be read: {error}", next_step="create it") from error


class Pages(_Side, hc.Source, hc.OpenSource):
    """The side that is read; one partition, its offsets are the numbers of the rows."""

    row_type: type | None = None

    @property
    def traits(self) -> hc.SourceTraits:
        return hc.SourceTraits(kind="Notebook", local_paths=hc.local(self.path), place={"path": self.path})

    def check(self) -> None:
        self.load()

    def open(self) -> Pages:
        return self

    def identity(self, partition: int, offset: int) -> str:
        return str(self.load()["uuid"])

    def changed(self, identity: str) -> str | None:
        return None if identity == self.load()["uuid"] else f"{self.where} is another notebook"

    def partitions(self) -> list[int]:
        return [0]

    def end_offsets(self) -> dict[int, int]:
        return {0: len(self.load()["rows"])}

    def retention_start(self, partition: int) -> int:
        return 0

    def read(self, partition: int, offset: int, max_bytes: int) -> tuple[pa.RecordBatch | None, int]:
        rows = self.load()["rows"][offset : offset + max(1, max_bytes // 100)]
        return (pa.RecordBatch.from_pylist(rows, self.schema) if rows else None), offset + len(rows)


class Pen(_Side, hc.Sink):
    """The side that is written: the rows and the tag of an epoch replace the file together."""

    key = None

    @property
    def traits(self) -> hc.SinkTraits:
        return hc.SinkTraits(kind="Notebook", local_paths=hc.local(self.path), place={"path": self.path})

    def check(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        hc.check_key(self.where, schema, upsert_key, None)

    def prepare(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        self.check(schema, upsert_key)
        if not os.path.exists(self.path):
            self.save({"uuid": uuid.uuid4().hex, "rows": [], "tags": {}})

    def open(self, job_uuid: str, writer: hc.Writer, claim: hc.Claim | None = None) -> Line:
        return Line(self, f"{job_uuid}/{writer.sink}/{writer.subtask}")

    def save(self, contents: dict[str, Any]) -> None:
        with open(f"{self.path}.new", "w") as file:
            file.write(json.dumps(contents))
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{self.path}.new", self.path)


class Line(hc.Target):
    """One writer's way into the notebook."""

    def __init__(self, pen: Pen, name: str) -> None:
        self._pen, self._name = pen, name

    def delivered(self) -> hc.Tag | None:
        found = self._pen.load()["tags"].get(self._name)
        return None if found is None else hc.Tag(*found)

    def deliver(self, tag: hc.Tag, batches: Iterable[pa.RecordBatch], known: hc.Tag | None = None) -> hc.Outcome:
        with open(f"{self._pen.path}.lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            standing, contents = self.delivered(), self._pen.load()
            if standing is not None and standing >= tag:
                return hc.already(self._pen.where, tag, standing)
            if known is not None:
                hc.check_continues(self._pen.where, standing, known)
            contents["rows"] += (rows := [row for batch in batches for row in batch.to_pylist()])
            contents["tags"][self._name] = [tag.timeline, tag.epoch]
            self._pen.save(contents)
            return hc.Delivered(len(rows))
