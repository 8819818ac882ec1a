"""Dead letters in complete jobs: every record is emitted, dropped or becomes a dead letter, once, under any crash."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import ConfigError, Damaged, JobFailed
from holdfast.model import (
    NO_EPOCH,
    Barrier,
    ChannelId,
    Epoch,
    Generation,
    JobUuid,
    SourcePosition,
    Subtask,
    Timeline,
    WorkerId,
)
from holdfast.runtime.job.status import of_run
from holdfast.runtime.plan.compiler import describe, render
from holdfast.runtime.plan.source import OpenSource, Source
from holdfast.runtime.rows.dead_letters import DEAD_LETTERS, decode_row, encode_row, reported
from holdfast.runtime.sources.reading import Throttle, open_readings
from holdfast.runtime.testing.cluster import MemberPorts
from holdfast.runtime.testing.driver import PushedSource
from holdfast.runtime.testing.lanes import VirtualClock
from holdfast.runtime.wire.channels import MemoryNetwork, OpenLinks
from holdfast.runtime.worker.immediate import ImmediateWrites
from holdfast.runtime.worker.local.opened import MemoryState
from holdfast.runtime.worker.subtask import SubtaskRun
from holdfast.sinks.memory.sink import MemorySink
from holdfast.sinks.protocol.staging import decode
from holdfast.state.store import Identity, StateStore
from holdfast.storage.log.log import LogReader, LogWriter, create_log
from holdfast.storage.objects import LocalObjects, MemoryObjects
from holdfast.testing import TestDriver

IN_BOTH_MODES = True


@dataclass
class Line:
    number: int
    text: str


@dataclass
class Word:
    word: str
    number: int


GOOD, SPLIT = "good", "bad word"
"""A text that no function fails on, and one whose second word does not fit."""


def words(line: Line) -> Iterator[Any]:
    """Fail for texts that end in `!`; give an impossible row for the word `bad`'s neighbour."""
    if line.text.endswith("!"):
        raise ValueError(f"cannot read {line.text}")
    for word in line.text.split():
        yield {"word": word, "number": "x"} if line.text == SPLIT and word == "word" else Word(word, line.number)


def never(i: int) -> Line:
    return Line(i, GOOD)


def lines_of(app: hf.App, **given: Any) -> Any:
    return app.source("lines", hf.Generator(Line, never, count=1), **given)


def counting(**given: Any) -> hf.App:
    app = hf.App("words", key_groups=16, dlq=MemorySink())
    lines = lines_of(app, **given)
    found = lines.flat_map(words, to=Word, on_error="dlq")
    long = found.filter(pl.col("number") >= 0).filter(lambda w: 1 / (len(w.word) - 3) > 0, on_error="dlq")
    united = found.filter(pl.col("number") < 0).union(long)
    united.sink("all", hf.SQLite("unused.db", table="all_words"))
    united.key_by("word").agg("counts", n=hf.count()).sink("out", hf.SQLite("x.db", table="words", key=["word"]))
    return app


class Oracle:
    """What plain Python makes of the lines: the words, and per step the records that failed."""

    def __init__(self, lines: list[tuple[int | None, str | None]]) -> None:
        self.words, self.dead = Counter[str](), Counter[tuple[str, Any]]()
        for number, text in lines:
            if number is None or text is None:
                self.dead["lines", (number, text)] += 1
            elif text.endswith("!") or text == SPLIT:
                self.dead["flat_map words", (number, text)] += 1
            else:
                for word in text.split():
                    if number >= 0 and len(word) == 3:
                        self.dead["filter lambda", (word, number)] += 1
                    elif number < 0 or len(word) > 3:
                        self.words[word] += 1


def dead(t: TestDriver) -> Counter[tuple[str, Any]]:
    rows = t.rows("dlq")
    return Counter((row["operator"], tuple(decode_row(row["raw"]).to_pylist()[0].values())) for row in rows)


