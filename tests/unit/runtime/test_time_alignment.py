"""Subtasks that read one source keep together in event time, and nobody waits for long."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from master_runs import RULES, running
from master_runs import A as first
from master_runs import B as second

import holdfast as hf
from holdfast.model import NEVER_US, Generation, SourcePosition, WorkerId
from holdfast.runtime.driver.events import Send
from holdfast.runtime.driver.partitions import hold_back
from holdfast.runtime.driver.state import Rules
from holdfast.runtime.microbatch.ranges import Pace
from holdfast.runtime.microbatch.task import Batch
from holdfast.runtime.testing.driver import PushedSource, _table_of
from holdfast.runtime.time.time_alignment import Aligned, Group, Limit, Look, PartitionProgress, Place, looked
from holdfast.runtime.wire import messages as m
from holdfast.testing import TestDriver

A, B, C = ("in", 0), ("in", 1), ("in", 2)
IN = Group(frozenset({"in"}), 30.0)
MANY = 1_000_000
SECOND = 1_000_000


def at(watermark: int | None, offset: int = 0, left: int = MANY) -> PartitionProgress:
    return PartitionProgress(offset, watermark, left)


def limits(*looks: tuple[float, dict[Place, PartitionProgress]], group: Group = IN) -> Limit | None:
    """Return the limit after looks at these times, in a window of 2 seconds."""
    state = Aligned(2.0)
    for now, partitions in looks:
        state = looked(state, Look(now, partitions), [group])
    return state.limits.get(group)


class TestTheLimit:
    def test_is_what_any_partition_gained_in_the_window_beyond_the_slowest(self) -> None:
        assert limits((0, {A: at(0), B: at(0)}), (2, {A: at(10), B: at(90)})) == Limit(A, 100)

    def test_counts_the_largest_gain_for_a_while(self) -> None:
        looks = [(0.0, {A: at(0)}), (1.0, {A: at(70)}), (2.5, {A: at(75)}), (3.5, {A: at(80)})]
        assert limits(*looks) == Limit(A, 80 + 75)
        slow = [(4.5 + n, {A: at(80 + n)}) for n in range(31)]
        assert limits(*looks, *slow[:29]) == Limit(A, 108 + 75)
        assert limits(*looks, *slow) == Limit(A, 110 + 5), "75 and 10 are from before the last half minute"

    def test_is_unknown_before_the_window_has_passed(self) -> None:
        assert limits((0, {A: at(0)}), (1.9, {A: at(10)})) is None

    def test_follows_no_partition_that_has_read_what_there_was_when_the_window_began(self) -> None:
        b = {B: at(0)}, {B: at(90)}
        assert limits((0, {A: at(0, 0, left=50), **b[0]}), (2, {A: at(10, 50, left=70), **b[1]})) == Limit(B, 180)
        assert limits((0, {A: at(0, 0, left=50)}), (2, {A: at(10, 50, left=70)})) is None
        assert limits((0, {A: at(0, 0, left=51)}), (2, {A: at(10, 50, left=1)})) == Limit(A, 20)
        assert limits((0, {A: at(0, 0, left=0)}), (2, {A: at(0, 0, left=1)})) is None, "it has just arrived"
        assert limits((0, {A: at(0, 0, left=51)}), (2, {A: at(10, 50, left=0)})) is None, "they were taken back"

    def test_follows_no_partition_that_is_new(self) -> None:
        assert limits((0, {A: at(0)}), (2, {A: at(10), B: at(-500)})) == Limit(A, 20), "nor does its gain count"

    def test_does_not_go_below_the_slowest_if_that_was_rolled_back(self) -> None:
        assert limits((0, {A: at(50, 10)}), (2, {A: at(10)})) == Limit(A, 10)

    def test_lets_none_begin_before_the_slowest_has_begun(self) -> None:
        assert limits((0, {A: at(None), B: at(0)}), (2, {A: at(None), B: at(5)})) == Limit(A, NEVER_US + 5)

    def test_is_unknown_while_no_speed_is_known(self) -> None:
        assert limits((0, {A: at(None), B: at(None)}), (2, {A: at(3), B: at(5)})) is None

    def test_ends_with_the_patience_for_one_that_stands_still(self) -> None:
        looks = [(float(now), {A: at(0), B: at(100)}) for now in range(33)]
        assert limits(*looks[:32]) == Limit(A, 0)
        assert limits(*looks[:33]) == Limit(A, 0)
        assert limits(*looks, (33.0, {A: at(0)})) is None
        assert limits(*looks, (33.0, {A: at(1), B: at(100)})) == Limit(A, 2), "it has gained again"

    def test_is_that_of_the_next_one_if_the_slowest_stands_still(self) -> None:
        looks = [(float(now), {A: at(0), B: at(50 + now), C: at(200)}) for now in range(34)]
        assert limits(*looks[:33]) == Limit(A, 2)
        assert limits(*looks) == Limit(B, 83 + 2)
        again = (34.0, {A: at(1), B: at(84), C: at(200)})
        assert limits(*looks, again) == Limit(A, 1 + 2)

    def test_is_not_impatient_with_one_that_was_held_until_now(self) -> None:
        looks = [(float(now), {A: at(2 * now), B: at(59)}) for now in range(31)]
        assert limits(*looks) == Limit(B, 59 + 4)
        assert limits(*looks, *((float(now), {A: at(70), B: at(59)}) for now in range(31, 60))) == Limit(B, 59 + 12)

    def test_forgets_the_last_look_if_it_is_repeated(self) -> None:
        """In microbatch mode looks are numbered by epochs, and one that fails is begun again."""
        state = Aligned(1)
        for now in (1, 2, 2, 2, 2, 3, 3):
            state = looked(state, Look(now, {A: at(10 * now)}), [IN])
        assert [look.at for look in state.looks] == [2, 3]

    def test_does_not_know_what_a_rewind_has_undone(self) -> None:
        looks = [(8.0, {A: at(80), B: at(80)}), (10.0, {A: at(90), B: at(90)}), (3.0, {A: at(30), B: at(0)})]
        assert limits(*looks) is None
        assert limits(*looks, (5.0, {A: at(50), B: at(7)})) == Limit(B, 7 + 20)

    def test_concerns_only_its_own_group(self) -> None:
        other = Group(frozenset({"other"}), 30.0)
        state = looked(Aligned(2.0), Look(0, {A: at(0), ("other", 0): at(-7)}), [IN, other])
        state = looked(state, Look(2, {A: at(1), ("other", 0): at(-5)}), [IN, other])
        assert state.limits == {IN: Limit(A, 2), other: Limit(("other", 0), -3)}

    @given(st.lists(st.tuples(st.integers(1, 1_000), st.integers(1, 1_000)), min_size=4, max_size=40))
    def test_keeps_two_readers_within_what_one_gains_in_a_window(self, speeds: list[tuple[int, int]]) -> None:
        """Each reads at its own changing speed, and obeys a limit at once; a look every second."""
        state, read = Aligned(2.0), {A: 0, B: 0}
        gained: list[dict[Place, int]] = []
        for now, step in enumerate(speeds):
            state = looked(state, Look(now, {p: at(read[p], read[p]) for p in read}), [IN])
            before = dict(read)
            for (place, offset), speed in zip(before.items(), step, strict=True):
                further, limit = offset + speed, state.limits.get(IN)
                if limit is not None and place != limit.slowest:
                    further = max(offset, min(further, limit.at_us))
                read[place] = further
            gained.append({p: read[p] - before[p] for p in read})
            if (limit := state.limits.get(IN)) is not None:
                other = B if limit.slowest == A else A
                windows = [sum(each[p] for each in gained[n : n + 2]) for n in range(len(gained) - 2) for p in read]
                assert gained[-1][other] == 0 or read[other] <= before[limit.slowest] + max(windows)
                assert gained[-1][limit.slowest] == step[0 if limit.slowest == A else 1], "it is never held"

    def test_lets_equal_readers_read_at_full_speed_though_what_is_known_of_them_is_old(self) -> None:
        """Each takes a second's worth at a time, as a turn of the other's; what was known a second ago decides."""
        state, limit, read = Aligned(2.0), None, {A: 0, B: 0}
        known = [dict(read)] * 3
        for turn in range(200):
            if turn % 2 == 0:
                look = Look(turn / 4, {p: at(offset, offset) for p, offset in known[-3].items()})
                state = looked(state, look, [IN])
                limit = state.limits.get(IN)
            for place, offset in known[-1].items():
                if (turn + place[1]) % 2 and (limit is None or place == limit.slowest or offset <= limit.at_us):
                    read[place] += 100
            known.append(dict(read))
        assert read[A] + read[B] > 0.9 * 200 * 100


def held_back(seconds: int | None = None, lasts_s: float = 2.0) -> m.HoldBack:
    return m.HoldBack(Generation(1), {} if seconds is None else {"s": seconds * SECOND}, lasts_s)


class TestTheDriver:
    def rules(self) -> Rules:
        return replace(RULES, aligned=(Group(frozenset({"s"}), 30.0),))

    def test_tells_those_that_do_not_read_the_slowest(self) -> None:
        run = running(self.rules())

        def beat(worker: WorkerId, partition: int, offset: int, until: int = MANY, *, over: bool = False) -> None:
            where = SourcePosition("s", partition, offset, offset * SECOND)
            end = SourcePosition("s", partition, until)
            said = m.WorkerProgress(positions=(where,), ends=(end,), ended=(where,) if over else ())
            run.hear(msgspec.structs.replace(run.heartbeat(worker), progress=said))

        def told() -> list[m.FromDriver]:
            """Return what the worker of partition 1 is told two seconds later."""
            run.now += 2.0
            effects = run.take(hold_back(run.state, run.now, 0.5))
            return [each.message for each in effects if isinstance(each, Send) and each.worker == second]

        beat(first, 0, 5)
        beat(second, 1, 100)
        assert told() == []
        beat(first, 0, 15)
        limit, none = held_back(25), held_back()
        assert told() == [limit]
        beat(first, 0, 20, until=20, over=True)
        assert told() == [none], "none waits for a partition that has ended"
        beat(first, 0, 20)
        assert told() == [none], "it is known again, but since when?"
        assert told() == [held_back(30)]
        run.lose(first)
        assert told() == [], "it is not known how far its successor is"

    def test_asks_for_as_long_as_a_few_of_its_pulses(self) -> None:
        run = running(self.rules())
        for offset in (0, 10, 20):
            for worker, partition in ((first, 0), (second, 1)):
                where = SourcePosition("s", partition, offset, offset * (1 + partition) * SECOND)
                said = m.WorkerProgress(positions=(where,), ends=(SourcePosition("s", partition, MANY),))
                run.hear(msgspec.structs.replace(run.heartbeat(worker), progress=said))
            run.now += 10.0
            sent = run.take(hold_back(run.state, run.now, 5.0))
            assert offset == 20 or not sent, "a window of 20 seconds"
        assert [each.message for each in sent if isinstance(each, Send)] == [
            held_back(lasts_s=20.0),
            held_back(60, lasts_s=20.0),
        ]

    def test_takes_a_boundless_source_for_one_with_a_backlog(self) -> None:
        """It says that it ends where it was read to."""
        group = Group(frozenset({"s"}), 30.0, boundless=frozenset({"s"}))
        for rules, told in ((replace(RULES, aligned=(group,)), [second]), (self.rules(), [])):
            run = running(rules)
            for offset in (10, 20):
                for worker, partition in ((first, 0), (second, 1)):
                    where = SourcePosition("s", partition, offset, offset * (partition + 1))
                    said = m.WorkerProgress(positions=(where,), ends=(where,))
                    run.hear(msgspec.structs.replace(run.heartbeat(worker), progress=said))
                run.now += 2.0
                effects = run.take(hold_back(run.state, run.now, 0.5))
            sent = {each.worker: each.message for each in effects if isinstance(each, Send)}
            assert [worker for worker, message in sent.items() if message != held_back()] == told

    def test_holds_none_at_the_end_of_a_bounded_run(self) -> None:
        run = running(replace(self.rules(), until={"s": {0: 15, 1: 500}}))
        for _ in range(2):
            for worker, partition, offset in ((first, 0, 15), (second, 1, 100)):
                where, end = SourcePosition("s", partition, offset, offset), SourcePosition("s", partition, MANY)
                said = m.WorkerProgress(positions=(where,), ends=(end,))
                run.hear(msgspec.structs.replace(run.heartbeat(worker), progress=said))
            run.now += 2.0
            told = run.take(hold_back(run.state, run.now, 0.5))
        held = [each.worker for each in told if isinstance(each, Send) and each.message.later_than]  # type: ignore[union-attr]
        assert held == [first]


@dataclass
class Visit:
    user: int
    at: datetime


START = datetime(2026, 1, 1, tzinfo=UTC)


def visits(count: int, apart: timedelta = timedelta(seconds=1)) -> list[Visit]:
    return [Visit(i % 7, START + i * apart) for i in range(count)]


def app() -> hf.App:
    app = hf.App("visits", key_groups=16, checkpoint_every="1s")
    source = hf.Generator(Visit, lambda i: Visit(i, START), count=1)
    timed = app.source("visits", source, event_time="at", out_of_orderness="0s", idle_after="20s")
    counted = timed.key_by("user").window(hf.tumbling("1m")).agg("counted", visits=hf.count())
    counted.sink("out", hf.SQLite("unused.db", table="t", key=["user", "window_start"]))
    return app


class TestThePlan:
    def test_aligns_sources_with_event_time_that_are_read_together(self) -> None:
        app = hf.App("visits", key_groups=16)
        counted, endless, paced = (
            hf.Generator(Visit, lambda i: Visit(i, START), count=1),
            hf.Generator(Visit, lambda i: Visit(i, START)),
            hf.Generator(Visit, lambda i: Visit(i, START), rate=5),
        )
        one = app.source("one", counted, event_time="at", idle_after="5s")
        two = app.source("two", endless, event_time="at", idle_after="20s")
        one.union(two).sink("both", hf.Log("both"))
        app.source("three", paced, event_time="at", idle_after="7s").sink("out", hf.Log("out"))
        app.source("four", counted).sink("untimed", hf.Log("untimed"))
        assert app.plan().aligned() == (
            Group(frozenset({"one", "two"}), 20.0, frozenset({"two"})),
            Group(frozenset({"three"}), 7.0),
        )


class Speeds:
    """Lets every partition of a source be read so many records further per quarter of a second."""

    def __init__(self, source: PushedSource, per_second: dict[int, int]) -> None:
        self.per_second = per_second
        self._may = dict.fromkeys(per_second, 0)
        read = source.read

        def limited(partition: int, offset: int, max_bytes: int) -> tuple[object, int]:
            batch, _ = read(partition, offset, max_bytes)
            rows = min(0 if batch is None else batch.num_rows, self._may.get(partition, 0) - offset)
            return (None, offset) if batch is None or rows <= 0 else (batch.slice(0, rows), offset + rows)

        source.read = limited  # type: ignore[method-assign]

    def pass_time(self, t: TestDriver, seconds: float) -> None:
        for _ in range(int(seconds * 4)):
            for partition, speed in self.per_second.items():
                self._may[partition] += speed // 4
            t.cluster.pass_time(0.25)


def offsets(t: TestDriver) -> dict[int, int]:
    """Return how far the partitions are read."""
    workers = t.cluster.driver.state.workers.values()
    return {at.partition: at.offset for each in workers for at in each.heartbeat.progress.positions}


def held(t: TestDriver) -> set[str]:
    return {why for each in t.cluster.driver.state.workers.values() for why in each.heartbeat.progress.held_by}


class TestARunningJob:
    """Partitions 0 and 1 belong to different workers; records are one second of event time apart."""

    def test_reads_no_partition_far_ahead_of_the_slowest(self) -> None:
        with TestDriver(app()) as t:
            speeds = Speeds(t._source("visits"), {0: 20, 1: 4_000})
            t.push("visits", visits(2_000), partition=0)
            t.push("visits", visits(20_000), partition=1)
            speeds.pass_time(t, 2)
            assert offsets(t)[1] > 4_000, "nothing holds it in the first two seconds"
            speeds.pass_time(t, 60)
            slow, fast = offsets(t)[0], offsets(t)[1]
            assert 1_200 <= slow < fast < 10_000
            before = fast
            speeds.per_second[0] = 4_000  # what is left of it is read within a second
            speeds.pass_time(t, 8)
            assert offsets(t)[0] == 2_000
            assert offsets(t)[1] > before + 8_000
            assert not held(t)

    def test_keeps_subtasks_within_what_the_faster_one_reads_in_two_seconds(self) -> None:
        with TestDriver(app()) as t:
            speeds = Speeds(t._source("visits"), {0: 100, 1: 100})
            t.push("visits", visits(20_000), partition=0)
            t.push("visits", visits(20_000), partition=1)
            speeds.pass_time(t, 4)
            speeds.per_second[1] = 2_000
            seen = set()
            for _ in range(40):
                speeds.pass_time(t, 1)
                at = offsets(t)
                assert at[1] - at[0] <= 2 * 2_000, at
                seen |= held(t)
            assert seen == {"event time"}

    def test_reads_on_when_the_driver_no_longer_says_how_far(self) -> None:
        with TestDriver(app()) as t:
            speeds = Speeds(t._source("visits"), {0: 20, 1: 400})
            t.push("visits", visits(2_000), partition=0)
            t.push("visits", visits(20_000), partition=1)
            speeds.pass_time(t, 10)
            before, send = offsets(t)[1], t.cluster.send

            def silent(worker: WorkerId, message: m.FromDriver) -> None:
                if not isinstance(message, m.HoldBack):
                    send(worker, message)

            t.cluster.send = silent  # type: ignore[method-assign]
            speeds.pass_time(t, 10)
            assert offsets(t)[1] > before + 2_000

    def test_reads_on_when_time_stands_still_in_the_slowest_for_idle_after(self) -> None:
        with TestDriver(app()) as t:
            speeds = Speeds(t._source("visits"), {0: 20, 1: 400})
            t.push("visits", visits(2_000), partition=0)
            t.push("visits", visits(20_000), partition=1)
            speeds.pass_time(t, 5)
            speeds.per_second[0] = 0
            speeds.pass_time(t, 5)
            before = offsets(t)[1]
            speeds.pass_time(t, 10)
            assert offsets(t)[1] == before
            speeds.pass_time(t, 10)
            assert offsets(t)[1] > before

    def test_reads_a_partition_that_was_idle_before_time_passes_its_records(self) -> None:
        """Partition 0 has a backlog with a gap in event time; partition 1 is idle, and gets a record inside the gap."""
        late = START + timedelta(hours=1)
        with TestDriver(app()) as t:
            speeds = Speeds(t._source("visits"), {0: 0, 1: 400})
            t.push("visits", visits(1_300), partition=1)
            speeds.pass_time(t, 40)
            assert offsets(t)[1] == 1_300
            t.push("visits", visits(200), partition=0)
            t.push("visits", [Visit(1, START + timedelta(hours=9))] * 2_000, partition=0)
            speeds.per_second[0] = 20
            speeds.pass_time(t, 5)
            assert offsets(t)[0] < 150
            t.push("visits", [Visit(5, late)], partition=1)
            speeds.pass_time(t, 30)
            assert offsets(t)[0] > 200
            assert offsets(t)[1] == 1_301
            assert (5, late) in {(row["user"], row["window_start"]) for row in t.rows("out")}

    def test_does_not_wait_for_partitions_that_are_read_to_their_ends(self) -> None:
        with TestDriver(app()) as t:
            speeds = Speeds(t._source("visits"), {0: 4_000, 1: 400})
            t.push("visits", visits(20_000, timedelta(seconds=10)), partition=1)
            for second in range(20):  # partition 0 is live, and its clock is far behind
                t.push("visits", [Visit(1, START + timedelta(seconds=second))], partition=0)
                speeds.pass_time(t, 1)
                assert not held(t)
            assert offsets(t)[1] > 7_000


class TestMicrobatches:
    def test_read_no_partition_far_ahead_of_the_slowest(self) -> None:
        """Both have as many records, but those of partition 0 are a second apart, those of 1 a minute."""
        with TestDriver(app(), mode="microbatch") as t:
            assert t.cluster.batches is not None
            host, jobs, source = t.cluster.batches.host, t.cluster.batches.jobs, t._source("visits")
            jobs.faults.fails = 0.1
            reads, seen = list[dict[int, int]](), set[tuple[str, ...]]()
            run = jobs.run

            def noted(job: int, batch: Batch) -> None:
                host._pace = Pace(1e9, rows=200)
                reads.append({at.partition: at.offset for deploy in batch.deploys for at in deploy.until})
                assert host._batches is not None
                seen.add(host._held_by(host._batches))
                run(job, batch)

            host._pace, jobs.run = Pace(1e9, rows=200), noted  # type: ignore[method-assign]
            for partition, apart in enumerate((timedelta(seconds=1), timedelta(minutes=1))):
                source.tables[partition] = _table_of("visits", source.schema, visits(2_000, apart))
            while sum(offsets(t).values()) < 4_000:
                t.cluster.pass_time(1)
                assert len(reads) < 200
            assert seen == {(), ("event time",)}
            assert jobs.faults.happened["failed"]
            ahead = [each[1] * 60 - each[0] for each in reads if each[0] < 1_600]
            assert len(ahead) > 5
            assert max(ahead) <= 300 * 60, "the records of the first three epochs"
            assert reads[-1] == {0: 2_000, 1: 2_000, 2: 0, 3: 0}

    def test_read_all_that_there_is_if_an_epoch_can(self) -> None:
        """Both partitions are live; as much arrives as before, or more, or less, and the clock of one is far behind."""
        with TestDriver(app(), mode="microbatch") as t:
            assert t.cluster.batches is not None
            jobs, source, run = t.cluster.batches.jobs, t._source("visits"), t.cluster.batches.jobs.run
            unread: list[dict[int, int]] = []

            def noted(job: int, batch: Batch) -> None:
                until = {at.partition: at.offset for deploy in batch.deploys for at in deploy.until}
                unread.append({at: end - until[at] for at, end in source.end_offsets().items()})
                run(job, batch)

            jobs.run = noted  # type: ignore[method-assign]
            for second in range(40):
                for partition, behind in ((0, timedelta(hours=1)), (1, timedelta())):
                    count = 3 + 7 * second % 5 + partition
                    t.push(
                        "visits", [Visit(1, START + timedelta(seconds=second) - behind)] * count, partition=partition
                    )
                t.cluster.pass_time(1)
                assert not held(t)
            assert len(unread) >= 30
            assert all(not any(each.values()) for each in unread)
