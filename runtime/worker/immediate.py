"""Writes the immediate sinks of one worker, before the commit: off the operator thread, in order, in bounded queues.

The operator thread collects the rows from one arrival of a source and queues them per sink and partition. A lane per
sink first fences the partitions of the subtask, then writes: all rows queued for one partition go into one transaction,
with the offset they reach. A write with an unknown outcome is retried later, unchanged. Rows of a sink that repeats are
queued as they are emitted: they may come from anywhere in the subtask, also from results of a window or at a barrier.

A sink that repeats may take writes ahead: another one begins before the one before is confirmed, once `AHEAD_ROWS_MIN`
rows wait for it. Fewer rows wait for the confirmation, since small writes cost more than they save.

An epoch is acked only after all rows queued before it are written, so output of these sinks is never pending.

Invariants
    - Nothing is written before the fence of this generation is stored.
    - Writes of one partition are applied in order, one at a time; those of a sink that takes them ahead are begun and
      confirmed in order.
    - A worker that was overtaken, or that cannot write, never reports an epoch as written.
    - Work that an older generation left in the queue or in a lane changes nothing here.

Source: PROTOCOL P22; DESIGN section 4, step 4; docs/decisions/0012, 0093.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import pyarrow as pa

from holdfast.errors import Fenced, HoldfastError, Unavailable
from holdfast.model import Epoch, SourcePosition
from holdfast.runtime.plan.compiler import Plan, SinkSpec
from holdfast.runtime.plan.immediate import immediate_sink, is_immediate, repeats
from holdfast.runtime.wire.messages import Deploy
from holdfast.runtime.worker.ports import SubtaskPorts
from holdfast.runtime.worker.under_way import UnderWay
from holdfast.sinks.contract.accepting import accept
from holdfast.sinks.contract.immediate import ANYWHERE, AheadTarget, ImmediateTarget, Origin, Owner
from holdfast.sinks.contract.owners import NotOurs

QUEUE_BYTES_MAX = 32 << 20
"""Bytes of one sink that may wait; then sources stop."""
WRITE_ROWS_MAX = 65_536
"""Rows after which one write takes no more arrivals."""
AHEAD_ROWS_MIN = 2_000
"""Rows that may be sent before the write before them is confirmed."""
ADVANCE_S = 1.0
"""How long a lane waits at a time for the confirmation of writes."""
RETRY_FIRST_S, RETRY_MAX_S = 0.05, 5.0


@dataclass
class ArrivedRows:
    """Rows from one arrival of a source for one sink."""

    number: int
    origin: Origin
    offset: int
    batches: list[pa.RecordBatch]
    bytes: int
    rows: int


@dataclass
class Writing:
    """One sink of this worker in one generation."""

    spec: SinkSpec
    owner: Owner
    starts: dict[Origin, int]
    target: ImmediateTarget
    ahead: AheadTarget | None
    """The target, if it takes writes ahead."""
    collected: list[pa.RecordBatch] = field(default_factory=list)
    queue: deque[ArrivedRows] = field(default_factory=deque)
    rows_waiting: int = 0
    """Rows of the queue."""
    under_way: deque[tuple[ArrivedRows, ...]] = field(default_factory=deque)
    """The writes that were begun, in order, and are not known to be in; one, unless they are taken ahead."""
    busy: bool = False
    """The lane is working, or a retry is scheduled."""
    fenced: bool = False
    over: bool = False
    """A newer generation was deployed, or a write was refused permanently."""
    failures: int = 0
    buried: bool = True
    """There may be tombstones. Tombstones of an older generation, or of a write without a reply, are not known."""
    forget: dict[Origin, int] | None = None

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.left())

    def begin(self) -> tuple[ArrivedRows, ...]:
        """Take arrivals out of the queue for the next write."""
        parts = _taken(self.queue)
        self.rows_waiting -= sum(part.rows for part in parts)
        self.under_way.append(parts)
        return parts

    def left(self) -> Iterator[ArrivedRows]:
        """Yield what is not known to be in."""
        return chain(*self.under_way, self.queue)


class ImmediateWrites:
    """All sinks of one worker that are written immediately."""

    def __init__(
        self,
        plan: Plan,
        ports: SubtaskPorts,
        after: Callable[[float, Callable[[], object]], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._ports, self._after, self._fail = ports, after, fail
        self._specs = [spec for spec in plan.sinks if is_immediate(spec)]
        self._sources = {spec.name: plan.fragments[spec.fragment].source for spec in self._specs}
        self._writing: dict[str, Writing] = {}
        self._numbered = 0
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self._positions: dict[Epoch, tuple[SourcePosition, ...]] = {}
        self._errors: dict[str, HoldfastError] = {}
        self._under_way = UnderWay(ports.clock)

    def deploy(self, deploy: Deploy) -> None:
        """Begin a generation: drop the work of an older one, and fence the partitions of this subtask."""
        for old in self._writing.values():
            self._end(old)
        self._writing, self._waiting, self._positions, self._errors = {}, [], {}, {}
        for spec in self._specs:
            sink = immediate_sink(spec)
            assert sink is not None and spec.path is not None
            mine = [at for at in deploy.positions if at.source == self._sources[spec.name]]
            starts = {Origin(at.source, at.partition): max(0, at.offset) for at in mine}
            owner = Owner(deploy.job_uuid, spec.name, deploy.generation, deploy.timeline, spec.path, deploy.claim)
            ahead = sink.open_ahead(owner)
            target = sink.open_immediate(owner) if ahead is None else ahead
            self._writing[spec.name] = Writing(spec, owner, starts, target, ahead)
            if starts or repeats(spec):
                self._go_on(self._writing[spec.name])

    def takes(self, sink: str) -> bool:
        """Return whether the sink is written immediately."""
        return sink in self._writing

    def collect(self, sink: str, batch: pa.RecordBatch) -> None:
        """Take rows of the arrival that the fragment is processing; of a sink that repeats, any rows.

        Raises:
            ConfigError: the target can never accept one of them.
        """
        if batch.num_rows:
            writing = self._writing[sink]
            accept(writing.spec.sink, batch)
            writing.collected.append(batch)
            if repeats(writing.spec):
                self._queue(writing, ANYWHERE, 0)

    def arrived(self, source: str, partition: int, offset: int) -> None:
        """Queue the collected rows: they come from records of the partition below this offset."""
        for writing in self._writing.values():
            if writing.collected:
                self._queue(writing, Origin(source, partition), offset)

    def full(self) -> bool:
        """Return whether sources must stop until more rows are written."""
        return any(writing.bytes >= QUEUE_BYTES_MAX for writing in self._writing.values())

    def when_in(self, then: Callable[[], None]) -> None:
        """Call `then` once all rows queued now are written; never, if a write fails permanently."""
        self._waiting.append((self._numbered, then))
        self._wake()

    def noted(self, epoch: Epoch, positions: tuple[SourcePosition, ...]) -> None:
        """Note the positions of the sources when the epoch was closed."""
        if self._writing:
            self._positions[epoch] = (*self._positions.get(epoch, ()), *positions)

    def committed(self, through: Epoch) -> None:
        """Drop tombstones below the offsets of a committed epoch: they are no longer needed."""
        at = self._positions.get(through, ())
        self._positions = {epoch: known for epoch, known in self._positions.items() if epoch > through}
        offsets = {Origin(position.source, position.partition): position.offset for position in at}
        for writing in self._writing.values():
            mine = {origin: offset for origin, offset in offsets.items() if origin in writing.starts}
            if writing.buried and mine:
                writing.forget = mine
                self._go_on(writing)

    def errors(self) -> dict[str, HoldfastError]:
        """Return why the last write of each sink failed, or that one is not answered; none once it succeeds."""
        return self._under_way.slow() | self._errors

    def close(self) -> None:
        """Close every target, after the current work of its lane."""
        for writing in self._writing.values():
            self._end(writing)

    def _queue(self, writing: Writing, origin: Origin, offset: int) -> None:
        batches, writing.collected = writing.collected, []
        self._numbered += 1
        size = sum(batch.nbytes for batch in batches)
        rows, before = sum(batch.num_rows for batch in batches), writing.rows_waiting
        writing.rows_waiting += rows
        writing.queue.append(ArrivedRows(self._numbered, origin, offset, batches, size, rows))
        self._go_on(writing)
        if writing.ahead is not None and before < AHEAD_ROWS_MIN <= writing.rows_waiting:
            writing.ahead.ring()

    def _end(self, writing: Writing) -> None:
        writing.over = True
        writing.queue.clear()
        if writing.ahead is not None:
            writing.ahead.ring()
        self._lane(writing, writing.target.close, lambda _result: None)

    def _go_on(self, writing: Writing) -> None:
        """Give the lane its next piece of work, if it has none."""
        if writing.busy or writing.over:
            return
        if not writing.fenced:
            self._work(writing, lambda: writing.target.fence(writing.starts), self._is_fenced)
        elif writing.ahead is not None and (writing.under_way or writing.queue):
            self._advance(writing, writing.ahead)
        elif writing.under_way or writing.queue:
            if not writing.under_way:
                writing.begin()
            parts = writing.under_way[0]
            origin, offset, batches = parts[-1].origin, parts[-1].offset, _batches(parts)
            self._work(writing, lambda: writing.target.write(origin, offset, batches), self._is_written)
        elif writing.forget is not None:
            committed, writing.forget = writing.forget, None
            self._work(writing, lambda: writing.target.forget(committed), self._has_forgotten)

    def _advance(self, writing: Writing, target: AheadTarget) -> None:
        """Begin a write if its rows need not wait; await the first one that is confirmed, unless another can begin."""

        def ready() -> bool:
            return target.room > 0 and writing.rows_waiting >= AHEAD_ROWS_MIN

        if writing.queue and (not writing.under_way or ready()):
            target.begin(_batches(writing.begin()))
        wait_s = 0.0 if ready() else ADVANCE_S
        self._work(writing, lambda: target.advance(wait_s), self._is_confirmed)

    def _work(self, writing: Writing, work: Callable[[], object], done: Callable[[Writing, object], None]) -> None:
        writing.busy, no_longer = True, self._under_way.begin(writing.spec.name)

        def unless_over() -> object:
            return None if writing.over else work()

        def ended(result: object) -> None:
            writing.busy = False
            no_longer()
            if writing.over:
                return
            if isinstance(result, BaseException):
                self._failed(writing, result)
                return
            writing.failures = 0
            self._errors.pop(writing.spec.name, None)
            done(writing, result)
            self._go_on(writing)

        self._lane(writing, unless_over, ended)

    def _lane(self, writing: Writing, work: Callable[[], object], done: Callable[[object], None]) -> None:
        self._ports.lane(f"write-{writing.spec.name}").submit(work, done)

    def _is_fenced(self, writing: Writing, _: object) -> None:
        writing.fenced = True

    def _is_written(self, writing: Writing, deleted: object) -> None:
        writing.under_way.clear()
        writing.buried = writing.buried or bool(deleted)
        self._wake()

    def _is_confirmed(self, writing: Writing, writes: object) -> None:
        assert isinstance(writes, int)
        for _ in range(writes):
            writing.under_way.popleft()
        self._wake()

    def _has_forgotten(self, writing: Writing, left: object) -> None:
        """Note whether tombstones are left: writes are ahead of commits, so a later commit must pass them."""
        writing.buried = bool(left)

    def _wake(self) -> None:
        """Call every waiting function whose rows are all written."""
        left = [part.number for each in self._writing.values() for part in each.left()]
        through = min(left, default=self._numbered + 1) - 1
        due = [then for number, then in self._waiting if number <= through]
        self._waiting = [(number, then) for number, then in self._waiting if number > through]
        for then in due:
            then()

    def _failed(self, writing: Writing, error: BaseException) -> None:
        if not isinstance(error, HoldfastError):
            raise error
        self._errors[writing.spec.name] = error
        if isinstance(error, Unavailable):
            writing.buried = True  # the write may have succeeded; its retry then deletes nothing
            writing.busy = True
            delay = min(RETRY_FIRST_S * 2 ** min(writing.failures, 16), RETRY_MAX_S)
            writing.failures += 1
            self._after(delay, lambda: self._retry(writing))
            return
        writing.over = True
        # Overtaken: the driver of this generation learns that from the job log when it starts another one (P5).
        overtaken = isinstance(error, Fenced) and not isinstance(error, NotOurs)
        self._fail(_try_again(error) if overtaken else error)

    def _retry(self, writing: Writing) -> None:
        writing.busy = False
        self._go_on(writing)


def _taken(queue: deque[ArrivedRows]) -> tuple[ArrivedRows, ...]:
    """Take the arrivals queued for the partition of the first, up to WRITE_ROWS_MAX rows."""
    first, rows = queue[0].origin, 0
    arrivals: list[ArrivedRows] = []
    for each in [each for each in queue if each.origin == first]:
        if rows >= WRITE_ROWS_MAX:
            break
        arrivals.append(each)
        rows += each.rows
    gone = {each.number for each in arrivals}
    left = [each for each in queue if each.number not in gone]
    queue.clear()
    queue.extend(left)
    return tuple(arrivals)


def _batches(parts: Sequence[ArrivedRows]) -> list[pa.RecordBatch]:
    return [batch for part in parts for batch in part.batches]


def _try_again(error: HoldfastError) -> Unavailable:
    return Unavailable(error.what, not_done=error.not_done, next_step=error.next_step)
