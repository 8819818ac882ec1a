"""Rows of two versions side by side, as their targets would show them."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

from holdfast.model import Epoch
from holdfast.runtime.replay.contrast import ColumnChanges, Contrast, GivenRows, Unlike, alike, same
from holdfast.sinks.contract.target import DELETE, OP, PUT

KEYED = ("k",)
NAN = float("nan")


def batch(*rows: dict[str, Any], deleted: tuple[int, ...] = (), upserts: bool = False) -> list[pa.RecordBatch]:
    if not rows:
        return []
    found = pa.RecordBatch.from_pylist(list(rows))
    if upserts or deleted:
        marks = pa.array([DELETE if at in deleted else PUT for at in range(len(rows))], pa.int8())
        found = found.append_column(pa.field(OP, pa.int8(), nullable=False), marks)
    return [found]


def contrast(
    *epochs: tuple[list[pa.RecordBatch], list[pa.RecordBatch]],
    key: tuple[str, ...] | None = None,
    names: tuple[str, ...] = ("k", "n"),
    from_nothing: bool = False,
    limit: int = 10,
) -> Contrast:
    rows = GivenRows(key, names, from_nothing=from_nothing)
    for number, (before, after) in enumerate(epochs, 1):
        rows.take(Epoch(number), before, after)
    found = Contrast("sink", "out")
    rows.fill(found, limit)
    return found


class TestRowsWithAKey:
    def test_the_newest_row_of_each_key_counts(self) -> None:
        one, two = batch({"k": "a", "n": 1}), batch({"k": "a", "n": 2})
        assert contrast((one, two), (two, []), key=KEYED).differ == 0
        found = contrast((one, one), (two, []), key=KEYED)
        assert found.first == [Unlike("changed", {"k": "a"}, {"k": "a", "n": 2}, {"k": "a", "n": 1}, Epoch(2), False)]
        assert (found.before, found.after) == (2, 1)

    def test_keys_that_are_equal_again_do_not_differ(self) -> None:
        one, two, three = (batch({"k": "a", "n": n}) for n in (1, 2, 3))
        assert contrast((one, two), (three, three), key=KEYED).differ == 0

    def test_differ_since_the_epoch_in_which_they_last_became_different(self) -> None:
        one, two, three = (batch({"k": "a", "n": n}) for n in (1, 2, 3))
        [first] = contrast((one, two), (three, three), (one, three), (one, three), key=KEYED).first
        assert first.epoch == 3

    def test_a_row_that_only_one_version_writes_or_deletes_differs(self) -> None:
        row, none = batch({"k": "a", "n": 1}), list[pa.RecordBatch]()
        deleted = batch({"k": "a", "n": 1}, deleted=(0,))
        put = batch({"k": "a", "n": 1}, upserts=True)
        for before, after, change in (
            (row, none, "removed"),
            (none, row, "added"),
            (put, deleted, "removed"),
            (deleted, put, "added"),
            (none, deleted, "removed"),
            (deleted, none, "added"),
        ):
            assert [each.change for each in contrast((before, after), key=KEYED).first] == [change]

    def test_a_row_that_was_deleted_is_like_one_that_never_was_if_the_target_began_empty(self) -> None:
        put, deleted = batch({"k": "a", "n": 1}, upserts=True), batch({"k": "a", "n": 1}, deleted=(0,))
        assert contrast((put, []), (deleted, []), key=KEYED, from_nothing=True).differ == 0
        assert contrast((put, []), (deleted, []), key=KEYED).differ == 1

    def test_rounding_alone_is_counted_apart(self) -> None:
        one, other = batch({"k": "a", "n": 0.1 + 0.2}), batch({"k": "a", "n": 0.3})
        found = contrast((one, other), key=KEYED)
        assert (found.differ, found.rounded, found.is_equal) == (0, 1, True)

    def test_columns_that_are_not_compared_do_not_count(self) -> None:
        one, other = batch({"k": "a", "n": 1, "more": 1}), batch({"k": "a", "n": 1, "more": 2})
        assert contrast((one, other), key=KEYED).differ == 0

    def test_only_the_first_ones_are_kept_and_all_are_counted(self) -> None:
        before = batch(*({"k": str(at), "n": 1} for at in range(5)))
        after = batch(*({"k": str(at), "n": 2} for at in range(5)))
        found = contrast((before, after), key=KEYED, limit=2)
        assert (found.differ, len(found.first)) == (5, 2)


class TestRowsWithoutAKey:
    def test_count_as_often_as_they_were_given_in_any_order_and_epoch(self) -> None:
        a, b = {"k": "a", "n": 1}, {"k": "b", "n": 1}
        assert contrast((batch(a, a, b), batch(b)), ([], batch(a, a))).differ == 0
        found = contrast((batch(a, a, b), batch(b, a)))
        assert found.first == [Unlike("removed", None, a, None, Epoch(1), is_by_new=False)]

    def test_rows_that_are_most_alike_are_shown_side_by_side(self) -> None:
        before = batch({"k": "a", "n": 1}, {"k": "b", "n": 2})
        after = batch({"k": "b", "n": 4}, {"k": "a", "n": 2})
        found = contrast((before, after))
        assert [(each.before, each.after) for each in found.first] == [
            ({"k": "a", "n": 1}, {"k": "a", "n": 2}),
            ({"k": "b", "n": 2}, {"k": "b", "n": 4}),
        ]
        assert found.differ == 2

    def test_rows_that_are_like_no_other_are_shown_alone(self) -> None:
        found = contrast((batch({"k": "a", "n": 1}), batch({"k": "b", "n": 2})))
        assert [each.change for each in found.first] == ["removed", "added"]
        assert found.differ == 1, "as many rows as one version has and the other has not"

    def test_rounding_alone_is_counted_apart(self) -> None:
        numbers = [0.1 + 0.2, 1.0, NAN, 5.0]
        before = batch(*({"k": "a", "n": n} for n in numbers))
        after = batch(*({"k": "a", "n": n} for n in (7.0, NAN, 1.0, 0.3)))
        found = contrast((before, after))
        assert (found.rounded, found.differ) == (1, 1)
        assert [((each.before or {})["n"], (each.after or {})["n"]) for each in found.first] == [(5.0, 7.0)]

    def test_with_lists_and_maps_can_be_compared(self) -> None:
        before = batch({"k": [1, 2], "n": {"x": 1.5}}, {"k": [3], "n": {"x": NAN}})
        after = batch({"k": [3], "n": {"x": NAN}}, {"k": [1, 2], "n": {"x": 2.5}})
        found = contrast((before, after))
        assert [(each.before, each.after) for each in found.first] == [
            ({"k": [1, 2], "n": {"x": 1.5}}, {"k": [1, 2], "n": {"x": 2.5}})
        ]


class TestValues:
    @pytest.mark.parametrize(
        ("one", "other", "expected"),
        [
            (1.0, 1.0 + 1e-12, True),
            (1.0, 1.0 + 1e-6, False),
            (0.0, 1e-300, False),
            (NAN, NAN, True),
            (NAN, None, False),
            (math.inf, math.inf, True),
            (True, 1, False),
            (1, 1.0, True),
            ([1.0, "a"], [1.0 + 1e-12, "a"], True),
            ([1.0], [1.0, 2.0], False),
            ({"x": NAN}, {"x": NAN}, True),
            ({"x": 1}, {"y": 1}, False),
            ("1", 1, False),
        ],
    )
    def test_are_alike_but_for_rounding(self, one: Any, other: Any, expected: bool) -> None:
        assert alike(one, other) is expected and alike(other, one) is expected

    def test_are_the_same_only_to_the_last_digit(self) -> None:
        assert same({"x": [NAN, 1]}, {"x": [NAN, 1]}) and not same(1.0, 1.0 + 1e-12)
        assert not same(True, 1)


class TestColumns:
    def test_columns_of_one_version_alone_are_named(self) -> None:
        columns = ColumnChanges.of(["k", "n"], ["k", "m"])
        assert (columns.added, columns.removed, bool(columns)) == (("m",), ("n",), True)
        assert not ColumnChanges.of(["k", "n"], ["n", "k"])
