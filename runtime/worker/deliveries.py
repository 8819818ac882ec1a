"""Carries out sinks/protocol/delivery.py for all writers of one worker.

Each writer has a lane, a target and a state machine that outlives recoveries. The machine decides which
epochs to attempt, and when; this module opens targets, reads staged parts and reports results.

Source: PROTOCOL P17, P18, P24.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pyarrow as pa

from holdfast.checkpoint.committing import COMMITTER
from holdfast.checkpoint.manifest import Confirmed
from holdfast.checkpoint.repository import read_each
from holdfast.errors import HoldfastError, Unavailable
from holdfast.model import NO_EPOCH, JobUuid, ObjectRef, Pending, Tag, Timeline, Writer
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.plan.model import SinkSpec
from holdfast.runtime.plan.topic import outputs_of
from holdfast.runtime.wire.messages import Deploy
from holdfast.runtime.worker.immediate import ImmediateWrites
from holdfast.runtime.worker.ports import SubtaskPorts
from holdfast.runtime.worker.under_way import UnderWay
from holdfast.sinks.contract.accepting import CONVERSION, undeliverable
from holdfast.sinks.contract.owners import NEVER, Claim
from holdfast.sinks.contract.sink import Sink, Uploader
from holdfast.sinks.contract.target import AlreadyDelivered, EpochOutput, Target, UploadedOutput
from holdfast.sinks.protocol import delivery


class Deliveries:
    """All writers of one worker."""

    def __init__(
        self,
        plan: Plan,
        ports: SubtaskPorts,
        after: Callable[[float, Callable[[], object]], None],
        confirmed: Callable[[Writer, Tag], None],
        fail: Callable[[BaseException], None],
        staged_bytes_max: int = delivery.BACKLOG_BYTES_MAX,
    ) -> None:
        self._plan, self._ports, self._staged_bytes_max, self._outputs = plan, ports, staged_bytes_max, outputs_of(plan)
        self._committed_once = plan.committed_once()
        self._to_sweep = dict[str, Deploy]()
        """Sinks whose committer this worker is, before the target has taken an epoch of the generation."""
        self.behind = False
        """The driver says that too much output waits for committers, here or in other workers."""
        self._after, self._on_confirmed, self._fail = after, confirmed, fail
        self._job_uuid: JobUuid | None = None
        self._claim: Claim | None = None
        self._completed = Tag(Timeline(1), NO_EPOCH)
        self._machines: dict[Writer, delivery.Delivery] = {}
        self._targets: dict[Writer, Target] = {}
        self._confirmed: dict[Writer, Tag] = {}
        self._by_manifest: dict[Writer, Tag] = {}
        self._errors: dict[str, HoldfastError] = {}
        self._under_way = UnderWay(ports.clock)
        self.immediate = ImmediateWrites(plan, ports, after, fail)
        self._timeline = Timeline(1)

    def deploy(self, deploy: Deploy) -> None:
        """Begin a generation: deliver the output of earlier ones first. A new timeline starts with new machines."""
        self.immediate.deploy(deploy)
        self._job_uuid = deploy.job_uuid
        self._claim = deploy.claim
        self._completed = Tag(deploy.timeline, deploy.base_epoch)
        if deploy.timeline != self._timeline:
            self._timeline = deploy.timeline
            self._machines, self._confirmed, self._by_manifest, self._errors = {}, {}, {}, {}
        # A machine that gave up starts over: the driver that started this generation may not know why it did.
        gave_up = [
            writer for writer, machine in self._machines.items() if isinstance(machine, delivery.DeliveryStopped)
        ]
        for writer in gave_up:
            del self._machines[writer]
        for done in deploy.confirmed:
            self._by_manifest[done.writer] = max(done.tag, self._by_manifest.get(done.writer, done.tag))
        for item in sorted(deploy.pending, key=lambda item: item.tag):
            self.queue(item)
        mine = self._committed_once if deploy.subtask == COMMITTER else frozenset[str]()
        self._to_sweep = dict.fromkeys(mine, deploy)

    def queue(self, pending: Pending) -> None:
        """Deliver this output after everything already queued; repeating the call is harmless."""
        writer = pending.writer
        if writer not in self._machines:
            machine, effects = delivery.start(writer)
            self._perform(writer, machine, effects)
        self._step(writer, delivery.Queue(pending))

    def full(self) -> bool:
        """Return whether sources must stop until more output is delivered (P18)."""
        if self.behind or self.immediate.full():
            return True
        mine = (machine for writer, machine in self._machines.items() if writer.sink not in self._committed_once)
        return any(delivery.is_full(machine, bytes_max=self._staged_bytes_max) for machine in mine)

    def when_in(self, then: Callable[[], None]) -> None:
        """Call `then` once all rows that immediate sinks have accepted so far are written (P22)."""
        self.immediate.when_in(then)

    def confirmed(self) -> tuple[Confirmed, ...]:
        """Return the last tag that each writer of this worker is known to have delivered."""
        return tuple(Confirmed(writer, tag) for writer, tag in self._confirmed.items())

    def forget(self, through: Tag) -> None:
        """Let every target drop before-images that no rewind can reach; if a target refuses, the next call retries."""
        sinks = {spec.name for spec in self._outputs}
        for writer in {**self._by_manifest, **self._machines}:  # former writers have before-images too
            if writer.sink in sinks:
                self._submit(writer, lambda w=writer: self._target(w).forget(through), self._forgot)  # type: ignore[misc]

    def errors(self) -> dict[str, HoldfastError]:
        """Return why the last attempt of each sink failed, or that one is not answered; none once it succeeds."""
        return self._under_way.slow() | self._errors | self.immediate.errors()

    def close(self) -> None:
        """Close every target."""
        self.immediate.close()
        # A lane still at work may open a target meanwhile; its writer has a machine.
        for writer in {**dict.fromkeys(list(self._targets)), **self._machines}:
            # On the writer's own lane, so never during a delivery.
            self._submit(writer, lambda w=writer: self._close(w), lambda _writer, _result: None)  # type: ignore[misc]

    def _step(self, writer: Writer, event: delivery.Event) -> None:
        self._perform(writer, *delivery.step(self._machines[writer], event))

    def _perform(self, writer: Writer, machine: delivery.Delivery, effects: list[delivery.Effect]) -> None:
        self._machines[writer] = machine
        for effect in effects:
            match effect:
                case delivery.Open():
                    self._submit(writer, lambda: self._target(writer).delivered(), self._opened)
                case delivery.AttemptDelivery(epochs):
                    assert isinstance(machine, delivery.DeliveryRunning)
                    attempt = partial(self._attempt, writer, epochs, machine.floor or NEVER)
                    self._submit(writer, attempt, self._attempted)
                case delivery.Confirm(_, tag):
                    self._confirmed[writer] = tag
                    self._errors.pop(writer.sink, None)
                    self._on_confirmed(writer, tag)
                    self._sweep_behind(writer, tag)
                case delivery.RetryAfter(_, delay_ms):
                    retry = self._of_now(lambda: self._step(writer, delivery.RetryDue()))
                    self._after(delay_ms / 1000, retry)
                case delivery.Fail(_, error):
                    self._fail(error.as_error())

    def _sweep_behind(self, writer: Writer, tag: Tag) -> None:
        """Delete uploads of epochs that never completed, once the target has taken an epoch of this generation.

        Not before: a copy of the job, whose log lacks epochs that the original has completed, is refused by the target.
        """
        deploy = self._to_sweep.get(writer.sink) if writer.subtask == COMMITTER else None
        if deploy is None or tag.timeline != deploy.timeline or tag.epoch < deploy.first_epoch:
            return
        del self._to_sweep[writer.sink]
        if (uploads := self._sink(writer).uploads) is not None:
            self._submit(writer, partial(_sweep, uploads, writer.sink, deploy), self._forgot)

    def _submit(self, writer: Writer, work: Callable[[], object], done: Callable[[Writer, object], None]) -> None:
        timeline, over = self._timeline, self._under_way.begin(writer.sink)

        def ended(result: object) -> None:
            over()
            if self._timeline == timeline:  # else the job was rewound meanwhile, and the output is obsolete
                done(writer, result)

        self._ports.lane(f"deliver-{writer.sink}-{writer.subtask}").submit(work, ended)

    def _of_now(self, action: Callable[[], object]) -> Callable[[], object]:
        """Return an action that does nothing if the job is rewound meanwhile."""
        timeline = self._timeline
        return lambda: action() if self._timeline == timeline else None

    def _target(self, writer: Writer) -> Target:
        if writer not in self._targets:
            assert self._job_uuid is not None
            self._targets[writer] = self._sink(writer).open(self._job_uuid, writer, self._claim)
        return self._targets[writer]

    def _sink(self, writer: Writer) -> Sink:
        return self._spec(writer).sink

    def _spec(self, writer: Writer) -> SinkSpec:
        return next(spec for spec in self._outputs if spec.name == writer.sink)

    def _close(self, writer: Writer) -> None:
        if writer in self._targets:
            self._targets[writer].close()

    def _attempt(self, writer: Writer, epochs: tuple[Pending, ...], known: Tag) -> delivery.Event:
        try:
            return self._delivered(writer, epochs, known)
        except CONVERSION as error:
            rows = (batch for pending in epochs for batch in self._staged(pending))
            raise undeliverable(self._sink(writer), epochs[0].tag, rows, error) from error

    def _delivered(self, writer: Writer, epochs: tuple[Pending, ...], known: Tag) -> delivery.Event:
        target = self._target(writer)
        if len(epochs) > 1 and (merges := target.merges) is not None:
            outputs = [EpochOutput(pending.tag, self._staged(pending)) for pending in epochs]
            outcome, last = merges.deliver_together(outputs, known), epochs[-1]
        elif epochs[0].staged.uploads:
            outcome, last = target.deliver_uploaded(self._uploaded(epochs[0]), known), epochs[0]
        else:
            outcome, last = target.deliver(epochs[0].tag, self._staged(epochs[0]), known), epochs[0]
        if isinstance(outcome, AlreadyDelivered):
            return delivery.AlreadyThere(outcome.tag)
        return delivery.Succeeded(last.tag)

    def _staged(self, pending: Pending) -> Iterator[pa.RecordBatch]:
        return self._read(pending.writer, pending.staged.parts)

    def _read(self, writer: Writer, parts: Sequence[ObjectRef]) -> Iterator[pa.RecordBatch]:
        decode = self._spec(writer).decode
        for data in read_each(self._ports.store, parts):
            yield from decode(data)

    def _uploaded(self, pending: Pending) -> UploadedOutput:
        parts, named = pending.staged.parts, {each.part: each.named for each in pending.staged.uploads}
        uploads = tuple(named.get(ref.path) for ref in parts)
        read = lambda places: self._read(pending.writer, [parts[place] for place in places])
        return UploadedOutput(pending.tag, uploads, read)

    def _opened(self, writer: Writer, result: object) -> None:
        if isinstance(result, BaseException):
            self._failed(writer, result)
        else:
            assert result is None or isinstance(result, Tag)
            self._step(writer, delivery.Opened(result, self._by_manifest.get(writer), self._completed))

    def _attempted(self, writer: Writer, result: object) -> None:
        match result:
            case delivery.Succeeded() | delivery.AlreadyThere():
                self._step(writer, result)
            case BaseException():
                self._failed(writer, result)
            case _:
                raise AssertionError(f"a delivery ended with {result!r}")

    def _forgot(self, writer: Writer, result: object) -> None:
        if isinstance(result, BaseException) and not isinstance(result, HoldfastError):
            raise result

    def _failed(self, writer: Writer, error: BaseException) -> None:
        if not isinstance(error, HoldfastError):
            raise error
        self._errors[writer.sink] = error
        permanent = not isinstance(error, Unavailable)
        self._step(writer, delivery.AttemptFailed(error.report(), permanent))


def _sweep(uploads: Uploader, name: str, deploy: Deploy) -> None:
    """Delete what workers uploaded in epochs that a generation before this one began and did not complete."""
    uploads.sweep(deploy.job_uuid, name, deploy.timeline, deploy.base_epoch, deploy.first_epoch)
