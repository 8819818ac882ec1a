"""Where a job's dead letters are, and the logs that its records came from: `<root>/<job>/dlq.json`.

The job log and the manifests know sinks and sources by name only; paths are in the job's code. From this object, a
command that has only the job's name finds its dead letters. It is written whenever a run of an app with a DLQ has
passed its checks; no run depends on it.
"""

from __future__ import annotations

import msgspec

from holdfast.errors import ConfigError, Damaged, NotFound
from holdfast.ports import ObjectStore
from holdfast.runtime.plan.model import Plan
from holdfast.runtime.rows.dead_letters import DLQ

PATH = "dlq.json"
FORMAT_VERSION = 1


class Places(msgspec.Struct, frozen=True):
    """Contents of `dlq.json`."""

    target: str
    """Name of the dead-letter sink in messages."""
    log: str | None
    """Its path, if it is a log."""
    sources: dict[str, str]
    """Paths of the sources that are logs, by source name."""
    v: int = FORMAT_VERSION


_PLACES = msgspec.json.Decoder(Places)


def places_of(plan: Plan) -> Places | None:
    """Return where the dead letters of a plan go; None if it has no DLQ."""
    for spec in plan.sinks:
        if spec.name == DLQ:
            logs = {source.name: source.source.traits.log for source in plan.sources}
            known = {name: log for name, log in logs.items() if log is not None}
            return Places(spec.sink.where, spec.sink.traits.log, known)
    return None


def write(store: ObjectStore, plan: Plan) -> None:
    """Write `dlq.json` into the job's folder. Raises Unavailable."""
    if (places := places_of(plan)) is not None:
        store.put(PATH, msgspec.json.encode(places))


def read(store: ObjectStore, job: str) -> Places:
    """Read `dlq.json`.

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
            next_step="run the job again, which rewrites it",
        ) from error
    if places.v != FORMAT_VERSION:
        raise ConfigError(
            f"{PATH} of job {job!r} has format {places.v}, this version knows {FORMAT_VERSION}",
            not_done="nothing was read",
            next_step="use the version of Holdfast that ran the job",
        )
    return places