def counters(t: TestDriver) -> dict[str, dict[str, Any]]:
    for member in t.cluster.members.values():
        member.loop.beat()
    t.advance("1s")
    return {row["name"]: row for row in of_run(t.cluster.driver.state, "", "", None).as_json()["operators"]}


def push(t: TestDriver, lines: list[tuple[int | None, str | None]], partition: int = 0) -> None:
    t.push("lines", [{"number": number, "text": text} for number, text in lines], partition)


LINES: list[tuple[int | None, str | None]] = [
    (0, "good"),
    (None, "lost"),
    (2, "oh no!"),
    (3, SPLIT),
    (4, "the plain"),
    (5, None),
]


class TestUndecodableRecord:
    def test_becomes_a_dead_letter_with_its_place_and_the_original_record(self) -> None:
        with TestDriver(counting()) as t:
            push(t, LINES[:2], partition=3)
            t.checkpoint()
            (letter,) = t.rows("dlq")
        row = decode_row(letter.pop("raw"))
        assert row.to_pylist() == [{"number": None, "text": "lost"}]
        assert letter == {
            "operator": "lines",
            "source": "lines",
            "partition": 3,
            "offset": 1,
            "form": "record",
            "error": "column 'number' is null, which the job's schema does not allow",
        }

    @pytest.mark.continuous("an error shows when a record is processed, not with the next epoch")
    def test_fails_a_job_without_a_dlq_with_its_place_and_the_next_step(self) -> None:
        app = hf.App("words")
        lines_of(app).sink("out", hf.SQLite("unused.db", table="lines"))
        with TestDriver(app) as t:
            push(t, [LINES[0]], partition=1)
            t.checkpoint()
            with pytest.raises(JobFailed, match="source 'lines': the record at offset 2 of partition 1 cannot be") as e:
                push(t, [LINES[0], LINES[1]], partition=1)
            assert 'dlq=hf.Log("data/dead")' in e.value.next_step
            assert t.rows("out") == [{"number": 0, "text": "good"}]
            error = (t.cluster.driver.outcome or ("", None))[1]
        assert error is not None and (error.source, error.partition, error.offset) == ("lines", 1, 2)

    def test_is_dropped_and_counted_with_on_error_drop(self) -> None:
        with TestDriver(counting(on_error="drop")) as t:
            push(t, LINES)
            t.checkpoint()
            row = counters(t)["lines"]
            assert (row["rows_in"], row["rows_out"], row["dropped"], row["dlq"]) == (6, 4, 2, None)
            assert not [key for key in dead(t) if key[0] == "lines"]

    def test_may_be_the_only_record_under_event_time(self) -> None:
        @dataclass
        class Timed:
            at: datetime

        start = datetime(2026, 1, 1, tzinfo=UTC)
        app = hf.App("timed", dlq=MemorySink())
        rows = app.source("rows", hf.Generator(Timed, lambda i: Timed(start), count=1), event_time="at")
        counts = rows.with_columns(k=pl.lit(1)).key_by("k").window(hf.tumbling("1s")).agg("n", n=hf.count())
        counts.sink("out", hf.SQLite("x.db", table="t", key=["k", "window_end"]))
        with TestDriver(app) as t:
            t.push("rows", [{"at": None}])
            t.push("rows", [{"at": start + timedelta(seconds=s)} if s % 2 else {"at": None} for s in range(6)])
            t.finish()
            assert [row["n"] for row in t.rows("out")] == [1, 1, 1]
            assert Counter(row["offset"] for row in t.rows("dlq")) == Counter([0, 1, 3, 5])


