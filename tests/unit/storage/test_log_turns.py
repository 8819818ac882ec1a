"""Writers of one log: all get their turn, at a cost in requests that does not grow with the square of their number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from slow_objects import REQUEST_S, SlowObjects
from virtual_time import VirtualTime

from holdfast.errors import Unavailable
from holdfast.model import Epoch, Tag, Timeline
from holdfast.storage.log.format import Commit, WriterTag
from holdfast.storage.log.log import LogReader, LogWriter, create_log
from holdfast.storage.log.turns import REQUESTS_PER_COMMIT, WAIT_MAX_S, wait_s
from holdfast.storage.objects import MemoryObjects

SCHEMA = pa.schema([("n", pa.int64())])


def tag(epoch: int) -> Tag:
    return Tag(Timeline(1), Epoch(epoch))


def epoch_of(writers: int) -> tuple[int, float]:
    """Return the requests and the virtual seconds in which so many writers deliver one epoch, together."""
    virtual = VirtualTime()
    store = SlowObjects(virtual)
    create_log(store, SCHEMA, 4)
    logs = [LogWriter(store, pause=virtual.pass_by, clock=virtual.clock) for _ in range(writers)]
    for n, log in enumerate(logs):
        log.append_tagged({0: pa.table({"n": [n]})}, f"job/out/{n}", tag(1))
    store.requests.clear()
    store.slow = True

    def deliver(n: int, log: LogWriter) -> None:
        assert log.append_tagged({0: pa.table({"n": [writers + n]})}, f"job/out/{n}", tag(2)) is not None

    virtual.run([lambda n=n, log=log: deliver(n, log) for n, log in enumerate(logs)])  # type: ignore[misc]
    store.slow, requests = False, store.requests.total()
    reader, rows, offset = LogReader(store), list[int](), 0
    while (read := reader.read(0, offset, 1 << 20))[0] is not None:
        rows += read[0].column("n").to_pylist()
        offset = read[1]
    assert rows[:writers] == list(range(writers)) and sorted(rows) == list(range(2 * writers))
    return requests, virtual.now


class TestWritersOfOneSink:
    def test_a_lone_writer_never_waits(self) -> None:
        requests, seconds = epoch_of(1)
        assert requests == 3, "a look at the tail, the segment, the commit"
        assert seconds == pytest.approx(3 * REQUEST_S)

    def test_four_times_as_many_make_about_four_times_as_many_requests(self) -> None:
        """Sixteen times as many where each reads the commits of all others."""
        few, many = epoch_of(20), epoch_of(80)
        assert many[0] < 7 * few[0]
        assert many[0] < 80 * 40

    def test_all_commit_in_a_time_that_grows_with_their_number(self) -> None:
        assert epoch_of(80)[1] < 80 * 6 * REQUEST_S


def commit(**tags: int) -> Commit:
    known = tuple(WriterTag(f"job/{name.replace('_', '/')}", tag(epoch)) for name, epoch in tags.items())
    return Commit(1, "log", 9, "append", "o", 0, (0,), tags=known)


def turns(tail: Commit, writer: str, lost: int = 20, owner: str = "ffff") -> float:
    return wait_s(tail, WriterTag(writer, tag(7)), owner, lost, 0.001) / (REQUESTS_PER_COMMIT * 0.001)


class TestWaiting:
    def test_is_for_the_writers_before_it_that_stand_behind(self) -> None:
        tail = commit(out_0=6, out_1=7, out_2=6, out_3=6, out_10=6)
        assert [turns(tail, f"job/out/{n}") for n in (0, 1, 2, 3, 10)] == [0, 1, 1, 2, 3]

    def test_ignores_writers_of_other_sinks(self) -> None:
        assert turns(commit(out_0=6, out_1=6, other_0=1, out2_0=1), "job/out/1") == 1

    def test_is_short_at_first_and_grows_with_every_loss(self) -> None:
        tail = commit(**{f"out_{n}": 6 for n in range(100)})
        assert [turns(tail, "job/out/99", lost) for lost in range(6)] == [1, 4, 16, 64, 99, 99]

    def test_the_wait_of_a_new_writer_is_random_and_grows_with_every_loss(self) -> None:
        tail = commit(out_0=6)
        assert [turns(tail, "job/out/5", lost) for lost in range(4)] == [1, 4, 16, 64]
        assert turns(tail, "job/out/5", 3, "0000") == 0
        assert wait_s(tail, None, "8000", 1, 0.001) == pytest.approx(2 * REQUESTS_PER_COMMIT * 0.001, rel=1e-4)

    def test_has_a_limit(self) -> None:
        assert wait_s(commit(), None, "ffff", 999, 1.0) == WAIT_MAX_S


class Dying(SlowObjects):
    """A store that a writer cannot reach any more from its k-th request on, which takes effect or not."""

    def __init__(self, store: MemoryObjects, left: int, *, after: bool) -> None:
        super().__init__(VirtualTime())
        self._objects, self._lock = store._objects, store._lock
        self.left, self.after = left, after

    def asked(self, what: str, answer: Callable[[], Any]) -> Any:
        self.left -= 1
        if self.left > 0:
            return answer()
        if self.left == 0 and self.after:
            answer()
        raise Unavailable("the process died", next_step="start it again")


class TestCrashes:
    @pytest.mark.parametrize("after", [False, True])
    def test_a_crash_at_any_request_of_a_contended_append_leaves_it_whole_or_absent(self, after: bool) -> None:
        outcomes = set()
        for operations in range(1, 60):
            store = MemoryObjects()
            create_log(store, SCHEMA, 1)
            dying = Dying(store, 1_000, after=after)
            log = LogWriter(dying, pause=lambda _: None)
            other = LogWriter(store, pause=lambda _: None)
            for n in range(5):
                other.append_tagged({0: pa.table({"n": [n]})}, "job/out/0", tag(n + 1))
            dying.left = operations
            admitted = 0

            def intrude(_tail: Commit, other: LogWriter = other) -> None:
                nonlocal admitted
                admitted += 1
                if admitted in (2, 3):  # between the look at the tail and the create: this one loses twice
                    other.append({0: pa.table({"n": [100 + admitted]})})

            try:
                log.append_tagged({0: pa.table({"n": [50]})}, "job/out/1", tag(1), admit=intrude)
            except Unavailable:
                there = 50 in values(store)
                outcomes.add(there)
                dying.left = 1_000
                log.settle()
                log.append_tagged({0: pa.table({"n": [50]})}, "job/out/1", tag(1))  # as a delivery does after an error
                assert values(store).count(50) == 1
                continue
            assert values(store).count(50) == 1 and operations > 10
            assert outcomes == ({False, True} if after else {False})
            return
        raise AssertionError("it never came to its end")


def values(store: MemoryObjects) -> list[int]:
    reader, found, offset = LogReader(store), list[int](), 0
    while True:
        rows, offset = reader.read(0, offset, 1 << 20)
        if rows is None:
            return found
        found += rows.column("n").to_pylist()
