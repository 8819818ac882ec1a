"""Delivery of one writer's committed output: first in, first out, each epoch once.

The commit decides that an epoch's output will be delivered; delivery may then take as long as the
target is down. The machine keeps output that is decided and not yet delivered, tries the oldest, and
never skips it. A writer that has fallen behind attempts several epochs in one transaction, if its target
can take them; the size of an attempt is bounded, since other writers of the target wait meanwhile. A
missing reply proves nothing: the target's own tag is read before the next attempt, and output that
the tag covers is not tried again.

Invariants
    - At most one request, attempt or timer is under way per writer.
    - The queue's tags strictly increase; only the front of the queue is attempted, in order and without a gap.
    - `floor` never goes back, and everything at or below it is in the target.
    - The state is Settled exactly when there is nothing to do.

The caller keeps one machine per writer through recoveries, and drops it at a rewind. When
`is_full` it stops the sources; nothing is ever skipped. After a rescale it queues output of new
writers of a sink only when the older writers' backlog is empty (P20).

Pure: no clock, thread or I/O. Driven by runtime/worker/loop.py and chaos/sim/simulator.py.
Source: PROTOCOL P17, P18, P24; docs/decisions/0030-epochs-in-one-transaction.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

from holdfast.errors import Damaged, ErrorReport, Fenced
from holdfast.model import Pending, Tag, Writer
from holdfast.sinks.contract.owners import stands_beyond, went_back

RETRY_FIRST_MS = 50
RETRY_MAX_MS = 5_000
BACKLOG_EPOCHS_MAX = 128
BACKLOG_BYTES_MAX = 256 * 2**20
TOGETHER_EPOCHS_MAX = 16
TOGETHER_BYTES_MAX = 2**20
TOGETHER_ROWS_MAX = 50_000
"""Limits of one attempt; a single epoch may exceed them."""


@dataclass(frozen=True)
class DeliveryOpening:
    """The target's tag is being read."""

    writer: Writer
    floor: Tag | None
    queue: tuple[Pending, ...]
    failures: int
    """Failures in a row since something was last delivered."""


@dataclass(frozen=True)
class DeliveryWaiting:
    """A request or attempt failed; its timer runs."""

    writer: Writer
    floor: Tag | None
    queue: tuple[Pending, ...]
    failures: int


@dataclass(frozen=True)
class Settled:
    """All decided output is in the target."""

    writer: Writer
    floor: Tag | None


@dataclass(frozen=True)
class DeliveryRunning:
    """The front of the queue is being attempted."""

    writer: Writer
    floor: Tag | None
    queue: tuple[Pending, ...]
    failures: int
    together: int = 1
    """Number of epochs in the attempt."""


@dataclass(frozen=True)
class DeliveryStopped:
    """Delivery cannot continue; the job ends with this error."""

    writer: Writer
    queue: tuple[Pending, ...]
    error: ErrorReport


Delivery = DeliveryOpening | DeliveryWaiting | Settled | DeliveryRunning | DeliveryStopped


@dataclass(frozen=True)
class Opened:
    """The target answered with the writer's tag, None if the writer never delivered."""

    delivered: Tag | None
    confirmed_by_manifest: Tag | None = None
    """Delivered according to a manifest; a target below it was restored from a backup."""
    completed: Tag | None = None
    """The newest checkpoint that the job is known to have completed; None: not known. A target beyond it, at no
    epoch of the queue, holds output of another history."""


@dataclass(frozen=True)
class Queue:
    """Committed output; may repeat output that is queued or delivered already, as recovery does."""

    pending: Pending


@dataclass(frozen=True)
class Succeeded:
    """The attempt put the rows of its epochs up to this tag, and the tag, into the target."""

    tag: Tag


@dataclass(frozen=True)
class AlreadyThere:
    """The attempt changed nothing, because the target is at this tag."""

    tag: Tag


@dataclass(frozen=True)
class AttemptFailed:
    """A request or attempt failed; unless permanent, its outcome is unknown."""

    error: ErrorReport
    permanent: bool


