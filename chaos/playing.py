"""Plays many seeds, in this process or in several, and counts what came of them.

Invariants
    - Runs are counted in the order of their seeds, however many processes play.
    - However many seeds there are, only a few of them are under way, or played and not counted.
    - Whatever ends it, nobody goes on playing; an interrupt leaves the count of what was played so far.

I/O: processes. They are spawned: libraries with threads do not fork.
Source: DESIGN section 10.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import closing, contextmanager
from types import FrameType

from holdfast.chaos.report import Summary
from holdfast.chaos.simulator import Run, simulate

SEEDS_MAX = 10**12
"""More than anybody can play."""
WORKERS_MAX = 1_000
UNDER_WAY = 4
"""So many seeds per process are under way, or played and wait for an earlier one."""
ENDING = (signal.SIGINT, signal.SIGTERM)
"""Signals that end the command."""
_PR_SET_PDEATHSIG = 1
_COLLECTED_AFTER = (20_000, 50, 100)
"""Thresholds of the collector of garbage while seeds are played: they leave few cycles and make millions of objects."""


def play_all(
    seeds: range,
    workers: int,
    failed: Callable[[Run, int], None] = lambda run, nth: None,
    played: Callable[[int], None] = lambda seeds: None,
    into: Summary | None = None,
) -> Summary:
    """Play seeds in so many processes.

    Args:
        failed: Told of each run that failed, and the how-many-th it is.
        played: Told how many seeds were played so far, after each.
        into: Where to count; it holds what was played also if an interrupt ends this.
    """
    summary = Summary() if into is None else into
    with closing(_in_order(seeds, workers)) as runs:
        for run in runs:
            summary.add(run)
            if not run.passed:
                failed(run, len(summary.failed))
            played(summary.runs)
    return summary


def _in_order(seeds: Iterable[int], workers: int) -> Generator[Run, None, None]:
    if workers == 1:
        with _seldom_collected():
            yield from map(simulate, seeds)
        return
    waiting = iter(seeds)
    under_way: deque[Future[Run]] = deque()
    with _pool(workers) as pool:
        while True:
            with _no_interrupt():
                for seed in itertools.islice(waiting, UNDER_WAY * workers - len(under_way)):
                    under_way.append(pool.submit(simulate, seed))
            if not under_way:
                return
            yield under_way.popleft().result()


@contextmanager
def saying_if_interrupted(what: str) -> Iterator[None]:
    """Let an interrupt tell what it means for what was played."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(what) from interrupt


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Hold processes that play, and end them at once if this is left by an exception."""
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    before = signal.signal(signal.SIGTERM, _leave)
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin_to_play, initargs=(os.getpid(),))
    try:
        yield pool
    except BaseException:
        # What is under way takes seconds, and nobody wants it any more.
        for process in set(multiprocessing.active_children()) - others:
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Let the collector of garbage run seldom, and pass over what was imported."""
    before = gc.get_threshold()
    _collect_seldom()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def _collect_seldom() -> None:
    gc.freeze()
    gc.set_threshold(*_COLLECTED_AFTER)


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Hold an interrupt back for a moment. Processes begun meanwhile never see one: it is this one's to end them.

    Blocking it is for those processes, which inherit that. In this one the kernel gives a blocked signal to a thread of
    some library that does not block it, and Python would then interrupt the start of a process half-way: so handlers
    only note what came.
    """
    came: list[int] = []
    handlers = {number: signal.signal(number, lambda number, _: came.append(number)) for number in ENDING}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for first in came[:1]:
            signal.raise_signal(first)


def _leave(number: int, _: FrameType | None) -> None:
    """End as a process does that the signal kills, but not before what it holds is given back."""
    sys.exit(128 + number)


def _begin_to_play(parent: int) -> None:
    """If the command is killed, nobody else would end those who play for it: they would wait for work for ever."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was killed before this could be asked for
        os._exit(1)
    _collect_seldom()
