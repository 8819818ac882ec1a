from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

from hypothesis import given
from hypothesis import strategies as st

from holdfast.model import Epoch, Subtask, Tag, Timeline, Writer
from holdfast.sinks.sql import tags
from holdfast.sinks.sql.session import Given, Session
from holdfast.sinks.sqlite.dialect import SQLiteDialect

WRITER = Writer("out", Subtask(0))
TAGS = st.tuples(st.integers(1, 3), st.integers(1, 6)).map(lambda t: Tag(Timeline(t[0]), Epoch(t[1])))


@contextmanager
def progress() -> Iterator[Session]:
    """A database with the table of tags alone."""
    with closing(sqlite3.connect(":memory:")) as db:
        s = Session(SQLiteDialect("unused"), db)
        s.execute(tags.create_progress(s.dialect))
        yield s


def row(tag: Tag) -> tags.TagRow:
    return tags.tag_row("job", WRITER, tag)


def standing(s: Session) -> Tag | None:
    return tags.standing(s, tags.writer_row("job", WRITER))


class TestAdvance:
    @given(st.lists(TAGS, min_size=1))
    def test_the_tag_moves_exactly_if_it_grows(self, attempts: list[Tag]) -> None:
        with progress() as s:
            stands: Tag | None = None
            for tag in attempts:
                assert tags.advance(s, row(tag)) == (stands is None or tag > stands)
                stands = tag if stands is None else max(stands, tag)
                assert standing(s) == stands

    @given(st.lists(st.tuples(TAGS, TAGS).map(sorted), min_size=1))
    def test_several_epochs_move_the_tag_only_from_below_the_first(self, attempts: list[list[Tag]]) -> None:
        with progress() as s:
            stands = Tag(Timeline(0), Epoch(1))
            tags.advance(s, row(stands))
            for first, last in attempts:
                assert tags.advance_over(s, row(last), first) == (stands < first)
                stands = last if stands < first else stands
                assert standing(s) == stands

    @given(st.lists(st.tuples(TAGS, TAGS), min_size=1))
    def test_a_writer_with_a_known_tag_moves_it_only_from_there(self, attempts: list[tuple[Tag, Tag]]) -> None:
        with progress() as s:
            stands = attempts[0][0]
            assert tags.advance_first(s, row(stands))
            assert not tags.advance_first(s, row(attempts[0][1]))
            for known, last in attempts:
                assert tags.advance_from(s, row(last), known) == (stands == known)
                stands = last if stands == known else stands
                assert standing(s) == stands


class TestGiven:
    def test_marks_and_values_are_in_the_order_of_the_text(self) -> None:
        values = Given("${}".format)
        text = f"a = {values('x')} AND b IN ({values(2, 3)})"
        assert (text, values.values) == ("a = $1 AND b IN ($2, $3)", ["x", 2, 3])
