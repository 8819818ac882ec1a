"""Reports to `holdfast doctor` the server, table, publication and slot of a capture. Changes nothing."""

from __future__ import annotations

from holdfast.errors import ConfigError
from holdfast.ports import ObjectStore
from holdfast.quantities import plural
from holdfast.runtime.capture.postgres.slots import (
    SlotInUse,
    check_may_publish,
    check_slot,
    ensure_publication,
    free_slots,
    has_publication,
    lag_of,
    publication_of,
    slot_prefix,
)
from holdfast.runtime.sources.postgres.catalogue import Db, check_readable, check_server, connected, described
from holdfast.runtime.sources.postgres.connector import Capturing
from holdfast.runtime.sources.postgres.table import WRITER
from holdfast.storage.log.log import LogReader, read_meta


def probed(of: Capturing, store: ObjectStore) -> str:
    """Return the state of a table's capture.

    Raises:
        ConfigError, NotAdmitted, Unavailable: it cannot run, and why.
    """
    with connected(of.dsn, of.password) as db:
        check_server(of.dsn, db)
        table = described(db, of.schema, of.table, of.columns)
        meta = read_meta(store)
        tag = None if meta is None else LogReader(store).newest().tag_of(WRITER)
        has_snapshot, publication = bool(tag and tag.epoch), of.publication or publication_of(table)
        if not has_snapshot:
            check_readable(db, table)
        if has_snapshot or of.publication is not None or has_publication(db, publication):
            ensure_publication(db, table, publication, create=False, begun=has_snapshot)
        else:
            check_may_publish(db, table, publication)
        if meta is not None and tag is not None and tag.epoch:
            return _running(db, f"{slot_prefix(meta.uuid, table)}{tag.timeline}", tag.epoch)
        if free_slots(db) < 1:
            raise ConfigError(
                "the server has no free replication slot",
                not_done="nothing was captured",
                next_step="drop slots that are no longer used, or raise max_replication_slots and restart the server",
            )
    return "can be captured"


def _running(db: Db, slot: str, at: int) -> str:
    """Return how far the capture of a log with a snapshot is."""
    state = "no process captures it now"
    try:
        check_slot(db, slot, at)
    except SlotInUse:
        state = "a process captures it"
    lag = lag_of(db, slot)
    behind = "an unknown number of bytes" if lag is None else plural(lag.behind_bytes, "byte")
    return f"{state}, {behind} behind"
