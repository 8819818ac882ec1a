"""Checks that refuse a run before it starts: another live run, a savepoint in the past, a source without an end.

The check for another run is a courtesy: safety comes from the job log, which keeps two drivers apart (PROTOCOL P6). A
takeover skips the check.

Source: DESIGN section 13 (`live.json`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from holdfast.checkpoint import joblog
from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import ConfigError, Fenced, HoldfastError, NotAdmitted, NotFound, Unavailable, Where
from holdfast.model import DriverProcess, Epoch, SourcePosition
from holdfast.ports import ObjectStore
from holdfast.runtime.driver.partitions import FIRST_RECORD, no_longer_listed, refusal_to_grow
from holdfast.runtime.driver.state import GoneSinks
from holdfast.runtime.job import status
from holdfast.runtime.job.stored import read_live
from holdfast.runtime.plan import shape_changes
from holdfast.runtime.plan.immediate import not_to_grow
from holdfast.runtime.plan.model import Plan, SinkSpec
from holdfast.runtime.plan.source import Source
from holdfast.runtime.plan.targets import same_target, target_of
from holdfast.runtime.plan.topic import outputs_of
from holdfast.runtime.wire.presence import is_gone
from holdfast.sinks.contract.changelogs import ROOT, shown_place

LOOK_EVERY_S = 0.2
NOTED_AFTER_S = 1.0
"""By then a live driver has usually renewed its `live.json`."""
AGAIN = (
    "start the job again; if this repeats, check that the target runs, that this host reaches it, and that no other "
    "program blocks it"
)


def refuse_second_run(
    store: ObjectStore,
    job: joblog.Job,
    note: Callable[[str], None] = lambda _: None,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return if no other driver runs the job; wait long enough for a live one to renew its `live.json`.

    This process's clock measures the wait: the time in the file is another machine's and may lie in the future.

    Args:
        note: Called with a line for the user if there is a driver to wait for.

    Raises:
        Fenced: another run of this job is alive.
    """
    first: int | None = None
    began, noted = monotonic(), False
    while (driver := _live_driver(store)) is not None:
        first = driver.at if first is None else first
        waited_s = monotonic() - began
        if driver.at == first and waited_s > status.STALE_AFTER_MS / 1000:
            return
        if waited_s >= NOTED_AFTER_S and not noted:
            noted = True
            note(
                f"waiting up to {status.STALE_AFTER_MS / 1000:.0f} s to see whether the driver on {driver.host} "
                f"(pid {driver.pid}) still runs {job.name}"
            )
        if driver.at != first:
            raise Fenced(
                f"job {job.name!r} is running on {driver.host} (pid {driver.pid}), generation {job.generation}",
                not_done="this run was not started and nothing was changed",
                next_step=f"to see it: holdfast status {job.name}; to end it: holdfast stop {job.name}; "
                "to run in its place: add --takeover",
                where=Where(job=job.name),
            )
        sleep(LOOK_EVERY_S)


def check_from(name: str, job: joblog.Job | None, savepoint: str) -> None:
    """Refuse a start from a savepoint that is not the newest checkpoint: going back undoes output."""
    found = None if job is None else job.savepoint(savepoint)
    if found is not None and job is not None and found.epoch == job.base_epoch:
        return
    if found is None:
        known = ", ".join(each.name for each in job.savepoints) if job is not None else ""
        what = f"job {name!r} has no savepoint {savepoint!r}"
        next_step = f"use one of {known}" if known else "it has none; run it without --from"
    else:
        what = f"savepoint {savepoint!r} is epoch {found.epoch}, and job {name!r} has moved on since"
        next_step = f"go back to it first: holdfast rewind {name} --to-savepoint {savepoint}; or run it without --from"
    raise ConfigError(
        what,
        not_done="the job was not started; state and output are untouched",
        next_step=next_step,
        where=Where(job=name),
    )


def refuse_private_memory(plan: Plan, root: str) -> None:
    """Refuse places in the memory of one process: workers are separate processes and cannot read them."""
    places = [("the root", root)]
    places += [(f"source {s.name!r}", path) for s in plan.sources for path in s.source.traits.local_paths]
    places += [(f"sink {s.name!r}", path) for s in outputs_of(plan) for path in s.sink.traits.local_paths]
    for name, path in places:
        if path.startswith("memory://"):
            raise ConfigError(
                f"{name} is {path}, which is in the memory of one process; workers are separate processes and cannot "
                "read it",
                not_done="the job was not started, and nothing was opened",
                next_step="use a folder that all workers reach, or an object store (s3://bucket/prefix); "
                "for a test without files use hf.testing.TestDriver",
                where=Where(job=plan.app),
            )


