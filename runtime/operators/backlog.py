"""The rows that wait for the Python functions of one fragment.

A batch that reaches a function waits in the backlog and is processed in pieces until the turn is over; the rest waits
for the next turn. The deepest function goes first, which keeps the backlog as small as possible. The fragment's owner
gives it no other input until the backlog is empty, so a barrier or watermark follows every row that arrived before it.

Invariants
    - Rows leave in the order of the rows that they were computed from.
    - Every call of `go_on` completes at least one row, if any waits.

Pure, as far as the user's functions are. Source: docs/design/0004-python-functions.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.runtime.operators.contract import Work
from holdfast.runtime.operators.time_slice import TimeSlice

OUTPUT_ROWS = 65_536
"""Results are passed on as soon as there are this many rows."""


@dataclass
class _Work:
    """One batch on its way through one function."""

    operator: Work
    give: Callable[[pa.RecordBatch], None]
    batch: pa.RecordBatch
    base: int
    """Row i is record `base + i` of the fragment's input, if rows and records correspond at all."""
    done: int = 0
    given: int = 0
    """Rows whose results were passed on."""
    results: list[pa.RecordBatch] = field(default_factory=list)


class Backlog:
    """The work of one fragment's functions."""

    def __init__(self, time_slice: TimeSlice) -> None:
        self._time_slice = time_slice
        self._stack: list[_Work] = []
        self._added: list[_Work] = []
        self._base = 0

    def __bool__(self) -> bool:
        return bool(self._stack or self._added)

    @property
    def at_work(self) -> str | None:
        """Return the name of the running function; any thread may call this."""
        top = self._stack[-1:]
        return top[0].operator.name if top else None

    def add(self, operator: Work, give: Callable[[pa.RecordBatch], None], batch: pa.RecordBatch) -> None:
        """Queue a batch for a function, behind what already waits for it."""
        if batch.num_rows:
            self._added.append(_Work(operator, give, batch, self._base))

    def go_on(self) -> None:
        """Work until nothing is left or the turn is over.

        Raises:
            JobFailed: a function raised an error or returned an unfit value, and its on_error is "fail".
        """
        self._put_on_top()
        while self._stack:
            self._work_on(self._stack[-1])
            if self._time_slice.over():
                return

    def _work_on(self, work: _Work) -> None:
        self._time_slice.mark(work.operator.mark)
        try:
            done, results = work.operator.some(work.batch, work.done, work.base)
        finally:
            self._time_slice.mark(None)
        work.done += done
        work.results += results
        finished = work.done == work.batch.num_rows
        if not finished and sum(each.num_rows for each in work.results) < OUTPUT_ROWS:
            return
        if finished:
            self._stack.pop()
        results, work.results = work.results, []
        self._base, work.given = work.base + work.given, work.done
        if results:
            work.give(results[0] if len(results) == 1 else pa.concat_batches(results))
        self._base = 0
        self._put_on_top()

    def _put_on_top(self) -> None:
        self._stack.extend(reversed(self._added))
        self._added.clear()
