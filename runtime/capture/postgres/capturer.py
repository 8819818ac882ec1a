"""Changes of `hf.PostgresChanges`, as `holdfast capture` captures them. See capture/capturer.py."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.ports import ObjectStore
from holdfast.quantities import plural
from holdfast.runtime.capture.capturer import Event, Report
from holdfast.runtime.sources.postgres.connector import Capturing, no_driver
from holdfast.storage.objects import open_objects


def capture(of: Capturing, report: Report) -> Mapping[str, int]:
    """See Capturer.capture."""
    try:
        from holdfast.runtime.capture.postgres.process import PostgresCapture
        from holdfast.runtime.capture.sessions import until_signal
    except ImportError as error:
        raise no_driver(error) from error
    return until_signal(lambda stopping: PostgresCapture(of, open_objects(of.log), report, stopping))


def line(name: str, of: Capturing, event: Event) -> str:
    """See Capturer.line."""
    match event["event"]:
        case "waiting":
            return f"waiting: {event['reason']}"
        case "snapshot":
            return f"reading the rows of {of.where}, with the slot {event['slot']}"
        case "captured":
            return f"appended {plural(event['rows'], 'row')} as of {event['position']} to {of.log}"
        case "streaming":
            return f"capturing {name} from {event['position']} on: changes of {of.where} to {of.log}"
        case "stopped":
            return f"stopped capturing {name}: {plural(event['records'], 'record')} appended"
        case _:
            return (
                f"{name} is at {event['position']}, {plural(event['behind_bytes'], 'byte')} behind; the server keeps "
                f"{plural(event['retained_bytes'], 'byte')}; {plural(event['records'], 'record')} appended"
            )


def probe(of: Capturing, store: ObjectStore) -> str:
    """See Capturer.probe."""
    try:
        from holdfast.runtime.capture.postgres.probing import probed
    except ImportError as error:
        raise no_driver(error) from error
    return f"Postgres {of.where}: {probed(of, store)}"
