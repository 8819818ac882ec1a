"""Where a job's dead letters are, and the logs that its records came from: `<root>/<job>/dlq.json`.

The job log and the manifests know sinks and sources by name only; paths are in the job's code. A command that is given
the job's name finds its dead letters by this object. It is written whenever a run of an app with a DLQ has passed its
checks; nothing of a run depends on it.
"""

from __future__ import annotations

import msgspec

from holdfast.errors import ConfigError, Damaged, NotFound
from holdfast.ports import ObjectStore
from holdfast.runtime.dead_letters import DLQ
from holdfast.runtime.sources.log import Log
from holdfast.runtime.steps import Plan

PATH = "dlq.json"
FORMAT_VERSION = 1


class Places(msgspec.Struct, frozen=True):
    """What `dlq.json` holds."""

    target: str
    """How messages name the sink of dead letters."""
    log: str | None
    """Its path, if it is a log."""
    sources: dict[str, str]
    """Per source that is a log, the log's path."""
    v: int = FORMAT_VERSION


_PLACES = msgspec.json.Decoder(Places)


def places_of(plan: Plan) -> Places | None:
    """Return where the dead letters of a plan go; None if it has no DLQ."""
    for spec in plan.sinks:
        if spec.name == DLQ:
            target = str(getattr(spec.sink, "where", type(spec.sink).__name__))
            log = spec.sink.path if isinstance(spec.sink, Log) else None
            return Places(target, log, {s.name: s.source.path for s in plan.sources if isinstance(s.source, Log)})
    return None


def write(store: ObjectStore, plan: Plan) -> None:
    """Note it in the job's folder. Raises Unavailable."""
    if (places := places_of(plan)) is not None:
        store.put(PATH, msgspec.json.encode(places))


def read(store: ObjectStore, job: str) -> Places:
    """Return what was noted.

    Raises:
        ConfigError: the job never ran with a DLQ, or a newer version wrote this.
        Damaged: the object cannot be read.
    """
    try:
        places = _PLACES.decode(store.get(PATH))
    except NotFound as error:
        raise ConfigError(
            f"job {job!r} has not run with a dead letter queue",
            not_done="nothing was read",
            next_step='give the app one, hf.App(..., dlq=hf.Log("data/dead")), and run it',
        ) from error
    except msgspec.DecodeError as error:
        raise Damaged(
            f"{PATH} of job {job!r} cannot be read: {error}",
            not_done="nothing was read",
            next_step="run the job once more, which writes it anew",
        ) from error
    if places.v != FORMAT_VERSION:
        raise ConfigError(
            f"{PATH} of job {job!r} has format {places.v}, this version knows {FORMAT_VERSION}",
            not_done="nothing was read",
            next_step="use the version of Holdfast that ran the job",
        )
    return places
