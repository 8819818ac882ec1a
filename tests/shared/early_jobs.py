"""Jobs whose windows are shown early, steps for them, and what each result may be, in plain Python.

Records of a key are in one partition, so a replay has them in the order in which they were pushed. Every result that a
sink gets must be that of the first so many records of its window; the results in between are those that were shown.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import hopping_jobs
import job_player
import pytest
import state_sizes
from hopping_jobs import START, at, given_rows, result_in, row
from hypothesis import strategies as st

import holdfast as hf
from holdfast.runtime.operators.windows.window import WindowOperator
from holdfast.testing import TestDriver

Window = tuple[str, datetime]
"""A key, and the end of a window."""

STEPS = st.one_of(
    st.tuples(
        st.just("push"),
        st.lists(
            st.tuples(st.sampled_from("abc"), st.integers(0, 40), st.sampled_from([None, "x", "y", "zz"])),
            min_size=1,
            max_size=6,
        ),
    ),
    st.tuples(st.just("watermark"), st.integers(1, 12)),
    st.tuples(st.just("wait"), st.integers(100, 9_000)),
    job_player.REWIND,
    *job_player.FAILURES,
)
"""Records so many seconds after event time (before it, if records may be late); seconds by which event time advances;
milliseconds of the clock."""


def app_of(size: int, every: int, interval: int, lateness: int = 0) -> hf.App:
    return hopping_jobs.app_of(size, every, hf.every(f"{interval}s"), lateness, out_of_orderness="1h")


class Watch:
    """What a job shows, and what its sink gets.

    Args:
        interval: Between two results that are shown for a window, in seconds.
    """

    def __init__(self, t: TestDriver, oracle: hopping_jobs.Oracle, interval: int) -> None:
        self._t, self.oracle, self._interval_us = t, oracle, 1_000_000 * interval
        self.shown: dict[tuple[Window, int], list[int]] = defaultdict(list)
        """By window and number of records: when an operator made that result early, on the test's clock."""
        self.given: dict[Window, list[int]] = defaultdict(list)
        """By window: the numbers of records in the results that the sink got, in order."""
        self._unchecked: list[dict[str, Any]] = []

    def note(self, batch: Any) -> None:
        """Note results that an operator shows early."""
        for each in batch.to_pylist():
            self.shown[(each["k"], each["window_end"]), each["n"]].append(self._t.cluster.clock.wall_us())

    def take(self, each: dict[str, Any]) -> None:
        """Note a row that the sink gets."""
        self._unchecked.append(each)
        self.given[each["k"], each["window_end"]].append(each["n"])

    def forget(self) -> None:
        """Forget what was shown: a rewind takes it back, with the times of it."""
        self.shown.clear()
        self.given.clear()

    def check(self) -> None:
        """Check the results since the last check, the windows that event time has passed, and the intervals."""
        for each in self._unchecked:
            end = round((each["window_end"] - START).total_seconds())
            records = self.oracle.held[each["k"], end][: each["n"]]
            assert 0 < len(records) == each["n"], "a result has records that its window has not"
            assert result_in(each) == self.oracle.result(end, records)
        self._unchecked.clear()
        found = given_rows(self._t)
        for window, expected in self.oracle.rows().items():
            assert found.get(window) == expected, "a closed window lacks its last result"
        for window, numbers in self.given.items():
            early = [self.shown[window, n] for n in numbers if (window, n) in self.shown]
            for before, after in itertools.pairwise(early):
                # A result that was made again after a failure has several times: the latest counts for the second one.
                assert max(after) - min(before) >= self._interval_us or after is before, "an interval was cut short"


@contextmanager
def watched(t: TestDriver, oracle: hopping_jobs.Oracle, interval: int) -> Iterator[Watch]:
    """Watch the operators of a job and its sink."""
    watch, sink = Watch(t, oracle, interval), t.sinks["out"]
    open_windows, publish, repair = WindowOperator._open_windows, sink.publish, sink.repair

    def noting(operator: WindowOperator, slots: Any) -> Iterator[Any]:
        for batch in open_windows(operator, slots):
            watch.note(batch)
            yield batch

    def taking(job_uuid: str, writer: Any, epochs: Any) -> None:
        for _, rows in epochs:
            for each in rows:
                watch.take(each)
        publish(job_uuid, writer, epochs)

    def repairing(*given: Any, **named: Any) -> Any:
        watch.forget()
        return repair(*given, **named)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(WindowOperator, "_open_windows", noting)
        patched.setattr(sink, "publish", taking)
        patched.setattr(sink, "repair", repairing)
        yield watch


def interrupt(t: TestDriver, steps: int) -> None:
    """Let an epoch be due, and stop somewhere on the way to its end."""
    t.cluster.clock.now += 1.1
    for _ in range(steps):
        t.cluster.step()


def play(t: TestDriver, steps: list[Any], watch: Watch, interrupted_after: int = 0) -> None:
    """Carry out steps, and check after each."""
    oracle, numbers = watch.oracle, itertools.count()

    def push(given: list[tuple[str, int, str | None]]) -> None:
        before = 30 if oracle.lateness else 0
        for k, delta, word in given:
            record = row(k, max(oracle.clock, 0) + delta - before, next(numbers), word)
            oracle.take(record)
            t.push("rows", [record], "abc".index(k))

    def watermark(seconds: int) -> None:
        oracle.advance(max(oracle.clock, 0) + seconds)
        t.watermark("rows", at(oracle.clock))

    own: job_player.Own = {"push": push, "watermark": watermark, "wait": lambda ms: t.advance(f"{ms}ms")}
    t.watermark("rows", at(-1_000_000))  # from now on only the test moves time
    job_player.play(t, steps, own, watch.check, interrupt=lambda: interrupt(t, interrupted_after))


def finish(t: TestDriver, watch: Watch, interval: int) -> None:
    """Let all changes be shown, in windows that are still open; then end the input, which closes them."""
    t.advance(f"{4 * interval + 4}s")  # a pass that a barrier has ended early goes on an interval later
    t.checkpoint()
    assert given_rows(t) == watch.oracle.rows(through=1e9), "a change was never shown"
    t.finish()
    watch.check()
    assert given_rows(t) == watch.oracle.rows(through=1e9)
    state_sizes.check(t, {})