class TestFailingFunction:
    def test_its_row_becomes_a_dead_letter_and_the_job_continues(self) -> None:
        with TestDriver(counting()) as t:
            push(t, LINES)
            t.checkpoint()
            oracle = Oracle(LINES)
            assert dead(t) == oracle.dead
            assert Counter(row["word"] for row in t.rows("all")) == oracle.words
            (raised,) = [row for row in t.rows("dlq") if "words raised" in row["error"]]
        assert "words raised ValueError: cannot read oh no! at test_dead_letters.py" in raised["error"]
        # one record was left out before it: offsets still are those of the source
        assert (raised["partition"], raised["offset"], raised["form"]) == (0, 2, "record")

    def test_a_row_emits_nothing_if_one_of_its_results_does_not_fit(self) -> None:
        with TestDriver(counting()) as t:
            push(t, [(3, SPLIT)])
            t.checkpoint()
            assert t.rows("all") == []
            assert dead(t) == {("flat_map words", (3, SPLIT)): 1}

    def test_a_row_after_other_steps_is_kept_as_it_reached_the_function(self) -> None:
        app = hf.App("words", dlq=MemorySink())
        lines = lines_of(app).select("text", twice=pl.col("number") * 2)
        lines.map(lambda r: 1 / 0, to=Word, on_error="dlq").sink("out", MemorySink())
        with TestDriver(app) as t:
            push(t, LINES[3:5])
            t.checkpoint()
            rows = sorted(t.rows("dlq"), key=lambda row: row["offset"])
        assert [(row["form"], row["offset"]) for row in rows] == [("row", 0), ("row", 1)]
        assert decode_row(rows[0]["raw"]).to_pylist() == [{"text": SPLIT, "twice": 6}]

    def test_map_batches_finds_the_failing_rows_and_their_offsets(self) -> None:
        def strict(batch: pa.RecordBatch) -> pa.RecordBatch:
            if 7 in batch.column("number").to_pylist():
                raise ValueError("seven")
            return batch

        app = hf.App("words", dlq=MemorySink())
        lines_of(app).map_batches(strict, to=Line, on_error="dlq").sink("out", MemorySink())
        with TestDriver(app) as t:
            push(t, [(number, GOOD) for number in range(20)])
            t.checkpoint()
            assert [row["offset"] for row in t.rows("dlq")] == [7]
            assert sorted(row["number"] for row in t.rows("out")) == [n for n in range(20) if n != 7]

    def test_unknown_places_after_a_shuffle_are_null(self) -> None:
        @dataclass
        class Timed:
            at: datetime
            k: int

        start = datetime(2026, 1, 1, tzinfo=UTC)
        app = hf.App("timed", dlq=MemorySink())
        rows = app.source("rows", hf.Generator(Timed, lambda i: Timed(start, 0), count=1), event_time="at")
        counts = rows.key_by("k").window(hf.tumbling("1s")).agg("n", n=hf.count(), emit="final")
        counts.map(lambda r: 1 / 0, to=Word, on_error="dlq").sink("out", MemorySink())
        with TestDriver(app) as t:
            t.push("rows", [Timed(start, k) for k in range(5)])
            t.finish()
            letters = t.rows("dlq")
        assert len(letters) == 5
        assert {(r["source"], r["partition"], r["offset"], r["form"]) for r in letters} == {(None, None, None, "row")}

    def test_records_in_equal_rows_out_plus_dropped_plus_dead_letters(self) -> None:
        with TestDriver(counting()) as t:
            push(t, LINES)
            push(t, LINES, partition=1)
            t.checkpoint()
            rows = counters(t)
        assert (rows["lines"]["rows_in"], rows["lines"]["rows_out"], rows["lines"]["dlq"]) == (12, 8, 4)
        assert (rows["flat_map words"]["rows_in"], rows["flat_map words"]["dlq"]) == (8, 4)
        assert (rows["filter lambda"]["rows_in"], rows["filter lambda"]["dlq"]) == (6, 2)
        assert rows["counts"]["dlq"] is None


