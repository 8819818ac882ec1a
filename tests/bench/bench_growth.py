"""How costs grow with epochs, partitions, operators, writers and files: no line of docs/operate/scale.md may bend.

A cost is counted, not timed: the bytecode instructions of one call and the bytes that it allocates, which covers the
copies that C makes. It is compared at a size and at ten times the size. A cost that does not depend on the size may
differ a little; a linear one may take ten times as many steps, and a share of that more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import file_costs as of_files
import msgspec
from control_plane import GENERATION, UUID, completed, manifest_of, master_of, peak_bytes
from counted import instructions
from harness import Bench
from msgspec import structs
from scale import Epochs

from holdfast.checkpoint import append, joblog
from holdfast.checkpoint.catalogue import ObjectCatalogue, Retention, expirable
from holdfast.checkpoint.manifest import Manifest, Named
from holdfast.model import Epoch, Generation, SourcePosition, Subtask, Timeline, WorkerId
from holdfast.runtime.cli.start.progress import Tally, line
from holdfast.runtime.driver import master, partitions
from holdfast.runtime.driver.background.compactions import Compactions
from holdfast.runtime.driver.deployment import recent_cuts
from holdfast.runtime.driver.events import Moment, Tick
from holdfast.runtime.driver.partitions import deployed
from holdfast.runtime.driver.requests import no_way_back
from holdfast.runtime.driver.state import Listing, Master
from holdfast.runtime.inspect import checkpoints
from holdfast.runtime.inspect.stored import checkpoint_of
from holdfast.runtime.job import status
from holdfast.runtime.job.delays import DelaysOfRun
from holdfast.runtime.job.explain import findings
from holdfast.runtime.job.openmetrics import exposition
from holdfast.runtime.testing.lanes import InlineLane
from holdfast.runtime.wire import messages as m
from holdfast.sinks.contract.changelogs import Root

FLAT, ROOT, LINEAR = 1.0, 3.2, 10.0
"""How many times as much a cost may take at ten times the size."""
SLACK = 1.6
"""Logarithms, square roots of small tables, and rounding."""
SMALL_BYTES = 4_096
"""Allocations up to this size do not count: a table that grows doubles at some call."""


@dataclass(frozen=True)
class Line:
    """One cost against one size.

    Args:
        of: Makes the call for a size.
    """

    name: str
    against: str
    grows: float
    of: Callable[[int], Callable[[], object]]

    def at(self, size: int) -> tuple[int, int]:
        """Return instructions and bytes of one call."""
        work = self.of(size)
        work()  # what is imported and cached by a first call
        return instructions(work), max(SMALL_BYTES, peak_bytes(work))

    def bend(self, size: int) -> tuple[float, float]:
        """Return how many times as many instructions and bytes a call takes at ten times the size."""
        few, many = self.at(size), self.at(10 * size)
        return many[0] / few[0], many[1] / few[1]


@cache
def old_job(epochs: int, savepoints: int = 3) -> joblog.Job:
    """Return the fold of a job that retains so many checkpoints, some of them named, as its log would have built it."""
    job = joblog.Job(UUID, "job", 128, 0, 2, GENERATION, owner="d", first_epoch=Epoch(1))
    for epoch in range(1, epochs + 1):
        job = _next(job, completed(epoch).body)
    named = tuple(joblog.Savepoint(f"s{n}", Epoch(1 + n * epochs // savepoints)) for n in range(savepoints))
    starts = tuple(joblog.GenerationStart(Generation(n), 0, "lost", "here", Epoch(0), Epoch(1)) for n in range(1, 2))
    return replace(job, savepoints=named, starts=starts, expired_through=Epoch(epochs // 20))


def _next(job: joblog.Job, body: joblog.Body, at_us: int = 0) -> joblog.Job:
    generation = Generation(job.generation)
    record = joblog.Record(job.next_seq, UUID, generation, Timeline(1), job.owner, at_us, body, prev=job.head)
    return joblog.fold(job, record)


def old_master(epochs: int) -> Master:
    """Return a running master of a job that retains so many checkpoints; nothing is new, and no expiry is due."""
    job, base = old_job(epochs), manifest_of(epochs, 2)
    state = master_of(2, base)
    quiet = {"quiet": Epoch(epochs)}
    workers = {
        w: replace(each, ready=True, heartbeat=structs.replace(each.heartbeat, **quiet))
        for w, each in state.workers.items()
    }
    return replace(state, log=append.Quiet("d", job), workers=workers)


def an_idle_turn(epochs: int) -> Callable[[], object]:
    """One turn of the driver's loop, of which it makes fifty in a second."""
    state = old_master(epochs)
    return lambda: master.step(state, Tick(), Moment(0.5, 1_000_000_000))


