"""Rows of state as a table, as JSON, or in a file.

Rows are written as they are read, so memory does not depend on their number. A file appears under its name only when it
is complete, and never replaces another one.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from holdfast.errors import ConfigError, Unavailable
from holdfast.runtime.cli import text
from holdfast.runtime.cli.log.output import cell, finite
from holdfast.runtime.cli.reporting import advise, print_json
from holdfast.runtime.inspect.reading import StateCheckpoint

ROWS_SHOWN = 100
"""Rows of a table without --limit."""
PAGE_ROWS = 1_000
"""Rows after which a long table gets its header and widths again."""
NOT_WRITTEN = "no file was written"


@dataclass(frozen=True)
class StateAnswer:
    """Origin of rows: operator and checkpoint, and the other side of a comparison, or the oldest of a history."""

    at: StateCheckpoint
    operator: str
    schema: pa.Schema
    before: StateCheckpoint | None = None
    since: StateCheckpoint | None = None


class BatchWriter(Protocol):
    """Writes batches to a file."""

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Append rows."""

    def close(self) -> None:
        """Complete the file."""


def described(at: StateCheckpoint) -> dict[str, Any]:
    """Return the checkpoint as JSON-able values."""
    names = ", ".join(at.names) or None
    return {
        "job": at.job,
        "epoch": at.epoch,
        "timeline": at.timeline,
        "abandoned": at.abandoned,
        "name": names,
        "at": at.at,
    }


def headline(at: StateCheckpoint, operator: str | None) -> str:
    """Return the line that names the displayed state."""
    of = at.job if operator is None else f"{operator} of {at.job}"
    return f"{of} at {_checkpoint(at)}"


def give(answer: StateAnswer, batches: Iterator[pa.RecordBatch], args: argparse.Namespace) -> None:
    """Print or write rows, up to --limit.

    Raises:
        ConfigError: --limit or --out cannot be used.
        Unavailable: the file cannot be written.
    """
    limit = args.limit if args.limit is not None or args.json or args.out else ROWS_SHOWN
    rows = _Limited(batches, limit)
    if args.out is not None:
        _to_file(answer, rows, args)
    elif args.json:
        _to_json(answer, rows)
    else:
        _to_table(answer, rows)


def check_output(args: argparse.Namespace) -> None:
    """Check --limit and --out before anything is read. Raises ConfigError."""
    if args.limit is not None and args.limit < 1:
        raise ConfigError(f"--limit is {args.limit}", not_done="no state was read", next_step="give at least 1")
    if args.out is not None:
        _kind_of(Path(args.out))


class _Limited:
    """At most `limit` rows; `more` is True afterwards if others follow."""

    def __init__(self, batches: Iterator[pa.RecordBatch], limit: int | None) -> None:
        self._batches, self._left = batches, limit
        self.more, self.count = False, 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            if self._left is not None:
                self.more = batch.num_rows > self._left
                batch = batch.slice(0, self._left)
                self._left -= batch.num_rows
            self.count += batch.num_rows
            if batch.num_rows:
                yield batch
            if self.more:
                return


def _to_table(answer: StateAnswer, rows: _Limited) -> None:
    title = headline(answer.at, answer.operator)
    if answer.before is not None:
        title += f", compared with {_checkpoint(answer.before)}"
    if answer.since is not None:
        title += f", and before it since {_checkpoint(answer.since)}"
    print(title)
    headers = _headers(answer.schema)
    for batch in rows:
        for first in range(0, batch.num_rows, PAGE_ROWS):
            page = batch.slice(first, PAGE_ROWS)
            print(text.table(headers, _cells(page)))
    if not rows.count:
        advise("no key differs" if answer.before is not None else "there is no such state")
    elif rows.more:
        advise(f"first {text.plural(rows.count, 'row')}; for more: --limit N, or --out FILE.parquet")


def _headers(schema: pa.Schema) -> list[str]:
    """Return the columns; the fields of `before` and `after` of a comparison are beside each other."""
    headers: list[str] = []
    for field in schema:
        if not pa.types.is_struct(field.type):
            headers.append(field.name)
        elif field.name == "key":
            headers += [inner.name for inner in field.type]
        elif field.name == "before":
            headers += [f"{inner.name} {side}" for inner in field.type for side in ("before", "after")]
    return headers


