"""Aggregate functions: the state of count, sum, min, max and mean, and how it is folded, merged and read.

A function works on whole arrays. Its state is one column per *role* ("sum", "seen", ...), indexed by slot. The
functions here name one compiled operation per role, and the table folds all of them in one pass over the rows. A
function without such operations folds by itself, over views of the state's columns.

Sums of integers are checked before any state changes. A bound on the largest sum of all keys is kept and raised by
every batch; while it stays inside int64, no sum can overflow. If it is unknown or reached, the sums of the batch's keys
are checked, and only if these do not settle it is every key's new sum computed exactly.

Invariants
    - The defaults of a state are its neutral element: merging them changes nothing.
    - Folding a and then b equals merging the fold of b into the fold of a (float sums: up to rounding).
    - `check` changes no state; a fold that it allows does not wrap.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.state.keys.canonical import is_textual
from holdfast.state.tables.kernels.layout import Do

INT64_MAX = (1 << 63) - 1
INT64_MIN = -(1 << 63)
SEEN = "seen"
"""The role of the number of values that were not null."""
STOCK_ROWS_MAX = 16
"""Slots per row of a batch up to which all sums are scanned to bound them."""
_CERTAINLY_FITS = float(1 << 62)
"""Sums whose float approximation stays below this cannot be beyond int64."""

Slots = NDArray[np.int64]
State = Mapping[str, Any]
"""Columns of state by role, indexed by slot: NumPy arrays; for text and bytes StoredText, or an Arrow array to read."""
StateType = Any
"""The type of a column of state: NumPy's; or Arrow's for text and bytes, which are null for a key without a value."""


class StoredText(Protocol):
    """A column of text or bytes in a table."""

    def take(self, slots: pa.Array) -> pa.Array:
        """Return the values of slots."""

    def write(self, slots: Slots, values: pa.Array) -> None:
        """Give slots, each once, these values."""

    def check(self, slots: Slots, values: pa.Array) -> None:
        """Refuse values that are too large. Raises JobFailed."""


class Values(Protocol):
    """The values of one column of a batch that are not null, and the slots that they belong to."""

    @property
    def slots(self) -> Slots:
        """The slots, looked up at first use, which may move the columns of state: take views of them afterwards."""

    def values(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the values as this type; times as their underlying integers."""

    def texts(self) -> pa.Array:
        """Return the values as they are."""


@dataclass
class Known:
    """The findings of earlier checks of one column of state."""

    bound: int | None = None
    """An upper bound on all absolute sums; None: unknown."""


class AggregateFunction(Protocol):
    """One kind of aggregate."""

    @property
    def name(self) -> str:
        """Its name in `.agg(...)` and in the identity of state."""

    def result_type(self, given: pa.DataType) -> pa.DataType | None:
        """Return the type of the result over a column of this type; None if the function does not take it."""

    def columns(self, result: pa.DataType, nullable: bool) -> dict[str, tuple[StateType, int | float]]:
        """Return type and default of every column of state, by role.

        Args:
            nullable: The result is null for a key that has seen no value.
        """

    def check(self, state: State, given: Values, known: Known) -> bool:
        """Return whether these values can be folded; `known` holds the findings of earlier calls and is updated.

        Raises:
            JobFailed: a value is too large to be kept.
        """

    def operations(self, columns: Mapping[str, Any]) -> Mapping[str, Do] | None:
        """Return the operation that folds a value into each column of state; None if `fold` must be called.

        Args:
            columns: The types of the state's columns by role.
        """

    def fold(self, state: State, given: Values) -> None:
        """Take values into the state of their slots; only called for functions without operations."""

    def merge(self, state: State, slots: Slots, other: State) -> None:
        """Merge state that was folded elsewhere into these slots: row i of `other` into slots[i]."""

    def result(self, state: State, slots: Slots) -> Any:
        """Return the results of these slots; undefined for slots without a value, null if they are text or bytes."""