@dataclass(frozen=True)
class RetryDue:
    """The timer that RetryAfter asked for ran out."""


Event = Opened | Queue | Succeeded | AlreadyThere | AttemptFailed | RetryDue


@dataclass(frozen=True)
class Open:
    """Read the writer's tag in the target; answer with Opened or AttemptFailed."""

    writer: Writer


@dataclass(frozen=True)
class AttemptDelivery:
    """Deliver these epochs in one transaction; answer with Succeeded, AlreadyThere or AttemptFailed.

    A target that takes one epoch at a time is given the first, and the answer is about that one.
    """

    epochs: tuple[Pending, ...]


@dataclass(frozen=True)
class Confirm:
    """Report to the master that everything up to this tag is delivered, so that the next manifest drops it."""

    writer: Writer
    tag: Tag


@dataclass(frozen=True)
class RetryAfter:
    """Send RetryDue once, after this long."""

    writer: Writer
    delay_ms: int


@dataclass(frozen=True)
class Fail:
    """Stop the job with this error."""

    writer: Writer
    error: ErrorReport


Effect = Open | AttemptDelivery | Confirm | RetryAfter | Fail


def start(writer: Writer) -> tuple[Delivery, list[Effect]]:
    """Begin by reading the tag: nothing is attempted before it is known."""
    return DeliveryOpening(writer, floor=None, queue=(), failures=0), [Open(writer)]


def step(state: Delivery, event: Event) -> tuple[Delivery, list[Effect]]:
    """Take one event; return the next state and the effects for the loop, in order."""
    if isinstance(state, DeliveryStopped):
        assert isinstance(event, Queue), "nothing is under way after delivery stopped"
        return state, []
    match event:
        case Queue(pending):
            return _queue(state, pending)
        case Opened(delivered, confirmed, completed):
            assert isinstance(state, DeliveryOpening), "no tag was asked for"
            return _opened(state, delivered, confirmed, completed)
        case Succeeded(tag):
            assert isinstance(state, DeliveryRunning), "no attempt was under way"
            assert tag in [pending.tag for pending in state.queue[: state.together]], "another attempt was under way"
            return _delivered(state, tag)
        case AlreadyThere(tag):
            assert isinstance(state, DeliveryRunning) and tag >= state.queue[0].tag, (
                "the tag does not cover the attempt"
            )
            return _delivered(state, tag)
        case AttemptFailed(error, permanent):
            assert isinstance(state, DeliveryOpening | DeliveryRunning), "nothing was under way"
            if permanent and error.kind != Fenced.kind and isinstance(state, DeliveryRunning) and state.together > 1:
                return _attempt(state, 1)  # The epochs before the one that cannot be delivered are delivered.
            return _stop(state, error) if permanent else _retry(state)
        case RetryDue():
            assert isinstance(state, DeliveryWaiting), "no timer was asked for"
            return DeliveryOpening(state.writer, state.floor, state.queue, state.failures), [Open(state.writer)]
        case _:
            assert_never(event)


def backlog(state: Delivery) -> tuple[int, int]:
    """Return epochs and bytes that are committed and not known to be delivered."""
    if isinstance(state, Settled):
        return 0, 0
    return len(state.queue), sum(part.size for pending in state.queue for part in pending.staged.parts)


def is_full(state: Delivery, epochs_max: int = BACKLOG_EPOCHS_MAX, bytes_max: int = BACKLOG_BYTES_MAX) -> bool:
    """Return whether sources must stop until something is delivered."""
    return too_much(*backlog(state), epochs_max=epochs_max, bytes_max=bytes_max)


def too_much(epochs: int, size: int, epochs_max: int = BACKLOG_EPOCHS_MAX, bytes_max: int = BACKLOG_BYTES_MAX) -> bool:
    """Return whether a backlog of this many epochs and bytes stops the sources."""
    return epochs >= epochs_max or size >= bytes_max


