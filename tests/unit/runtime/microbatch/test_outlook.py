"""What the sources have left to read: which partitions count as silent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from holdfast.errors import Unavailable
from holdfast.model import SourcePosition
from holdfast.runtime.microbatch import outlook
from holdfast.runtime.testing.lanes import VirtualClock
from holdfast.traits import SourceTraits

PLACES = ("in", 0), ("in", 1)


class Source:
    """Partition 0 gets a record per look; the source may be away."""

    def __init__(self) -> None:
        self.ends, self.away = {0: 1_000, 1: 1_000}, False

    def end_offsets(self) -> dict[int, int]:
        if self.away:
            raise Unavailable("the source is away", not_done="", next_step="")
        self.ends[0] += 1
        return dict(self.ends)

    def appeared(self, begun: Mapping[int, int]) -> dict[int, int]:
        return self.end_offsets()

    def watermark(self, partition: int, offset: int) -> int | None:
        return None

    def ended(self, partition: int, offset: int) -> bool:
        return False


class Unopened:
    traits = SourceTraits(kind="Test", local_paths=())


class Spec:
    idle_after_s, event_time, source = 60.0, "at", Unopened()


class Now:
    """A lane that works while it is asked to."""

    def submit(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        try:
            result: object = work()
        except Unavailable as error:  # handed over, as a real lane does
            result = error
        done(result)


class Seen:
    def __init__(self) -> None:
        self.clock, self.source, specs = VirtualClock(), Source(), {"in": Spec(), "other": Spec()}
        self.other = Source()
        opened: Any = {"in": self.source, "other": self.other}
        of_source: Any = specs
        self.outlook = outlook.SourceOutlook(
            opened, of_source, self.clock, lambda _: Now(), {}, {}, lambda: None, lambda _: None
        )

    def silent(self, seconds: int, *offsets: int) -> dict[tuple[str, int], bool]:
        positions = {place: SourcePosition(*place, at) for place, at in zip(PLACES, offsets, strict=True)}
        for _ in range(seconds):
            self.clock.pass_by(1)
            self.outlook.turn(positions)
        return self.outlook.silent(positions)


@pytest.fixture
def seen() -> Seen:
    return Seen()


def test_a_partition_that_was_read_to_its_end_becomes_idle(seen: Seen) -> None:
    assert seen.silent(70, 1_000, 1_000) == {("in", 1): True}


def test_a_partition_with_unread_records_is_not_silent(seen: Seen) -> None:
    assert seen.silent(70, 0, 0) == {}
    assert seen.silent(20, 1_000, 1_000) == {}


def test_a_source_that_is_away_makes_no_partition_silent(seen: Seen) -> None:
    seen.silent(1, 2_000, 1_000)
    seen.source.away = True
    assert seen.silent(70, 2_000, 1_000) == {}


def test_a_source_that_is_away_hides_no_record_of_another(seen: Seen) -> None:
    seen.other.away = True
    seen.silent(1, 0, 0)
    assert seen.outlook.readable()["in", 1] == 1_000
    assert not seen.outlook.whole
    seen.other.away = False
    seen.silent(5, 0, 0)
    assert seen.outlook.whole


def test_the_input_of_a_source_ends_where_it_was_when_it_answered_after_the_request(seen: Seen) -> None:
    seen.silent(1, 0, 0)
    seen.source.away = True
    seen.outlook.end_input({}, drop_unread=False)
    seen.silent(2, 0, 0)
    assert not seen.outlook.ended(("in", 1), 1_000)
    seen.source.away, seen.source.ends[1] = False, 1_200
    seen.silent(1, 0, 0)
    seen.source.ends[1] = 1_300
    seen.silent(1, 0, 0)
    assert seen.outlook.ended(("in", 1), 1_200) and not seen.outlook.ended(("in", 1), 1_199)
    assert seen.outlook.readable()["in", 1] == 1_200


def test_a_partition_with_records_is_not_silent_while_the_next_look_takes_long(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen.silent(1, 1_000, 900)
    monkeypatch.setattr(seen.outlook, "_begin_look", lambda *_: None)
    assert seen.silent(100, 1_001, 900) == {PLACES[0]: True}


class Slow:
    """A lane whose work ends when the test says so."""

    def __init__(self) -> None:
        self.looks: list[tuple[Callable[[], object], Callable[[object], None]]] = []

    def submit(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        self.looks.append((work, done))

    def answer(self) -> None:
        work, done = self.looks.pop(0)
        done(work())


class TestALookThatWasAskedFor:
    """An epoch asks for it before it is fixed what the epoch reads."""

    def asked(self) -> tuple[Seen, Slow, list[int]]:
        seen, lane, ends = Seen(), Slow(), list[int]()
        seen.outlook._lane = lambda name: lane if name == "ends-in" else Now()
        seen.silent(1, 0, 0)
        seen.outlook.renewed({}, lambda: ends.append(seen.outlook.readable().get(("in", 0), 0)))
        return seen, lane, ends

    def test_is_answered_by_looks_begun_after_it(self) -> None:
        seen, lane, ends = self.asked()
        lane.answer()  # this one was begun before
        assert ends == []
        seen.outlook.turn({})
        seen.source.ends[0] = 2_000
        lane.answer()
        assert ends == [2_001]
        seen.outlook.turn({})
        assert ends == [2_001] and not lane.looks

    def test_does_not_wait_for_a_source_that_is_slow(self) -> None:
        seen, lane, ends = self.asked()
        lane.answer()
        seen.clock.pass_by(outlook.ANSWER_S)
        seen.outlook.turn({})
        assert ends == [1_001] and lane.looks

    def test_does_not_wait_for_a_source_that_is_away(self) -> None:
        seen, lane, ends = self.asked()
        lane.answer()
        seen.outlook.turn({})
        lane.looks.pop()[1](Unavailable("the source is away", not_done="", next_step=""))
        assert ends == [1_001]