def _cells(batch: pa.RecordBatch) -> Iterator[list[str]]:
    for row in _rows(batch):
        if isinstance(row.get("key"), dict):
            sides = [
                row["before"] or dict.fromkeys(row["after"] or ()),
                row["after"] or dict.fromkeys(row["before"] or ()),
            ]
            values = [side[name] for name in sides[0] for side in sides]
            yield [row["change"], *map(cell, row["key"].values()), *("" if v is None else cell(v) for v in values)]
        else:
            yield [cell(value) for value in row.values()]


def _to_json(answer: StateAnswer, rows: _Limited) -> None:
    """Print one JSON document, a row per line."""
    document = described(answer.at) | {"operator": answer.operator}
    if answer.before is not None:
        document["before"] = described(answer.before)
    if answer.since is not None:
        document["since"] = described(answer.since)
    sys.stdout.write(msgspec.json.encode(document).decode().removesuffix("}") + ',"rows":[')
    between = "\n"
    for batch in rows:
        for row in _rows(batch):
            sys.stdout.write(between + msgspec.json.encode(finite(row)).decode())
            between = ",\n"
    sys.stdout.write(f'\n],"more":{"true" if rows.more else "false"}}}\n')


def _to_file(answer: StateAnswer, rows: _Limited, args: argparse.Namespace) -> None:
    path = Path(args.out)
    with _new_file(path) as writing:
        writer = _writer(_kind_of(path), writing, answer.schema)
        for batch in rows:
            writer.write_batch(batch)
        writer.close()
    if args.json:
        known = described(answer.at) | {"operator": answer.operator}
        print_json(known | {"out": str(path), "rows_written": rows.count, "more": rows.more})
    else:
        print(f"{headline(answer.at, answer.operator)}: {text.plural(rows.count, 'row')} in {path}")


def _kind_of(path: Path) -> str:
    if path.suffix not in (".arrow", ".parquet"):
        raise ConfigError(
            f"--out {path} names neither an Arrow nor a Parquet file",
            not_done=NOT_WRITTEN,
            next_step="give a name that ends in .arrow or .parquet",
        )
    if path.exists():
        raise ConfigError(f"{path} exists", not_done=NOT_WRITTEN, next_step="delete it, or give another name")
    if not path.parent.is_dir():
        raise ConfigError(f"there is no folder {path.parent}", not_done=NOT_WRITTEN, next_step="create it first")
    return path.suffix


def _writer(kind: str, path: Path, schema: pa.Schema) -> BatchWriter:
    if kind == ".arrow":
        writer: BatchWriter = pa.ipc.new_file(str(path), schema)
        return writer
    import pyarrow.parquet as pq  # slow to load

    written: BatchWriter = pq.ParquetWriter(str(path), schema)
    return written


@contextmanager
def _new_file(path: Path) -> Iterator[Path]:
    """Give a temporary file in the same folder, which gets its name at the end if nothing has taken it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        os.link(temporary, path)
    except FileExistsError:
        raise ConfigError(
            f"{path} was created meanwhile", not_done=NOT_WRITTEN, next_step="delete it, or give another name"
        ) from None
    except OSError as error:
        raise Unavailable(
            f"writing {path} failed: {error.strerror or error}",
            not_done=NOT_WRITTEN,
            next_step="check that the folder can be written and its disk has space",
        ) from error
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def _checkpoint(at: StateCheckpoint) -> str:
    named = f", savepoint {', '.join(at.names)}" if at.names else ""
    left = ", which a rewind abandoned" if at.abandoned else ""
    return f"epoch {at.epoch} ({text.moment(at.at)}{named}; timeline {at.timeline}{left})"


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows as values of Python."""
    return [dict(zip(batch.schema.names, row, strict=True)) for row in zip(*map(_values, batch.columns), strict=True)]


def _values(array: pa.Array) -> list[Any]:
    """Return values of Python; of times that it cannot hold, the column as text."""
    kind = array.type
    if pa.types.is_struct(kind):
        inner = [_values(part) for part in array.flatten()]
        names, valid = [field.name for field in kind], array.is_valid().to_pylist()
        rows = zip(*inner, strict=True) if inner else iter([()] * len(array))
        return [dict(zip(names, row, strict=True)) if here else None for row, here in zip(rows, valid, strict=True)]
    if getattr(kind, "unit", None) != "ns":
        with suppress(OverflowError, ValueError):
            values: list[Any] = array.to_pylist()
            return values
    return list(array.cast(pa.string()).to_pylist())
