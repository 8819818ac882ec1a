"""The reader of numbered rows finds each fault that it is there to find."""

from __future__ import annotations

from typing import Any

from kafka_numbers import Order


def row(n: int, **other: Any) -> dict[str, Any]:
    return {"key": "a", "n": n, "count": n, **other}


def order_of(*rows: dict[str, Any]) -> Order:
    order = Order()
    for each in rows:
        order.take("a", each)
    return order


class TestOrder:
    def test_an_order_with_each_row_once_has_no_fault(self) -> None:
        order = order_of(row(1), row(2), row(3))
        order.take("b", row(1, key="b"))
        assert order.faults == [] and order.rows == 4 and order.newest == {"a": 3, "b": 1}

    def test_shows_a_lost_row(self) -> None:
        order = order_of(row(1), row(3), row(4))
        assert order.lost == ["a: 3 came instead of 2"] and order.faults == order.lost

    def test_shows_a_repeated_row(self) -> None:
        order = order_of(row(1), row(2), row(2), row(3))
        assert order.repeated == ["a: 2 came again or late, instead of 3"] and order.faults == order.repeated

    def test_shows_rows_that_are_reordered(self) -> None:
        assert order_of(row(2), row(1)).faults == ["a: 2 came instead of 1", "a: 1 came again or late, instead of 3"]

    def test_shows_a_count_or_a_key_that_is_not_the_rows_own(self) -> None:
        assert len(order_of(row(1), row(2, count=3), row(3, key="b")).wrong) == 2

    def test_shows_a_row_that_was_aborted(self) -> None:
        assert order_of(row(1), row(-1, count=2)).faults
