"""Windows that share slices, and windows of calendar days: results and late records in complete jobs, by an oracle."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
import state_sizes
from hopping_jobs import SCHEMA, START, STEPS, Oracle, app_of, at, given_rows, play, row
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.model import Epoch
from holdfast.runtime.operators.windows import held
from holdfast.runtime.operators.windows.merging import Grouped, Owners
from holdfast.runtime.operators.windows.window import by_slice
from holdfast.runtime.plan.identity import check_against, describe_operators
from holdfast.runtime.time.calendar import Calendar
from holdfast.runtime.time.windows import Hopping, SessionWindows
from holdfast.sinks.memory.sink import MemorySink
from holdfast.state.keys.batch import KeyType
from holdfast.state.tables.table import StateTable, TableSpec
from holdfast.testing import TestDriver

IN_BOTH_MODES = True
SLICE = KeyType(("end", "k"), (pa.int64(), pa.int64()), unrouted=1)
ROWS_OF_SLICES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=8)


class TestHopping:
    @settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(
        st.lists(STEPS, min_size=3, max_size=12),
        st.sampled_from(["close", "final"]),
        st.sampled_from([(10, 2, 0), (10, 5, 3), (6, 6, 0), (12, 3, 20), (10, 2, 25)]),
        st.integers(0, 2**16),
        st.booleans(),
    )
    def test_windows_hold_what_the_oracle_finds(
        self, steps: list[Any], emit: str, shape: tuple[int, int, int], seed: int, compiled: bool
    ) -> None:
        size, every, lateness = shape
        oracle = Oracle(size, every, emit, lateness, compiled=compiled)
        with TestDriver(app_of(size, every, emit, lateness, compiled=compiled), 2, seed) as t:
            play(t, steps, oracle)
            t.finish()
            assert given_rows(t) == oracle.rows(through=1e9)
            assert sorted(each["v"] for each in t.rows("late")) == sorted(oracle.late)
            state_sizes.check(t, {})

    def test_a_rewind_takes_windows_back_and_gives_them_again(self) -> None:
        oracle, rows = Oracle(10, 2, "close", 1_000), [row("ab"[i % 2], i % 37, i) for i in range(60)]
        with TestDriver(app_of(lateness=1_000), 2) as t:
            t.push("rows", rows[:20])
            t.watermark("rows", at(20))
            base = t.checkpoint()
            before = given_rows(t)
            t.push("rows", rows[20:], partition=1)
            t.watermark("rows", at(30))
            t.checkpoint()
            assert given_rows(t) != before
            t.rewind(base)
            assert given_rows(t) == before
            t.checkpoint()
            for each in rows:
                oracle.take(each)
            t.finish()
            assert given_rows(t) == oracle.rows(through=1e9)

    def test_a_record_that_is_late_for_some_windows_counts_for_the_others(self) -> None:
        with TestDriver(app_of()) as t:
            t.push("rows", [row("a", 1, 1)])
            t.watermark("rows", at(6))
            t.checkpoint()
            t.push("rows", [row("a", 1.5, 2)])
            t.checkpoint()
            t.finish()
            assert {end: found[1] for (_, end), found in given_rows(t).items()} == {
                at(2): 1, at(4): 1, at(6): 1, at(8): 2, at(10): 2
            }  # fmt: skip
            assert t.rows("late") == []

    def test_a_record_for_a_slice_that_is_held_counts_in_its_later_windows(self) -> None:
        with TestDriver(app_of(compiled=True), 1) as t:
            t.push("rows", [row("a", 1, 1), row("a", 5, 1)])
            t.watermark("rows", at(6))
            t.push("rows", [row("a", 1, 10), row("b", 3, 100)])  # held, and a slice without any row
            t.checkpoint()
            t.push("rows", [row("c", 9, 1_000)])
            t.finish()
            totals = {(k, end): found[2] for (k, end), found in given_rows(t).items()}
            assert [totals["a", at(end)] for end in (2, 4, 6, 8, 10, 12, 14)] == [1, 1, 2, 12, 12, 1, 1]
            assert [totals.get(("b", at(end))) for end in (4, 6, 8, 12, 14)] == [None, None, 100, 100, None]
            assert sorted(end for k, end in totals if k == "c") == [at(end) for end in range(10, 20, 2)]

    @pytest.mark.parametrize("bytes_max", [0, 1 << 30])
    def test_windows_are_the_same_whether_slices_are_held_or_not(
        self, bytes_max: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(held, "BYTES_MAX", bytes_max)
        monkeypatch.setattr(held, "KEPT_MIN", 2)  # keys are forgotten, and slices read again
        oracle = Oracle(10, 2, "close", 0, compiled=True)
        with TestDriver(app_of(compiled=True), 2) as t:
            for second in range(0, 60, 3):
                rows = [row(f"k{(second + i) // 7}", second + i % 3, i) for i in range(8)]
                t.push("rows", rows, partition=second % 3)
                for each in rows:
                    oracle.take(each)
                t.watermark("rows", at(second))
                oracle.advance(second)
                t.checkpoint()
                assert given_rows(t) == oracle.rows()

    def test_a_record_is_kept_once_in_however_many_windows(self) -> None:
        with TestDriver(app_of(size=100, every=1)) as t:
            t.push("rows", [row("a", 0.5, 1)])
            t.checkpoint()
            assert [t.state("hot", (at(second), "a")) is None for second in (1, 2, 50, 100)] == [
                False,
                True,
                True,
                True,
            ]
            t.finish()
            assert len(t.rows("out")) == 100

    def test_corrections_of_many_windows_count_every_record_once(self) -> None:
        with TestDriver(app_of(size=100, every=1, lateness=100), 1) as t:
            t.push("rows", [row("a", 0, 1)])
            t.watermark("rows", at(99))
            t.checkpoint()
            t.push("rows", [row("a", 50, 2), row("b", 3, 3)])
            t.checkpoint()
            t.finish()
            found = {end: rows[1] for (k, end), rows in given_rows(t).items() if k == "a"}
            assert [found[at(second)] for second in (1, 50, 51, 100, 101, 150)] == [1, 1, 2, 2, 1, 1]

    def test_a_sum_that_leaves_64_bits_on_the_way_and_comes_back_is_right(self) -> None:
        large = (1 << 63) - 1
        with TestDriver(app_of(compiled=True), 1) as t:
            t.push("rows", [row("a", 1, large), row("b", 1, 1)])
            t.push("rows", [row("a", 3, -large), row("a", 5, -large), row("a", 7, large)])
            t.watermark("rows", at(8))
            t.checkpoint()
            assert [each["total"] for each in t.rows("out") if each["k"] == "a"] == [large, 0, -large, 0]

    @pytest.mark.parametrize("compiled", [False, True])
    def test_sums_that_fit_apart_and_not_together_fail_the_job(self, compiled: bool) -> None:
        with TestDriver(app_of(compiled=compiled), 1) as t:
            t.push("rows", [row("a", 1, (1 << 63) - 1), row("a", 3, 1)])
            t.watermark("rows", at(2))
            t.checkpoint()
            with pytest.raises(hf.JobFailed, match="does not fit into 64 bits"):
                t.watermark("rows", at(4))
                t.checkpoint()

    @pytest.mark.continuous("it runs no job")
    @pytest.mark.parametrize(("size", "every"), [("10s", "3s"), ("1s", "2s"), ("0s", "0s"), ("10s", "0s")])
    def test_a_size_that_is_no_multiple_is_refused(self, size: str, every: str) -> None:
        with pytest.raises(hf.ConfigError, match="must be a multiple of every"):
            hf.hopping(size, every)

    @pytest.mark.continuous("it runs no job")
    def test_too_many_windows_are_refused(self) -> None:
        with pytest.raises(hf.ConfigError, match="86,400,000 windows would overlap"):
            hf.hopping("1d", "1ms")

    @pytest.mark.continuous("it runs no job")
    def test_state_of_other_windows_is_refused(self) -> None:
        before = describe_operators(app_of(10, 2).plan())
        check_against(app_of(10, 2).plan(), before)
        with pytest.raises(hf.ConfigError, match=r"had the windows hopping\(10s, every=2s\) and now has hopping\(10s"):
            check_against(app_of(10, 5).plan(), before)
        with pytest.raises(hf.ConfigError, match="would never be emitted"):
            check_against(
                app_of(emit="final", lateness=3).plan(), describe_operators(app_of(emit="final", lateness=5).plan())
            )

    @pytest.mark.continuous("it runs no job")
    @given(st.integers(-(10**15), 10**15), st.integers(1, 10**6), st.integers(1, 50))
    def test_a_slice_is_a_part_of_each_of_its_windows(self, time: int, every: int, overlap: int) -> None:
        window = Hopping(every * overlap, every)
        end = int(window.slices(np.array([time]))[0])
        assert end % every == 0 and end - every <= time < end
        last = end + (overlap - 1) * every
        assert window.starts(np.array([last]))[0] <= time


class TestSlicesOfRows:
    @pytest.mark.continuous("it runs no job")
    @given(st.lists(st.integers(-3, 20) | st.sampled_from([10**9, -(10**9)]), min_size=1), st.integers(1, 10))
    def test_rows_are_ordered_by_slice_and_keep_their_order_otherwise(self, numbers: list[int], every: int) -> None:
        ends = np.array(numbers) * every
        found = by_slice(np.arange(ends.size), ends, every)
        assert found.ends.tolist() == sorted(set(ends.tolist()))
        assert [found.slots[first:end].tolist() for first, end in pairwise(found.bounds)] == [
            np.flatnonzero(ends == end).tolist() for end in found.ends
        ]


class TestOwners:
    @pytest.mark.continuous("it runs no job")
    @given(st.lists(st.tuples(st.booleans(), ROWS_OF_SLICES), min_size=1, max_size=6))
    def test_rows_have_the_numbers_of_their_keys_whatever_rows_were_there_before(self, steps: list[Any]) -> None:
        table = StateTable(TableSpec(1, "slices", SLICE, ()), 8)
        owners = Owners(table)
        for number, (drops, rows) in enumerate(steps):
            if drops:
                empty(table, Epoch(number + 1))
            table.touch(table.slots(SLICE.encode([pa.array(column) for column in zip(*rows, strict=True)])))
            for slots in (table.present(), table.present()[::2]):
                assert keys_of(owners.of(slots)) == table.key_columns(slots)[1].to_pylist()

    @pytest.mark.continuous("it runs no job")
    def test_a_slot_that_gets_another_key_gets_its_number(self) -> None:
        table = StateTable(TableSpec(1, "slices", SLICE, ()), 8)
        owners, found = Owners(table), list[tuple[list[int], list[int]]]()
        for number, users in enumerate([[5, 6], [7, 5]]):
            table.touch(table.slots(SLICE.encode([pa.array([number, number]), pa.array(users)])))
            slots = table.present()
            found.append((sorted(slots.tolist()), sorted(keys_of(owners.of(slots)))))
            empty(table, Epoch(number + 1))
        assert found == [([0, 1], [5, 6]), ([0, 1], [5, 7])]


def empty(table: StateTable, epoch: Epoch) -> None:
    """Delete all rows of a table, and drop their slots."""
    table.delete(table.present())
    table.freeze(epoch, table.committed_through)
    table.commit(epoch)
    table.drop_vacant()


def keys_of(found: Grouped) -> list[int]:
    """Return the key of every row; each key has one number."""
    (keys,) = (column.to_pylist() for column in found.keys.type.decode(found.keys))
    assert len(set(keys)) == len(keys)
    return [keys[number] for number in found.numbers]


ZONES = [
    "UTC", "Europe/Berlin", "America/Sao_Paulo", "America/St_Johns", "America/Havana", "Pacific/Apia", "Asia/Kathmandu"
]  # fmt: skip


def first_instant(day: date, zone: ZoneInfo) -> datetime:
    """Return the first instant whose date by the clocks of the zone is this day or a later one, by trying minutes."""
    at_ = datetime(day.year, day.month, day.day, tzinfo=UTC) - timedelta(hours=26)
    while at_.astimezone(zone).date() < day:
        at_ += timedelta(minutes=1)
    return at_


class TestCalendar:
    @pytest.mark.continuous("it runs no job")
    @pytest.mark.parametrize("tz", ZONES)
    @pytest.mark.parametrize("unit", ["day", "week", "month"])
    def test_windows_have_no_gaps_and_hold_their_times(self, tz: str, unit: str) -> None:
        window, rng = Calendar(unit, tz), np.random.default_rng(1)
        times = rng.integers(-(10**9), 2 * 10**9, 20_000) * 1_000_000 + rng.integers(0, 10**6, 20_000)
        ends = window.slices(times)
        starts = window.starts(ends)
        assert ((starts <= times) & (times < ends)).all()
        assert (window.slices(starts) == ends).all() and (window.slices(ends - 1) == ends).all()
        assert (ends - starts <= window.size_us).all()

    @pytest.mark.continuous("it runs no job")
    @pytest.mark.parametrize(
        ("tz", "day"),
        [
            ("Europe/Berlin", date(2026, 3, 29)),  # 23 hours
            ("Europe/Berlin", date(2026, 10, 25)),  # 25 hours
            ("America/Sao_Paulo", date(2018, 11, 4)),  # begins at 1 o'clock
            ("America/Havana", date(2025, 11, 2)),  # midnight comes twice
            ("Pacific/Apia", date(2011, 12, 31)),  # after a date that was left out
            ("Asia/Kathmandu", date(2026, 1, 1)),
            ("America/Toronto", date(1919, 3, 31)),  # clocks jumped from half past eleven to half past midnight
            ("America/Toronto", date(1919, 3, 30)),
        ],
    )
    def test_a_day_begins_with_its_first_instant(self, tz: str, day: date) -> None:
        zone, window = ZoneInfo(tz), Calendar("day", tz)
        begins, ends = first_instant(day, zone), first_instant(day + timedelta(days=1), zone)
        inside = np.array([round((begins + part * (ends - begins)).timestamp() * 1e6) for part in (0.0, 0.3, 0.999)])
        assert window.slices(inside).tolist() == [round(ends.timestamp() * 1e6)] * 3
        assert window.starts(window.slices(inside)).tolist() == [round(begins.timestamp() * 1e6)] * 3

    def test_a_job_counts_by_the_day_of_a_time_zone(self) -> None:
        app = hf.App("days", key_groups=8)
        rows = app.source("rows", hf.Generator(SCHEMA, lambda i: ("a", i, None, at(i)), count=0), event_time="at")
        counted = rows.key_by("k").window(hf.calendar("day", tz="Europe/Berlin")).agg("days", n=hf.count())
        counted.sink("out", MemorySink(key=counted.upsert_key))
        zone, oracle = ZoneInfo("Europe/Berlin"), defaultdict[date, int](int)
        with TestDriver(app, 2) as t:
            given = [row("a", 3_600 * hour, hour) for hour in range(60)]
            for each in given:
                oracle[each["at"].astimezone(zone).date()] += 1
            t.push("rows", given[:30])
            t.checkpoint()
            t.crash(0)
            t.recover()
            t.push("rows", given[30:], partition=2)
            t.finish()
            found = {each["window_start"].astimezone(zone).date(): each["n"] for each in t.rows("out")}
            assert found == oracle
            assert sorted(found.values()) == [2, 11, 23, 24]
            lengths = {each["window_end"] - each["window_start"] for each in t.rows("out")}
            assert lengths == {timedelta(hours=23), timedelta(hours=24)}

    @pytest.mark.continuous("it runs no job")
    def test_unknown_units_and_zones_are_refused(self) -> None:
        with pytest.raises(hf.ConfigError, match="the unit is unknown"):
            hf.calendar("year", tz="UTC")
        with pytest.raises(hf.ConfigError, match="the time zone is unknown") as found:
            hf.calendar("day", tz="Europe/Berln")
        assert "Europe/Berlin" in found.value.next_step


class TestWindowsWithoutKey:
    @pytest.mark.parametrize("lateness", [0, 5])
    def test_rows_of_all_keys_are_in_one_window(self, lateness: int) -> None:
        app = hf.App("all", key_groups=8)
        generator = hf.Generator(SCHEMA, lambda i: ("a", i, None, at(i)), count=0)
        rows = app.source("rows", generator, event_time="at", idle_after="1h")
        window = rows.window(hf.hopping("10s", every="5s"), allowed_lateness=f"{lateness}s")
        counted = window.agg("all", n=hf.count(), total=hf.sum("v"))
        assert counted.schema.names == ["window_start", "window_end", "n", "total"]
        assert counted.upsert_key == (("window_end",) if lateness else None)
        counted.sink("out", MemorySink(key=counted.upsert_key))
        counted.late.sink("late", MemorySink())
        with TestDriver(app, 2) as t:
            t.push("rows", [row("abc"[i % 3], i, i) for i in range(12)])
            t.push("rows", [row("d", 3, 100)], partition=2)
            t.watermark("rows", at(9))
            t.checkpoint()
            t.crash(0)
            t.recover()
            t.push("rows", [row("a", -7, 1_000), row("b", 4, 7)], partition=1)
            t.finish()
            found = {each["window_end"]: (each["n"], each["total"]) for each in t.rows("out")}
            more = 1 if lateness else 0
            assert found == {
                at(5): (6 + more, 110 + 7 * more),
                at(10): (12, 152),
                at(15): (7, 56),
                at(20): (2, 21),
            }
            assert t.rows("late") == [row("a", -7, 1_000)]


class TestWindowsOfWindows:
    @pytest.mark.parametrize("emit", ["close", "final"])
    @pytest.mark.parametrize("first", [hf.tumbling("10s"), hf.hopping("10s", every="5s"), hf.session("5s")], ids=str)
    def test_a_window_over_results_holds_whole_windows_and_nothing_is_late(self, first: Any, emit: str) -> None:
        app = hf.App("twice", key_groups=8)
        generator = hf.Generator(SCHEMA, lambda i: ("a", i, None, at(i)), count=0)
        rows = app.source("rows", generator, event_time="at", idle_after="1h")
        lateness = "3s" if emit == "final" else "0s"
        window = rows.key_by("k").window(first, allowed_lateness=lateness)
        counted = window.agg("first", emit=emit, n=hf.count(), total=hf.sum("v"))
        counted.sink("first-out", MemorySink())
        again = counted.window(hf.tumbling("30s")).agg(
            "second", windows=hf.count(), n=hf.sum("n"), most=hf.max("total")
        )
        again.sink("out", MemorySink())
        again.late.sink("late", MemorySink())
        with TestDriver(app, 2) as t:
            for number in range(12):
                t.push("rows", [row("abc"[i % 3], 7 * number + i % 11, i) for i in range(9)], partition=number % 3)
                t.watermark("rows", at(7 * number))
                t.checkpoint()
                if number == 6:
                    t.crash(1)
                    t.recover()
            t.finish()
            oracle: dict[datetime, list[tuple[int, int]]] = defaultdict(list)
            for each in t.rows("first-out"):
                time = each["window_end"] if isinstance(first, SessionWindows) else each["window_start"]
                end = int((time - START).total_seconds() // 30 + 1) * 30
                oracle[at(end)].append((each["n"], each["total"]))
            assert t.rows("late") == []
            assert {each["window_end"]: (each["windows"], each["n"], each["most"]) for each in t.rows("out")} == {
                end: (len(found), sum(n for n, _ in found), max(total for _, total in found))
                for end, found in oracle.items()
            }
