from __future__ import annotations

from holdfast.chaos.sim.faults.schedule import Crash, Process, Schedule


def drained(schedule: Schedule) -> None:
    while schedule.step():
        pass


class TestSchedule:
    def test_events_happen_in_order_of_time_then_of_creation(self) -> None:
        schedule, seen = Schedule(), list[str]()
        schedule.after(2.0, None, "", lambda: seen.append("late"))
        schedule.after(1.0, None, "", lambda: seen.append("first made"))
        schedule.after(1.0, None, "", lambda: seen.append("then made"))
        drained(schedule)
        assert seen == ["first made", "then made", "late"]

    def test_events_of_a_dead_process_are_dropped(self) -> None:
        schedule, seen = Schedule(), list[str]()
        process = Process("w1", schedule.journal)
        schedule.after(1.0, process, "", lambda: seen.append("never"))
        process.end("killed")
        drained(schedule)
        assert seen == []

    def test_a_resumed_process_takes_all_waiting_events_in_order(self) -> None:
        schedule, seen = Schedule(), list[tuple[float, str]]()
        process = Process("w1", schedule.journal)
        began = schedule.now
        for at, name in ((1.0, "one"), (2.0, "two")):
            schedule.after(at, process, "", lambda name=name: seen.append((schedule.now - began, name)))  # type: ignore[misc]
        schedule.after(9.0, None, "", lambda: schedule.resume(process))
        schedule.pause(process)
        drained(schedule)
        assert seen == [(9.0, "one"), (9.0, "two")]


class TestCrashAtAPortCall:
    def test_an_odd_number_ends_the_process_before_the_effect(self) -> None:
        assert effects_of_two_calls(crash_at=3) == ["first"]

    def test_an_even_number_ends_it_after_the_effect(self) -> None:
        assert effects_of_two_calls(crash_at=4) == ["first", "second"]

    def test_nothing_of_the_process_happens_afterwards(self) -> None:
        schedule, seen = Schedule(), list[str]()
        process = Process("w1", schedule.journal)
        process.crash_at = 1
        schedule.after(1.0, process, "", lambda: process.call(lambda: seen.append("effect"), tuple))
        schedule.after(2.0, process, "", lambda: seen.append("later"))
        drained(schedule)
        assert seen == [] and not process.alive


def effects_of_two_calls(crash_at: int) -> list[str]:
    process, seen = Process("w1", Schedule().journal), list[str]()
    process.crash_at = crash_at
    try:
        process.call(lambda: seen.append("first"), tuple)
        process.call(lambda: seen.append("second"), tuple)
    except Crash:
        return seen
    raise AssertionError("the process should have ended")