class TestTheDlq:
    @pytest.mark.parametrize(
        ("sink", "told"),
        [
            ("a path", "'a path' is not a sink"),
            (hf.SQLite("x.db", "dead", key=["offset"]), "has a key: dead letters would replace each other"),
            (hf.Log("data/dead", Line), "does not take the stream's columns"),
            (hf.Log("data/dead", key=["nothing"]), "'nothing' is not in the schema"),
        ],
    )
    def test_a_sink_that_cannot_keep_every_dead_letter_is_refused_when_planned(self, sink: Any, told: str) -> None:
        app = hf.App("words", dlq=sink)
        lines_of(app).sink("out", MemorySink())
        with pytest.raises(ConfigError, match="the dlq of app 'words'") as caught:
            app.plan()
        assert told in caught.value.what

    def test_its_name_is_reserved(self) -> None:
        with pytest.raises(ConfigError, match="'dlq'.* is already the name of the app's dead letter queue"):
            lines_of(hf.App("words")).sink("dlq", MemorySink())

    def test_a_source_cannot_ask_for_a_dlq_that_the_app_does_not_have(self) -> None:
        with pytest.raises(ConfigError, match="source 'lines' at test_dead_letters.py.* has no dead letter queue"):
            lines_of(hf.App("words"), on_error="dlq")
        with pytest.raises(ConfigError, match="on_error is 'ignore'"):
            lines_of(hf.App("words"), on_error="ignore")

    def test_the_plan_shows_the_dlq(self) -> None:
        plan = counting().plan()
        assert "text: string), on error: dlq" in render(plan)
        assert "dead letters of every fragment: sink dlq (operator: string, source: string?" in render(plan)
        shown = describe(plan)
        assert [source["on_error"] for source in shown["sources"]] == ["dlq"]
        assert [(sink["name"], sink["fragment"]) for sink in shown["sinks"]][-1] == ("dlq", None)


class TestALogWithNulls:
    @pytest.fixture
    def log(self, tmp_path: Path) -> hf.Log:
        schema = pa.schema([("number", pa.int64()), ("text", pa.utf8())])
        create_log(LocalObjects(tmp_path / "lines"), schema, partitions=1)
        table = pa.Table.from_pylist([{"number": n, "text": text} for n, text in LINES], schema)
        LogWriter(LocalObjects(tmp_path / "lines")).append({0: table})
        return hf.Log(tmp_path / "lines", Line)

    def test_is_accepted_even_if_the_dataclass_forbids_nulls(self, log: hf.Log) -> None:
        source: Source = log.source()
        source.check()
        batch, following = source.open().read(0, 0, 1 << 20)
        assert batch is not None and following == 6
        assert batch.column("number").to_pylist() == [0, None, 2, 3, 4, 5]

    def test_other_types_are_still_refused(self, log: hf.Log) -> None:
        @dataclass
        class Other:
            number: float
            text: str

        with pytest.raises(ConfigError, match="number: expected double, found int64"):
            hf.Log(log.path, Other).source().check()


class TestARawRecord:
    def test_is_read_back_unchanged(self) -> None:
        batch = pa.record_batch({"a": [1, None, 3], "b": ["x", "y", None]})
        assert [decode_row(encode_row(batch, row)).to_pylist()[0] for row in range(3)] == batch.to_pylist()

    @pytest.mark.parametrize("raw", [b"", b"nonsense", encode_row(pa.record_batch({"a": [1]}))[:-40]])
    def test_other_bytes_are_damage(self, raw: bytes) -> None:
        with pytest.raises(Damaged, match="raw record of a dead letter cannot be read"):
            decode_row(raw)

    def test_an_error_can_always_be_stored(self) -> None:
        assert reported("\ud800" + "x" * 5_000) == "?" + "x" * 1_999


class TestALogAsDlq:
    def test_a_generators_wrong_record_is_kept_as_text(self) -> None:
        def sometimes(i: int) -> Any:
            return ("seven", i) if i == 7 else Line(i, GOOD)

        app = hf.App("words", dlq=hf.Log("unused/dead"))
        app.source("lines", hf.Generator(Line, sometimes, count=20)).sink("out", MemorySink())
        plan = app.plan()
        opened = plan.sources[0].source.open()
        batch, _ = opened.read(0, 0, 1 << 20)
        assert batch is not None and batch.column("_raw")[7].as_py() == b"('seven', 7)"

    def test_the_log_is_created_with_the_fixed_columns(self, tmp_path: Path) -> None:
        hf.Log(tmp_path / "dead").sink().prepare(DEAD_LETTERS, None)
        assert LogReader(LocalObjects(tmp_path / "dead")).meta.schema == DEAD_LETTERS


