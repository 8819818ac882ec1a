"""Computed records: the same at every reading, limited by rate and count, and wrong functions are named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigError, JobFailed
from holdfast.runtime.plan.source import Source
from holdfast.runtime.rows.dead_letters import ERROR, RAW, Refused, reported, with_refused
from holdfast.runtime.sources.generator import Generator, OpenGenerator
from holdfast.runtime.worker.digests import records_digested

ANY_BYTES = 1 << 30


@dataclass
class Point:
    i: int
    square: float | None


class Unnamed:
    """Has no text of its own: its `repr` contains its memory address."""


class StoppedClock:
    """A clock that moves only when the test moves it."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall_us(self) -> int:
        return 0


def point(i: int) -> Point:
    return Point(i, float(i * i))


def points(i: Any) -> dict[str, Any]:
    return {"i": i, "square": (i * i).astype(float)}


def indices(opened: OpenGenerator, partition: int, offset: int = 0) -> list[int]:
    batch, following = opened.read(partition, offset, ANY_BYTES)
    assert following == offset + (0 if batch is None else batch.num_rows)
    return [] if batch is None else list(batch.column("i").to_pylist())


class TestGenerator:
    def test_offsets_of_the_partitions_interleave_the_indices(self) -> None:
        opened = Generator(Point, point, count=7, partitions=3).open()
        assert [indices(opened, partition) for partition in opened.partitions()] == [[0, 3, 6], [1, 4], [2, 5]]
        assert opened.end_offsets() == {0: 3, 1: 2, 2: 2}

    @given(st.integers(0, 50), st.integers(1, 5), st.booleans())
    @settings(max_examples=40, deadline=None)
    def test_every_index_below_the_count_occurs_exactly_once(self, count: int, partitions: int, whole: bool) -> None:
        fn: Callable[[Any], Any] = points if whole else point
        opened = Generator(Point, fn, count=count, partitions=partitions, vectorised=whole).open()
        found = [i for partition in opened.partitions() for i in indices(opened, partition)]
        assert sorted(found) == list(range(count))

    def test_records_by_function_and_by_column_are_equal(self) -> None:
        one, _ = Generator(Point, point, count=100).open().read(0, 0, ANY_BYTES)
        whole, _ = Generator(Point, points, count=100, vectorised=True).open().read(0, 0, ANY_BYTES)
        assert one == whole

    @pytest.mark.parametrize(
        "fn", [lambda i: (i, None), lambda i: {"i": i}, lambda i: Point(i, None)], ids=["tuple", "dict", "instance"]
    )
    def test_a_record_can_be_given_in_several_forms(self, fn: Callable[[int], object]) -> None:
        batch, _ = Generator(Point, fn, count=2).open().read(0, 0, ANY_BYTES)
        assert batch is not None and batch.to_pydict() == {"i": [0, 1], "square": [None, None]}

    def test_max_bytes_limits_a_read_but_to_no_less_than_one_record(self) -> None:
        opened = Generator(Point, point).open()
        assert opened.read(0, 0, 160)[1] == 10
        assert opened.read(0, 10, 1)[1] == 11

    def test_a_generator_ends_only_after_its_count(self) -> None:
        opened = Generator(Point, point, count=3, partitions=2).open()
        assert [opened.ended(0, 1), opened.ended(0, 2), opened.ended(1, 1)] == [False, True, True]
        assert not Generator(Point, point).open().ended(0, 10**9)

    def test_a_generator_is_a_source(self) -> None:
        source: Source = Generator(Point, point)
        source.check()

    @pytest.mark.parametrize(
        "wrong", [{"rate": 0}, {"rate": float("nan")}, {"count": -1}, {"partitions": 0}], ids=lambda wrong: str(wrong)
    )
    def test_arguments_out_of_range_are_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            Generator(Point, point, **wrong)