@dataclass(frozen=True)
class _Adding:
    """State that is added up: count, sum and mean."""

    name: str

    def result_type(self, given: pa.DataType) -> pa.DataType | None:
        if self.name == "count":
            return pa.int64()
        if not _is_number(given) or (self.name == "sum" and given == pa.uint64()):
            return None
        return pa.int64() if self.name == "sum" and pa.types.is_integer(given) else pa.float64()

    def columns(self, result: pa.DataType, nullable: bool) -> dict[str, tuple[StateType, int | float]]:
        own: dict[str, tuple[StateType, int | float]] = {self.name: (_state_dtype(result), 0)}
        return own | _seen(nullable or self.name == "mean")

    def check(self, state: State, given: Values, known: Known) -> bool:
        return self.name != "sum" or state["sum"].dtype.kind != "i" or _fit(state, given, known)

    def operations(self, columns: Mapping[str, Any]) -> Mapping[str, Do] | None:
        adding = Do.ADD_FLOAT if columns[self.name].kind == "f" else Do.ADD_INT
        return _seen_too(columns, {self.name: Do.COUNT if self.name == "count" else adding})

    def fold(self, state: State, given: Values) -> None:
        raise AssertionError("its operations fold it")

    def merge(self, state: State, slots: Slots, other: State) -> None:
        for role, column in state.items():
            np.add.at(column, slots, other[role])

    def result(self, state: State, slots: Slots) -> NDArray[Any]:
        values: NDArray[Any] = state[self.name][slots]
        return values / np.maximum(state[SEEN][slots], 1) if self.name == "mean" else values


@dataclass(frozen=True)
class _Extreme:
    """State that is the smallest or largest value. A float starts from NaN, which loses against every number.

    Text and bytes are ordered by their bytes: text so by code points.
    """

    name: str

    def result_type(self, given: pa.DataType) -> pa.DataType | None:
        return given if _is_number(given) or is_time(given) or is_textual(given) else None

    def columns(self, result: pa.DataType, nullable: bool) -> dict[str, tuple[StateType, int | float]]:
        if is_textual(result):
            return {self.name: (result, 0)}
        dtype, default = _state_dtype(result), float("nan")
        if dtype.kind != "f":
            limits = np.iinfo(dtype.name)
            default = int(limits.max if self.name == "min" else limits.min)
        own: dict[str, tuple[StateType, int | float]] = {self.name: (dtype, default)}
        return own | _seen(nullable)

    def check(self, state: State, given: Values, known: Known) -> bool:
        if not isinstance(own := state[self.name], np.ndarray):
            own.check(given.slots, given.texts())
        return True

    def operations(self, columns: Mapping[str, Any]) -> Mapping[str, Do] | None:
        if isinstance(columns[self.name], pa.DataType):
            return None
        dtype, least = columns[self.name], self.name == "min"
        if dtype.kind == "f":
            wide = dtype.itemsize == 8
            operation = (
                (Do.MIN_FLOAT if wide else Do.MIN_FLOAT32) if least else (Do.MAX_FLOAT if wide else Do.MAX_FLOAT32)
            )
        elif dtype == np.uint64:
            operation = Do.MIN_UINT if least else Do.MAX_UINT
        else:
            operation = Do.MIN_INT if least else Do.MAX_INT
        return _seen_too(columns, {self.name: operation})

    def fold(self, state: State, given: Values) -> None:
        self._fold_text(state[self.name], given.slots, given.texts())

    def merge(self, state: State, slots: Slots, other: State) -> None:
        own = state[self.name]
        if not isinstance(own, np.ndarray):
            self._fold_text(own, slots, other[self.name])
            return
        self._best(own.dtype).at(own, slots, other[self.name])
        if SEEN in state:
            np.add.at(state[SEEN], slots, other[SEEN])

    def result(self, state: State, slots: Slots) -> Any:
        own = state[self.name]
        return own[slots] if isinstance(own, np.ndarray) else own.take(pa.array(slots))

    def _fold_text(self, own: StoredText, slots: Slots, values: pa.Array) -> None:
        """Fold values into slots; only slots whose value changes are written, as what they held stays in the arena."""
        # Threads would only add to it: a batch takes less time than starting them, and other workers have the cores.
        table = pa.table({"slot": slots, "value": values})
        grouped = table.group_by("slot", use_threads=False).aggregate([("value", self.name)])
        found = grouped.column("slot").combine_chunks()
        new, held = grouped.column(f"value_{self.name}").combine_chunks(), own.take(found)
        best = (pc.min_element_wise if self.name == "min" else pc.max_element_wise)(held, new.cast(held.type))
        changed = pc.fill_null(pc.not_equal(best, held), True)
        own.write(found.filter(changed).to_numpy(), best.filter(changed))

    def _best(self, dtype: np.dtype[Any]) -> np.ufunc:
        if self.name == "min":
            return np.fmin if dtype.kind == "f" else np.minimum
        return np.fmax if dtype.kind == "f" else np.maximum


