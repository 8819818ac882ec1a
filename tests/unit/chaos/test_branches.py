"""What the watches over branches of simulated jobs find, and which seeds have branches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

from holdfast.chaos.explore.replays import FEATURES, reduced
from holdfast.chaos.explore.shrink import Reduction
from holdfast.chaos.sim.faults.faults import Fault
from holdfast.chaos.sim.faults.points import Point
from holdfast.chaos.sim.jobs import oracle
from holdfast.chaos.sim.jobs.branches.contract import Watched
from holdfast.chaos.sim.jobs.branches.joins import Joined
from holdfast.chaos.sim.jobs.branches.lookups import LookedUp
from holdfast.chaos.sim.jobs.branches.patterns import Matched
from holdfast.chaos.sim.jobs.branches.registry import BRANCHES
from holdfast.chaos.sim.jobs.branches.reminders import NOTHING, REMIND_OPERATOR, Reminders
from holdfast.chaos.sim.jobs.branches.sessions import Visits
from holdfast.chaos.sim.jobs.expected.lookups import findable
from holdfast.chaos.sim.jobs.expected.patterns import matches
from holdfast.chaos.sim.jobs.expected.reminders import AFTER_US
from holdfast.chaos.sim.jobs.oracle import PARTITION_STRIDE, Input, Partitions
from holdfast.chaos.sim.jobs.workload import KILLED, SURVIVORS_SHARE, Scenario, scenario

LATEST, S = 2**63 - 1, 1_000_000
SEEDS = 200


def given(*records: tuple[float, int], key: int = 1, partition: int = 0) -> tuple[Input, ...]:
    """Return the records of a partition from second and value of each, all with one key and in one bucket."""
    first = partition * PARTITION_STRIDE
    return tuple(Input(first + n, key, 0, value, int(at * S)) for n, (at, value) in enumerate(records))


class Seen:
    """Records, and the rules that a watch found broken."""

    def __init__(self, *partitions: tuple[Input, ...], idles: bool = False, overtaken: frozenset[int] = frozenset()):
        self.rules: list[str] = []
        self.partitions: Partitions = partitions
        self.watched = Watched(partitions, S, idles, lambda: overtaken, lambda rule, what: self.rules.append(rule))

    @property
    def everything(self) -> dict[int, int]:
        return oracle.whole(self.partitions)


def survivors(made: Scenario) -> bool:
    """Return whether the seed draws that workers are killed one at a time, and its world allows it."""
    unfit = made.batched or made.regrows or made.rests or made.grows or made.aligns or made.budgeted
    swept = any(aim.point is Point.SWEEP for aim in made.aims)
    return not unfit and not swept and random.Random(f"{made.seed}/survivors 2266").random() < SURVIVORS_SHARE


class TestScenarios:
    def test_only_jobs_with_event_time_have_branches_and_each_branch_is_in_some(self) -> None:
        made = [scenario(seed) for seed in range(SEEDS)]
        assert all(each.windowing is not None for each in made if each.branches)
        assert {name for each in made for name in each.branches} == set(BRANCHES)

    def test_a_branch_draws_from_a_stream_of_its_own(self) -> None:
        for seed, (name, branch) in product(range(SEEDS), BRANCHES.items()):
            made = scenario(seed)
            if made.windowing is not None:
                assert made.offers(name) == (random.Random(f"{seed}/{branch.stream}").random() < branch.share)

    def test_in_some_seeds_with_branches_workers_survive_others_while_records_arrive(self) -> None:
        made = [each for each in map(scenario, range(2 * SEEDS)) if each.branches and survivors(each)]
        assert made
        for each in made:
            killed = [moment.at for moment in each.moments if moment.fault is Fault.WORKER_KILLED]
            assert max(each.parallelisms) > 1 and len(killed) >= min(KILLED)
            assert max((times[-1] for times in each.arrivals if times), default=LATEST) >= each.heal_at - 1e-6

    def test_a_replay_can_leave_out_each_branch_alone(self) -> None:
        whole = replace(next(s for s in map(scenario, range(SEEDS)) if s.branches), branches=tuple(BRANCHES))
        for name in BRANCHES:
            assert name in FEATURES
            left = reduced(whole, Reduction(without=(name,))).branches
            assert left == tuple(each for each in BRANCHES if each != name)
        assert reduced(whole, Reduction(without=("windowing",))).branches == ()


class TestPrompt:
    RECORDS = given((5, 0), (4.5, 0), (4, 0), (3, 0))

    def test_a_record_is_prompt_until_the_watermark_of_its_partition_has_passed_it(self) -> None:
        assert Seen(self.RECORDS).watched.prompt() == {0, 1}
        assert Seen(self.RECORDS).watched.prompt(1) == {0, 1, 2}
        assert Seen(self.RECORDS).watched.prompt(S + 1) == {0, 1, 2, 3}

    def test_none_is_where_time_may_not_wait_for_its_partition(self) -> None:
        assert Seen(self.RECORDS, idles=True).watched.prompt() == set()
        assert Seen(self.RECORDS, overtaken=frozenset({0})).watched.prompt() == set()


class TestReminders:
    RECORDS = given((1, 0), (2, 0), (3, 0))

    def reports(self, *ids: int) -> list[dict[str, Any]]:
        due = [id * S + S + AFTER_US for id in ids]
        return [
            {"key": 1, "id": id, "due_us": at, "nth": n} for n, (id, at) in enumerate(zip(ids, due, strict=True), 1)
        ]

    def broken(self, rows: Sequence[dict[str, Any]], cut: dict[int, int], latest_us: int = LATEST) -> list[str]:
        Reminders((seen := Seen(self.RECORDS)).watched).look("then", latest_us, cut, rows, rows)
        return seen.rules

    def at_end(self, rows: Sequence[dict[str, Any]], *partitions: tuple[Input, ...]) -> list[str]:
        seen = Seen(*(partitions or (self.RECORDS,)))
        Reminders(seen.watched).at_end(seen.everything, rows, ())
        return seen.rules

    def test_a_report_of_every_record_in_order_is_right(self) -> None:
        assert self.broken(self.reports(0, 1), {0: 2}, 2 * S + AFTER_US) == []
        assert self.at_end(self.reports(0, 1, 2)) == []

    def test_a_lost_timer_is_found_at_the_end(self) -> None:
        assert self.at_end(self.reports(0, 1)) == ["I1 loss"]

    def test_a_report_before_its_time_is_found(self) -> None:
        assert self.broken(self.reports(0, 1), {0: 2}, 2 * S + AFTER_US - 1) == ["P11 early"]

    def test_a_report_of_what_was_not_read_is_found(self) -> None:
        assert self.broken(self.reports(0, 1), {0: 1}) == ["I5 visible"]
        Reminders((seen := Seen(self.RECORDS)).watched).taken_back("then", {0: 1}, self.reports(0, 1))
        assert seen.rules == ["I5 visible"]

    def restored(self, reported: int, waiting: dict[int, int], alarm: int | None, earliest_us: int = 0) -> list[str]:
        tables: dict[str, list[dict[str, Any]]] = {
            REMIND_OPERATOR: [{"key": 1, "reported": reported or None}],
            f"{REMIND_OPERATOR}.waiting": [{"key": 1, "map_key": id, "value": due} for id, due in waiting.items()],
            f"{REMIND_OPERATOR}.alarm": [] if alarm is None else [{"key": 1, "at": alarm}],
        }
        Reminders((seen := Seen(self.RECORDS)).watched).restored("then", earliest_us, {0: 2}, tables.__getitem__)
        return seen.rules

    def test_a_restored_record_waits_for_its_timer_or_was_counted(self) -> None:
        first, second, third = (row["due_us"] for row in self.reports(0, 1, 2))
        assert self.restored(0, {0: first, 1: second}, first) == []
        assert self.restored(1, {1: second}, second) == []
        assert self.restored(2, {}, None) == []
        assert self.restored(0, {0: first, 1: second}, None) == ["I9 state"]
        assert self.restored(0, {0: first, 1: second}, second) == ["I9 state"]
        assert self.restored(2, {1: second}, second) == ["I9 state"]
        assert self.restored(0, {0: first, 2: third}, first) == ["I9 state"]

    def test_a_restored_record_that_should_have_been_reported_is_found(self) -> None:
        first, second, _ = (row["due_us"] for row in self.reports(0, 1, 2))
        assert self.restored(0, {0: first, 1: second}, first, first - 1) == []
        assert self.restored(0, {0: first, 1: second}, first, first) == ["P11 open"]

    def test_a_repeated_report_is_found(self) -> None:
        assert self.broken(self.reports(0, 0), {0: 3}) == ["I2 duplicate"]

    def test_a_count_that_is_repeated_or_lost_is_found(self) -> None:
        first, second, third = self.reports(0, 1, 2)
        assert self.broken([first, second | {"nth": 1}], {0: 3}) == ["I2 duplicate"]
        assert self.at_end([first, second, third | {"nth": 7}]) == ["I9 state"]

    def test_a_handler_that_is_called_for_nothing_is_found(self) -> None:
        again = self.reports(0)[0] | {"id": NOTHING, "nth": 2}
        assert self.broken([*self.reports(0), again], {0: 3}) == ["I5 visible", "P10 timers"]

    def test_a_report_at_another_time_is_found(self) -> None:
        assert self.broken([self.reports(0)[0] | {"due_us": 0}], {0: 3}) == ["P10 timers"]

    def test_an_earlier_report_after_a_later_one_is_found_unless_its_record_came_late(self) -> None:
        assert self.at_end(self.reports(0, 2, 1)) == ["I3 order"]
        late = given((9, 0), (1, 0))
        rows = [{"key": 1, "id": n, "due_us": r.at + AFTER_US, "nth": n + 1} for n, r in enumerate(late)]
        assert self.at_end(rows, late) == []


def when(second: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


class TestSessions:
    RECORDS = given((1, 5), (3, 7), (9, 1))

    def session(self, start: float, end: float, total: int, *ids: int) -> dict[str, Any]:
        return {"bucket": 0, "window_start": when(start), "window_end": when(end), "total": total, "ids": [*ids]}

    def broken(self, *rows: dict[str, Any], cut: int = 3, latest_us: int = LATEST) -> list[str]:
        Visits((seen := Seen(self.RECORDS)).watched).look("then", latest_us, {0: cut}, rows, rows)
        return seen.rules

    def at_end(self, rows: Sequence[dict[str, Any]], *late: int, records: tuple[Input, ...] = RECORDS) -> list[str]:
        seen = Seen(records)
        Visits(seen.watched).at_end(seen.everything, rows, [{"id": id} for id in late])
        return seen.rules

    def test_records_that_are_exactly_the_gap_apart_are_one_session(self) -> None:
        assert self.broken(self.session(1, 5, 12, 0, 1), cut=2, latest_us=6 * S + 1) == []
        assert self.at_end([self.session(1, 5, 12, 0, 1), self.session(9, 11, 1, 2)]) == []

    def test_a_session_that_is_split_is_found(self) -> None:
        parts = [self.session(1, 3, 5, 0), self.session(3, 5, 7, 1), self.session(9, 11, 1, 2)]
        assert self.at_end(parts) == ["I1 sessions"]

    def test_two_sessions_may_touch_if_a_record_between_them_came_late(self) -> None:
        records = given((1, 5), (9, 1), (3, 7))
        parts = [self.session(1, 3, 5, 0), self.session(3, 5, 7, 2), self.session(9, 11, 1, 1)]
        assert self.at_end(parts, records=records) == []

    def test_a_wrong_sum_start_or_end_is_found(self) -> None:
        assert self.broken(self.session(1, 5, 11, 0, 1)) == ["I1 sessions"]
        assert self.broken(self.session(0, 5, 12, 0, 1)) == ["I1 sessions"]
        assert self.broken(self.session(1, 5.5, 12, 0, 1)) == ["I1 sessions"]

    def test_records_that_are_too_far_apart_are_not_one_session(self) -> None:
        assert self.broken(self.session(1, 11, 13, 0, 1, 2)) == ["I1 sessions"]

    def test_a_session_before_its_time_is_found(self) -> None:
        assert self.broken(self.session(1, 5, 12, 0, 1), latest_us=6 * S) == ["P11 early"]

    def test_a_restored_session_is_one_of_its_records_and_not_over(self) -> None:
        def restored(earliest_us: int, *rows: dict[str, Any]) -> list[str]:
            Visits((seen := Seen(self.RECORDS)).watched).restored("then", earliest_us, {0: 2}, lambda operator: rows)
            return seen.rules

        assert restored(6 * S, self.session(1, 5, 12, 0, 1)) == []
        assert restored(6 * S + 1, self.session(1, 5, 12, 0, 1)) == ["P11 open"]
        assert restored(0, self.session(1, 5, 11, 0, 1)) == ["I1 sessions"]

    def test_a_record_in_two_sessions_or_read_later_is_found(self) -> None:
        assert "I2 duplicate" in self.broken(self.session(1, 5, 12, 0, 1), self.session(3, 5, 7, 1))
        assert self.broken(self.session(1, 5, 12, 0, 1), cut=1) == ["I5 visible"]

    def test_a_record_is_in_a_session_or_late_and_never_late_before_its_time(self) -> None:
        two = [self.session(1, 5, 12, 0, 1)]
        assert self.at_end(two) == ["I1 loss"]
        assert self.at_end(two, 2) == ["P11 late"]
        assert self.at_end(two, 2, 2) == ["I2 duplicate", "P11 late"]
        assert self.at_end([*two, self.session(9, 11, 1, 2)], 2) == ["P11 late", "P11 late"]


class TestJoins:
    RECORDS = given((1, 1), (2, 2), (9, 1))
    RIGHT = ((0, 1), (1, 1), (2, None))

    def rows(self, *found: tuple[int | None, int | None]) -> list[dict[str, Any]]:
        return [{"id": left, "id_right": right} for left, right in found]

    def broken(self, *found: tuple[int, int | None], cut: int = 3, latest_us: int = LATEST) -> list[str]:
        rows = self.rows(*found)
        Joined((seen := Seen(self.RECORDS)).watched).look("then", latest_us, {0: cut}, rows, rows)
        return seen.rules

    def at_end(self, *found: tuple[int, int | None], late: Sequence[tuple[int | None, int | None]] = ()) -> list[str]:
        seen = Seen(self.RECORDS)
        Joined(seen.watched).at_end(seen.everything, self.rows(*found), self.rows(*late))
        return seen.rules

    def test_every_record_has_its_partners_or_none(self) -> None:
        assert self.broken(*self.RIGHT) == []
        assert self.at_end(*self.RIGHT) == []

    def test_a_lost_repeated_or_wrong_pair_is_found(self) -> None:
        assert self.at_end(*self.RIGHT[1:]) == ["I1 loss", "I1 loss"]
        assert self.broken(*self.RIGHT, self.RIGHT[0]) == ["I2 duplicate"]
        assert self.broken((2, 1)) == ["I1 join"]
        assert self.broken((0, 1), (0, None)) == ["P11 unmatched"]

    def test_a_record_without_a_partner_waits_until_none_can_come(self) -> None:
        assert self.broken((2, None), latest_us=11 * S + 1) == []
        assert self.broken((2, None), latest_us=11 * S) == ["P11 early"]
        assert self.broken((0, 1), latest_us=0) == []

    def test_a_record_that_was_not_read_by_then_is_found(self) -> None:
        assert self.broken((0, 1), cut=1) == ["I5 visible"]

    def test_a_record_or_a_partner_that_is_late_before_its_time_is_found(self) -> None:
        assert self.at_end(*self.RIGHT[:2], late=[(2, None)]) == ["P11 late"]
        assert self.at_end(*self.RIGHT, late=[(None, 1)]) == ["P11 late", "P11 late"]


class TestLookups:
    VERSION, ANOTHER, DELETE = 3, 9, 6
    RECORDS = given((1, 1), (2, VERSION), (3, 1), (4, ANOTHER), (5, 1), (6, DELETE), (7, 1))

    def rows(self, *found: tuple[int, int | None]) -> list[dict[str, Any]]:
        return [{"id": id, "version": version} for id, version in found]

    def broken(self, *found: tuple[int, int | None], cut: int = 7, latest_us: int = LATEST) -> list[str]:
        rows = self.rows(*found)
        LookedUp((seen := Seen(self.RECORDS)).watched).look("then", latest_us, {0: cut}, rows, rows)
        return seen.rules

    def at_end(self, *found: tuple[int, int | None], late: Sequence[int] = ()) -> list[str]:
        seen = Seen(self.RECORDS)
        LookedUp(seen.watched).at_end(seen.everything, self.rows(*found), [{"id": id} for id in late])
        return seen.rules

    RIGHT = ((0, None), (1, 1), (2, 1), (3, 3), (4, 3), (5, None), (6, None))

    def test_every_record_finds_the_last_version_of_then(self) -> None:
        assert self.broken(*self.RIGHT) == []
        assert self.at_end(*self.RIGHT) == []

    def test_a_version_of_later_is_found(self) -> None:
        assert self.broken((2, 3)) == ["I1 lookup"]

    def test_an_older_version_is_found(self) -> None:
        assert self.at_end(*self.RIGHT[:4], (4, 1), *self.RIGHT[5:]) == ["I1 lookup"]

    def test_a_deleted_version_is_found(self) -> None:
        assert self.at_end(*self.RIGHT[:6], (6, 3)) == ["I1 lookup"]

    def test_a_version_that_was_not_found_is_found(self) -> None:
        assert self.at_end(*self.RIGHT[:2], (2, None), *self.RIGHT[3:]) == ["I1 lookup"]

    def test_a_version_that_came_late_may_count_or_not(self) -> None:
        asking, late = Input(0, 1, 0, 1, 5 * S), Input(1, 1, 0, 3, 2 * S)
        assert findable(asking, [late], prompt=()) == {1, None}
        assert findable(asking, [late], prompt={1}) == {1}
        newer = Input(2, 1, 0, 9, 3 * S)
        assert findable(asking, [late, newer], prompt={2}) == {2}
        deleted = Input(3, 1, 0, 6, 3 * S)
        assert findable(asking, [late, deleted], prompt={3}) == {1, None}
        assert findable(asking, [late, deleted], prompt={1, 3}) == {None}
        afterwards = Input(4, 1, 0, 6, 4 * S)
        assert findable(asking, [late, newer, afterwards], prompt={2, 4}) == {1, None}
        assert findable(asking, [late, deleted, Input(5, 1, 0, 9, 4 * S)], prompt={3, 5}) == {5}

    def test_a_row_that_came_out_before_time_had_passed_it_is_found(self) -> None:
        assert self.broken((2, 1), latest_us=3 * S + 1) == []
        assert self.broken((2, 1), latest_us=3 * S) == ["P11 early"]

    def test_a_lost_repeated_or_late_record_is_found(self) -> None:
        assert self.at_end(*self.RIGHT[1:]) == ["I1 loss"]
        assert self.at_end(*self.RIGHT[1:], late=[0]) == ["P11 late"]
        assert self.at_end(*self.RIGHT, late=[0]) == ["P11 late", "P11 late"]
        assert self.broken(*self.RIGHT, self.RIGHT[0]) == ["I2 duplicate"]
        assert self.broken((6, None), cut=6) == ["I5 visible"]


class TestPatterns:
    RECORDS = given((1, -1), (2, 50), (3, -2), (4, 51), (5, 3), (5.5, -4))

    def rows(self, *found: tuple[int, int, int]) -> list[dict[str, Any]]:
        return [dict(zip(("first_id", "rise_id", "last_id"), ids, strict=True)) for ids in found]

    def broken(self, *found: tuple[int, int, int], cut: int = 6, latest_us: int = LATEST) -> list[str]:
        rows = self.rows(*found)
        Matched((seen := Seen(self.RECORDS)).watched).look("then", latest_us, {0: cut}, rows, rows)
        return seen.rules

    def at_end(self, *found: tuple[int, int, int], late: Sequence[int] = ()) -> list[str]:
        seen = Seen(self.RECORDS)
        Matched(seen.watched).at_end(seen.everything, self.rows(*found), [{"id": id} for id in late])
        return seen.rules

    def test_a_match_has_a_rise_between_two_falls_and_no_peak_before_it(self) -> None:
        assert self.broken((0, 1, 2), cut=3, latest_us=3 * S + 1) == []
        assert self.at_end((0, 1, 2)) == []

    def test_a_lost_or_wrong_match_is_found(self) -> None:
        assert self.at_end() == ["I1 pattern"]
        assert self.at_end((0, 1, 2), (2, 4, 5)) == ["I2 duplicate", "I1 pattern"]
        assert self.broken((2, 3, 5)) == ["I1 pattern"]

    def test_a_match_ends_before_within_is_over(self) -> None:
        assert matches(given((0, -1), (1, 1), (2.9, -1))) == {(0, 1, 2)}
        assert matches(given((0, -1), (1, 1), (3, -1))) == set()

    def test_rows_are_taken_in_the_order_of_their_times_and_partitions_are_apart(self) -> None:
        assert matches(given((3, -1), (2, 1), (1, -1))) == {(2, 1, 0)}
        assert matches([*given((1, -1), (2, 1)), *given((3, -1), partition=1)]) == set()

    def test_a_restored_partial_match_is_not_older_than_within(self) -> None:
        def restored(earliest_us: int) -> list[str]:
            matched = Matched((seen := Seen(self.RECORDS)).watched)
            matched.restored("then", earliest_us, {0: 2}, lambda operator: [{"ends": when(7)}])
            return seen.rules

        assert restored(7 * S - 1) == []
        assert restored(7 * S) == ["P11 open"]

    def test_a_match_before_its_time_or_of_rows_that_were_not_read_is_found(self) -> None:
        assert self.broken((0, 1, 2), latest_us=3 * S) == ["P11 early"]
        assert self.broken((0, 1, 2), cut=2) == ["I5 visible"]

    def test_a_record_that_is_late_before_time_has_passed_it_is_found(self) -> None:
        assert self.at_end((0, 1, 2), late=[3]) == ["P11 late"]