class TestRate:
    def test_only_records_that_are_due_exist(self) -> None:
        clock = StoppedClock()
        opened = Generator(Point, point, rate=10, partitions=2).open(clock)
        assert indices(opened, 0) == []
        clock.now += 0.5
        assert indices(opened, 0) == [0, 2]
        assert indices(opened, 1) == [1, 3]
        assert opened.end_offsets() == {0: 2, 1: 2}

    def test_a_job_resumed_from_a_checkpoint_does_not_wait_for_past_records(self) -> None:
        clock = StoppedClock()
        opened = Generator(Point, point, rate=10).open(clock)
        assert indices(opened, 0, 1_000) == []
        clock.now += 0.2
        assert indices(opened, 0, 1_000) == [1_000, 1_001]

    def test_records_read_before_are_reread_without_waiting(self) -> None:
        clock = StoppedClock()
        opened = Generator(Point, point, rate=10).open(clock)
        clock.now += 0.5
        assert indices(opened, 0) == [0, 1, 2, 3, 4]
        assert indices(opened, 0, 2) == [2, 3, 4]

    def test_the_count_limits_the_records_that_the_rate_allows(self) -> None:
        clock = StoppedClock()
        opened = Generator(Point, point, rate=10, count=2).open(clock)
        clock.now += 100
        assert indices(opened, 0) == [0, 1]

    def test_the_end_of_an_unlimited_generator_is_the_offset_read(self) -> None:
        opened = Generator(Point, point).open()
        opened.read(0, 0, 160)
        assert opened.end_offsets() == {0: 10}


class TestWhatHasAppeared:
    def test_is_everything_without_a_rate(self) -> None:
        opened = Generator(Point, point, count=80, partitions=2).open(StoppedClock())
        assert opened.appeared({0: 10, 1: 0}) == {0: 40, 1: 40}

    def test_counts_from_where_the_run_begins_and_no_further_than_the_count(self) -> None:
        clock = StoppedClock()
        opened = Generator(Point, point, rate=10, count=80_000, partitions=2).open(clock)
        begun = {0: 36_000, 1: 39_996}
        assert opened.appeared(begun) == begun
        clock.now += 2
        assert opened.appeared(begun) == {0: 36_010, 1: 40_000}

    def test_the_end_is_known_before_its_records_have_appeared(self) -> None:
        assert Generator(Point, point, rate=10, count=80, partitions=2).open(StoppedClock()).end_offsets() == {
            0: 40,
            1: 40,
        }

    def test_is_read_without_the_rate_and_nothing_else_is_computed(self) -> None:
        computed: list[int] = []
        source = Generator(Point, lambda i: computed.append(i) or point(i), rate=10, count=80)  # type: ignore[func-returns-value]
        opened = source.unpaced({0: 5}).open(StoppedClock())
        assert indices(opened, 0, 2) == computed == [2, 3, 4]
        assert indices(opened, 0, 5) == []
        assert not opened.ended(0, 5) and opened.ended(0, 80)


