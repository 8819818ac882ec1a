"""A function that has ended its process gets few rows at a time, each portion noted, and not the rows that end it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.runtime.operators.contract import Arrival
from holdfast.runtime.operators.time_slice import TimeSlice
from holdfast.runtime.rows.dead_letters import Letters, decode_row
from holdfast.runtime.rows.schema import schema_of
from holdfast.runtime.wire.messages import LIMITED_EPOCHS, Killer, Suspect
from holdfast.runtime.wire.vitals import At
from holdfast.runtime.worker.fragment import FragmentRuntime
from holdfast.sinks.memory.sink import MemorySink
from tests.unit.runtime.test_functions import planned


@dataclass
class Item:
    id: int
    name: str | None


ARRIVAL = Arrival(2, 100, 110, contiguous=True)
ITEMS = [Item(n, None if n % 3 else str(n)) for n in range(10)]


class Played:
    """One fragment that calls a function with ten items, which are at offsets 100 to 109 of partition 2."""

    def __init__(
        self,
        how: str,
        on_error: str = "dlq",
        suspects: Sequence[Suspect] = (),
        arrival: Arrival | None = ARRIVAL,
        between: Callable[[FragmentRuntime], object] = lambda _: None,
    ) -> None:
        self.given: list[list[int]] = []
        self.noted: list[At] = []
        self.rows: list[int] = []
        self.letters = Letters()

        def one(item: Item) -> Item:
            self.given.append([item.id])
            return item

        def many(batch: pa.RecordBatch) -> pa.RecordBatch:
            self.given.append(batch.column("id").to_pylist())
            return batch

        app = hf.App("app", dlq=MemorySink())
        stream: Any = app.source("items", planned(Item))
        stream = getattr(stream, how)(many if how == "map_batches" else one, to=Item, on_error=on_error)
        stream.sink("out", MemorySink())
        plan = app.plan()
        self.operator = plan.fragments[0].calls()[0]
        suspects = [Suspect(self.operator, *vars_of(each)) for each in suspects]
        self.fragment = FragmentRuntime(
            plan.fragments[0],
            {},
            lambda edge, rows: None,
            lambda sink, rows: self.rows.extend(rows.column("id").to_pylist()),
            letters=self.letters,
            time_slice=TimeSlice(mark=self._mark),
            suspects=suspects,
        )
        between(self.fragment)
        batch = pa.RecordBatch.from_pylist([vars(item) for item in ITEMS], schema=schema_of(Item))
        self.fragment.on_batch(batch, arrival)

    def _mark(self, what: str | None, at: At | None = None, /) -> None:
        if what is not None:
            assert at is not None
            self.noted.append(at)

    def left_out(self) -> list[tuple[int, int | None, str]]:
        """Return the dead letters: the id, the offset and the error."""
        letters = [letter for batch in self.letters.take() for letter in batch.to_pylist()]
        return [(decode_row(each["raw"]).column("id")[0].as_py(), each["offset"], each["error"]) for each in letters]


def vars_of(suspect: Suspect) -> tuple[Any, ...]:
    return suspect.rows_max, suspect.partition, suspect.offset, suspect.following, suspect.killers


def barriers(count: int) -> Callable[[FragmentRuntime], None]:
    """Return what closes so many epochs of a fragment."""

    def closed(fragment: FragmentRuntime) -> None:
        for _ in range(count):
            fragment.backlog.epoch_closed()

    return closed


def digest_of(number: int, how: str = "map") -> int:
    """Return what a worker notes of one item, if it is given to the function alone."""
    return Played(how, suspects=[Suspect("", 1)]).noted[number].digest


@pytest.mark.parametrize("how", ["map", "map_batches"])
class TestPortions:
    def test_are_whole_and_noted_with_their_offsets_while_nothing_is_known(self, how: str) -> None:
        played = Played(how)
        assert played.noted == [At(10, 2, 100, 110)]
        assert played.rows == list(range(10))

    def test_have_the_rows_that_the_limit_allows(self, how: str) -> None:
        played = Played(how, suspects=[Suspect("", 4)])
        assert [(at.rows, at.offset, at.following) for at in played.noted] == [
            (4, 100, 104),
            (4, 104, 108),
            (2, 108, 110),
        ]
        assert played.rows == list(range(10))

    def test_are_small_only_at_the_offsets_under_suspicion(self, how: str) -> None:
        played = Played(how, suspects=[Suspect("", 1, 2, 103, 105)])
        assert [(at.rows, at.offset) for at in played.noted] == [(3, 100), (1, 103), (1, 104), (5, 105)]
        assert [bool(at.digest) for at in played.noted] == [False, True, True, False]

    def test_are_whole_in_another_partition(self, how: str) -> None:
        assert len(Played(how, suspects=[Suspect("", 1, 3, 100, 110)]).noted) == 1

    def test_are_small_at_the_offsets_under_suspicion_behind_any_number_of_barriers(self, how: str) -> None:
        """A first call that takes longer than a checkpoint interval lets a barrier pass long before these offsets."""
        suspects = [Suspect("", 3, 2, 102, 108)]
        played = Played(how, suspects=suspects, between=barriers(2 * LIMITED_EPOCHS))
        assert [(at.rows, at.offset) for at in played.noted] == [(2, 100), (3, 102), (3, 105), (2, 108)]

    @pytest.mark.parametrize("suspect", [Suspect("", 1), Suspect("", 1, 2, 100, 110)], ids=["shuffle", "results"])
    def test_portions_of_rows_without_offsets_are_small_until_several_epochs_close(
        self, how: str, suspect: Suspect
    ) -> None:
        before = Played(how, suspects=[suspect], arrival=None, between=barriers(LIMITED_EPOCHS - 1))
        after = Played(how, suspects=[suspect], arrival=None, between=barriers(LIMITED_EPOCHS))
        assert (len(before.noted), len(after.noted)) == (10, 1)

    def test_single_rows_behind_a_shuffle_are_noted_by_a_hash(self, how: str) -> None:
        noted = Played(how, suspects=[Suspect("", 1)], arrival=None).noted
        assert {(at.rows, at.partition) for at in noted} == {(1, -1)}
        assert len({at.digest for at in noted}) == 10


@pytest.mark.parametrize("how", ["map", "map_batches"])
class TestARowThatEndsTheProcess:
    @pytest.mark.parametrize(
        ("arrival", "offsets"), [(ARRIVAL, [104, 109]), (None, [None, None])], ids=["source", "shuffle"]
    )
    def test_becomes_a_dead_letter_and_is_not_given_to_the_function(
        self, how: str, arrival: Arrival | None, offsets: list[int | None]
    ) -> None:
        killers = tuple(Killer(digest_of(n), "exit status 3") for n in (4, 9))
        played = Played(how, suspects=[Suspect("", killers=killers)], arrival=arrival)
        assert sorted(n for rows in played.given for n in rows) == played.rows == [0, 1, 2, 3, 5, 6, 7, 8]
        letters = played.left_out()
        assert [(number, offset) for number, offset, _ in letters] == list(zip([4, 9], offsets, strict=True))
        assert all("ended its process: exit status 3" in error for _, _, error in letters)

    def test_is_dropped_and_counted_if_the_step_drops(self, how: str) -> None:
        played = Played(how, "drop", [Suspect("", killers=(Killer(digest_of(4), "exit status 3"),))])
        (progress,) = played.fragment.progress()
        assert (progress.rows_in, progress.rows_out, progress.dropped) == (10, 9, 1)
        assert played.left_out() == []

    def test_is_looked_for_only_at_its_offset_if_that_is_known(self, how: str) -> None:
        elsewhere = Suspect("", killers=(Killer(digest_of(4), "exit status 3", 2, 500),))
        assert Played(how, suspects=[elsewhere]).rows == list(range(10))

    def test_is_left_out_beside_one_of_another_partition(self, how: str) -> None:
        other = Suspect("", 1, 3, 100, 110)
        mine = Suspect("", killers=(Killer(digest_of(4), "exit status 3", 2, 104),))
        assert Played(how, suspects=[other, mine]).rows == [0, 1, 2, 3, 5, 6, 7, 8, 9]
