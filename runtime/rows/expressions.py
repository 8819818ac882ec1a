"""Column expressions: which ones are accepted, and the columns they produce.

Users do not see the batches of a stream: batch boundaries depend on timing and differ after a failure. So an expression
is accepted only if every row of its result depends on that row alone. No other expression gives the same result before
and after a recovery.

Three checks, each of which closes gaps of the others:
    - Polars reports for every node whether it can be run in pieces. Asking the root alone would accept `a / a.sum()`.
    - No node may depend on chance, on the process or on the Polars version: `shuffle` inside lists, `hash`,
      Categorical, whose codes follow the order in which values were first seen.
    - The expression is computed on a small synthetic table, whole and in pieces, and the results are compared.
Expressions that cannot be checked (functions in Python, `list.eval`, computed selectors) are refused: they may be
harmless, but a wrong result after a failure is worse than a clear refusal before the start.

Invariants
    - An accepted expression gives one value per row, or one constant.
    - The Arrow type of a column is the same at plan time and at run time; it never follows from the data.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from difflib import get_close_matches
from typing import Any

import polars as pl
import pyarrow as pa
from polars import selectors

from holdfast.errors import ConfigError
from holdfast.runtime.rows.frames import never_single

SYNTHETIC_ROWS = 12
_NODES_MAX = 10_000

_QUOTED = re.compile(r'"[^"]*"')
_UNSTABLE = re.compile(r"\.(hash|list\.sample(?:_n|_fraction)?|list\.shuffle|shuffle|sample(?:_n)?|random)\(")


@dataclass(frozen=True, eq=False)
class ProjectedColumn:
    """One column of a projection: its name, the expression, and the resulting field."""

    name: str
    expr: pl.Expr
    field: pa.Field
    passes: str | None
    """The input column that passes through unchanged, or None if the column is computed."""


@dataclass(frozen=True)
class Use:
    """Where the user's code uses an expression; every message about the expression begins with it."""

    method: str
    position: str
    stream: str

    def __str__(self) -> str:
        return f"{self.method} on stream {self.stream!r} at {self.position}"


def polars_schema(schema: pa.Schema) -> pl.Schema:
    """Return the Polars types of an Arrow schema's columns."""
    frame = pl.from_arrow(schema.empty_table())
    assert isinstance(frame, pl.DataFrame)
    return frame.schema


def arrow_type(dtype: pl.DataType) -> pa.DataType:
    """Return the Arrow type of a Polars column in batches: strings, binaries and lists in their 32-bit forms.

    A time of day has microseconds, as in a dataclass.
    """
    if dtype == pl.Time:
        return pa.time64("us")
    series = pl.Series([], dtype=dtype)
    return narrowed(series.to_arrow(compat_level=pl.CompatLevel.oldest()).type)


