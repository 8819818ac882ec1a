"""`holdfast dlq`: a job in memory over real logs leaves dead letters; they are listed, and go back exactly once."""

from __future__ import annotations

import shlex
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest
from logged import rows_in

import holdfast as hf
from holdfast.errors import ConfigError, Unavailable
from holdfast.model import Epoch, Tag, Timeline
from holdfast.runtime.cli.operate.dlq import _record
from holdfast.runtime.config.settings import resolve
from holdfast.runtime.execution.prepare import Prepared, prepare
from holdfast.runtime.job.redrive import Redrive
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.rows.dead_letters import DEAD_LETTERS, decode_row, encode_row
from holdfast.runtime.testing.cluster import Cluster
from holdfast.storage.log.log import BEFORE_FIRST, LogWriter, create_log
from holdfast.storage.objects import LocalObjects

if TYPE_CHECKING:
    from tests.unit.runtime.cli.conftest import Ended

LINES = pa.schema([("number", pa.int64()), ("text", pa.utf8())])
Row = tuple[int | None, str | None]


@dataclass
class Line:
    number: int
    text: str


@dataclass
class Word:
    word: str


def parse(line: Any) -> Word:
    if line.text.endswith("!"):
        raise ValueError("too loud")
    return Word(line.text)


class Job:
    """A job with a log of lines, and its output in other logs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        create_log(LocalObjects(folder / "lines"), LINES, partitions=2)

    def say(self, partition: int, *rows: Row) -> None:
        table = pa.Table.from_pylist([{"number": n, "text": text} for n, text in rows], LINES)
        LogWriter(LocalObjects(self.folder / "lines")).append({partition: table})

    def plan(self, sink: Any = None) -> hf.App:
        dlq = hf.Log(self.folder / "dead", partitions=2) if sink is None else sink
        app = hf.App("words", root=str(self.folder / "root"), dlq=dlq, key_groups=16)
        lines = app.source("lines", hf.Log(self.folder / "lines", Line))
        lines.map(parse, to=Word, on_error="dlq").sink("words", hf.Log(self.folder / "words"))
        more = lines.select("text", n=pl.col("number") * 2).map(parse, to=Word, on_error="dlq")
        more.key_by("word").agg("counts", n=hf.count()).sink("out", hf.SQLite(self.folder / "x.db", "w", ["word"]))
        return app

    def run(self, parallelism: int = 2, crash: bool = False, sink: Any = None) -> None:
        """Resume the job, possibly with another parallelism, until all output is delivered."""
        app = self.plan(sink)
        started: Prepared = prepare(app.plan(), resolve(app))
        plan: Plan = started.plan
        cluster = Cluster(plan, parallelism, 0, started.folder.store, 1.0, started.inputs.partitions)
        cluster.begin()
        cluster.settle()
        if crash:
            cluster.crash(min(cluster.members))
        for _ in range(8):
            cluster.pass_time(1)
        for member in cluster.members.values():
            member.loop.close()

    def rows(self, name: str) -> list[dict[str, Any]]:
        return rows_in(self.folder / name)

    def lines(self) -> Counter[Row]:
        return Counter((row["number"], row["text"]) for row in self.rows("lines"))


@pytest.fixture
def job(tmp_path: Path, root: Path) -> Job:
    job = Job(tmp_path)
    job.say(0, (0, "plain"), (None, "lost"), (2, "loud!"))
    job.say(1, (3, "plain"), (4, "louder!"))
    return job


HoldfastRun = Callable[..., "Ended"]
SAID: Counter[Row] = Counter([(0, "plain"), (None, "lost"), (2, "loud!"), (3, "plain"), (4, "louder!")])


class TestDeadLettersOfAJob:
    def test_are_in_the_log_once_each_after_crashes_and_a_rescale(self, job: Job) -> None:
        job.run(crash=True)
        job.say(0, (5, "loudest!"), (None, None))
        job.run(parallelism=3, crash=True)
        found = Counter((row["operator"], row["partition"], row["offset"]) for row in job.rows("dead"))
        loud = [(0, 2), (1, 1), (0, 3)]
        steps = ("map parse", "map parse (2)")
        assert found == Counter([("lines", 0, 1), ("lines", 0, 4), *((step, *at) for step in steps for at in loud)])
        assert Counter(row["word"] for row in job.rows("words")) == {"plain": 2}


class TestDlqList:
    def test_shows_the_error_and_the_record(self, job: Job, holdfast: HoldfastRun) -> None:
        job.run()
        ended = holdfast("dlq", "list", "words", "--json")
        assert ended.status == 0 and ended.json["total"] == 5
        (lost,) = [letter for letter in ended.json["letters"] if letter["operator"] == "lines"]
        assert (lost["source"], lost["partition"], lost["offset"], lost["form"]) == ("lines", 0, 1, "record")
        assert lost["record"] == {"number": None, "text": "lost"}
        (row,) = [each for each in ended.json["letters"] if each["form"] == "row" and each["offset"] == 2]
        assert row["record"] == {"text": "loud!", "n": 4} and "too loud" in row["error"]

    def test_the_table_shows_the_cause_and_how_to_see_the_rest(self, job: Job, holdfast: HoldfastRun) -> None:
        job.say(1, (5, "long " * 20 + "!"))
        job.run()
        ended = holdfast("dlq", "list", "words")
        assert "parse raised ValueError: too loud at test_cli_dlq.py:" in ended.out
        assert "map on stream" not in ended.out, "the operator has its own column"
        assert "shortened errors and records end with …; whole ones: --json" in ended.err

    def test_the_limit_is_reported(self, job: Job, holdfast: HoldfastRun) -> None:
        job.run()
        ended = holdfast("dlq", "list", "words", "--limit", "2")
        assert len(ended.out.splitlines()) == 3
        assert "2 of 5 shown" in ended.err

    def test_a_job_without_a_dlq_is_refused_with_the_way_to_declare_one(
        self, history: Callable[[str], Any], holdfast: HoldfastRun
    ) -> None:
        history("plain")
        ended = holdfast("dlq", "list", "plain")
        assert ended.status == 2 and "has not run with a dead letter queue" in ended.err

    def test_dead_letters_outside_a_log_are_left_to_other_tools(self, job: Job, holdfast: HoldfastRun) -> None:
        job.run(sink=hf.SQLite(job.folder / "x.db", "dead"), crash=True)
        with closing(sqlite3.connect(job.folder / "x.db")) as db:
            found = db.execute('SELECT operator, "offset", raw FROM dead WHERE partition = 0 ORDER BY 1').fetchall()
        assert [(operator, offset) for operator, offset, _ in found] == [
            ("lines", 1),
            ("map parse", 2),
            ("map parse (2)", 2),
        ]
        assert decode_row(found[0][2]).to_pylist() == [{"number": None, "text": "lost"}]
        ended = holdfast("dlq", "list", "words")
        assert ended.status == 2 and "which is not a log" in ended.err


class TestDlqRedrive:
    def test_shows_the_plan_first(self, job: Job, holdfast: HoldfastRun) -> None:
        job.run()
        ended = holdfast("dlq", "redrive", "words")
        assert ended.status == 3 and "Nothing changed" in ended.err
        assert "holdfast dlq redrive words --apply" in ended.err
        shown = holdfast("dlq", "redrive", "words", "--json")
        (source,) = shown.json["sources"]
        assert (source["waiting"], source["records"], source["repeated"], source["unfit"]) == (5, 3, 2, [])
        assert shown.status == 3 and not shown.json["applied"]
        assert job.lines() == SAID

    def test_the_command_in_the_plan_finds_the_same_job(self, job: Job, holdfast: HoldfastRun) -> None:
        job.run()
        moved = job.folder / "another root"
        (job.folder / "root").rename(moved)
        create_log(LocalObjects(job.folder / "mended"), LINES, partitions=1)
        to = str(job.folder / "mended")
        ended = holdfast("dlq", "redrive", "words", "--root", str(moved), "--source", "lines", "--to", to)
        (named,) = [line for line in ended.err.splitlines() if "--apply" in line]
        command = shlex.split(named[named.index("holdfast ") :])
        assert holdfast(*command[1:]).status == 0
        assert {row["text"] for row in job.rows("mended")} == {"lost", "loud!", "louder!"}

    def test_appends_each_source_record_unchanged_once_and_then_offers_none(
        self, job: Job, holdfast: HoldfastRun
    ) -> None:
        job.run()
        assert holdfast("dlq", "redrive", "words", "--apply").status == 0
        again = SAID + Counter([(None, "lost"), (2, "loud!"), (4, "louder!")])
        assert job.lines() == again
        assert holdfast("dlq", "redrive", "words", "--apply").status == 0
        assert job.lines() == again

    def test_a_record_that_fails_again_is_a_new_dead_letter(self, job: Job, holdfast: HoldfastRun) -> None:
        job.run()
        holdfast("dlq", "redrive", "words", "--apply")
        job.run()
        assert len(job.rows("dead")) == 10
        assert holdfast("dlq", "redrive", "words", "--json").json["sources"][0]["records"] == 3

    def test_another_log_is_another_target(self, job: Job, holdfast: HoldfastRun) -> None:
        job.run()
        create_log(LocalObjects(job.folder / "mended"), LINES, partitions=1)
        to = str(job.folder / "mended")
        assert holdfast("dlq", "redrive", "words", "--to", to, "--apply").status == 0
        assert {row["text"] for row in job.rows("mended")} == {"lost", "loud!", "louder!"}
        assert job.lines() == SAID

    def test_records_that_do_not_fit_the_target_are_refused_before_anything_is_appended(
        self, job: Job, holdfast: HoldfastRun
    ) -> None:
        job.run()
        strict = pa.schema([pa.field("number", pa.int64(), nullable=False), ("text", pa.utf8())])
        create_log(LocalObjects(job.folder / "strict"), strict, partitions=1, key=["text"])
        arguments = ("dlq", "redrive", "words", "--to", str(job.folder / "strict"), "--apply")
        ended = holdfast(*arguments)
        assert ended.status == 2
        assert "1 dead letter of source lines cannot be redriven" in ended.err
        assert "column 'number' is null, which the log does not allow" in ended.err
        assert job.rows("strict") == []
        assert holdfast(*arguments, "--skip-unfit").status == 0
        assert [row["number"] for row in sorted(job.rows("strict"), key=lambda row: str(row["number"]))] == [2, 4]

    def test_a_log_of_other_columns_is_refused(self, job: Job, holdfast: HoldfastRun) -> None:
        job.run()
        ended = holdfast("dlq", "redrive", "words", "--to", str(job.folder / "words"), "--apply")
        assert ended.status == 2 and "the record has other columns than the log" in ended.err
        assert len(job.rows("words")) == 2


class Killed(BaseException):
    """The process ends here."""


class Mortal(LocalObjects):
    """A folder whose process is killed at a write: before it, or after it was done."""

    def __init__(self, root: Path, writes: int, done: bool) -> None:
        super().__init__(root)
        self._left, self._done = writes, done

    def _count(self, write: Callable[[], None]) -> None:
        self._left -= 1
        if self._left < 0 and not self._done:
            raise Killed
        write()
        if self._left < 0:
            raise Killed

    def create(self, path: str, data: bytes) -> None:
        self._count(lambda: super(Mortal, self).create(path, data))

    def put(self, path: str, data: bytes) -> None:
        self._count(lambda: super(Mortal, self).put(path, data))


class Letters:
    """A log of dead letters in two partitions, several commits long, and the log of the records."""

    def __init__(self, folder: Path) -> None:
        self.dlq, self.lines = LocalObjects(folder / "dead"), LocalObjects(folder / "lines")
        create_log(self.dlq, DEAD_LETTERS, partitions=2)
        create_log(self.lines, LINES, partitions=2)
        for turn in range(3):
            self.add(turn)

    def add(self, turn: int) -> None:
        """Add three letters of two records: one record has letters in both partitions."""
        rows: dict[int, list[dict[str, Any]]] = {0: [], 1: []}
        for partition, number in ((0, turn), (1, turn), (1, turn + 100)):
            raw = encode_row(pa.RecordBatch.from_pylist([{"number": number, "text": "x"}], LINES))
            rows[partition].append(
                {
                    "operator": f"map {partition}",
                    "source": "lines",
                    "partition": 0,
                    "offset": number,
                    "error": "e",
                    "form": "record",
                    "raw": raw,
                }
            )
        LogWriter(self.dlq).append({p: pa.Table.from_pylist(letters, DEAD_LETTERS) for p, letters in rows.items()})

    def redrive(self, target: LocalObjects | None = None) -> Redrive:
        return Redrive("lines", self.dlq, target or self.lines, self.lines)

    def appended(self) -> Counter[int]:
        return Counter(row["number"] for row in rows_in(self.lines))


EACH_ONCE = Counter([0, 1, 2, 100, 101, 102])


class TestKilledRedrive:
    @pytest.mark.parametrize("done", [False, True])
    @pytest.mark.parametrize("writes", range(11))
    def test_appends_every_record_once_when_repeated(self, tmp_path: Path, writes: int, done: bool) -> None:
        letters = Letters(tmp_path)
        try:
            letters.redrive(Mortal(tmp_path / "lines", writes, done)).apply()
        except Killed:
            letters.redrive().apply()
        assert letters.appended() == EACH_ONCE

    def test_has_records_left_at_every_tested_point(self, tmp_path: Path) -> None:
        for writes in range(11):
            with pytest.raises(Killed):
                Letters(tmp_path / str(writes)).redrive(Mortal(tmp_path / str(writes) / "lines", writes, False)).apply()

    def test_appends_nothing_twice_beside_another_redrive(self, tmp_path: Path) -> None:
        letters = Letters(tmp_path)
        first = letters.redrive()

        class Overtaken(LocalObjects):
            def create(self, path: str, data: bytes) -> None:
                if first.plan().records:
                    first.apply()
                super().create(path, data)

        letters.add(3)  # the second one sees more than the first
        with pytest.raises(Unavailable, match="another redrive"):
            letters.redrive(Overtaken(tmp_path / "lines")).apply()
        assert letters.appended() == EACH_ONCE
        letters.redrive().apply()
        assert letters.appended() == EACH_ONCE + Counter([3, 103])

    def test_a_log_with_other_content_is_no_dlq(self, tmp_path: Path) -> None:
        letters = Letters(tmp_path)
        with pytest.raises(ConfigError, match="does not hold dead letters"):
            Redrive("lines", letters.lines, letters.lines, None)


class TestRecordWithSeveralDeadLetters:
    def test_is_redriven_from_the_first_dead_letter_that_contains_it(self, tmp_path: Path) -> None:
        letters = Letters(tmp_path)
        changed = encode_row(pa.RecordBatch.from_pylist([{"number": 70, "text": "changed"}], LINES))
        record = encode_row(pa.RecordBatch.from_pylist([{"number": 7, "text": "x"}], LINES))
        rows = [
            {"operator": "map", "source": "lines", "partition": 0, "offset": 7, "error": "e", "form": form, "raw": raw}
            for form, raw in (("row", changed), ("record", record), ("record", record))
        ]
        LogWriter(letters.dlq).append({0: pa.Table.from_pylist(rows, DEAD_LETTERS)})
        redrive = Redrive("lines", letters.dlq, letters.lines, None)  # the source itself is no log
        count = redrive.plan()
        assert count.records == 7 and list(count.unfit.values()) == [1]
        assert [why for why in count.unfit if "a row that steps have changed, and the source is not a log" in why]
        redrive.apply()
        assert letters.appended() == EACH_ONCE + Counter([7])

    def test_a_redrive_of_a_record_missing_from_its_source_log_is_refused(self, tmp_path: Path) -> None:
        letters = Letters(tmp_path)
        row = {"operator": "m", "source": "lines", "partition": 0, "offset": 0, "error": "e", "form": "row"}
        create_log(LocalObjects(tmp_path / "dead2"), DEAD_LETTERS, partitions=1)
        table = pa.Table.from_pylist([{**row, "raw": b""}], DEAD_LETTERS)
        LogWriter(LocalObjects(tmp_path / "dead2")).append({0: table})
        count = Redrive("lines", LocalObjects(tmp_path / "dead2"), letters.lines, letters.lines).plan()
        assert list(count.unfit) == ["the source's log ends before the record; it is not the log that the job has read"]


class TestConditionalAppend:
    def test_succeeds_only_if_the_writer_is_at_the_expected_tag(self, tmp_path: Path) -> None:
        create_log(LocalObjects(tmp_path), LINES, partitions=1)
        writer, rows = LogWriter(LocalObjects(tmp_path)), pa.Table.from_pylist([{"number": 1, "text": ""}], LINES)
        one, two, three = (Tag(Timeline(1), Epoch(epoch)) for epoch in (1, 2, 3))
        assert writer.append_tagged({0: rows}, "w", two, follows={"w": one}) is None
        assert writer.append_tagged({0: rows}, "w", two, follows={"w": BEFORE_FIRST}) == {0: 0}
        assert writer.append_tagged({0: rows}, "w", three, follows={"w": one}) is None
        assert writer.append_tagged({0: rows}, "w", three, follows={"w": two}) == {0: 1}


class TestShownRecords:
    @pytest.mark.parametrize(
        ("form", "raw", "shown"),
        [
            ("bytes", '{"n": "ä"}\n'.encode(), '{"n": "ä"}\n'),
            ("bytes", b"\xff\xfe", None),
            ("bytes", b"\x00\x00\x00\x01text", None),
            ("text", b"a\xff", "a\ufffd"),
        ],
    )
    def test_are_their_text_if_the_bytes_are_one(self, form: str, raw: bytes, shown: str | None) -> None:
        assert _record(form, raw) == shown
