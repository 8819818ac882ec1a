"""`holdfast log create|append|read|tail|seal|compact`: the embedded log from a shell.

Results go to stdout (with --json as JSON), advice to stderr. A HoldfastError propagates to the command line, which
prints it and exits with its status: 2 wrong use, 4 damaged data, 5 unavailable.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec
import pyarrow as pa

from holdfast.errors import ConfigError, Unavailable
from holdfast.quantities import plural
from holdfast.runtime.cli.log import compact as log_compact
from holdfast.runtime.cli.log.columns import parse_columns
from holdfast.runtime.cli.log.input import as_given, columns_given, json_line_batches, read_file
from holdfast.runtime.cli.log.output import LogRow, as_json_line, columns_shown, placed_rows, plain_line, table_lines
from holdfast.sinks.log.changelog import refuse_changelog_of_a_job
from holdfast.storage.log.format import LogMeta, describe_column
from holdfast.storage.log.log import LogReader, LogWriter, create_log, read_meta
from holdfast.storage.log.partitioning import dealt_out, partition_rows
from holdfast.storage.log.table import read_table, table_schema
from holdfast.storage.objects import open_objects

READ_BYTES_MAX = 4 * 1024 * 1024
POLL_S = 0.2
Subparsers = Any
"""argparse has no public name for its own type."""


def add_parser(subparsers: Subparsers) -> None:
    """Add `log` and its commands to the command line."""
    log = subparsers.add_parser(
        "log",
        help="create, fill and read an embedded log",
        description="Create, fill and read an embedded log.",
        epilog="examples:\n  holdfast log tail data/bids\n  holdfast log seal data/bids",
    )
    commands = log.add_subparsers(dest="log_command", required=True, metavar="COMMAND")
    _add_writing(commands)
    _add_reading(commands)
    _add_changing(commands)


def _add_writing(commands: Subparsers) -> None:
    make = _command(
        commands,
        "create",
        create,
        "create an empty log",
        'holdfast log create data/bids --schema "auction:int64,price:double?,at:timestamp" --key auction',
    )
    make.add_argument("--schema", required=True, help='columns as "name:type,..."; ? after a type allows null')
    make.add_argument("--partitions", type=int, default=4, metavar="N", help="default 4; fixed if the log has a key")
    make.add_argument("--key", metavar="A,B", help="rows equal in these columns share a partition; default: none")
    make.add_argument(
        "--changelog",
        action="store_true",
        help="records put and delete rows by key, marked by the column holdfast_deleted; other columns may be null",
    )

    add = _command(
        commands,
        "append",
        append,
        "append rows, all or nothing (from stdin: in batches)",
        "holdfast log append data/bids --file bids.csv",
    )
    add.add_argument("--file", type=Path, help=".csv, .jsonl or .parquet; default: JSON lines from stdin")
    where = add.add_mutually_exclusive_group()
    where.add_argument(
        "--key", metavar="A,B", help="choose partitions by these columns; default: the log's key, or each in turn"
    )
    where.add_argument("--partition", type=int, metavar="N", help="append everything to this partition")
    add.add_argument("--every", type=int, default=10_000, metavar="N", help="rows per batch from stdin; default 10000")


def _add_reading(commands: Subparsers) -> None:
    show = _command(
        commands, "read", read, "show rows", "holdfast log read data/bids --partition 0 --offset 100 --limit 5"
    )
    show.add_argument("--partition", type=int, metavar="N", help="default: all")
    show.add_argument("--offset", type=int, metavar="N", help="first offset; default: the oldest")
    show.add_argument("--limit", type=int, default=20, metavar="N", help="show at most N rows; default 20")
    show.add_argument(
        "--as-table", action="store_true", help="show the newest row of every key, without those that were deleted"
    )

    follow = _command(
        commands,
        "tail",
        tail,
        "show the last rows, then new ones until the log is sealed or Ctrl-C",
        "holdfast log tail data/bids --json",
    )
    follow.add_argument("--partition", type=int, metavar="N", help="default: all")
    follow.add_argument("--lines", type=int, default=10, metavar="N", help="existing rows per partition; default 10")


def _add_changing(commands: Subparsers) -> None:
    _command(
        commands,
        "seal",
        seal,
        "end a log permanently: jobs that read it finish, appends are refused",
        "holdfast log seal data/bids",
    )
    more = _command(
        commands,
        "add-columns",
        add_columns,
        "add columns, which are null in existing rows",
        'holdfast log add-columns data/bids --schema "channel:string?"',
    )
    more.add_argument("--schema", required=True, help='the new columns as "name:type?,..."; each must allow null')
    wider = _command(
        commands,
        "add-partitions",
        add_partitions,
        "add partitions to a log without a key; running jobs read them without a restart",
        "holdfast log add-partitions data/clicks --to 8",
    )
    wider.add_argument("--to", type=int, required=True, metavar="N", help="how many partitions the log has then")
    log_compact.add_arguments(
        _command(
            commands,
            "compact",
            log_compact.compact,
            "keep the newest row of every key, drop earlier ones",
            "holdfast log compact data/customers --older-than 2h",
        )
    )


def _command(
    commands: Subparsers, name: str, handler: Callable[[argparse.Namespace], int], about: str, example: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=about,
        description=about[0].upper() + about[1:] + ".",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("path", metavar="PATH", type=_path, help="folder or URL of the log")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(handler=handler)
    return parser


def create(args: argparse.Namespace) -> int:
    """Create a log. Exit status: 0 created, 2 a log exists already or the schema is wrong."""
    schema, key = parse_columns(args.schema), _names(args.key)
    meta = create_log(open_objects(args.path), schema, args.partitions, key, changelog=args.changelog)
    columns = [{"name": c.name, "type": str(c.type), "nullable": c.nullable} for c in meta.schema]
    described = {"partitions": meta.partitions, "key": meta.key, "changelog": meta.changelog, "columns": columns}
    _result(
        args,
        {"path": args.path, "uuid": meta.uuid, **described},
        f"created {args.path}{', a changelog' if meta.changelog else ''}: {plural(meta.partitions, 'partition')}, "
        f"{'key ' + ', '.join(meta.key) if meta.key else 'no key'}, columns {_columns(meta)}",
    )
    return 0


def add_columns(args: argparse.Namespace) -> int:
    """Add columns to a log. Exit status: 0 the log has them, 2 they cannot be added, 5 the store is unreachable."""
    _meta(args.path)
    schema = LogWriter(open_objects(args.path)).grow(parse_columns(args.schema))
    columns = [{"name": c.name, "type": str(c.type), "nullable": c.nullable} for c in schema]
    _result(
        args,
        {"path": args.path, "columns": columns},
        f"{args.path} has the columns {', '.join(map(describe_column, schema))}",
    )
    return 0


def add_partitions(args: argparse.Namespace) -> int:
    """Add partitions to a log. Exit status: 0 the log has them, 2 they cannot be added, 5 the store is unreachable."""
    _meta(args.path)
    before = LogWriter(open_objects(args.path)).widen(args.to)
    _result(
        args,
        {"path": args.path, "partitions": args.to, "added": list(range(before, args.to))},
        f"{args.path} has {plural(args.to, 'partition')}, {args.to - before:,} of them new",
    )
    return 0


def append(args: argparse.Namespace, stdin: IO[bytes] | None = None) -> int:
    """Append rows. Exit status: 0 appended, 2 rows or log do not fit, 5 the store is unreachable."""
    meta = _meta(args.path)
    partition_of = _partitioner(args, meta)
    writer = LogWriter(open_objects(args.path))
    refuse_changelog_of_a_job(open_objects(args.path), "no row was appended")
    firsts: dict[int, int] = {}
    counts: dict[int, int] = {}

    def add(rows: pa.Table) -> None:
        parts = partition_of(rows)
        for partition, offset in _appended(writer, parts).items():
            firsts.setdefault(partition, offset)
            counts[partition] = counts.get(partition, 0) + parts[partition].num_rows

    def so_far() -> str:
        done = sum(counts.values())
        return (
            f"only the first {plural(done, 'row')} were appended, nothing after them" if done else "no row was appended"
        )

    columns = columns_given(meta)
    if args.file is not None:
        add(as_given(read_file(args.file, columns), meta))
    else:
        if args.every < 1:
            raise _wrong(f"--every is {args.every}", "no row was appended", "give a number above 0")
        lines = stdin or sys.stdin.buffer
        for batch in json_line_batches(lines, columns, args.every, "stdin", so_far):
            add(as_given(pa.Table.from_batches([batch]), meta))
    places = [{"partition": p, "first_offset": firsts[p], "rows": counts[p]} for p in sorted(firsts)]
    shown = "".join(f"\n  partition {p}: {plural(counts[p], 'row')} from offset {firsts[p]}" for p in sorted(firsts))
    total = sum(counts.values())
    _result(args, {"path": args.path, "rows": total, "partitions": places}, f"appended {plural(total, 'row')}{shown}")
    return 0


def read(args: argparse.Namespace) -> int:
    """Show rows. Exit status: 0 shown, 2 no such log, partition or offset, 4 damaged data found."""
    if args.limit < 1:
        raise _wrong(f"--limit is {args.limit}", "nothing was read", "give at least 1")
    if args.as_table:
        return _read_table(args)
    reader = _reader(args.path)
    changelog = reader.meta.changelog
    names = columns_shown(reader.meta)
    ends = reader.end_offsets()
    partitions = _chosen(args, reader.meta)
    if args.offset is not None and args.partition is None:
        raise _wrong("--offset without --partition", "nothing was read", "name the offset's partition with --partition")
    if args.offset is not None:
        first, end = reader.retention_start(partitions[0]), ends[partitions[0]]
        if not first <= args.offset <= end:
            what = f"offset {args.offset} is outside partition {partitions[0]}, which holds {first} to before {end}"
            raise _wrong(what, "nothing was read", f"give an offset from {first} to {end}")
    rows: list[LogRow] = []
    for partition in partitions:
        offset = reader.retention_start(partition) if args.offset is None else reader.begin(partition, args.offset)
        while len(rows) < args.limit:
            batch, offsets, following = reader.read_placed(partition, offset, READ_BYTES_MAX)
            if batch is None:
                break
            rows += placed_rows(partition, batch, offsets, following, changelog)[: args.limit - len(rows)]
            offset = following
    _show(args, names, rows, sum(reader.rows(partition) for partition in partitions))
    return 0


def _read_table(args: argparse.Namespace) -> int:
    """Show the newest row of every key."""
    if args.offset is not None:
        raise _wrong("--offset with --as-table", "nothing was read", "leave one out: a table has no order of offsets")
    meta = _meta(args.path)
    columns, partitions = table_schema(meta), _chosen(args, meta)
    rows: list[LogRow] = []
    row_count = 0
    for each in read_table(open_objects(args.path, writable=False)):
        if each.partition not in partitions:
            continue
        row_count += each.rows.num_rows
        if (left := args.limit - len(rows)) > 0:
            batch, offsets = each.rows.select(columns.names).slice(0, left), each.offsets[:left]
            rows += placed_rows(each.partition, batch, offsets, 0)
    _show(args, columns.names, rows, row_count)
    return 0


def tail(args: argparse.Namespace, pause: Callable[[float], None] = time.sleep) -> int:
    """Follow a log. Exit status: 0 sealed and shown to its end, or interrupted; 4 damaged data found."""
    if args.lines < 0:
        raise _wrong(f"--lines is {args.lines}", "nothing was read", "give 0 for new rows only, or more")
    reader = _reader(args.path)
    names = columns_shown(reader.meta)
    offsets = {
        partition: _lines_before_the_end(reader, partition, args.lines) for partition in _chosen(args, reader.meta)
    }
    if not args.json:
        print("\t".join(["partition", "offset", *names]), flush=True)
    try:
        while True:
            sealed = reader.sealed  # before the rows, so that every row before the seal is shown
            for partition, offset in offsets.items():
                offsets[partition] = _print_from(args, reader, partition, offset)
            if sealed:
                print(f"{args.path} is sealed; no rows can follow", file=sys.stderr)
                return 0
            if not reader.refresh():
                pause(POLL_S)
            for partition in _chosen(args, reader.meta):
                offsets.setdefault(partition, 0)  # it was added
    except KeyboardInterrupt:
        return 0


def seal(args: argparse.Namespace) -> int:
    """End a log. Exit status: 0 sealed now or before, 2 no such log, 5 the store is unreachable."""
    _meta(args.path)
    store = open_objects(args.path)
    LogWriter(store).seal()
    reader = LogReader(store)
    ends = reader.end_offsets()
    places = [{"partition": partition, "end_offset": end} for partition, end in ends.items()]
    total = plural(sum(reader.rows(partition) for partition in ends), "row")
    _result(args, {"path": args.path, "sealed": True, "partitions": places}, f"{args.path} is sealed with {total}")
    return 0


def _print_from(args: argparse.Namespace, reader: LogReader, partition: int, offset: int) -> int:
    while True:
        batch, offsets, following = reader.read_placed(partition, offset, READ_BYTES_MAX)
        if batch is None:
            return offset
        meta = reader.meta
        for row in placed_rows(partition, batch, offsets, following, meta.changelog):
            print(as_json_line(row) if args.json else plain_line(columns_shown(meta), row))
        sys.stdout.flush()
        offset = following


def _lines_before_the_end(reader: LogReader, partition: int, lines: int) -> int:
    return reader.begin(partition, reader.before_the_end(partition, lines))


def _partitioner(args: argparse.Namespace, meta: LogMeta) -> Callable[[pa.Table], dict[int, pa.Table]]:
    """Return the function that splits rows over partitions by the arguments and the log's key."""
    key, nothing = _names(args.key), "no row was appended"
    if meta.key and (args.partition is not None or (key is not None and tuple(key) != meta.key)):
        wanted = f"--partition {args.partition}" if key is None else f"--key {args.key}"
        advice = "leave it out; each row goes to the partition of its key"
        raise _wrong(f"the log is partitioned by {', '.join(meta.key)}, so {wanted} cannot be used", nothing, advice)
    if args.partition is not None:
        partition = _partition(args.partition, meta, nothing)
        return lambda rows: {partition: rows}
    if columns := meta.key or key:
        return lambda rows: partition_rows(rows, columns, meta.partitions)
    if meta.partitions == 1:
        return lambda rows: {0: rows}
    first = sum(LogReader(open_objects(args.path)).end_offsets().values())  # an append continues after the last one

    def deal(rows: pa.Table) -> dict[int, pa.Table]:
        nonlocal first
        at, first = first, first + rows.num_rows
        return dealt_out(rows, at, meta.partitions)

    return deal