class TestWrongFunction:
    def test_an_error_names_function_index_partition_and_offset(self) -> None:
        def fails_at_seven(i: int) -> Point:
            return Point(i, 1 / (i - 7))

        opened = Generator(Point, fails_at_seven, count=20, partitions=2).open()
        with pytest.raises(JobFailed, match=r"fails_at_seven\) raised ZeroDivisionError.* at index 7") as caught:
            opened.read(1, 0, ANY_BYTES)
        assert (caught.value.where.partition, caught.value.where.offset) == (1, 3)

    def test_a_wrong_value_refuses_only_its_record_and_names_column_and_index(self) -> None:
        opened = Generator(Point, lambda i: (i, "x" if i == 5 else 1.0), count=20, partitions=2).open()
        batch, following = opened.read(1, 0, ANY_BYTES)
        assert batch is not None and following == 10
        errors = batch.column(ERROR).to_pylist()
        assert errors[2].endswith("wrong result at index 5: column 'square' takes double, not str 'x'")
        assert [row for row, error in enumerate(errors) if error is not None] == [2]
        assert batch.column(RAW)[2].as_py() == b"(5, 'x')"
        assert batch.column("i").to_pylist() == [1, 3, None, 7, 9, 11, 13, 15, 17, 19]

    @pytest.mark.parametrize("wrap", [lambda it: it, lambda it: (it, 1.0), lambda it: [it, print, lambda: 0]])
    def test_a_refused_record_does_not_depend_on_memory_addresses(self, wrap: Callable[[Any], Any]) -> None:
        alive: list[Unnamed] = []  # so that no two of them have the same address

        def give(i: int) -> Any:
            alive.append(Unnamed())
            return wrap(alive[-1]) if i == 1 else Point(i, 1.0)

        batch, again = (Generator(Point, give, count=3).open().read(0, 0, ANY_BYTES)[0] for _ in range(2))
        assert batch is not None and again is not None
        raw, error = batch.column(RAW)[1].as_py(), batch.column(ERROR)[1].as_py()
        assert b"Unnamed object at 0x...>" in raw
        assert (raw, reported(error)) == (again.column(RAW)[1].as_py(), reported(again.column(ERROR)[1].as_py()))

    def test_a_record_that_is_a_string_is_kept_verbatim(self) -> None:
        opened = Generator(Point, lambda i: "died at 0x1234", count=1).open()
        batch, _ = opened.read(0, 0, ANY_BYTES)
        assert batch is not None and batch.column(RAW)[0].as_py() == b"'died at 0x1234'"

    def test_the_error_text_of_a_refused_record_is_not_in_its_digest(self) -> None:
        decoded = pa.RecordBatch.from_pylist([{"i": 0, "square": 0.0}])
        one = with_refused(decoded, {1: Refused("why", "text", b"{'a', 'b'}")})
        other = with_refused(decoded, {1: Refused("so", "bytes", b"{'b', 'a'}")})
        assert records_digested(one, "rows") == records_digested(other, "rows") != records_digested(decoded, "rows")

    def test_a_null_from_a_vectorised_function_is_checked_by_the_reader(self) -> None:
        def nulls(i: Any) -> dict[str, Any]:
            return {"i": pa.array(np.where(i == 2, 0, i), mask=i == 2), "square": pa.nulls(len(i), pa.float64())}

        batch, _ = Generator(Point, nulls, count=4, vectorised=True).open().read(0, 0, ANY_BYTES)
        assert batch is not None and batch.column("i").to_pylist() == [0, 1, None, 3]

    @pytest.mark.parametrize(
        ("fn", "message"),
        [
            (lambda i: {"i": i}, "'square' is missing"),
            (lambda i: {"i": i, "square": np.zeros(1)}, "'square' has 1 values instead of 4"),
            (lambda i: [1, 2], "list is neither a dict of columns"),
            (lambda i: 1 / 0, "ZeroDivisionError.* at indices 0 to 3"),
        ],
    )
    def test_wrong_columns_are_named(self, fn: Callable[[Any], Any], message: str) -> None:
        with pytest.raises(JobFailed, match=message):
            Generator(Point, fn, count=4, vectorised=True).open().read(0, 0, ANY_BYTES)

    def test_a_function_that_returns_a_record_batch_is_checked_too(self) -> None:
        def batch(i: Any) -> pa.RecordBatch:
            return pa.record_batch({"i": pa.array(i), "square": pa.nulls(len(i), pa.float64())})

        got, _ = Generator(Point, batch, count=2, vectorised=True).open().read(0, 0, ANY_BYTES)
        assert got is not None and got.to_pydict() == {"i": [0, 1], "square": [None, None]}

    def test_a_wrong_function_is_found_before_the_job_starts(self) -> None:
        with pytest.raises(ConfigError, match="column 'i' takes int64, not str"):
            Generator(Point, lambda i: (str(i), None)).check()