class TestEpochOfADeadLetter:
    def test_is_the_epoch_of_the_fragment_that_refused_the_record(self) -> None:
        plan = counting().plan()
        pushed = PushedSource("lines", plan.sources[0].source.schema, random.Random(0))
        opened: dict[str, OpenSource] = {"lines": pushed}
        channel = ChannelId(0, Subtask(0), Subtask(0))
        links = MemoryNetwork().open(
            OpenLinks(JobUuid("job"), Generation(1), Subtask(0), [channel], [channel], {}, {}, lambda *_: None)
        )
        specs = [operator.table for operator in plan.operators]
        state = StateStore(Identity(JobUuid("job"), Generation(1), Timeline(1), WorkerId("w")), specs, 16, (0, 16))
        readings = open_readings(plan, (SourcePosition("lines", 0, 0),), opened)
        clock = VirtualClock()
        throttle = Throttle(None, clock)
        ports = MemberPorts(clock, MemoryObjects(), MemoryNetwork(), MemoryState(), lambda _: None)
        immediate = ImmediateWrites(plan, ports, lambda *_: None, lambda *_: None)
        run = SubtaskRun(plan, Subtask(0), 1, state, links, opened, readings, throttle, immediate)

        def read(number: int) -> None:
            row = pa.Table.from_pylist([{"number": number, "text": None}], schema=pushed.schema)
            pushed.tables[0] = pa.concat_tables([pushed.tables[0], row])
            while run.advance(lambda *_: None, True):
                pass

        def dead_of(epoch: Epoch) -> list[int]:
            part = run.take_stages(epoch)["dlq"].seal()
            return [] if part is None else [o for b in decode(part.data) for o in b.column("offset").to_pylist()]

        one, two = (Barrier(Epoch(n), NO_EPOCH, False) for n in (1, 2))
        read(0)
        run.close_fragment(0, one)
        read(1)  # of epoch 2, while the keyed fragment still is in epoch 1
        run.close_fragment(1, one)
        assert dead_of(Epoch(1)) == [0]
        run.close_fragment(0, two)
        run.close_fragment(1, two)
        assert dead_of(Epoch(2)) == [1]


Action = tuple[str, int, list[tuple[int | None, str | None]]]
TEXTS = st.sampled_from([None, "", GOOD, SPLIT, "oh no!", "the plain", "a bird in the hand"])


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(
                st.just("push"),
                st.integers(0, 3),
                st.lists(st.tuples(st.none() | st.integers(-3, 9), TEXTS), min_size=1, max_size=20),
            ),
            st.tuples(st.just("crash"), st.integers(0, 1), st.just([])),
            st.tuples(st.just("checkpoint"), st.just(0), st.just([])),
        ),
        max_size=10,
    ),
    st.integers(0, 1_000),
)
def test_every_record_is_emitted_or_is_one_dead_letter_under_any_crash(actions: list[Action], seed: int) -> None:
    pushed: list[tuple[int | None, str | None]] = []
    with TestDriver(counting(), seed=seed) as t:
        for kind, where, lines in actions:
            match kind:
                case "push":
                    pushed += lines
                    push(t, lines, partition=where)
                case "crash":
                    t.crash(where)
                    t.recover()
                case _:
                    t.checkpoint()
        t.finish()
        oracle = Oracle(pushed)
        assert dead(t) == oracle.dead
        assert Counter(row["word"] for row in t.rows("all")) == oracle.words
        assert {row["word"]: row["n"] for row in t.rows("out")} == oracle.words