def narrowed(kind: pa.DataType) -> pa.DataType:
    """Return the type with 64-bit offsets replaced by 32-bit ones, at every depth."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(narrowed(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(narrowed(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(narrowed(kind.key_type), kind.item_field.with_type(narrowed(kind.item_type)))
    return kind


def columns_of(
    positional: Sequence[Any], named: Mapping[str, Any], schema: pa.Schema, use: Use | str
) -> tuple[ProjectedColumn, ...]:
    """Return the columns of `.select(*positional, **named)`, in order, each of them checked.

    A string names a column; other plain values are constants.

    Raises:
        ConfigError: unknown column, not row-wise, a name twice, a name that is not allowed.
    """
    exprs = [part for item in positional for part in _expanded(item, schema, use)]
    exprs += [_expr(item, use).alias(name) for name, item in named.items()]
    if not exprs:
        raise _refused(use, "no column is given", "name at least one column")
    columns = tuple(_column(expr, schema, use) for expr in exprs)
    names = [column.name for column in columns]
    for name in names:
        check_column_name(name, str(use))
        if names.count(name) > 1:
            raise _refused(use, f"the column {name!r} is given twice", "rename one of them with .alias(...)")
    return columns


def predicate_of(expr: Any, schema: pa.Schema, use: Use | str) -> pl.Expr:
    """Return the expression of a filter, checked. A null counts as "does not pass", as in SQL.

    Raises:
        ConfigError: unknown column, not row-wise, or not a truth value.
    """
    if callable(expr) and not isinstance(expr, pl.Expr):
        raise _refused(use, "the condition is a Python function", "write the condition as a Polars expression")
    if not isinstance(expr, pl.Expr):
        raise _refused(use, f"the condition is {expr!r}", 'write it as a Polars expression: pl.col("price") > 0')
    column = _column(expr.alias("condition"), schema, use)
    if not pa.types.is_boolean(column.field.type):
        raise _refused(use, f"`{_text(expr)}` is of type {column.field.type}, not bool", "write it as a comparison")
    return expr


def check_column_name(name: str, where: str) -> None:
    """Refuse names that Holdfast reserves, and names that do not mean a single column everywhere.

    Raises:
        ConfigError: the name is empty, begins with an underscore, is a pattern for Polars, or holds a NUL character.
    """
    why = None
    if not name or name.startswith("_"):
        why = "names that begin with an underscore are reserved"
    elif name == "*" or (name.startswith("^") and name.endswith("$")):
        why = "Polars reads it as a pattern for several columns"
    elif "\0" in name:
        why = "it contains a NUL character, at which targets truncate names"
    if why is not None:
        raise ConfigError(
            f"{where}: the column name {name!r} is not allowed; {why}",
            not_done="the job was not planned",
            next_step="rename the column",
        )


def unknown_column(name: str, names: Sequence[str], where: str) -> ConfigError:
    """Return the error for a column that does not exist, with the closest one that does."""
    close = get_close_matches(name, names, 1)
    return ConfigError(
        f"{where}: there is no column {name!r}; the columns are {', '.join(names)}",
        not_done="the job was not planned",
        next_step=f"did you mean {close[0]!r}?" if close else "use one of these columns",
    )


def _expanded(item: Any, schema: pa.Schema, use: Use | str) -> Iterator[pl.Expr]:
    """Split lists and selections such as pl.col("a", "b") or pl.all() into one expression per column."""
    if isinstance(item, list | tuple):
        for part in item:
            yield from _expanded(part, schema, use)
    elif isinstance(item, pl.Expr) and item.meta.has_multiple_outputs():
        if not item.meta.is_column_selection():
            raise _refused(use, f"`{_text(item)}` computes several columns at once", "write one expression per column")
        for name in _selected(item, schema, use):
            yield pl.col(name)
    elif isinstance(item, str | pl.Expr):
        yield _expr(item, use)
    else:
        raise _refused(use, f"{item!r} has no name", "give the constant a name: select(name=value)")


def _selected(selection: pl.Expr, schema: pa.Schema, use: Use | str) -> tuple[str, ...]:
    try:
        names = selectors.expand_selector(polars_schema(schema), selection.meta.as_selector())
    except pl.exceptions.PolarsError as error:
        raise _refused(use, f"`{_text(selection)}` cannot be resolved: {_first_line(error)}", _COLUMNS_NEXT) from error
    return names


_COLUMNS_NEXT = "name the columns one by one"


def _expr(item: Any, use: Use | str) -> pl.Expr:
    if isinstance(item, pl.Expr):
        if item.meta.has_multiple_outputs():
            raise _refused(use, f"`{_text(item)}` returns several columns where one is named", _COLUMNS_NEXT)
        return item
    if isinstance(item, str):
        return pl.col(item)
    if callable(item) or isinstance(item, pl.Series | pl.DataFrame | pl.LazyFrame):
        raise _refused(use, f"{type(item).__name__} is not an expression", "write it as a Polars expression")
    return pl.lit(item)


def _column(expr: pl.Expr, schema: pa.Schema, use: Use | str) -> ProjectedColumn:
    """Check one expression with one output and find its field."""
    if expr.meta.has_multiple_outputs():
        raise _refused(use, f"`{_text(expr)}` returns several columns where one is expected", _COLUMNS_NEXT)
    types = polars_schema(schema)
    for name in expr.meta.root_names():
        if name not in types:
            raise unknown_column(name, schema.names, str(use))
    inner = expr.meta.undo_aliases()
    name = expr.meta.output_name()
    if inner.meta.is_column():
        source = inner.meta.output_name()
        return ProjectedColumn(name, expr, schema.field(source).with_name(name), source)
    check_row_wise(expr, types, use)
    dtype = _computed_type(expr, types, use)
    if dtype == pl.Null:
        raise _refused(use, f"`{_text(expr)}` is a null without a type", "give it one: pl.lit(None, dtype=pl.Int64)")
    return ProjectedColumn(name, expr, pa.field(name, arrow_type(dtype), nullable=not _never_null(inner)), None)


def _never_null(expr: pl.Expr) -> bool:
    """Conservative: true only for constants and for tests whether a value is null."""
    if expr.meta.is_literal():
        return str(expr) != "null"
    return bool(re.search(r"\.is_(not_)?null\(\)$", str(expr)))


def check_row_wise(expr: pl.Expr, types: pl.Schema, use: Use | str) -> None:
    """Refuse an expression whose result could depend on batch boundaries or on the process.

    Raises:
        ConfigError: with the part of the expression that is at fault.
    """
    if "python_udf()" in str(expr):
        raise _refused(use, f"`{_text(expr)}` calls a Python function, which cannot be checked", _WRITE_NATIVE)
    for node in _nodes(expr, types, use):
        _check_node(node, types, use)
    if not _same_in_pieces(expr, types):
        raise _refused(use, f"`{_text(expr)}` gave different values for the same rows in smaller batches", _PER_ROW)


_WRITE_NATIVE = "write it with Polars' own functions"
_PER_ROW = "use only functions of the same row; to combine rows, use key_by(...).agg(...)"


def _nodes(expr: pl.Expr, types: pl.Schema, use: Use | str) -> Iterator[pl.Expr]:
    waiting = [expr]
    for _ in range(_NODES_MAX):
        if not waiting:
            return
        node = waiting.pop()
        yield node
        try:
            waiting.extend(node.meta.pop(schema=types))
        except pl.exceptions.PolarsError as error:
            raise _unchecked(node, error, use) from error
    raise _refused(use, f"the expression has more than {_NODES_MAX} parts", "split it over several with_columns")


def _check_node(node: pl.Expr, types: pl.Schema, use: Use | str) -> None:
    if node.meta.has_multiple_outputs():
        raise _refused(use, f"`{_text(node)}` computes several columns at once", "write one expression per column")
    try:
        separable = node.meta.is_row_separable()
        keeps_length = node.meta.is_length_preserving() or node.meta.is_scalar()
        children = node.meta.pop(schema=types)
    except pl.exceptions.PolarsError as error:
        raise _unchecked(node, error, use) from error
    if not separable:
        raise _refused(
            use, f"`{_text(node)}` looks at more than one row, so its result would depend on batch boundaries", _PER_ROW
        )
    if not keeps_length:
        raise _refused(use, f"`{_text(node)}` returns more or fewer rows than it takes", "use .filter to drop rows")
    own_text = str(node)
    for child in children:
        own_text = own_text.replace(str(child), "")
    unstable = _UNSTABLE.search(_QUOTED.sub("", own_text))
    if unstable:
        raise _refused(
            use,
            f"`{_text(node)}` may give a different value when a record is read again after a failure, "
            "or with another Polars version",
            f"do not use {unstable[1]}",
        )
    for dtype in _types(node, types, use):
        if _holds_categorical(dtype):
            raise _refused(
                use,
                f"`{_text(node)}` is Categorical, whose order and codes depend on which values came first",
                "use pl.String or pl.Enum",
            )


def _computed_type(expr: pl.Expr, types: pl.Schema, use: Use | str) -> pl.DataType:
    """Compute the expression on an empty table, which finds type errors that resolving the schema misses."""
    try:
        return _computed(expr, pl.DataFrame(schema=types)).schema["_result"]
    except pl.exceptions.PolarsError as error:
        raise _misfit(expr, types, error, use) from error


def _types(expr: pl.Expr, types: pl.Schema, use: Use | str) -> list[pl.DataType]:
    try:
        return list(pl.LazyFrame(schema=types).select(expr).collect_schema().values())
    except pl.exceptions.PolarsError as error:
        raise _misfit(expr, types, error, use) from error


def _holds_categorical(dtype: pl.DataType) -> bool:
    if isinstance(dtype, pl.List | pl.Array):
        return _holds_categorical(dtype.inner)  # type: ignore[arg-type]
    if isinstance(dtype, pl.Struct):
        return any(_holds_categorical(field.dtype) for field in dtype.fields)  # type: ignore[arg-type]
    return isinstance(dtype, pl.Categorical)


def _same_in_pieces(expr: pl.Expr, types: pl.Schema) -> bool:
    """Compute a synthetic table whole, in swapped halves, and row by row, and compare the results.

    An expression that fails on the synthetic values (for example because it parses dates) passes: its nodes have
    already passed their checks.
    """
    frame = pl.DataFrame({name: _values(dtype) for name, dtype in types.items()}, schema=types)
    half = SYNTHETIC_ROWS // 2
    try:
        whole = _computed(expr, frame)
        swapped_halves = pl.concat([_computed(expr, frame[half:]), _computed(expr, frame[:half])])
        single = pl.concat([_computed(expr, frame[row]) for row in range(SYNTHETIC_ROWS)])
    except pl.exceptions.PolarsError:
        return True
    return whole.equals(pl.concat([swapped_halves[half:], swapped_halves[:half]])) and whole.equals(single)


def _computed(expr: pl.Expr, frame: pl.DataFrame) -> pl.DataFrame:
    return never_single(frame).with_columns(expr.alias("_result")).select("_result").head(frame.height)


def _values(dtype: pl.DataType) -> list[Any]:
    """Values out of order, with repeats and one null, so that an expression that reads neighbours is found out."""
    return [None if row == 4 else _value(dtype, (row * 7 + row // 5) % 9) for row in range(SYNTHETIC_ROWS)]


def _value(dtype: pl.DataType, seed: int) -> Any:
    if dtype.is_integer():
        return seed
    if dtype.is_numeric():
        return seed + 0.25 if dtype.is_float() else seed
    if isinstance(dtype, pl.Boolean):
        return seed % 2 == 0
    if isinstance(dtype, pl.String):
        return "abcdefghi"[seed] * (seed % 3 + 1)
    if isinstance(dtype, pl.Binary):
        return bytes([seed, 9 - seed])
    if isinstance(dtype, pl.Date):
        return date(2024, 1, 1) + timedelta(days=seed)
    if isinstance(dtype, pl.Datetime):
        return datetime(2024, 1, 1, seed, tzinfo=UTC if dtype.time_zone else None)
    if isinstance(dtype, pl.Duration):
        return timedelta(seconds=seed)
    if isinstance(dtype, pl.List):
        return [_value(dtype.inner, (seed + step) % 9) for step in range(seed % 4)]  # type: ignore[arg-type]
    if isinstance(dtype, pl.Struct):
        return {field.name: _value(field.dtype, seed) for field in dtype.fields}  # type: ignore[arg-type]
    return None


def _unchecked(node: pl.Expr, error: Exception, use: Use | str) -> ConfigError:
    return _refused(
        use,
        f"Polars cannot determine whether `{_text(node)}` uses one row only ({_first_line(error)})",
        "write it with other functions, or compute the column before it reaches the source",
    )


def _misfit(expr: pl.Expr, types: pl.Schema, error: Exception, use: Use | str) -> ConfigError:
    columns = ", ".join(f"{name}: {dtype}" for name, dtype in types.items())
    return _refused(
        use,
        f"`{_text(expr)}` does not fit the columns: {_first_line(error)}",
        f"correct the expression; the columns are {columns}",
    )


def _refused(use: Use | str, what: str, next_step: str) -> ConfigError:
    return ConfigError(f"{use}: {what}", not_done="the job was not planned", next_step=next_step)


def _text(expr: pl.Expr) -> str:
    text = str(expr)
    return text if len(text) <= 200 else text[:197] + "..."


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