def check_secrets(plan: Plan) -> None:
    """Refuse to start without a secret that a source or sink reads. Workers read theirs when they connect.

    Raises:
        ConfigError: the first one that is missing here.
    """
    for missing in missing_secrets(plan):
        raise missing


def missing_secrets(plan: Plan) -> list[ConfigError]:
    """Return why secrets cannot be read in this process, in the order of the sources and sinks that name them."""
    named = [(f"source {s.name!r}", secret) for s in plan.sources for secret in s.source.traits.secrets]
    named += [(f"sink {s.name!r}", secret) for s in outputs_of(plan) for secret in s.sink.traits.secrets]
    missing = []
    for name, secret in named:
        try:
            secret.value()
        except (ConfigError, NotAdmitted) as error:
            not_done = "the job was not started; state and output are untouched"
            what, where = f"{name}: {error.what}", Where(job=plan.app)
            missing.append(ConfigError(what, not_done=not_done, next_step=error.next_step, where=where))
    return missing


def refuse_targets_of_origins(plan: Plan, origins: Sequence[joblog.Origin]) -> None:
    """Refuse to deliver where a job delivers from which this one was forked.

    Raises:
        ConfigError: the first such sink.
    """
    for refusal in targets_of_origins(plan, origins):
        raise refusal


def targets_of_origins(plan: Plan, origins: Sequence[joblog.Origin]) -> list[ConfigError]:
    """Return why sinks are refused that deliver where a job does from which this one was forked.

    Many targets would take rows of both jobs: rows that are only added come twice, of rows with a key either wins.

    Args:
        origins: The newest is the last. What their checkpoints did not say is not compared.
    """
    refused = []
    for spec in outputs_of(plan):
        traits = spec.sink.traits
        here = target_of(spec.sink)
        theirs = [
            (origin, name)
            for origin in reversed(origins)
            for name, there in origin.targets.items()
            if same_target(there) == here
        ]
        if traits.place and theirs:
            origin, name = theirs[0]
            refused.append(
                ConfigError(
                    f"sink {spec.name!r} writes to {spec.sink.where}, to which job {origin.job!r} delivers its sink "
                    f"{name!r}; this job was forked from its epoch {origin.epoch}, so rows of both would mix there",
                    not_done="the job was not started; state and output are untouched",
                    next_step=f"give the sink {spec.name!r} another target",
                    where=Where(job=plan.app),
                )
            )
    return refused


def check_has_end(job: str, name: str, source: Source) -> None:
    """Refuse to read to the end of a source that has none."""
    if (endless := source.traits.endless) is not None:
        raise ConfigError(
            f"source {name!r} is {endless.what}: it has no end to read to",
            not_done="the job was not started; state and output are untouched",
            next_step=f"{endless.instead}, or run without --once",
            where=Where(job=job, source=name),
        )


def check_partitions(plan: Plan, positions: Iterable[SourcePosition], source: str, here: Collection[int]) -> None:
    """Refuse a source that lacks a partition of the last checkpoint, or has a new one that it must not have (P12, P22).

    Args:
        positions: Those of the last checkpoint; none before the first.
        here: The partitions that the source lists.
    """
    read = [at.partition for at in positions if at.source == source]
    if gone := [(source, partition) for partition in read if partition not in here]:
        raise no_longer_listed(plan.app, gone)
    new = [SourcePosition(source, p, FIRST_RECORD) for p in here if p not in read] if read else []
    if (refusal := refusal_to_grow(plan.app, not_to_grow(plan), new)) is not None:
        raise refusal


def prepare_sink(spec: SinkSpec, job: joblog.Job | None) -> None:
    """Create or check a target. The job runs even if a target it has used before is unreachable or locked, perhaps by
    a stopped process of an older run: only deliveries to that target wait (P24).

    Raises:
        ConfigError: the target does not fit, or does not admit the user of a job that has not used it before.
        Unavailable: it is unreachable, and the job has not used it before.
    """
    try:
        spec.sink.prepare(spec.schema, spec.upsert_key)
        if (ownership := spec.sink.ownership) is not None:
            ownership.check_owner(None if job is None else job.uuid, spec.name)
    except Unavailable as error:
        if job is not None and any(each.generation > 0 for each in job.retained):  # the first one of a fork has none
            return
        raise at_a_start(error) from error


def at_a_start(error: Unavailable) -> HoldfastError:
    """Return the error of a target as a start reports it: no delivery was under way, and none retries."""
    kind = ConfigError if isinstance(error, NotAdmitted) else Unavailable
    next_step = AGAIN if error.next_step.startswith("no action needed") else error.next_step
    return kind(error.what, not_done="the job was not started", next_step=next_step, where=error.where)