def a_status(epochs: int) -> Callable[[], object]:
    state, delays = old_master(epochs), DelaysOfRun(epochs - 10)

    def work() -> None:
        shown = status.of_run(state, "root", "continuous", None)
        assert shown.rewind_horizon is not None and shown.epochs == epochs
        delays.checkpoints((each.body.epoch, each.body.duration_ms) for each in reversed(state.job.completed))

    return work


def an_epoch(epochs: int) -> Callable[[], object]:
    """Fold the record of an epoch; the same fold twice shares what it can, and copies once."""
    job = old_job(epochs)
    return lambda: _next(job, completed(epochs + 1).body)


def a_request(epochs: int) -> Callable[[], object]:
    job = old_job(epochs)
    return lambda: (no_way_back(job, epochs // 2), checkpoint_of(job, str(epochs // 2)), recent_cuts(job))


def a_savepoint(epochs: int) -> Callable[[], object]:
    job = old_job(epochs)
    return lambda: _next(job, joblog.SavepointNamed(Epoch(epochs // 2), "here"))


def an_expiry(epochs: int) -> Callable[[], object]:
    job = old_job(epochs)
    return lambda: _next(job, joblog.Expired(Epoch(epochs // 10)))


def due_expiry(epochs: int) -> Callable[[], object]:
    job, rule = old_job(epochs), Retention(10, 1_000_000)
    return lambda: expirable(job, rule, (epochs // 10 + 20) * 1_000_000)


def a_compaction(epochs: int) -> Callable[[], object]:
    job = old_job(epochs)

    def work() -> None:
        lane = InlineLane()
        Compactions(Root(), lambda: lane).request(job)

    return work


def a_sweep(epochs: int) -> Callable[[], object]:
    """Mark and expire with one object per epoch: linear in what is retained."""
    job, catalogue = old_job(epochs), ObjectCatalogue()
    for each in catalogue.unread(job):
        catalogue.add(Named(each.body.epoch, (f"segments/00000001/{each.body.epoch:012d}/a",)))
    return lambda: catalogue.expire(job)


def a_list(epochs: int) -> Callable[[], object]:
    """All rows of `holdfast checkpoints list`, a tenth of them savepoints."""
    job = old_job(epochs, savepoints=max(1, epochs // 10))
    return lambda: [(checkpoints.kind_of(job, each), checkpoints.name_of(job, each)) for each in job.retained]


def wide_master(count: int, workers: int = 4, operators: int = 1) -> Master:
    """Return a running master whose workers read so many partitions and have all ended."""
    base = manifest_of(100, workers)
    places = tuple(SourcePosition("s", p, 10, subtask=Subtask(p % workers)) for p in range(count))
    base = msgspec.structs.replace(base, positions=places)
    state = master_of(workers, base)
    rules = replace(state.rules, partitions={"s": tuple(range(count))})
    hosted = {}
    for n, (worker, each) in enumerate(state.workers.items()):
        mine = tuple(at for at in places if at.subtask == n)
        names = [f"operator {number}" for number in range(operators)]
        progress = m.WorkerProgress(
            positions=mine,
            ends=mine,
            operators=tuple(m.OperatorProgress(name, 1, 1, 1) for name in names),
        )
        heartbeat = structs.replace(each.heartbeat, ended=True, partitions=len(mine), progress=progress)
        hosted[worker] = replace(each, ready=True, heartbeat=heartbeat)
    return replace(state, rules=rules, workers=hosted)


def base_of(state: Master) -> Manifest:
    assert state.deployed is not None and state.deployed.base is not None
    return state.deployed.base


def a_wide_turn(count: int) -> Callable[[], object]:
    state = replace(wide_master(count), listing=Listing(1, "end", Generation(1), 0.0))

    def work() -> None:
        master.step(state, Tick(), Moment(0.5))

    work()
    return work


def a_wide_status(count: int) -> Callable[[], object]:
    state = wide_master(count)

    def work() -> None:
        shown = status.of_run(state, "root", "continuous", None)
        assert len(shown.sources) == count
        findings(shown)
        exposition(shown.as_json())

    return work


def a_progress_line(count: int) -> Callable[[], object]:
    shown = status.of_run(wide_master(count), "root", "continuous", None)
    tally = Tally({row.place: 0 for row in shown.sources})

    def work() -> None:
        assert len(shown.sources) == count
        line(tally.take(shown, 1.0))

    return work


def a_wide_deployment(count: int) -> Callable[[], object]:
    state = wide_master(count)
    return lambda: (deployed(state, base_of(state)), partitions.with_those_of(state, base_of(state)))


def new_partitions(count: int) -> Callable[[], object]:
    few, many = base_of(wide_master(1)), base_of(wide_master(count))
    return lambda: partitions.added(many, few)


def a_listing(count: int) -> Callable[[], object]:
    state = replace(wide_master(count), listing=Listing(1, "interval", Generation(1), 0.0))
    found = [SourcePosition("s", p, 0) for p in range(2 * count)]
    return lambda: partitions.listed(state, found, 1.0)


def many_operators(count: int) -> Callable[[], object]:
    state = wide_master(4, operators=count)

    def work() -> None:
        shown = status.of_run(state, "root", "continuous", None)
        assert len(shown.operators) == count
        exposition(shown.as_json())

    return work


def a_heartbeat(workers: int) -> Callable[[], object]:
    """Take the heartbeat of one of many workers."""
    state = master_of(workers, manifest_of(100, workers))
    beat = m.Heartbeat(WorkerId("w1"), state.job.generation, False, False, (), m.WorkerProgress(), partitions=1)
    return lambda: master.step(state, beat, Moment(0.5))


def an_epoch_of_all(workers: int) -> Callable[[], object]:
    """All acks of an epoch, its manifest and its record."""
    plane = Epochs(workers)
    plane.epoch()
    return plane.epoch


LINES = (
    Line("idle turn of the driver", "epochs", FLAT, an_idle_turn),
    Line("status", "epochs", FLAT, a_status),
    Line("record of an epoch", "epochs", FLAT, an_epoch),
    Line("request", "epochs", FLAT, a_request),
    Line("savepoint", "epochs", FLAT, a_savepoint),
    Line("changelog compaction", "epochs", FLAT, a_compaction),
    Line("expiry", "epochs", FLAT, an_expiry),
    Line("whether an expiry is due", "epochs", FLAT, due_expiry),
    Line("marking of a sweep", "epochs", LINEAR, a_sweep),
    Line("list of checkpoints", "epochs", LINEAR, a_list),
    Line("turn at the end of the input", "partitions", FLAT, a_wide_turn),
    Line("status", "partitions", LINEAR, a_wide_status),
    Line("progress line", "partitions", LINEAR, a_progress_line),
    Line("deployment", "partitions", LINEAR, a_wide_deployment),
    Line("new partitions", "partitions", LINEAR, new_partitions),
    Line("listing of the sources", "partitions", LINEAR, a_listing),
    Line("status", "operators", LINEAR, many_operators),
    Line("heartbeat", "writers", ROOT, a_heartbeat),
    Line("epoch", "writers", LINEAR, an_epoch_of_all),
)
FILE_LINES = (
    Line("position in the catalogue of hf.Files", "files", FLAT, of_files.a_position),
    Line("listing of hf.Files", "files", LINEAR, of_files.a_listing),
    Line("opening of the catalogue of hf.Files", "files", LINEAR, of_files.an_opening),
    Line("delivery to hf.Files", "deliveries", FLAT, partial(of_files.a_delivery, of_files.to_files)),
    Line("delivery to hf.Delta", "deliveries", FLAT, partial(of_files.a_delivery, of_files.to_delta)),
    Line("delivery to hf.Iceberg", "deliveries", LINEAR, partial(of_files.a_delivery, of_files.to_iceberg)),
)
SIZES = {
    "epochs": (600, 10_000),
    "partitions": (30, 100),
    "operators": (3, 3),
    "writers": (10, 100),
    "files": (100, 10_000),
    "deliveries": (2, 100),
}
"""The smaller size of a comparison in a smoke run and in a full one; the larger is ten times as much."""


def bench_growth(bench: Bench) -> None:
    """Every cost of the control plane at a size and at ten times the size."""
    compared(bench, LINES)


def bench_growth_with_files(bench: Bench) -> None:
    """The same of sources and targets of files; a delivery makes a file. Native code of libraries does not count."""
    compared(bench, FILE_LINES)


def compared(bench: Bench, lines: Sequence[Line]) -> None:
    """Count the costs, and fail with those that bend."""
    bent, done = list[str](), 0
    with bench.timed():
        for line in lines:
            smoke, full = SIZES[line.against]
            size = bench.size(line.against, smoke=smoke, full=full)
            steps, held = line.bend(size)
            bench.note(f"{line.name} against {line.against}: {steps:.2f} times the steps, {held:.2f} times the bytes")
            if max(steps, held if line.grows < LINEAR else 0) > line.grows * SLACK:
                bent.append(bench.notes[-1])
            done += size
    assert not bent, "\n".join(bent)
    bench.report(per=len(lines), unit="line", check=done)
