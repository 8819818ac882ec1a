"""Plays steps against a whole job: those of the job itself, and the failures that no job may notice.

A step is a tuple: its name, then its arguments. The modules of jobs say what their own steps do and what must be so
after each epoch; crashes, other drivers, other parallelism and rewinds are the same for all of them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol

from hypothesis import strategies as st

from holdfast.state.keys.keygroups import range_of
from holdfast.testing import TestDriver

Step = tuple[Any, ...]
Own = Mapping[str, Callable[..., None]]
"""What the steps of a job itself do, by name; they are called with the arguments of the step."""
FAILURES = (
    st.tuples(st.just("crash"), st.integers(0, 1)),
    st.tuples(st.just("driver")),
    st.tuples(st.just("parallelism"), st.integers(1, 3)),
)
"""Steps that every job survives."""
REWIND = st.tuples(st.just("rewind"), st.integers(0, 3))
"""Goes so many checkpoints back, at most to the first; does nothing before that."""


class Oracle(Protocol):
    """What every record does, in plain Python; event time is what the test last set it to."""

    def take(self, record: Any, /) -> None: ...

    def advance(self, second: float, /) -> None: ...


def nothing() -> None:
    """Is called for jobs that have nothing to do there."""


def play(
    t: TestDriver,
    steps: list[Step],
    own: Own,
    check: Callable[[], None] = nothing,
    *,
    ends_epoch: Callable[[str], bool] = lambda _: True,
    interrupt: Callable[[], None] = nothing,
) -> None:
    """Carry out steps, as a rule each in an epoch of its own: so it is known which records time has overtaken.

    Args:
        check: Is called after every checkpoint.
        ends_epoch: Whether a checkpoint follows a step of this name; otherwise the next step is in the same epoch.
        interrupt: Is called before a crash or another driver: it may begin an epoch that is not completed.
    """
    epochs = list[int]()
    for step in steps:
        match step:
            case ("crash", worker):
                interrupt()
                t.crash(worker % len(t.cluster.rules.key_ranges))
                t.recover()
            case ("driver",):
                interrupt()
                t.cluster.replace_driver()
            case ("parallelism", count):
                rescale(t, count)
            case ("rewind", back):
                if epochs:
                    del epochs[max(len(epochs) - back, 1) :]
                    t.rewind(epochs[-1])
            case (name, *arguments):
                own[name](*arguments)
        if ends_epoch(step[0]):
            epochs.append(t.checkpoint())
            check()


def rescale(t: TestDriver, parallelism: int) -> None:
    """Replace the driver by one that distributes the key groups over so many workers."""
    rules = t.cluster.rules
    ranges = tuple(range_of(number, parallelism, rules.key_groups) for number in range(parallelism))
    t.cluster.rules = replace(rules, key_ranges=ranges)
    t.cluster.replace_driver()


def pushing(
    t: TestDriver, record: Callable[..., Any], take: Callable[[Any], None], first: int = 0
) -> Callable[[int, list[tuple[Any, ...]]], None]:
    """Return a step that pushes records to a partition of the source "rows" and gives them to an oracle.

    Args:
        record: Makes a record from its number and from what the step gives for it.
        take: Takes a record into the oracle.
        first: The number of the first record; the others follow in the order of the pushes.
    """
    numbers = itertools.count(first)

    def push(partition: int, given: list[tuple[Any, ...]]) -> None:
        records = [record(next(numbers), *each) for each in given]
        t.push("rows", records, partition)
        for each in records:
            take(each)

    return push


def timing(t: TestDriver, at: Callable[[float], datetime], advance: Callable[[float], None]) -> Callable[[float], None]:
    """Return a step that sets the event time of the source "rows", and that of an oracle, to a second.

    From now on nothing else advances it, as partitions without records hold the time that a test told of them.
    """
    t.watermark("rows", at(-1_000_000))

    def watermark(second: float) -> None:
        t.watermark("rows", at(second))
        advance(second)

    return watermark


def timed(t: TestDriver, record: Callable[..., Any], at: Callable[[float], datetime], oracle: Oracle) -> Own:
    """Return the steps `push` and `watermark` of a job whose only source is "rows"."""
    return {"push": pushing(t, record, oracle.take), "watermark": timing(t, at, oracle.advance)}


def rows_of(t: TestDriver, sink: str) -> Counter[tuple[Any, ...]]:
    """Return the rows of a sink, in any order."""
    return Counter(tuple(row.values()) for row in t.rows(sink))
