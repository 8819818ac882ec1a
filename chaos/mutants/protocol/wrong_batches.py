"""Wrong versions of microbatch mode, for mutants.py: each takes the right function and returns the wrong one.

Source: PROTOCOL P18, P26; docs/decisions/0047-microbatch.md.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from holdfast.chaos.sim.ports.images import SimulatedMemory
from holdfast.checkpoint import repository
from holdfast.errors import HoldfastError
from holdfast.model import Pending, Tag, WorkerId, Writer
from holdfast.ports import ObjectStore
from holdfast.runtime.microbatch import machine, task
from holdfast.runtime.microbatch.blocks import Attempt, Result
from holdfast.runtime.microbatch.host import Host
from holdfast.runtime.microbatch.machine import Batches
from holdfast.runtime.wire import messages as m
from holdfast.runtime.worker import seal
from holdfast.runtime.worker.local import warm
from holdfast.runtime.worker.protocol import QueueOutput
from holdfast.storage.once import WrittenObject

Right = Callable[..., Any]


def accepts_mixed_attempts(right: Right) -> Right:
    """The output of a task that ran again is combined with results that others computed from its first output."""

    def inconsistent(results: Iterable[Result], layers: int, parallelism: int) -> Any:
        return right((msgspec.structs.replace(each, read_from=()) for each in results), layers, parallelism)

    return inconsistent


def names_tasks_only(right: Right) -> Right:
    """Objects have the name of their task, whichever attempt stores them."""

    def begin(run: task._TaskAttempt, batch: task.Batch, ports: task.TaskPorts, attempt: Attempt, held: Any) -> None:
        right(run, batch, ports, attempt, held)
        run._worker = WorkerId(f"{attempt.layer}-{attempt.subtask}-task")

    return begin


def replaces_objects(_: Right) -> Right:
    """Output is stored whatever its names held before."""

    def put(store: ObjectStore, objects: Mapping[str, bytes]) -> None:
        for path, data in objects.items():
            store.put(path, data)

    return put


def replaces_an_object(_: Right) -> Right:
    """A segment is stored whatever its name held before."""

    def put(store: ObjectStore, path: str, write: Callable[[io.BytesIO], object]) -> WrittenObject:
        held = io.BytesIO()
        write(held)
        store.put(path, held.getvalue())
        return WrittenObject(held.tell(), hashlib.sha256(held.getvalue()).hexdigest())

    return put


def names_one_segment(right: Right) -> Right:
    """A part names the state of its first layer only."""
    return lambda state, subtask, results: msgspec.structs.replace(right(state, subtask, results), further=())


def forgets_pending_output(right: Right) -> Right:
    """A start in microbatch mode delivers nothing that an earlier run left undelivered."""

    def deploy(host: Host, worker: WorkerId, message: m.Deploy) -> None:
        right(host, worker, msgspec.structs.replace(message, pending=()))

    return deploy


def takes_any_job(right: Right) -> Right:
    """The results of a job count for the epoch that is open when they arrive."""

    def ended(host: Host, job: int, sent: Sequence[bytes] | HoldfastError) -> None:
        right(host, job if host._batches is None else host._batches.job, sent)

    return ended


def keeps_results_of_failed_jobs(right: Right) -> Right:
    """A job that runs again counts only for the tasks that failed in the jobs before it."""
    results_by_trigger: dict[int, tuple[m.Trigger, dict[tuple[int, int], Result]]] = {}
    """Results of the jobs of an epoch, by identity of its trigger; the trigger is held so that no other object gets its
    identity."""

    def finished(state: Batches, job: int, results: Iterable[Result], layers: int) -> machine.Step:
        results = tuple(results)
        if not isinstance(state.phase, machine.BatchRunning) or job != state.job:
            step: machine.Step = right(state, job, results, layers)
            return step
        trigger = state.phase.trigger
        _, successes = results_by_trigger.setdefault(id(trigger), (trigger, {}))
        for each in results:
            if each.error is None:
                successes.setdefault((each.attempt.layer, each.attempt.subtask), each)
        failed = [each for each in results if (each.attempt.layer, each.attempt.subtask) not in successes]
        unread = [msgspec.structs.replace(each, read_from=()) for each in successes.values()]
        step = right(state, job, [*unread, *failed], layers)
        return step

    return finished


def delivers_at_ack(right: Right) -> Right:
    """Output is delivered when all parts of its epoch are there, before the epoch is completed."""

    def finished(state: Batches, job: int, results: Iterable[Result], layers: int) -> machine.Step:
        after, effects = right(state, job, results, layers)
        parts = after.phase.parts if isinstance(after.phase, machine.Acked) else ()
        early = [
            QueueOutput(
                Pending(Writer(sink, part.subtask), Tag(after.timeline, after.phase.trigger.barrier.epoch), output)
            )
            for part in parts
            for sink, output in sorted(part.staged.items())
            if output.parts
        ]
        return after, [*effects, *early]

    return finished


def changes_images(right: Right) -> Right:
    """A task works on the image itself, so that the writes of a losing attempt stay there."""

    def mapped(run: warm._Task, image: Any) -> Any:
        private, image.private = image.private, lambda: SimulatedMemory(private=False)
        try:
            return right(run, image)
        finally:
            image.private = private

    return mapped


def leaves_images_behind(right: Right) -> Right:
    """An image is said to be that of the base, although a segment since then was not read."""

    def bring_up(run: warm._Task, image: Any) -> None:
        assert isinstance(run._target, m.Deploy)
        handle = run._target.handle
        run._target = msgspec.structs.replace(run._target, handle=replace(handle, segments=handle.segments[:-1]))
        right(run, image)

    return bring_up


VERSIONS = (
    ("mixed-attempts-accepted", "P26", "results count whichever attempts they were made from",
     (machine, "inconsistent", accepts_mixed_attempts)),
    ("attempt-not-in-names", "P26, P16", "attempts of one task store objects under one name, and replace them",
     (task._TaskAttempt, "__init__", names_tasks_only), (seal, "create_each_same", replaces_objects),
     (repository, "write_same", replaces_an_object)),
    ("later-layers-not-named", "P16, P26", "an epoch names the state of its first layer with keys only",
     (machine, "_part", names_one_segment)),
    ("switch-forgets-pending", "P8, P18", "a start in microbatch mode drops undelivered output of the run before",
     (Host, "_deploy", forgets_pending_output)),
    ("stale-job-counts", "P26", "results of an older job are taken for those of the present one",
     (Host, "ended", takes_any_job)),
    ("results-outlive-their-job", "P26", "a job that runs again counts only for the tasks that failed before",
     (machine, "finished", keeps_results_of_failed_jobs)),
    ("delivered-at-ack", "P18", "output of a microbatch is delivered before its epoch is completed",
     (machine, "finished", delivers_at_ack)),
    ("image-of-a-losing-attempt", "P26", "what an attempt writes to its tables stays on the machine if it loses",
     (warm._Task, "mapped", changes_images)),
    ("image-left-behind", "P14, DESIGN 8", "tables on a machine lack the last segment that they are said to have",
     (warm._Task, "bring_up", leaves_images_behind)),
)  # fmt: skip
"""Name, rules, wrong behaviour, replaced code."""
