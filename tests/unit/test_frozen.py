"""Changes to frozen dataclasses and to mappings."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.frozen import CHUNK, changed, grown, replace, shortened


@dataclass(frozen=True)
class Plain:
    a: int
    b: tuple[int, ...] = ()

    @cached_property
    def total(self) -> int:
        return self.a + sum(self.b)


@dataclass(frozen=True)
class Checked:
    a: int

    def __post_init__(self) -> None:
        assert self.a >= 0


@dataclass(frozen=True, slots=True)
class Slotted:
    a: int


@dataclass(frozen=True)
class Numbered:
    a: int
    doubled: int = field(init=False, default=0)


@dataclass(frozen=True)
class Shared:
    unit: ClassVar[str] = "rows"
    a: int = 0

    @cached_property
    def doubled(self) -> int:
        return 2 * self.a


@dataclass(frozen=True, init=False)
class Computed:
    a: int
    doubled: int

    def __init__(self, a: int, doubled: int | None = None) -> None:
        object.__setattr__(self, "a", a)
        object.__setattr__(self, "doubled", 2 * a)


class TestReplace:
    def test_returns_a_copy_of_the_same_class_and_leaves_the_original(self) -> None:
        before = Plain(1, (2,))

        assert replace(before, a=3) == Plain(3, (2,))
        assert before == Plain(1, (2,))
        assert replace(before) is not before

    @pytest.mark.parametrize("value", [Plain(1), Checked(1), Slotted(1)])
    def test_refuses_an_unknown_field(self, value: Any) -> None:
        with pytest.raises(TypeError):
            replace(value, c=1)

    def test_keeps_the_checks_of_a_class(self) -> None:
        with pytest.raises(AssertionError):
            replace(Checked(1), a=-1)

    def test_a_value_computed_from_the_fields_is_computed_again(self) -> None:
        before = Plain(1, (2,))
        assert before.total == 3

        assert replace(before, a=10).total == 12

    def test_recomputes_derived_values_in_a_class_with_a_class_variable(self) -> None:
        before = Shared(1)
        assert before.doubled == 2

        assert replace(before, a=10).doubled == 20

    def test_runs_an_initializer_that_a_class_wrote_itself(self) -> None:
        assert replace(Computed(1), a=10) == Computed(10)

    def test_copies_classes_with_slots_too(self) -> None:
        assert replace(Slotted(1), a=2) == Slotted(2)

    def test_refuses_a_field_that_the_initializer_does_not_take(self) -> None:
        with pytest.raises((TypeError, ValueError)):
            replace(Numbered(1), doubled=5)


class TestChanged:
    @given(st.integers(0, 200), st.lists(st.tuples(st.integers(0, 250), st.integers()), max_size=300))
    def test_copies_read_like_dicts_and_leave_their_originals_alone(
        self, size: int, changes: list[tuple[int, int]]
    ) -> None:
        table: Mapping[int, int] = {n: -n for n in range(size)}
        plain = dict(table)
        kept = [(table, plain)]
        for key, value in changes:
            table, plain = changed(table, key, value), {**plain, key: value}
            kept.append((table, plain))
        for found, wanted in kept[:: max(1, len(kept) // 20)]:
            assert list(found.items()) == list(wanted.items())
            assert list(found) == list(wanted) and list(found.values()) == list(wanted.values())
            assert len(found) == len(wanted) and found == wanted and {**found} == wanted
            assert all((key in found) == (key in wanted) and found.get(key) == wanted.get(key) for key in range(251))

    def test_a_change_of_a_large_table_does_not_copy_it(self) -> None:
        table: Mapping[int, int] = dict.fromkeys(range(10_000), 0)
        copies = list[Mapping[int, int]]()
        for key in range(1_000):
            copies.append(table := changed(table, key, 1))
        tracemalloc.start()
        copies += [table := changed(table, key, 2) for key in range(1_000)]
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert size / 1_000 < sys.getsizeof(dict.fromkeys(range(10_000), 0)) / 10


class TestGrownAndShortened:
    @given(
        st.sampled_from([1, 3, CHUNK]),
        st.integers(0, 5),
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.booleans()), max_size=60),
    )
    def test_copies_read_like_tuples_and_leave_their_originals_alone(
        self, chunk: int, size: int, changes: list[tuple[int, int, bool]]
    ) -> None:
        with pytest.MonkeyPatch.context() as small:
            small.setattr("holdfast.frozen.CHUNK", chunk)
            self._check_copies(size, changes)

    def _check_copies(self, size: int, changes: list[tuple[int, int, bool]]) -> None:
        items: Sequence[int] = tuple(range(size))
        copies = [(items, tuple(items))]
        for back, number, is_grown in changes:
            items, plain = copies[max(0, len(copies) - 1 - back)]  # also of a copy that others have grown from
            if is_grown:
                copies.append((grown(items, number), (*plain, number)))
            else:
                kept = plain[:number:2]
                copies.append((shortened(items, number, kept), (*kept, *plain[number:])))
        for found, wanted in copies:
            assert tuple(found) == wanted and found == wanted and len(found) == len(wanted)
            assert [found[at] for at in range(-len(wanted), len(wanted))] == [*wanted, *wanted]
            assert (found[1:3], found[-2:], found[::-1]) == (wanted[1:3], wanted[-2:], wanted[::-1])
            assert tuple(reversed(found)) == wanted[::-1]
            with pytest.raises(IndexError):
                found[len(wanted)]

    def test_a_sequence_that_loses_its_first_items_again_and_again_does_not_hold_them(self) -> None:
        items: Sequence[bytes] = ()
        tracemalloc.start()
        for number in range(10_000):
            items = grown(items, bytes(1_000))
            if number % 10 == 9:
                items = shortened(items, len(items) - 20)
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert size < 200 * 1_100

    def test_to_lose_some_items_frees_no_more_than_those(self) -> None:
        """A driver's turn would take 25 ms to free half of an hour of checkpoints."""
        freed = [0]

        class Item:
            def __del__(self) -> None:
                freed[0] += 1

        items: Sequence[Item] = ()
        for _ in range(40 * CHUNK):
            items = grown(items, Item())
        most = 0
        while items:
            before = freed[0]
            items = shortened(items, CHUNK // 2)
            most = max(most, freed[0] - before)
        assert freed[0] == 40 * CHUNK and most <= CHUNK

    def test_the_garbage_collector_leaves_out_items_that_refer_to_none(self) -> None:
        """It looked at each checkpoint of an hour, which took 15 ms of a driver's turn."""
        items: Sequence[bytes] = ()
        for number in range(40 * CHUNK):
            items = grown(items, b"%d" % number)
        gc.collect()
        first = items[0]
        found = [each for each in gc.get_objects() if type(each) in (list, tuple) and each and each[0] is first]
        assert not found and len(items) == 40 * CHUNK