def check_repairable(plan: Plan, written: set[str], accepted: Collection[str]) -> None:
    """Refuse to run after a rewind unless the code has all written sinks: their targets are repaired first."""
    known = {s.name for s in outputs_of(plan) if s.sink.repairs is not None or f"{s.name}:impossible" in accepted}
    if missing := sorted(written - known):
        raise ConfigError(
            f"the job was rewound and sink {missing[0]!r} may hold output to undo, but the app no longer has this sink "
            "or has one that cannot undo output",
            not_done="the job was not started; state and output are untouched",
            next_step=f"put the sink {missing[0]!r} back as it was and run the job: it repairs its targets first",
            where=Where(job=plan.app),
        )


def check_sinks(plan: Plan, before: Manifest, records: Callable[[], Iterable[joblog.Record]]) -> GoneSinks:
    """Refuse to abandon committed output whose sink the code no longer has, or has with other columns.

    Args:
        records: Reads the job log; called only if the manifest names output of such a sink.

    Returns:
        Sinks that the code no longer has, with all output in the manifest delivered: the run stopped after it.

    Raises:
        ConfigError: such output is not known to be delivered, or the changelog was in another kind of place.
    """
    check_changelog(plan, before)
    pending = {item.writer.sink for item in before.pending}
    gone = sorted(pending - {sink.name for sink in outputs_of(plan)})
    changed = _with_other_columns(plan, before, pending)
    delivered = not (gone or changed) or delivered_through(records(), before.epoch)
    if changed and not delivered:
        raise ConfigError(
            f"sink {changed[0]!r} has other columns now, but output with the former ones is committed and may not be "
            "delivered yet",
            not_done="the job was not started; state and output are untouched",
            next_step="run the former code and end it with holdfast stop, which waits for delivery; then change the "
            "columns",
            where=Where(job=plan.app),
        )
    if gone and not delivered:
        raise ConfigError(
            f"the app no longer has the sink {gone[0]!r}, but output for it is committed and not delivered yet",
            not_done="the job was not started; state and output are untouched",
            next_step=f"put the sink {gone[0]!r} back, run the job and end it with holdfast stop, which waits for "
            "delivery; then remove the sink",
            where=Where(job=plan.app),
        )
    return GoneSinks(tuple(gone), before.epoch)


def check_changelog(plan: Plan, before: Manifest) -> None:
    """Refuse to look for the state in another kind of place than where the last checkpoint left it."""
    now, had = plan.changelog.place["kind"], (before.topic or ROOT.place)["kind"]
    if now == had:
        return
    raise ConfigError(
        f"the app has its changelog in {_place(plan.changelog.place)}, but the state of epoch {before.epoch} is in "
        f"{_place(before.topic or ROOT.place)}",
        not_done="the job was not started; state and output are untouched",
        next_step="give the changelog as it was (it is fixed once the job has run), or give the job a new name",
        where=Where(job=plan.app),
    )


def _place(place: Mapping[str, str]) -> str:
    if place == ROOT.place:
        return "the root"
    return shown_place(place)


def _with_other_columns(plan: Plan, before: Manifest, pending: Collection[str]) -> list[str]:
    """Return the sinks with pending output whose columns have other names or types now, as far as known."""
    if not isinstance(before.shape, dict) or not shape_changes.readable(before.shape):
        return []
    now = {sink.name: {field.name: str(field.type) for field in sink.schema} for sink in plan.sinks}
    had = {name: {n: kind for n, kind, _ in sink["columns"]} for name, sink in before.shape["sinks"].items()}
    return sorted(name for name in pending if name in now and name in had and now[name] != had[name])


def delivered_through(records: Iterable[joblog.Record], epoch: Epoch) -> bool:
    """Return whether a run stopped at this epoch, the job's last: a run stops only after all output is delivered (P13).

    The record that ends a rewind proves less: a target that cannot undo output may have been accepted as it is.
    """
    delivered = rewound = False
    for record in records:
        match record.body:
            case joblog.Rewound():
                delivered, rewound = False, True
            case joblog.CheckpointCompleted():
                rewound = False
            case joblog.Stopped(epoch=stopped):
                delivered = stopped == epoch and not rewound
    return delivered


def _live_driver(store: ObjectStore) -> DriverProcess | None:
    """Return the driver that `live.json` names if it may be alive; None also if the file cannot be understood."""
    try:
        live = read_live(store)
    except NotFound:
        return None
    if live is None or live.driver is None or live.state in ("stopped", "finished", "failed"):
        return None
    age_ms = (time.time_ns() // 1000 - live.driver.at) / 1000
    return None if age_ms > status.STALE_AFTER_MS or is_gone(live.driver) else live.driver
