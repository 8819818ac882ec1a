"""Which sinks write to a table: the table `holdfast_table`, compared and noted inside a transaction.

A table with a key belongs to one sink of one job: before-images of another one would undo its rows. Sinks of different
names may add rows to a table without a key. Only one job may use each name: a recreated job would add all rows a second
time.

The row of the whole table (`share` empty) names the sink that it belongs to, or none if rows are only added; then each
sink has its own row. So any two claims that exclude each other meet in the primary key.

Invariants
    - A claim is noted in the transaction of the first delivery, fence or repair of a sink.
    - Without a claim nothing is written, and no tag is read.
    - A claim is lost by `--adopt-targets` of another sink, or together with the table.

Pure: no clock, thread or I/O of its own. Source: PROTOCOL P1, P17; docs/decisions/0104-tables-with-one-owner.md.
"""

from __future__ import annotations

from holdfast.errors import ConfigError, Unavailable
from holdfast.sinks.contract.owners import Claim, Rival, at_start, belongs_to
from holdfast.sinks.sql import owners, tags
from holdfast.sinks.sql.dialect import Upsert
from holdfast.sinks.sql.session import Given, Session
from holdfast.sinks.sql.table import SqlTable

WHOLE = ""
"""The share of the row that stands for the whole table."""
_Sink = tuple[str, str]
"""Job UUID, name of the sink."""
_SHARED = ("", "")
"""Owner of the whole table if it belongs to no sink, because rows are only added."""
_KEY = ("table", "share")
_COLUMNS = (*_KEY, "job", "sink")


def check(s: Session, table: SqlTable, where: str, ours: _Sink, claim: Claim | None, hold: bool = False) -> None:
    """Refuse a sink whose table belongs to another one, and note nothing.

    Args:
        where: How messages name the target and the writer.
        ours: The sink.
        claim: On whose behalf it is written to; None compares nothing.
        hold: The answer has to hold until the transaction ends, because it writes.

    Raises:
        Fenced: the table belongs to another sink.
    """
    if claim is not None:
        _refuse(s, table, where, ours, claim, _rows(s, table, ours, hold))


def take(s: Session, table: SqlTable, where: str, ours: _Sink, claim: Claim | None) -> None:
    """Inside a transaction that writes: compare, and note that this sink writes to the table.

    Raises:
        Fenced: the table belongs to another sink.
        Unavailable: another process noted something at the same moment.
    """
    if claim is None:
        return
    rows = _rows(s, table, ours, hold=True)
    if _refuse(s, table, where, ours, claim, rows):
        release(s, table)
        rows = {}
    if rows.get(WHOLE) == ours:
        return
    s.execute(tags.create_table_claims(s.dialect))
    if table.key is not None:
        _note(s, table, where, WHOLE, ours, instead=WHOLE in rows)
        return
    if WHOLE not in rows:
        _note(s, table, where, WHOLE, _SHARED)
    if ours[1] not in rows:
        _note(s, table, where, ours[1], ours)


def release(s: Session, table: SqlTable) -> None:
    """Inside a transaction: delete all claims on a table, as it was created just now or is moved."""
    given = s.given()
    s.execute(f"DELETE FROM {s.own(tags.TABLE)} WHERE {_of_table(s, given, table)}", given)


def rival(s: Session, table: SqlTable, ours: _Sink) -> Rival | None:
    """Return another sink to which the table belongs; None if it may be written to.

    Args:
        ours: The sink; of a job that is about to be created, an empty UUID.
    """
    return _rival(s, ours, _rows(s, table, ours)) or _unnoted(s, table, ours)


def tables_of(s: Session, sink: _Sink) -> set[str]:
    """Return the tables that are noted as those of a sink."""
    if not s.has(tags.TABLE):
        return set()
    given = s.given()
    noted = f"SELECT DISTINCT {s.quoted('table')} FROM {s.own(tags.TABLE)} WHERE {tags.of_sink(given, *sink)}"
    return {name for (name,) in s.execute(noted, given)}