def _appended(writer: LogWriter, parts: dict[int, pa.Table]) -> dict[int, int]:
    """Append; if the reply was lost, find out whether the rows were appended."""
    try:
        return writer.append(parts)
    except Unavailable:
        settled = writer.settle()
        return writer.append(parts) if settled is None else settled


def _meta(path: str) -> LogMeta:
    if (meta := read_meta(open_objects(path, writable=False))) is None:
        raise _wrong(
            f"there is no log at {path}",
            "nothing was read or changed",
            f'check the path, or create it: holdfast log create {path} --schema "name:type,..."',
        )
    return meta


def _reader(path: str) -> LogReader:
    _meta(path)
    return LogReader(open_objects(path, writable=False))


def _chosen(args: argparse.Namespace, meta: LogMeta) -> list[int]:
    everything = list(range(meta.partitions))
    return everything if args.partition is None else [_partition(args.partition, meta, "nothing was read")]


def _partition(partition: int, meta: LogMeta, not_done: str) -> int:
    if not 0 <= partition < meta.partitions:
        raise _wrong(f"there is no partition {partition}", not_done, f"choose one from 0 to {meta.partitions - 1}")
    return partition


def _path(text: str) -> str:
    """Refuse an empty path: it would mean the current folder."""
    if not text:
        raise _wrong("the path of the log is empty", "the command did nothing", "give the log's folder or URL")
    return text


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _columns(meta: LogMeta) -> str:
    return ", ".join(map(describe_column, meta.schema))


def _show(args: argparse.Namespace, names: Sequence[str], rows: Sequence[LogRow], held: int) -> None:
    lines = map(as_json_line, rows) if args.json else table_lines(names, rows)
    for line in lines:
        print(line)
    if len(rows) == args.limit < held:
        print(f"{args.limit} of {plural(held, 'row')} shown; --limit shows more", file=sys.stderr)


def _result(args: argparse.Namespace, result: dict[str, Any], text: str) -> None:
    print(msgspec.json.encode(result).decode() if args.json else text)


def _wrong(what: str, not_done: str, advice: str) -> ConfigError:
    return ConfigError(what, not_done=not_done, next_step=advice)
