"""`holdfast new NAME`: a folder with a job that runs, its test and its data.

Invariants
    - Nothing that exists is changed: an existing folder is refused, and a project is created whole or not at all.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError
from holdfast.runtime.cli.arguments import add_command
from holdfast.runtime.cli.reporting import advise, print_json

_NOT_DONE = "nothing was created"
_DESCRIPTION = """\
Create a folder with a job that runs, a test of it, and a log with data that it reads.

exit status: 0 created, 2 the folder exists or its name cannot be that of a job"""

_SCHEMA = "shop:string,amount:double,at:timestamp"
_JOB = '''\
"""Sales per shop and hour. `holdfast run job.py --local --once` reads what the log holds now and stops."""

from dataclasses import dataclass
from datetime import datetime

import holdfast as hf


@dataclass
class Sale:
    shop: str
    amount: float
    at: datetime


app = hf.App("{name}", checkpoint_every="1s")
sales = app.source("sales", hf.Log("data/sales", Sale), event_time="at", out_of_orderness="5m")
hours = (
    sales.filter(lambda sale: sale.amount > 0)
    .key_by("shop")
    .window(hf.tumbling("1h"), allowed_lateness="10m")
    .agg("hours", emit="final", sales=hf.count(), turnover=hf.sum("amount"))
)
hours.sink("hours-out", hf.SQLite("sales.db", table="hours"))

if __name__ == "__main__":
    app.main()
'''
_TEST = '''\
"""Tests of job.py: rows in, rows out, with the production code but without Spark. Run them with `pytest`."""

from datetime import UTC, datetime

from holdfast.testing import TestDriver
from job import Sale, app


def at(hour: int, minute: int = 0) -> datetime:
    return datetime(2026, 3, 2, hour, minute, tzinfo=UTC)


def test_an_hour_is_reported_when_it_is_over() -> None:
    with TestDriver(app) as t:
        t.push("sales", [Sale("north", 2.5, at(9, 10)), Sale("north", 1.5, at(9, 50)), Sale("north", 4.0, at(10, 5))])
        t.watermark("sales", at(10, 30))
        t.checkpoint()
        assert t.rows("hours-out") == [
            {"shop": "north", "window_start": at(9), "window_end": at(10), "sales": 2, "turnover": 4.0}
        ]


def test_a_crash_loses_no_sale_and_counts_none_twice() -> None:
    with TestDriver(app) as t:
        t.push("sales", [Sale("north", 2.5, at(9, 10))])
        t.checkpoint()
        t.push("sales", [Sale("north", 1.5, at(9, 50))])
        t.crash()
        t.recover()
        t.watermark("sales", at(10, 30))
        t.checkpoint()
        assert [(row["sales"], row["turnover"]) for row in t.rows("hours-out")] == [(2, 4.0)]
'''
_README = """\
# {name}

    holdfast run job.py --local --once
    python -c 'import sqlite3; print(*sqlite3.connect("sales.db").execute("SELECT * FROM hours"), sep="\\n")'
    pytest

`data/sales` is a log; `data/sales.jsonl` holds the rows that it was created with. Append more and run the job again:
it resumes from its last checkpoint. Without `--local` the same file runs on Spark, which needs Java.

    echo '{{"shop": "north", "amount": 3.5, "at": "2026-03-02T13:30:00Z"}}' | holdfast log append data/sales
"""
_IGNORED = ".holdfast/\n__pycache__/\nsales.db*\n"


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = add_command(subparsers, "new", _DESCRIPTION, "holdfast new sales")
    parser.add_argument("name", metavar="NAME", help="the folder to create; its last part is the name of the job")
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Create the project and report the next steps."""
    folder = Path(args.name)
    create(folder)
    if args.json:
        print_json({"folder": str(folder.absolute()), "job": folder.name})
    else:
        print(f"created {folder}: job.py, test_job.py, data/sales")
        advise(f"\nNext:\n  cd {folder}\n  holdfast run job.py --local --once\n  pytest")
    return 0


def create(folder: Path) -> None:
    """Create the project in a folder that does not exist yet.

    Raises:
        ConfigError: the folder exists or cannot be created, or its name cannot be that of a job.
    """
    _check_name(folder)
    parent = folder.absolute().parent
    if not parent.exists():
        raise ConfigError(
            f"{folder} cannot be created: {parent} does not exist",
            not_done=_NOT_DONE,
            next_step=f"create it: mkdir -p {shlex.quote(str(parent))}",
        )
    try:
        folder.mkdir()
    except FileExistsError:
        raise ConfigError(
            f"{folder} already exists", not_done=_NOT_DONE, next_step="choose another name, or remove it first"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be created: {error.strerror or error}",
            not_done=_NOT_DONE,
            next_step="choose a folder in which you may write",
        ) from error
    try:
        _fill(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _check_name(folder: Path) -> None:
    from holdfast.runtime.plan.graph import check_name

    try:
        check_name(folder.name, "app")
    except ConfigError as error:
        raise ConfigError(
            f"{folder.name!r} cannot be the name of a job", not_done=_NOT_DONE, next_step=error.next_step
        ) from error


def _fill(folder: Path) -> None:
    from holdfast.runtime.cli.log.columns import parse_columns
    from holdfast.runtime.cli.log.input import read_file
    from holdfast.storage.log.log import LogWriter, create_log
    from holdfast.storage.log.partitioning import partition_rows
    from holdfast.storage.objects import open_objects

    files = {
        "job.py": _JOB.format(name=folder.name),
        "test_job.py": _TEST,
        "README.md": _README.format(name=folder.name),
        ".gitignore": _IGNORED,
        "data/sales.jsonl": "".join(f"{json.dumps(sale)}\n" for sale in _sales()),
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    log = str((folder / "data/sales").absolute())
    meta = create_log(open_objects(log), parse_columns(_SCHEMA), 4, ("shop",))
    parts = partition_rows(read_file(folder / "data/sales.jsonl", meta.schema), meta.key, meta.partitions)
    LogWriter(open_objects(log)).append(parts)


def _sales() -> Iterator[dict[str, object]]:
    """Return a morning's sales of three shops: three whole hours, and the beginning of a fourth that closes them."""
    opened = datetime(2026, 3, 2, 9, tzinfo=UTC)
    for number in range(66):
        shop = ("north", "south", "harbour")[number % 3]
        at = opened + timedelta(minutes=3 * number, seconds=(number * 37) % 60)
        yield {"shop": shop, "amount": 2.5 + number * 7 % 40 / 4, "at": at.isoformat().replace("+00:00", "Z")}
    for shop in ("north", "south", "harbour"):
        yield {"shop": shop, "amount": 5.0, "at": "2026-03-02T13:20:00Z"}
