"""What a target shows of a job's output, read back from the target alone, for an audit.

A target says per writer and tag which rows it holds of that delivery, as a digest that staged output has too; and which
rows it holds that no delivery it still knows of has written. What it cannot know any more it says so of.

Invariants
    - Nothing here writes, and nothing reads staged output or manifests: what is shown is evidence of its own.
    - Unknown is said, never shown as no rows.

Pure: no clock, thread or I/O. Source: docs/design/0018-audit.md; PROTOCOL P17, P21 (before-images).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.model import Epoch, RowDigest, Subtask, Tag
from holdfast.sinks.contract import DELETE, OP, PUT
from holdfast.storage.rowhash import digest_of

Delivery = tuple[Subtask, Tag]


@dataclass(frozen=True)
class Asked:
    """Which output is looked for: a sink's, of deliveries after an epoch."""

    job_uuid: str
    sink: str
    schema: pa.Schema
    upsert_key: tuple[str, ...] | None
    after: Epoch
    everything: bool = True
    """Also what no delivery that is told has written: that takes reading the whole target."""
    beside: frozenset[str] = frozenset()
    """Sinks of the same job that write to the same target."""
    elsewhere: frozenset[str] = frozenset()
    """Sinks of the same job that do not."""


@dataclass(frozen=True)
class Others:
    """Rows that no delivery which is told has written: older output, and whatever somebody else put there."""

    hashes: NDArray[np.uint64]
    """Of each such row, in the order in which they came to be there."""
    older: int
    """How many of them stand before all rows that are told: these may be older than the job."""
    mixed: str | None = None
    """Whose older rows may be among them, which cannot be told from the job's."""


@dataclass(frozen=True)
class Shown:
    """What the target holds."""

    standing: Mapping[Subtask, Tag]
    """The tag of every writer that ever delivered."""
    rows: Mapping[Delivery, RowDigest]
    """Of every delivery that is told."""
    lost: Mapping[Subtask, Tag] = field(default_factory=dict)
    """Nothing is known any more of a writer's deliveries up to this tag."""
    wrong: Mapping[Delivery, str] = field(default_factory=dict)
    """What cannot be output of the job at all, and why."""
    others: Others | None = None
    """None: it cannot be told."""
    unseen: int | None = None
    """Rows that stand under keys which no delivery that is told has written; None: not counted, or without keys."""
    untagged: int = 0
    """Rows between the job's that carry no tag of any writer."""


@runtime_checkable
class AuditableSink(Protocol):
    """A sink whose target can be read back."""

    @property
    def where(self) -> str:
        """How messages name the target."""

    def shown(self, asked: Asked) -> Shown:
        """Return what the target holds now, as of one moment.

        Raises:
            Gone: there is no target, or a column of it is missing.
            ConfigError: it cannot be read as it is.
            Unavailable: it cannot be reached now.
            Damaged: its own bytes are broken.
        """


class Gone(Exception):
    """The target is not there, though the job wrote to it."""


class Misfit(Exception):
    """The target holds a value that no output of the job can have left there."""


Row = Mapping[str, Any] | None
"""A row of the target by column name; None: there is none."""


def digest_of_rows(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> RowDigest:
    """Return the digest of rows that were added. Raises Misfit."""
    return digest_of(batch_of(rows, schema))


def digest_of_changes(
    keys: Sequence[Mapping[str, Any]], rows: Sequence[Row], schema: pa.Schema, key: tuple[str, ...], upsert: bool
) -> RowDigest:
    """Return the digest of what a delivery wrote: the row that each key has after it, or that it has none.

    Args:
        upsert: The stream tells puts from deletes.

    Raises:
        Misfit: a value is none of the stream's, or a row is gone of a stream that deletes none.
    """
    whole = [{**k, **row} if row is not None else k for k, row in zip(keys, rows, strict=True)]
    gone = np.array([row is None for row in rows], np.bool_)
    if not upsert:
        if gone.any():
            raise Misfit(f"{int(gone.sum())} rows that were put are not there, and nothing deletes rows here")
        return digest_of(batch_of(whole, schema))
    ops = pa.array(np.where(gone, DELETE, PUT).astype(np.int8))
    return digest_of(batch_of(whole, schema).append_column(OP, ops), gone, (*key, OP))


def batch_of(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows of a SQL target as the stream's columns; what a row lacks is null. Raises Misfit."""
    columns = [_column(field.name, [row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


def _column(name: str, values: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array([None if value is None else _value(value, kind) for value in values], _widest(kind))
    except (pa.ArrowException, ValueError, OverflowError, TypeError) as error:
        raise Misfit(f"column {name!r} holds what is no {kind}: {error}") from error


def _widest(kind: pa.DataType) -> pa.DataType:
    """Return the type in which a column is hashed like in its own, and that takes every value that is stored."""
    for fits, wide in (
        (pa.types.is_integer, pa.int64()), (pa.types.is_floating, pa.float64()), (_is_text, pa.string()),
    ):  # fmt: skip
        if fits(kind):
            return wide
    other = pa.types.is_boolean(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    return kind if other else pa.binary()


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _value(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_boolean(kind):
        if value not in (0, 1) or not isinstance(value, int):
            raise ValueError(f"{value!r}")
        return bool(value)
    wanted: type | tuple[type, ...] = bytes
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        if not isinstance(value, str):
            raise TypeError(f"{value!r}")
        return datetime.fromisoformat(value) if pa.types.is_timestamp(kind) else date.fromisoformat(value)
    if pa.types.is_integer(kind):
        wanted = int
    elif pa.types.is_floating(kind):
        wanted = (int, float)
    elif _is_text(kind):
        wanted = str
    if not isinstance(value, wanted):
        raise TypeError(f"{value!r}")
    return value