FUNCTIONS: Mapping[str, AggregateFunction] = {
    function.name: function
    for function in (_Adding("count"), _Adding("sum"), _Extreme("min"), _Extreme("max"), _Adding("mean"))
}
"""By name, which is the name in `.agg(...)` and a part of the identity of state."""


def is_time(kind: pa.DataType) -> bool:
    """Return whether values of a type are points in time or lengths of time."""
    return bool(
        pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind) or pa.types.is_duration(kind)
    )


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or (pa.types.is_floating(kind) and kind.bit_width >= 32))


def _state_dtype(result: pa.DataType) -> np.dtype[Any]:
    """Return the type in which a result is kept; times and dates as the integers behind them."""
    if is_time(result):
        return np.dtype(np.int32 if result.bit_width == 32 else np.int64)
    dtype: np.dtype[Any] = np.dtype(result.to_pandas_dtype())
    return dtype


def _seen(kept: bool) -> dict[str, tuple[StateType, int | float]]:
    return {SEEN: (np.dtype(np.int64), 0)} if kept else {}


def _seen_too(columns: Mapping[str, Any], operations: dict[str, Do]) -> Mapping[str, Do]:
    return operations | ({SEEN: Do.COUNT} if SEEN in columns else {})


def _fit(state: State, given: Values, known: Known) -> bool:
    """Return whether the new sums fit int64."""
    values = given.values(np.dtype(np.int64))
    if values.size == 0:
        return True
    growth = values.size * _largest(values)
    if known.bound is not None and known.bound + growth <= INT64_MAX:
        known.bound += growth
        return True
    known.bound = None
    slots = given.slots
    sums = state["sum"]
    before = sums[slots]
    if _largest(before) + growth > INT64_MAX:
        return _all_fit(slots, before, values)
    if sums.size <= STOCK_ROWS_MAX * slots.size:  # else checking each batch's own sums is cheaper
        known.bound = _largest(sums) + growth
    return True


def _largest(values: NDArray[np.int64]) -> int:
    """Return the largest absolute value, exactly."""
    return max(-int(values.min()), int(values.max()))


def _all_fit(slots: Slots, sums: NDArray[np.int64], values: NDArray[np.int64]) -> bool:
    """Return whether every slot's new sum fits int64, exactly: the halves, summed separately, cannot overflow."""
    _, first, group = np.unique(slots, return_index=True, return_inverse=True)
    high, low = np.zeros(first.size, np.int64), np.zeros(first.size, np.int64)
    np.add.at(high, group, values >> 32)
    np.add.at(low, group, values & 0xFFFF_FFFF)
    before = sums[first]
    about = before.astype(np.float64) + high.astype(np.float64) * 2.0**32 + low.astype(np.float64)
    return all(
        INT64_MIN <= int(before[at]) + (int(high[at]) << 32) + int(low[at]) <= INT64_MAX
        for at in np.flatnonzero(np.abs(about) >= _CERTAINLY_FITS)
    )
