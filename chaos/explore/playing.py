"""Plays many seeds, in this process or in several, and counts their results.

Invariants
    - Runs are counted in the order of their seeds, however many processes play.
    - However many seeds there are, only a few are in progress, or played and not counted.
    - However it ends, no process keeps playing; after an interrupt the runs played so far are counted.

I/O: processes. They are spawned, because libraries with threads do not survive a fork.
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

from holdfast.chaos.explore.report import Summary
from holdfast.chaos.sim.simulator import Run, simulate

SEEDS_MAX = 10**12
"""More than any machine can play."""
WORKERS_MAX = 1_000
UNDER_WAY = 4
"""Seeds per process that are in progress, or played and waiting for an earlier one."""
ENDING = (signal.SIGINT, signal.SIGTERM)
"""Signals that end the command."""
_PR_SET_PDEATHSIG = 1
_COLLECTED_AFTER = (20_000, 50, 100)
"""Garbage collector thresholds while seeds are played: they leave few cycles and make millions of objects."""


def play_all(
    seeds: range,
    workers: int,
    failed: Callable[[Run, int], None] = lambda run, nth: None,
    played: Callable[[int], None] = lambda seeds: None,
    into: Summary | None = None,
) -> Summary:
    """Play seeds in a number of processes.

    Args:
        failed: Receives each failed run and its number among the failures.
        played: Receives the number of seeds played so far, after each.
        into: The summary to count into; complete for the runs played even after an interrupt.
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
    """Turn an interrupt into a message about the runs played."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(what) from interrupt


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Hold processes that play; an exception ends them immediately."""
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    before = signal.signal(signal.SIGTERM, _leave)
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin_to_play, initargs=(os.getpid(),))
    try:
        yield pool
    except BaseException:
        # Runs in progress would take seconds and are no longer needed.
        for process in set(multiprocessing.active_children()) - others:
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Make the garbage collector run rarely and skip imported objects."""
    before, frozen = gc.get_threshold(), gc.get_freeze_count() > 0
    _collect_seldom()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not frozen:
            gc.unfreeze()


def _collect_seldom() -> None:
    gc.freeze()
    gc.set_threshold(*_COLLECTED_AFTER)


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Defer an interrupt for a moment. Processes started meanwhile never see one: this process ends them.

    Signals are blocked for those processes, which inherit the mask. In this process the kernel would deliver a blocked
    signal to a library's thread that does not block it, and Python would interrupt the start of a process half-way: so
    the handlers only record the signal.
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
    """End as if the signal had killed this process, but release its resources first."""
    sys.exit(128 + number)


def _begin_to_play(parent: int) -> None:
    """End with the parent: after a killed command its processes would wait for work forever."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent was killed before this could be requested
        os._exit(1)
    _collect_seldom()
