"""What `holdfast doctor JOB.py` checks of a job: its secrets, and every source and sink, as a start would find them.

Each source is opened, and each target is looked at through the sink's `probe`, which creates and changes nothing. Of a
sink without the trait only the plan is checked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial

from holdfast.errors import HoldfastError, Unavailable
from holdfast.runtime.cli import text
from holdfast.runtime.cli.start.doctor_cluster import Check
from holdfast.runtime.cli.start.jobfile import load
from holdfast.runtime.config.settings import resolve
from holdfast.runtime.execution.admission import at_a_start, missing_secrets
from holdfast.runtime.execution.results import with_places
from holdfast.runtime.plan.model import SinkSpec, SourceSpec
from holdfast.runtime.plan.source import capture_of
from holdfast.runtime.plan.topic import outputs_of
from holdfast.runtime.sources.postgres.connector import Capturing, no_driver
from holdfast.sinks.contract import probing
from holdfast.storage.objects import open_objects


def job(file: str, app: str | None, root: str | None, master: str | None) -> Iterator[Check]:
    """Check a job's secrets, sources and sinks.

    Args:
        file: The job's file.
        app: Which app, for a file that builds several.
        root: The root on the command line.
        master: The Spark master on the command line.

    Raises:
        ConfigError: the file, the app or a setting is wrong.
    """
    built = load(file, app)
    settings = resolve(built, {"root": root, "master": master}, os.environ)
    plan = with_places(replace(built.plan(), key_groups=settings.key_groups), settings.root)
    for error in missing_secrets(plan):
        yield _failed("secret", error)
    for source in plan.sources:
        yield _tried(f"source {source.name}", source.source.where, partial(_source, source))
        if isinstance(captured := capture_of(source.source), Capturing):
            yield _tried(f"capture {source.name}", f"Postgres {captured.where}", partial(_capture, captured))
    for sink in outputs_of(plan):
        yield _tried(f"sink {sink.name}", sink.sink.where, partial(_sink, sink))


def _tried(name: str, where: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, "ok", f"{where}: {look()}")
    except HoldfastError as error:
        return _failed(name, error)


def _failed(name: str, error: HoldfastError) -> Check:
    seen = at_a_start(error) if isinstance(error, Unavailable) else error
    return Check(name, "fail", seen.what, seen.next_step, seen.exit_status)


def _source(spec: SourceSpec) -> str:
    spec.source.check()
    if spec.source.traits.copied:
        return f"the first start copies its {spec.source.traits.copies}"
    with closing(spec.source.open()) as opened:
        return f"{text.plural(len(opened.partitions()), 'partition')} can be read"


def _capture(of: Capturing) -> str:
    try:
        from holdfast.runtime.capture.postgres.probing import probed
    except ImportError as error:
        raise no_driver(error) from error
    return probed(of, open_objects(of.log, writable=False))


def _sink(spec: SinkSpec) -> str:
    if (sink := probing(spec.sink)) is not None:
        return sink.probe(spec.schema, spec.upsert_key)
    spec.sink.check(spec.schema, spec.upsert_key)
    return "takes the stream"
