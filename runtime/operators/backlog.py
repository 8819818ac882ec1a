"""The rows that wait for the Python functions of one fragment.

A batch that reaches a function waits in the backlog and is processed in pieces until the turn is over; the rest waits
for the next turn. The deepest function goes first, which keeps the backlog as small as possible. The fragment's owner
gives it no other input until the backlog is empty, so a barrier or watermark follows every row that arrived before it.

Invariants
    - Rows leave in the order of the rows that they were computed from.
    - Every call of `go_on` completes at least one row, if any waits.

A function that has ended its process gets its rows in small portions (suspicion.py).

Pure, as far as the user's functions are. Source: docs/decisions/0004-python-functions.md, 0117-functions-that-kill.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.runtime.operators.contract import Arrival, Leave, Work
from holdfast.runtime.operators.suspicion import WatchedBatch, place_of, watched
from holdfast.runtime.operators.time_slice import TimeSlice
from holdfast.runtime.wire.messages import LIMITED_EPOCHS, Suspect

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
    leave: Leave | None
    aligned: bool
    watched: WatchedBatch | None = None
    """If the function has ended its process."""
    done: int = 0
    given: int = 0
    """Rows whose results were passed on."""
    results: list[pa.RecordBatch] = field(default_factory=list)


class Backlog:
    """The work of one fragment's functions.

    Args:
        arrival: How rows arrive in the fragment.
        suspects: Functions that have ended their process.
    """

    def __init__(
        self,
        time_slice: TimeSlice,
        arrival: Arrival | None = None,
        suspects: Sequence[Suspect] = (),
    ) -> None:
        self._time_slice, self._arrival = time_slice, arrival or Arrival()
        self._suspects, self._epochs = suspects, 0
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

    def add(
        self,
        operator: Work,
        give: Callable[[pa.RecordBatch], None],
        batch: pa.RecordBatch,
        leave: Leave | None = None,
        aligned: bool = False,
    ) -> None:
        """Queue a batch for a function, after the batches that already wait for it; see OperatorContext.defer.

        Args:
            aligned: Whether row i is record `i` of the arrival, or after functions of which that is true.
        """
        if not batch.num_rows:
            return
        work = _Work(operator, give, batch, self._base, leave, aligned)
        if leave is not None and (mine := [each for each in self._suspects if each.operator == operator.name]):
            base = self._base if aligned else None
            early = self._epochs < LIMITED_EPOCHS
            found = (watched(each, early, batch, self._arrival, base) for each in mine)
            work.watched = next((each for each in found if each is not None), None)
        self._added.append(work)

    def epoch_closed(self) -> None:
        """Count an epoch: after some, limits for rows without offsets are lifted."""
        self._epochs += 1

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
        done, results = self._called(work)
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

    def _called(self, work: _Work) -> tuple[int, list[pa.RecordBatch]]:
        batch, at = work.batch, None
        if work.watched is not None:
            assert work.leave is not None
            if (killer := work.watched.killer(work.done)) is not None:
                work.leave(batch, work.done, work.base, f"ended its process: {killer.how}")
                return 1, []
            batch = batch.slice(0, work.watched.end(work.done, batch.num_rows))
        if work.leave is not None:
            at = place_of(self._arrival, work.base + work.done, work.aligned, batch.num_rows - work.done)
            if work.watched is not None:
                at = at._replace(digest=work.watched.digest(work.done))
        with self._time_slice.marked(work.operator.mark, at):
            return work.operator.some(batch, work.done, work.base)

    def _put_on_top(self) -> None:
        self._stack.extend(reversed(self._added))
        self._added.clear()
