from __future__ import annotations

import sqlite3

from hypothesis import given
from hypothesis import strategies as st

from holdfast.model import Epoch, Subtask, Tag, Timeline, Writer
from holdfast.sinks.sql import tags

WRITER = Writer("out", Subtask(0))
TAGS = st.tuples(st.integers(1, 3), st.integers(1, 6)).map(lambda t: Tag(Timeline(t[0]), Epoch(t[1])))


class TestAdvance:
    @given(st.lists(TAGS, min_size=1))
    def test_the_row_count_is_one_exactly_if_the_tag_grows(self, attempts: list[Tag]) -> None:
        db = sqlite3.connect(":memory:")
        db.execute(tags.CREATE_PROGRESS)
        stands: Tag | None = None
        for tag in attempts:
            moved = db.execute(tags.advance(), tags.tag_row("job", WRITER, tag)).rowcount
            assert moved == (1 if stands is None or tag > stands else 0)
            stands = tag if stands is None else max(stands, tag)
            assert db.execute(tags.read_tag(), tags.writer_row("job", WRITER)).fetchall() == [
                (stands.timeline, stands.epoch)
            ]
        db.close()

    @given(st.lists(st.tuples(TAGS, TAGS).map(sorted), min_size=1))
    def test_several_epochs_move_it_only_from_below_the_first(self, attempts: list[list[Tag]]) -> None:
        db = sqlite3.connect(":memory:")
        db.execute(tags.CREATE_PROGRESS)
        stands = Tag(Timeline(0), Epoch(1))
        db.execute(tags.advance(), tags.tag_row("job", WRITER, stands))
        for first, last in attempts:
            below = first.timeline, first.epoch
            moved = db.execute(tags.advance_over(), (*tags.tag_row("job", WRITER, last), *below)).rowcount
            assert moved == (1 if stands < first else 0)
            stands = last if stands < first else stands
            assert db.execute(tags.read_tag(), tags.writer_row("job", WRITER)).fetchall() == [
                (stands.timeline, stands.epoch)
            ]
        db.close()

    @given(st.lists(st.tuples(TAGS, TAGS), min_size=1))
    def test_what_a_writer_knows_moves_it_only_from_there(self, attempts: list[tuple[Tag, Tag]]) -> None:
        db = sqlite3.connect(":memory:")
        db.execute(tags.CREATE_PROGRESS)
        stands = attempts[0][0]
        assert db.execute(tags.advance_first(), tags.tag_row("job", WRITER, stands)).rowcount == 1
        assert db.execute(tags.advance_first(), tags.tag_row("job", WRITER, attempts[0][1])).rowcount == 0
        for known, last in attempts:
            row = (last.timeline, last.epoch, *tags.writer_row("job", WRITER), known.timeline, known.epoch)
            assert db.execute(tags.advance_from(), row).rowcount == (1 if stands == known else 0)
            stands = last if stands == known else stands
            assert db.execute(tags.read_tag(), tags.writer_row("job", WRITER)).fetchall() == [
                (stands.timeline, stands.epoch)
            ]
        db.close()

    def test_the_parameter_mark_is_the_only_difference_between_databases(self) -> None:
        assert tags.advance("%s").replace("%s", "?") == tags.advance("?")
        assert tags.advance("%s").count("%s") == 5
