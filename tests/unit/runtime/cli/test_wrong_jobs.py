"""Jobs that cannot be right: each is refused before anything starts, in three sentences and with exit status 2."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from holdfast.model import Epoch, Tag, Timeline
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import open_objects

if TYPE_CHECKING:
    from tests.unit.runtime.cli.conftest import Ended

    Holdfast = Callable[..., Ended]

JOB = """
from dataclasses import dataclass
from datetime import datetime, UTC
import polars as pl, pyarrow as pa
import holdfast as hf

@dataclass
class Bid:
    auction: int
    price: float
    at: datetime

AT = datetime(2026, 1, 31, tzinfo=UTC)
app = hf.App("bids")
made = hf.Generator(Bid, lambda i: Bid(i, 1.0, AT), count=10)
table = lambda **more: hf.SQLite("out.db", table="bids", **more)
"""
BIDS = 'bids = app.source("bids", made)\n'
TOTALS = 'totals = bids.key_by("auction").agg("totals", n=hf.count())\n'
COLUMNS = pa.schema([pa.field("auction", pa.int64(), nullable=False), pa.field("n", pa.int64(), nullable=False)])


@pytest.fixture(autouse=True)
def here(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, to which the job's paths are relative."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(holdfast: Holdfast, job: str, *flags: str) -> str:
    """Run the job; return its message after checking its form."""
    Path("job.py").write_text(JOB + job)
    ended = holdfast("run", "job.py", *flags)
    assert (ended.status, ended.out) == (2, "")
    lines = [line for line in ended.err.splitlines() if line.strip()]
    assert lines[0].startswith("holdfast: ") and lines[-2].startswith("Not done: ") and lines[-1].startswith("Next: ")
    assert len(lines) <= 4 and "Traceback" not in ended.err
    return ended.err


class TestRefusedByTheStream:
    @pytest.mark.parametrize(
        ("job", "says"),
        [
            (BIDS + TOTALS + 'totals.sink("out", table())', ["replaces rows by ['auction']", "key=['auction']"]),
            (
                BIDS + TOTALS + 'totals.sink("out", hf.Log("out"))',
                ["replaces rows by ['auction']", "give the sink key=['auction']"],
            ),
            (BIDS + 'bids.key_by("auction").window(hf.tumbling("1h")).agg("n", n=hf.count())', ["no event time"]),
            (BIDS + 'bids.filter(pl.col("prise") > 0).sink("out", table())', ["'prise'", "did you mean 'price'?"]),
            (BIDS + 'bids.key_by("acution").agg("n", n=hf.count()).sink("out", table())', ["did you mean 'auction'?"]),
            (BIDS + 'bids.sink("out", "out.db")', ["'out.db' is not a sink", "hf.SQLite("]),
            (BIDS + 'bids.sink("out", table(key=["user"]))', ["unknown columns ['user']"]),
            (BIDS + 'bids.late.sink("out", table())', ["not the result of a window"]),
            ('app.source("bids", made, event_time="when")', ["there is no column 'when'"]),
            ('app.source("bids", made, event_time="price")', ["is double", "timestamp[us, UTC]"]),
            ('app.source("bids", "data/bids")', ["'data/bids' is not a source", "hf.Log("]),
            ('app.source("bids", made, event_time="at", out_of_orderness="soon")', ["out_of_orderness", "soon"]),
            (BIDS, ["no sink"]),
        ],
    )
    def test_a_misfit_is_named_with_a_correct_alternative(self, holdfast: Holdfast, job: str, says: list[str]) -> None:
        message = refused(holdfast, job)
        for part in says:
            assert part in message


class TestNaiveTimes:
    def test_a_column_without_a_time_zone_cannot_be_the_event_time(self, holdfast: Holdfast) -> None:
        naive = 'pa.schema([pa.field("at", pa.timestamp("us"), nullable=False)])'
        job = f'app.source("bids", hf.Generator({naive}, lambda i: (AT,), count=1), event_time="at")'
        assert "'at' has no time zone" in refused(holdfast, job)

    def test_a_time_without_a_time_zone_in_a_record_is_refused(self, holdfast: Holdfast) -> None:
        made = "hf.Generator(Bid, lambda i: Bid(i, 1.0, datetime(2026, 1, 31)), count=1)"
        message = refused(holdfast, f'app.source("bids", {made}).sink("out", table())')
        assert "time zone" in message and "'at'" in message


class TestMissingSources:
    def test_a_missing_log_is_named_with_the_command_that_creates_it(self, holdfast: Holdfast) -> None:
        message = refused(holdfast, 'app.source("bids", hf.Log("data/bids", Bid)).sink("out", table())')
        assert "no log exists at" in message and "holdfast log create" in message
        assert not Path("data").exists() and not Path("out.db").exists()

    def test_a_log_with_other_columns_is_compared_column_by_column(self, holdfast: Holdfast) -> None:
        create_log(open_objects("data"), COLUMNS)
        message = refused(holdfast, 'app.source("bids", hf.Log("data", Bid)).sink("out", table())')
        assert "price: expected double, but it is missing" in message
        assert " n: " not in message, "a log may have more columns than the job declares"
        assert 'data --schema "price:double?,at:timestamp[us, tz=UTC]?"' in message
        assert "holdfast log add-columns" in message and "let price, at be null in the job" in message


class TestTargets:
    def test_a_table_with_other_columns_is_refused_and_not_changed(self, holdfast: Holdfast) -> None:
        with closing(sqlite3.connect("out.db", isolation_level=None)) as db:
            db.execute("CREATE TABLE bids (auction INTEGER PRIMARY KEY, total REAL)")
            db.execute("INSERT INTO bids VALUES (1, 2.0)")
            message = refused(holdfast, BIDS + TOTALS + 'totals.sink("out", table(key=["auction"]))')
            assert "table 'bids'" in message and "total" in message
            assert db.execute("SELECT * FROM bids").fetchall() == [(1, 2.0)]

    def test_a_table_without_the_tag_column_is_refused(self, holdfast: Holdfast) -> None:
        with closing(sqlite3.connect("out.db", isolation_level=None)) as db:
            db.execute("CREATE TABLE bids (auction INTEGER NOT NULL PRIMARY KEY, n INTEGER)")
        job = BIDS + TOTALS + 'totals.sink("out", table(key=["auction"], delivery="idempotent"))'
        assert "_holdfast_tag" in refused(holdfast, job)

    def test_a_log_with_other_columns_is_refused(self, holdfast: Holdfast) -> None:
        create_log(open_objects("out"), COLUMNS)
        message = refused(holdfast, BIDS + 'bids.sink("out", hf.Log("out"))')
        assert "needed are auction:int64, n:int64" in message

    def test_a_log_with_the_tag_of_another_job_is_refused_and_not_changed(self, holdfast: Holdfast) -> None:
        create_log(open_objects("out"), COLUMNS)
        row = pa.table({"auction": [1], "n": [1]}, schema=COLUMNS)
        LogWriter(open_objects("out")).append_tagged({0: row}, "another-uuid/out/0", Tag(Timeline(1), Epoch(9)))
        plain = 'bids.select("auction", n=pl.lit(1, pl.Int64)).sink("out", hf.Log("out"))'
        message = refused(holdfast, BIDS + plain)
        assert "of another job, another-uuid, up to epoch 9" in message
        assert len(list(Path("out/commits").iterdir())) == 1

    def test_a_database_in_a_missing_folder_is_refused(self, holdfast: Holdfast) -> None:
        job = BIDS + 'bids.sink("out", hf.SQLite("results/out.db", table="bids"))'
        assert "mkdir -p" in refused(holdfast, job)

    def test_a_file_that_is_no_database_is_refused(self, holdfast: Holdfast) -> None:
        Path("out.db").write_text("a text, much longer than the sixteen bytes of a header, and no database at all")
        Path("job.py").write_text(JOB + BIDS + 'bids.sink("out", table())')
        ended = holdfast("run", "job.py")
        assert ended.status in (2, 4)
        assert "out.db" in ended.err and "Next: " in ended.err and "Traceback" not in ended.err


class TestPlaces:
    def test_a_root_below_a_file_is_refused(self, holdfast: Holdfast) -> None:
        Path("file").write_text("no folder")
        Path("job.py").write_text(JOB + BIDS + 'bids.sink("out", table())')
        ended = holdfast("run", "job.py", "--root", "file/root")
        assert ended.status in (2, 5)
        assert "file/root" in ended.err and "Next: " in ended.err and "Traceback" not in ended.err

    def test_a_missing_job_file_is_refused(self, holdfast: Holdfast) -> None:
        ended = holdfast("run", "jbo.py")
        assert ended.status == 2
        assert "jbo.py is not a file" in ended.err
