"""A receiver as a target: first the requests of an epoch, then its tag, in a log of progress.

A receiver keeps no tag, so the tag is in an embedded log without rows, which admits, fences and compares as every other
log does. Between the last reply and the tag a crash makes the same requests come again, with the same keys. After a
failure that the process survives, it continues after the last request that the receiver has taken: a receiver that
takes a limited number of requests per minute would otherwise never get beyond them.

Invariants
    - The tag moves only after the receiver has taken every request of the epoch.
    - Before each piece of requests, after its rows were read, the log must admit this writer and show that it continues
      the known tag.

Pure: no clock, thread or I/O of its own. Source: PROTOCOL P17, P24; docs/decisions/0100-http-sink.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import pyarrow as pa

from holdfast.model import Tag, Writer
from holdfast.sinks.contract.owners import check_continues
from holdfast.sinks.contract.target import AlreadyDelivered, Delivered, Fault, Outcome, Target, already, no_fault
from holdfast.sinks.http.requests import Request, in_pieces, requests_of


class RequestSender(Protocol):
    """Sends requests; see HttpClient."""

    def send(self, request: Request) -> None:
        """Send a request, and return when the receiver has taken it."""

    def close(self) -> None:
        """Drop the connection."""


class HttpTarget(Target):
    """One writer's access to the receiver. See contract.Target.

    Args:
        where: How messages name the receiver.
        sender: Opens the sender, at the first request.
        progress: The writer's way into the log of progress.
        job_uuid: The job.
        writer: Whose output this is.
        batch_rows: Rows of a request.
        fault: Called at every fault point of a delivery; for tests.
    """

    def __init__(
        self,
        where: str,
        sender: Callable[[], RequestSender],
        progress: Target,
        job_uuid: str,
        writer: Writer,
        batch_rows: int,
        fault: Fault = no_fault,
    ) -> None:
        self._where = f"{where}, sink {writer.sink!r}, writer {writer.subtask}"
        self._open_sender = sender
        self._sender: RequestSender | None = None
        self._progress, self._job, self._writer = progress, job_uuid, writer
        self._batch_rows, self._fault = batch_rows, fault
        self._taken: tuple[Tag, int] | None = None
        """An epoch that is not delivered, and how many of its requests the receiver has taken."""

    def delivered(self) -> Tag | None:
        return self._progress.delivered()

    def deliver(self, tag: Tag, batches: Iterable[pa.RecordBatch], known: Tag | None = None) -> Outcome:
        if (prior_outcome := self._covered(tag, known)) is not None:
            return prior_outcome
        self._fault("before_begin")
        self._fault("after_tag")  # Requests before the tag are visible, so these points lie before all requests.
        self._fault("before_commit")
        rows, number = 0, 0
        for piece in in_pieces(requests_of(self._job, self._writer, tag, batches, self._batch_rows)):
            if (prior_outcome := self._covered(tag, known)) is not None:  # while rows were read, or sent
                return prior_outcome
            for request in piece:
                rows, number = rows + request.rows, number + 1
                self._send(tag, number, request)
        outcome = self._progress.deliver(tag, [], known)
        self._taken = None
        self._fault("after_commit")
        return Delivered(rows) if isinstance(outcome, Delivered) else outcome

    def forget(self, through: Tag) -> None:
        """There are no before-images."""

    def close(self) -> None:
        try:
            self._progress.close()
        finally:
            if self._sender is not None:
                self._sender.close()

    def _covered(self, tag: Tag, known: Tag | None) -> AlreadyDelivered | None:
        """Return the tag if it covers the delivery. Raises as Target.deliver."""
        standing = self._progress.delivered()
        if standing is not None and standing >= tag:
            return already(self._where, tag, standing)
        if known is not None:
            check_continues(self._where, standing, known)
        return None

    def _send(self, tag: Tag, number: int, request: Request) -> None:
        """Send a request of an epoch, counted from 1, unless the receiver has taken it from this process."""
        if self._taken is not None and self._taken[0] == tag and number <= self._taken[1]:
            return
        if self._sender is None:  # it outlives a close, as it knows how long the receiver asked to be left alone
            self._sender = self._open_sender()
        self._sender.send(request)
        self._taken = tag, number
