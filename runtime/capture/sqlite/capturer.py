"""Changes of `hf.SQLiteChanges`, as `holdfast capture` captures them. See capture/capturer.py."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.errors import ConfigError
from holdfast.ports import ObjectStore
from holdfast.quantities import plural
from holdfast.runtime.capture.capturer import Event, Report
from holdfast.runtime.capture.sessions import until_signal
from holdfast.runtime.capture.sqlite import outbox
from holdfast.runtime.capture.sqlite.lock import is_taken
from holdfast.runtime.capture.sqlite.process import Capture, position_in
from holdfast.runtime.sources.sqlite.catalogue import check_triggers, described, opened
from holdfast.runtime.sources.sqlite.connector import SQLiteCapturing
from holdfast.storage.objects import open_objects


def capture(of: SQLiteCapturing, report: Report) -> Mapping[str, int]:
    """See Capturer.capture."""
    return until_signal(lambda stopping: Capture(of, open_objects(of.log), report, stopping))


def line(name: str, of: SQLiteCapturing, event: Event) -> str:
    """See Capturer.line."""
    match event["event"]:
        case "waiting":
            return f"waiting: {event['reason']}"
        case "snapshot":
            return f"reading the rows of {of.where}"
        case "captured":
            return f"appended {plural(event['rows'], 'row')} as of change {event['position']} to {of.log}"
        case "streaming":
            return f"capturing {name} from change {event['position']} on: changes of {of.where} to {of.log}"
        case "stopped":
            return f"stopped capturing {name}: {plural(event['records'], 'record')} appended"
        case _:
            return (
                f"{name} is at change {event['position']}, {plural(event['behind_records'], 'change')} behind; "
                f"{plural(event['records'], 'record')} appended"
            )


def probe(of: SQLiteCapturing, store: ObjectStore) -> str:
    """See Capturer.probe."""
    with opened(of.path, writable=False) as db:
        at, entry = position_in(store), outbox.registered(db, of.table)
        if at is None:
            table = described(db, of.table, of.schema)
            table.rows()
            check_triggers(db, table)
            return f"SQLite {of.where}: can be captured"
        if entry is None or at not in (entry.confirmed, entry.announced):
            raise ConfigError(
                f"{of.where} and the log at {of.log} do not fit: the log has all changes up to {at}, which the "
                "database does not know",
                not_done="nothing was changed",
                next_step="see `holdfast capture`, which names what to do",
            )
        state = "a process captures it" if is_taken(of.path, of.table) else "no process captures it now"
        return f"SQLite {of.where}: {state}, {plural(outbox.newest(db, entry.name) - at, 'change')} behind"
