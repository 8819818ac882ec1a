"""The output of a job that a target holds, read back from the target alone, for an audit.

A target reports, per writer and tag, the rows that it holds of that delivery, as a digest that staged output has too;
and the rows that no delivery it still knows of has written. It reports explicitly which facts it can no longer know.

Invariants
    - Nothing here writes, and nothing reads staged output or manifests: the report is independent evidence.
    - Unknown is reported as unknown, never as no rows.

Pure: no clock, thread or I/O. Source: docs/decisions/0018-audit.md; PROTOCOL P17, P21 (before-images).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.model import Epoch, RowDigest, Subtask, Tag
from holdfast.sinks.contract.target import DELETE, OP, PUT
from holdfast.storage.rowhash import digest_of

Delivery = tuple[Subtask, Tag]


@dataclass(frozen=True)
class AuditQuery:
    """The output to report: that of one sink, of deliveries after an epoch."""

    job_uuid: str
    sink: str
    schema: pa.Schema
    upsert_key: tuple[str, ...] | None
    after: Epoch
    everything: bool = True
    """Also report rows that no listed delivery wrote, which requires reading the whole target."""
    beside: frozenset[str] = frozenset()
    """Sinks of the same job that write to the same target."""
    elsewhere: frozenset[str] = frozenset()
    """Sinks of the same job that write elsewhere."""


@dataclass(frozen=True)
class Others:
    """Rows that no listed delivery wrote: older output, and rows that others wrote."""

    hashes: NDArray[np.uint64]
    """One hash per row, in the order in which the rows were added."""
    older: int
    """How many of them lie before all rows of listed deliveries: these may be older than the job."""
    mixed: str | None = None
    """The owner of older rows that may be among them and cannot be distinguished from the job's."""


@dataclass(frozen=True)
class TargetContents:
    """The job's output in the target."""

    standing: Mapping[Subtask, Tag]
    """The tag of every writer that ever delivered."""
    rows: Mapping[Delivery, RowDigest]
    """The digest of every listed delivery."""
    lost: Mapping[Subtask, Tag] = field(default_factory=dict)
    """A writer's deliveries up to this tag are no longer known."""
    wrong: Mapping[Delivery, str] = field(default_factory=dict)
    """Deliveries that cannot be output of the job, and why."""
    others: Others | None = None
    """None: not known."""
    unseen: int | None = None
    """Rows whose key no listed delivery wrote; None: not counted, or the table has no key."""
    untagged: int = 0
    """Rows between the job's own that carry no writer's tag."""


class Audits(ABC):
    """Reads a target back."""

    @property
    def audits(self) -> Audits:
        """The object itself."""
        return self

    @abstractmethod
    def contents(self, query: AuditQuery) -> TargetContents:
        """Return the contents of the target, as of one moment.

        Raises:
            Gone: the target or one of its columns is missing.
            ConfigError: the target cannot be read as it is.
            Unavailable: the target is unreachable now.
            Damaged: the target's own bytes are broken.
        """


class Gone(Exception):
    """The target is missing, though the job wrote to it."""


class ForeignValue(Exception):
    """The target holds a value that the job's output cannot have left there."""


Row = Mapping[str, Any] | None
"""A row of the target by column name; None: there is none."""


def digest_of_rows(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> RowDigest:
    """Return the digest of rows that were added. Raises ForeignValue."""
    return digest_of(batch_of(rows, schema))


def digest_of_changes(
    keys: Sequence[Mapping[str, Any]], rows: Sequence[Row], schema: pa.Schema, key: tuple[str, ...], upsert: bool
) -> RowDigest:
    """Return the digest of a delivery's changes: the row that each key has after it, or None.

    Args:
        upsert: The stream distinguishes puts from deletes.

    Raises:
        ForeignValue: a value does not fit the stream, or a row no longer exists although the stream deletes none.
    """
    whole = [{**k, **row} if row is not None else k for k, row in zip(keys, rows, strict=True)]
    missing_mask = np.array([row is None for row in rows], np.bool_)
    if not upsert:
        if missing_mask.any():
            raise ForeignValue(
                f"{int(missing_mask.sum())} rows that were put are missing, and nothing deletes rows here"
            )
        return digest_of(batch_of(whole, schema))
    ops = pa.array(np.where(missing_mask, DELETE, PUT).astype(np.int8))
    return digest_of(batch_of(whole, schema).append_column(OP, ops), missing_mask, (*key, OP))


def batch_of(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows of a SQL target as the stream's columns; missing values are null. Raises ForeignValue."""
    columns = [_column(field.name, [row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


def _column(name: str, values: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array([None if value is None else _value(value, kind) for value in values], _widest(kind))
    except (pa.ArrowException, ValueError, OverflowError, TypeError) as error:
        raise ForeignValue(f"column {name!r} holds a value that is not a {kind}: {error}") from error


def _widest(kind: pa.DataType) -> pa.DataType:
    """Return a type that takes every stored value and hashes like the column's own type."""
    for fits, wide in (
        (pa.types.is_integer, pa.int64()),
        (pa.types.is_floating, pa.float64()),
        (_is_text, pa.string()),
    ):
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
    python_type: type | tuple[type, ...] = bytes
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        if not isinstance(value, str):
            raise TypeError(f"{value!r}")
        return datetime.fromisoformat(value) if pa.types.is_timestamp(kind) else date.fromisoformat(value)
    if pa.types.is_integer(kind):
        python_type = int
    elif pa.types.is_floating(kind):
        if value == "NaN":  # of a database that has none
            return math.nan
        python_type = (int, float)
    elif _is_text(kind):
        python_type = str
    if not isinstance(value, python_type):
        raise TypeError(f"{value!r}")
    return value
