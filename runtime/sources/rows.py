"""`hf.Rows`: rows that the program has in a list, as a source with an end; for tests, notebooks and small tables.

The rows travel with the plan, so they are few. The offset of a row is its index. Its history is the rows before it, so
a checkpoint knows their digest: a list that is continued at its end is read on, one whose beginning changed is refused.

Invariants
    - The digest of rows depends on their columns and values alone, never on the process or the version of a library.

Pure.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from holdfast.arguments import checked
from holdfast.errors import ConfigError
from holdfast.runtime.plan.source import OpenSource, Source
from holdfast.runtime.rows.row_types import ArrowSchema, RowsOf, T, values_of
from holdfast.runtime.rows.rows import WrongRow, batch_of_rows
from holdfast.runtime.rows.schema import data_schema_of
from holdfast.traits import SourceTraits

BYTES_MAX = 64 << 20
"""The rows are sent to every worker with the plan."""
ROWS_MAX = 65_536
"""Rows of one read."""
_KIND = "rows"


class Rows(Source, RowsOf[T]):
    """A source that reads the rows of a list, in their order, and ends.

    Args:
        rows: Instances of a dataclass, dicts or tuples.
        schema: A dataclass or pyarrow.Schema; None: the dataclass of the rows.

    Raises:
        ConfigError: there is no schema, a row does not fit it, or the rows take more than 64 MiB.
    """

    schema: pa.Schema
    row_type: type | None

    @checked("hf.Rows", "([Bid(1, 2.0), Bid(2, 3.0)])")
    def __init__(self, rows: Iterable[T | Mapping[str, Any]], schema: type[T] | ArrowSchema | None = None) -> None:
        if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
            raise _refused(f"{rows!r:.80} is not a list of rows", "give a list: hf.Rows([Bid(1, 2.0)])")
        row_list: list[Any] = list(rows)
        described = schema if schema is not None else _common(row_list)
        self.row_type = described if isinstance(described, type) else None
        self.schema = data_schema_of(described)
        try:
            self.batch = batch_of_rows(self.schema, row_list, self.row_type)
        except WrongRow as wrong:
            at = "a row" if wrong.row is None else f"row {wrong.row}"
            raise _refused(f"{at} does not fit the schema: {wrong.what}", "correct it, or the dataclass") from wrong
        self._digests = Digests(self.batch)
        if self.batch.nbytes > BYTES_MAX:
            raise _refused(
                f"the rows take {self.batch.nbytes >> 20:,} MiB, and each worker gets them with the plan",
                "append them to a log, or write them to files: hf.Log, hf.Files",
            )

    @classmethod
    def example(cls) -> Rows[Any]:
        """Return rows that have every trait; see listed.py."""
        return cls([{"n": 1}], pa.schema([pa.field("n", pa.int64())]))

    def __repr__(self) -> str:
        return f"Rows({self.batch.num_rows:,} rows)" if self.batch.num_rows != 1 else "Rows(1 row)"

    @property
    def where(self) -> str:
        return repr(self)

    @property
    def traits(self) -> SourceTraits:
        shown = f"{self.batch.num_rows:,}, {self._digests.of_first(self.batch.num_rows)}"
        return SourceTraits(kind="Rows", local_paths=(), place={"rows": shown}, in_plan=True)

    def open(self) -> OpenRows:
        return OpenRows(self)


class OpenRows(OpenSource):
    """The rows as one worker reads them."""

    def __init__(self, source: Rows[Any]) -> None:
        self._source, self._batch, self._digests = source, source.batch, Digests(source.batch)

    def identity(self, partition: int, offset: int) -> str:
        """Return the number of the rows before an offset, and their digest."""
        return f"{_KIND} {offset} {self._digests.of_first(offset)}"

    def changed(self, identity: str) -> str | None:
        kind, _, rest = identity.partition(" ")
        if kind != _KIND:
            return f"it is {self._source!r}, but a {kind} was read"
        count, _, digest = rest.partition(" ")
        if int(count) > self._batch.num_rows:
            return f"it has {self._batch.num_rows:,} rows, but {int(count):,} were read"
        if self._digests.of_first(int(count)) != digest:
            return f"one of its first {int(count):,} rows, which were read, has changed"
        return None

    def partitions(self) -> list[int]:
        return [0]

    def end_offsets(self) -> dict[int, int]:
        return {0: self._batch.num_rows}

    def retention_start(self, partition: int) -> int:
        return 0

    def read(self, partition: int, offset: int, max_bytes: int) -> tuple[pa.RecordBatch | None, int]:
        left = self._batch.num_rows - offset
        if left <= 0:
            return None, offset
        row_bytes = max(1, self._batch.nbytes // self._batch.num_rows)
        rows = min(left, ROWS_MAX, max(1, max_bytes // row_bytes))
        return self._batch.slice(offset, rows), offset + rows

    def ended(self, partition: int, offset: int) -> bool:
        return bool(offset >= self._batch.num_rows)


class Digests:
    """Digests of the first rows of a batch, each computed on from the one before it."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch, self._count = batch, 0
        columns = [(field.name, str(field.type), field.nullable) for field in batch.schema]
        self._columns = repr(columns).encode()
        self._hash = hashlib.sha256(self._columns)

    def __reduce__(self) -> tuple[Any, ...]:
        return Digests, (self._batch,)  # what is hashed so far cannot be pickled

    def of_first(self, count: int) -> str:
        """Return the digest of so many rows."""
        if count < self._count:
            self._count, self._hash = 0, hashlib.sha256(self._columns)
        rows = self._batch.slice(self._count, count - self._count)
        for row in zip(*map(values_of, rows.columns), strict=True):
            self._hash.update(repr(row).encode("utf-8", "surrogatepass"))
        self._count = count
        return self._hash.copy().hexdigest()[:32]


def _common(rows: Sequence[Any]) -> type:
    kinds = set(map(type, rows))
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is None or not dataclasses.is_dataclass(kind):
        raise _refused("the rows do not say their columns", "give a dataclass: hf.Rows(rows, Bid)")
    return kind


def _refused(what: str, next_step: str) -> ConfigError:
    return ConfigError(f"hf.Rows: {what}", not_done="the source was not created", next_step=next_step)