def _queue(
    state: DeliveryOpening | DeliveryWaiting | Settled | DeliveryRunning, pending: Pending
) -> tuple[Delivery, list[Effect]]:
    assert pending.writer == state.writer, "output of another writer"
    if state.floor is not None and pending.tag <= state.floor:
        return state, []
    if isinstance(state, Settled):
        return _attempt(DeliveryRunning(state.writer, state.floor, (pending,), failures=0), 1)
    same = [queued for queued in state.queue if queued.tag == pending.tag]
    if same:
        assert same == [pending], "one epoch was staged in two ways"
        return state, []
    assert not state.queue or pending.tag > state.queue[-1].tag, "output would be overtaken"
    return replace(state, queue=(*state.queue, pending)), []


def _opened(
    state: DeliveryOpening, delivered: Tag | None, confirmed: Tag | None, completed: Tag | None
) -> tuple[Delivery, list[Effect]]:
    floors = [tag for tag in (state.floor, confirmed) if tag is not None]
    if floors and (delivered is None or delivered < max(floors)):
        return _stop(state, went_back(_named(state.writer), delivered, max(floors)).report())
    if completed is not None and delivered is not None:
        newest = max([completed, *floors])
        if delivered > newest and all(pending.tag != delivered for pending in state.queue):
            # On a newer timeline it may be a rewind of this very job, which the master recognises by the kind.
            kind = Fenced.kind if delivered.timeline > newest.timeline else Damaged.kind
            error = stands_beyond(_named(state.writer), delivered, newest).report()
            return _stop(state, replace(error, kind=kind))
    news: list[Effect] = []
    if delivered is not None and delivered != state.floor:
        news.append(Confirm(state.writer, delivered))
    return _go_on(state.writer, delivered, state.queue, state.failures, news)


def _delivered(state: DeliveryRunning, tag: Tag) -> tuple[Delivery, list[Effect]]:
    return _go_on(state.writer, tag, state.queue, failures=0, effects=[Confirm(state.writer, tag)])


def _go_on(
    writer: Writer, floor: Tag | None, queue: tuple[Pending, ...], failures: int, effects: list[Effect]
) -> tuple[Delivery, list[Effect]]:
    rest = tuple(pending for pending in queue if floor is None or pending.tag > floor)
    if not rest:
        return Settled(writer, floor), effects
    state, attempt = _attempt(DeliveryRunning(writer, floor, rest, failures), _together(rest, failures))
    return state, [*effects, *attempt]


def _attempt(state: DeliveryRunning, together: int) -> tuple[Delivery, list[Effect]]:
    return replace(state, together=together), [AttemptDelivery(state.queue[:together])]


def _together(queue: tuple[Pending, ...], failures: int) -> int:
    """Return how many epochs the next attempt holds. Each failure halves them: it may be their number that fails."""
    size = rows = 0
    for count, pending in enumerate(queue[: max(1, TOGETHER_EPOCHS_MAX >> failures)]):
        size += sum(part.size for part in pending.staged.parts)
        rows += pending.staged.rows
        if count and (
            size > TOGETHER_BYTES_MAX or rows > TOGETHER_ROWS_MAX or pending.tag.timeline != queue[0].tag.timeline
        ):
            return count
    return min(len(queue), max(1, TOGETHER_EPOCHS_MAX >> failures))


def _retry(state: DeliveryOpening | DeliveryRunning) -> tuple[Delivery, list[Effect]]:
    delay_ms = min(RETRY_FIRST_MS << min(state.failures, 16), RETRY_MAX_MS)
    waiting = DeliveryWaiting(state.writer, state.floor, state.queue, state.failures + 1)
    return waiting, [RetryAfter(state.writer, delay_ms)]


def _stop(state: DeliveryOpening | DeliveryRunning, error: ErrorReport) -> tuple[Delivery, list[Effect]]:
    return DeliveryStopped(state.writer, state.queue, error), [Fail(state.writer, error)]


def _named(writer: Writer) -> str:
    return f"sink {writer.sink!r}, writer {writer.subtask}"