def refuse_namesake(s: Session, table: SqlTable, ours: _Sink) -> None:
    """Refuse a table without a key to which a sink of the same name of another job adds rows.

    Raises:
        ConfigError: it does; or a sink with a key writes to the table.
    """
    namesake = None if table.key is not None else rival(s, table, ours)
    if namesake is None:
        return
    if namesake.sink != ours[1] or namesake.job_uuid == ours[0]:
        raise at_start(belongs_to(table.where, ours[0], namesake))
    holds = "holds" if namesake.certain else "may hold"
    raise ConfigError(
        f"{table.where}: {holds} rows of a sink {namesake.sink!r} of another job, {namesake.job_uuid}",
        not_done="the job was not started, the table was not changed",
        next_step="if that job was deleted and recreated, its rows would be added twice: name another table, or drop "
        "this one. If both jobs are to add rows here, give this sink another name",
    )


def _rows(s: Session, table: SqlTable, ours: _Sink, hold: bool = False) -> dict[str, _Sink]:
    """Return the notes on the table that concern the sink: share -> sink."""
    if not s.has(tags.TABLE):
        return {}
    params = s.given()
    condition = _of_table(s, params, table)
    if table.key is None:
        condition += f" AND share IN ({params(WHOLE, ours[1])})"
    rows = s.execute(
        f"SELECT share, job, sink FROM {s.own(tags.TABLE)} WHERE {condition} ORDER BY share"
        f"{s.dialect.hold if hold else ''}",
        params,
    )
    return {share: (job, sink) for share, job, sink in rows.fetchall()}


def _refuse(s: Session, table: SqlTable, where: str, ours: _Sink, claim: Claim, rows: dict[str, _Sink]) -> bool:
    """Return whether the table is to be moved to this sink from another one. Raises Fenced."""
    found = _rival(s, ours, rows)
    if found is not None and (table.key is None or not claim.displaces(found)):
        raise belongs_to(where, ours[0], found)
    return found is not None


def _rival(s: Session, ours: _Sink, rows: dict[str, _Sink]) -> Rival | None:
    others = [sink for sink in rows.values() if sink not in (ours, _SHARED)]
    return Rival(*others[0], owners.held(s, *others[0])) if others else None


def _unnoted(s: Session, table: SqlTable, ours: _Sink) -> Rival | None:
    """Return a sink of another job that may have filled the table under an earlier version, which noted no tables."""
    if s.dialect.kind_of(s.db, table.table) is None or not s.has(tags.PROGRESS) or _is_noted(s, table):
        return None
    if s.execute(f"SELECT 1 FROM {s.dialect.table(table.table)} LIMIT 1").fetchone() is None:
        return None
    sinks = _delivering(s)
    if ours in sinks:
        return None
    noted = set[_Sink]()
    if s.has(tags.TABLE):
        noted.update(s.execute(f"SELECT DISTINCT job, sink FROM {s.own(tags.TABLE)}").fetchall())
    may = sorted(each for each in sinks - noted if each[0] != ours[0] and (table.key is not None or each[1] == ours[1]))
    return Rival(*may[0], owners.held(s, *may[0]), certain=False) if may else None


def _delivering(s: Session) -> set[_Sink]:
    """Return the sinks, of any job, that have tags here."""
    tables = [name for name in (tags.PROGRESS, tags.FENCE) if s.has(name)]
    return {found for name in tables for found in s.execute(f"SELECT DISTINCT job, sink FROM {s.own(name)}").fetchall()}


def _is_noted(s: Session, table: SqlTable) -> bool:
    if not s.has(tags.TABLE):
        return False
    given = s.given()
    noted = f"SELECT 1 FROM {s.own(tags.TABLE)} WHERE {_of_table(s, given, table)} LIMIT 1"
    return s.execute(noted, given).fetchone() is not None


def _note(s: Session, table: SqlTable, where: str, share: str, sink: _Sink, instead: bool = False) -> None:
    """Note a row that the transaction did not see; the primary key decides between two processes that do.

    Args:
        instead: In place of the row that it did see.
    """
    given = s.given()
    source = f"VALUES ({given(_named(s, table), share, *sink)})"
    sets: dict[str, str] | None = None if instead else {}
    if s.dialect.upsert(s.db, Upsert(s.own(tags.TABLE), _COLUMNS, _KEY, source, given.values, sets)) != 1:
        raise Unavailable(
            f"{where}: another process noted at the same moment that it writes to the table",
            not_done="nothing was written to the target",
            next_step="no action needed: delivery compares the owners and retries",
        )


def _of_table(s: Session, given: Given, table: SqlTable) -> str:
    return f"{s.quoted('table')} = {given(_named(s, table))}"


def _named(s: Session, table: SqlTable) -> str:
    """Return the table, as `holdfast_table` names it."""
    return s.dialect.folded(table.table)
