"""Python functions in complete jobs: over crashes they give the results of plain Python; a failure loses nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import JobFailed
from holdfast.runtime.job.status import of_run
from holdfast.runtime.testing.cluster import Cluster
from holdfast.runtime.testing.driver import PARTITIONS
from holdfast.testing import TestDriver

IN_BOTH_MODES = True

pytestmark = pytest.mark.thorough


@dataclass
class Line:
    number: int
    text: str | None


@dataclass
class Word:
    word: str
    length: int


def words(line: Line) -> Iterator[Word]:
    if line.text is None:
        raise ValueError("no text")
    for word in line.text.split():
        yield Word(word, len(word))


def shout(word: Word) -> Word:
    return Word(word.word.upper(), word.length)


def counting(on_error: str = "drop") -> hf.App:
    app = hf.App("words", key_groups=16)
    lines = app.source("lines", hf.Generator(Line, lambda i: Line(i, ""), count=1))
    found = lines.flat_map(words, to=Word, on_error=on_error)
    short, long = found.filter(lambda w: w.length < 3), found.filter(pl.col("length") >= 3).map(shout, to=Word)
    united = short.union(long)
    united.key_by("word").agg("counts", n=hf.count(), letters=hf.sum("length")).sink(
        "out", hf.SQLite("unused.db", table="words", key=["word"])
    )
    united.sink("all", hf.SQLite("unused.db", table="all_words"))
    return app


def expected(lines: list[Line]) -> Counter[str]:
    found = [word for line in lines if line.text is not None for word in line.text.split()]
    return Counter(word if len(word) < 3 else word.upper() for word in found)


def delivered(t: TestDriver) -> tuple[dict[str, int], Counter[str]]:
    return {row["word"]: row["n"] for row in t.rows("out")}, Counter(row["word"] for row in t.rows("all"))


LINES = [Line(0, "a bird in the hand"), Line(1, None), Line(2, ""), Line(3, "the bird")]


class TestCrash:
    def test_results_of_a_function_are_neither_lost_nor_duplicated(self) -> None:
        with TestDriver(counting()) as t:
            t.push("lines", LINES)
            t.checkpoint()
            t.push("lines", LINES, partition=1)
            t.crash(0)
            t.recover()
            t.crash(1)
            t.recover()
            t.finish()
            assert delivered(t) == (expected(LINES + LINES), expected(LINES + LINES))


class TestFailure:
    @pytest.mark.continuous("an error shows when a record is processed, not with the next epoch")
    def test_ends_the_job_and_leaves_output_as_of_the_last_checkpoint(self) -> None:
        with TestDriver(counting("fail")) as t:
            t.push("lines", [LINES[0]])
            t.checkpoint()
            with pytest.raises(JobFailed, match="words raised ValueError: no text at test_functions_recovery.py"):
                t.push("lines", LINES)
            assert delivered(t) == (expected(LINES[:1]), expected(LINES[:1]))
            error = (t.cluster.driver.outcome or ("", None))[1]
            assert error is not None and error.operator == "flat_map words"
            assert (error.source, error.partition, error.offset) == ("lines", 0, 2)

    @pytest.mark.continuous("an error shows when a record is processed, not with the next epoch")
    def test_the_corrected_job_resumes_without_loss_or_repetition(self) -> None:
        broken = True

        def parse(line: Line) -> Word:
            if broken and line.text is None:
                raise ValueError("no text")
            return Word(line.text or "", line.number)

        app = hf.App("words", key_groups=16)
        lines = app.source("lines", hf.Generator(Line, lambda i: Line(i, ""), count=1))
        parsed = lines.map(parse, to=Word)
        parsed.sink("all", hf.SQLite("unused.db", table="all_words"))
        parsed.key_by("word").agg("counts", n=hf.count()).sink("out", hf.SQLite("x.db", table="words", key=["word"]))
        with TestDriver(app) as t:
            t.push("lines", LINES[:1])
            t.checkpoint()
            with pytest.raises(JobFailed):
                t.push("lines", LINES[1:])
            broken = False
            failed = t.cluster
            t.cluster = Cluster(failed._plan, 2, 1, failed._store, 1.0, {"lines": tuple(range(PARTITIONS))})
            t.cluster.begin()
            t.finish()
            assert delivered(t) == (
                {line.text or "": 1 for line in LINES if line.text} | {"": 2},
                Counter(line.text or "" for line in LINES),
            )


class TestDroppedRows:
    def test_are_shown_in_the_status_per_step(self) -> None:
        with TestDriver(counting()) as t:
            t.push("lines", LINES)
            t.push("lines", LINES, partition=1)
            t.checkpoint()
            t.advance("1s")
            for member in t.cluster.members.values():
                member.loop.beat()
            t.advance("1s")
            rows = {row["name"]: row for row in of_run(t.cluster.driver.state, "", "", None).as_json()["operators"]}
        assert rows["flat_map words"]["dropped"] == 2
        assert (rows["flat_map words"]["rows_in"], rows["flat_map words"]["rows_out"]) == (8, 14)
        assert rows["filter lambda"]["dropped"] == 0
        assert rows["counts"]["dropped"] is None


Action = tuple[str, int, list[str | None]]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(
                st.just("push"),
                st.integers(0, 3),
                st.lists(st.none() | st.text("ab ", max_size=9), min_size=1, max_size=20),
            ),
            st.tuples(st.just("crash"), st.integers(0, 1), st.just([])),
            st.tuples(st.just("checkpoint"), st.just(0), st.just([])),
        ),
        max_size=10,
    ),
    st.integers(0, 1_000),
)
def test_functions_give_the_results_of_plain_python_under_any_crash(actions: list[Action], seed: int) -> None:
    pushed: list[Line] = []
    with TestDriver(counting(), seed=seed) as t:
        for kind, where, texts in actions:
            match kind:
                case "push":
                    lines = [Line(len(pushed) + n, text) for n, text in enumerate(texts)]
                    pushed += lines
                    t.push("lines", lines, partition=where)
                case "crash":
                    t.crash(where)
                    t.recover()
                case _:
                    t.checkpoint()
        t.finish()
        assert delivered(t) == (expected(pushed), expected(pushed))
