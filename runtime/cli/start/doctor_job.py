"""Checks of a job for `holdfast doctor JOB.py`: its secrets, and every source and sink, as a start would find them.

Each source is opened. For a source that finds files or topics, the list of a first start is made in a temporary folder.
Each target is looked at through the sink's `probe`, which creates and changes nothing. For a sink without the trait,
only the plan is checked. A target that belongs to another sink is reported. If a source removes old records, the last
checkpoint of the job is compared with the records that it removes soon. For a running job, the driver's own findings
are repeated.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from tempfile import TemporaryDirectory

from holdfast.checkpoint.joblog import Job
from holdfast.checkpoint.repository import Repository
from holdfast.errors import HoldfastError, NotFound, Unavailable
from holdfast.ports import ObjectStore
from holdfast.runtime.capture.capturer import capturer_of
from holdfast.runtime.cli import text
from holdfast.runtime.cli.start.doctor_cluster import Check
from holdfast.runtime.cli.start.jobfile import load
from holdfast.runtime.config.settings import resolve
from holdfast.runtime.execution.checks import secrets
from holdfast.runtime.execution.checks.ordered import refuse
from holdfast.runtime.execution.checks.targets import rivals
from holdfast.runtime.execution.holdings import read_holdings
from holdfast.runtime.execution.results import with_places
from holdfast.runtime.execution.targets import at_a_start
from holdfast.runtime.inspect.stored import read_live
from holdfast.runtime.job.live import Problem
from holdfast.runtime.job.status import RECORDS_AT_RISK, STALE_AFTER_MS, records_at_risk
from holdfast.runtime.plan.loss import PartitionLook, at_risk
from holdfast.runtime.plan.model import SinkSpec, SourceSpec
from holdfast.runtime.plan.source import Captured
from holdfast.runtime.plan.topic import outputs_of
from holdfast.runtime.wire.clock import SystemClock
from holdfast.storage.objects import open_objects
from holdfast.storage.paths import join


def job(file: str, app: str | None, root: str | None, master: str | None, local: str | None = None) -> Iterator[Check]:
    """Check a job's secrets, sources and sinks.

    Args:
        file: The job's file.
        app: Which app, for a file that builds several.
        root: The root on the command line.
        master: The Spark master on the command line.
        local: "true" if the command line asks for a run without Spark.

    Raises:
        ConfigError: the file, the app or a setting is wrong.
    """
    built = load(file, app)
    settings = resolve(built, {"root": root, "master": master, "local": local}, os.environ)
    plan = with_places(replace(built.plan(), key_groups=settings.key_groups), settings.root)
    for error in secrets.refusals(plan, outputs_of(plan)):
        yield _failed("secret", error)
    for source in plan.sources:
        folder = join(settings.root, plan.app)
        yield _tried(f"source {source.name}", source.source.where, partial(_source, source, folder))
        if (captured := source.source.captured) is not None:
            yield from _capture(f"capture {source.name}", captured)
    for source in plan.sources:
        if settings.loss_alarm_ms and source.source.traits.removes_old:
            yield from _kept(source, join(settings.root, plan.app), settings.loss_alarm_ms / 1000)
    for sink in outputs_of(plan):
        yield _tried(
            f"sink {sink.name}", sink.sink.where, partial(_sink, sink, plan.app, join(settings.root, plan.app))
        )


def _tried(name: str, where: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, "ok", f"{where}: {look()}")
    except HoldfastError as error:
        return _failed(name, error)


def _failed(name: str, error: HoldfastError) -> Check:
    seen = at_a_start(error) if isinstance(error, Unavailable) else error
    return Check(name, "fail", seen.what, seen.next_step, seen.exit_status)


def _source(spec: SourceSpec, folder: str) -> str:
    spec.source.check()
    if spec.source.traits.copied:
        if spec.source.traits.finds and not _has_checkpoint(folder):
            with TemporaryDirectory(prefix="holdfast-doctor-") as elsewhere:  # a list, which is small
                spec.source.in_folder(elsewhere).copied(again=True)
        return f"the first start copies its {spec.source.traits.copies}"
    with closing(spec.source.open()) as opened:
        return f"{text.plural(len(opened.partitions()), 'partition')} can be read"


def _has_checkpoint(folder: str) -> bool:
    log = Repository(open_objects(folder, writable=False)).read_log()
    return log is not None and bool(log.completed)


def _kept(spec: SourceSpec, folder: str, within_s: float) -> Iterator[Check]:
    """Compare the last checkpoint, if there is one, with the records that the source removes soon."""
    name = f"retention {spec.name}"
    try:
        store = open_objects(folder, writable=False)
        log = Repository(store).read_log()
        if log is None or not log.completed:
            return
        if (found := _found_by_driver(store, log)) is not None:
            problems = [each for each in found if each.source == spec.name]
        else:
            manifest = Repository(store).load_manifest(log.completed[-1].body.manifest)
            with closing(spec.source.open()) as opened:
                kept = opened.kept(within_s)
            positions = {at.partition: at.offset for at in manifest.positions if at.source == spec.name}
            looks = {each: PartitionLook(0.0, positions[each], kept[each]) for each in kept if each in positions}
            risks = {(spec.name, each): at_risk(None, look, within_s) for each, look in looks.items()}
            problems = records_at_risk({place: risk for place, risk in risks.items() if risk is not None}, within_s)
    except HoldfastError as error:
        yield _failed(name, error)
        return
    for problem in problems:
        yield Check(name, "warn", problem.what, problem.next)
    if not problems:
        yield Check(name, "ok", f"no unread record is removed within {within_s:,.0f} s")


def _found_by_driver(store: ObjectStore, log: Job) -> list[Problem] | None:
    """Return the findings of a running job's driver, which knows how fast the job reads; None if none runs."""
    try:
        live = read_live(store)
    except NotFound:
        return None
    if live is None or live.driver is None or live.generation != log.generation or log.ended is not None:
        return None
    if (SystemClock().wall_us() - live.driver.at) / 1_000 > STALE_AFTER_MS:
        return None
    return [each for each in live.problems if each.code == RECORDS_AT_RISK]


def _capture(name: str, of: Captured) -> Iterator[Check]:
    """Check the capture that fills the log of a source, if there is one."""
    try:
        probe_result = capturer_of(of).probe(of, open_objects(of.log, writable=False))
    except HoldfastError as error:
        yield _failed(name, error)
        return
    if probe_result is not None:
        yield Check(name, "ok", probe_result)


def _sink(spec: SinkSpec, name: str, folder: str) -> str:
    probe_result = spec.sink.probe(spec.schema, spec.upsert_key)
    if spec.sink.traits.exclusive:
        log = Repository(open_objects(folder, writable=False)).read_log()
        refuse(rivals.refusal(name, log, [spec], read_holdings(log, [spec])))
    return probe_result
