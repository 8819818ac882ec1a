"""Decides which transactions of a stream are appended together, which are confirmed, and where the stream stops.

The log's tag is the position up to which it has all changes. A transaction whose commit lies before it is in the log
and is left out, so a server may send everything again after a crash. Whole transactions become a batch, one commit of
the log, when the oldest has waited `linger_ms` or the batch is full. A transaction that is too large to be held is
staged in pieces, which its batch then names.

Changes of other tables move the server's log on, too. The tag follows it now and then by an append without rows:
otherwise the server would have to keep its log for as long as the captured table is idle.

Invariants
    - A batch has whole transactions, in the order of their commits; its position is the end of the last one.
    - A transaction is in a batch if and only if its commit does not lie before the position at the start.
    - Only positions that `appended` has reported are confirmed, and they grow.
    - A change that cannot be captured stops everything after it, and nothing before it.

Pure: no clock, thread or I/O. Driven by process.py. Source: docs/decisions/0087-postgres-capture.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from holdfast.errors import ConfigError, HoldfastError
from holdfast.runtime.capture.postgres.changes import Changes
from holdfast.runtime.capture.postgres.messages import (
    Data,
    Delete,
    Insert,
    KeepAlive,
    Message,
    Relation,
    TransactionBegin,
    TransactionCommit,
    Truncate,
    Update,
)
from holdfast.runtime.sources.postgres.table import DEFAULT, FULL, SourceTable


@dataclass(frozen=True)
class CaptureLimits:
    """How much is appended together."""

    linger_ms: int = 100
    """How long the first transaction of a batch waits for others."""
    batch_bytes: int = 4 * 1024 * 1024
    stage_bytes: int = 16 * 1024 * 1024
    """A transaction that is larger is staged before it ends."""
    idle_bytes: int = 16 * 1024 * 1024
    """How far the server's log may move on before the tag follows it without a change."""


@dataclass(frozen=True)
class Append:
    """Append these changes, after those that were staged, with this position as the tag; then call `appended`."""

    changes: Changes
    lsn: int


@dataclass(frozen=True)
class StageChanges:
    """Write these changes to the store, for the next append."""

    changes: Changes


@dataclass(frozen=True)
class Stop:
    """End with this error: the next change cannot be captured, and all before it are in the log."""

    error: HoldfastError


Effect: TypeAlias = Append | StageChanges | Stop
Order: TypeAlias = tuple[int, ...]


class Following:
    """The stream of one connection.

    Args:
        at: The position up to which the log has all changes.
    """

    def __init__(self, table: SourceTable, at: int, limits: CaptureLimits | None = None) -> None:
        self._table, self._limits = table, limits or CaptureLimits()
        self._start = self._at = at
        self._relations: dict[int, Order | ConfigError] = {}
        """The captured table, by the number that it has in the stream; or why its changes cannot be captured."""
        self._begun: TransactionBegin | None = None
        self._open = Changes(table)
        """Changes of the transaction that has begun."""
        self._ready, self._ready_lsn, self._ready_since_ms = Changes(table), at, 0
        """Changes of whole transactions."""
        self._staged = False
        self._seen = at
        """All transactions that were committed before it have arrived."""
        self._asked = False
        """The server has asked for the confirmed position. One that shuts down waits until that is all that it has
        sent."""
        self._failure: HoldfastError | None = None

    @property
    def confirmed(self) -> int:
        """The position up to which the server may forget its log."""
        return self._at

    def take(self, received: Data | KeepAlive, now_ms: int) -> None:
        """Take a message; `now_ms` is a monotonic clock."""
        if self._failure is not None:
            return
        try:
            if isinstance(received, KeepAlive):
                self._note_end(received.end_lsn)
                self._asked = self._asked or received.asks
            else:
                self._take(received.message, now_ms)
        except ConfigError as error:
            self._failure = error

    def due(self, now_ms: int) -> Effect | None:
        """Return the action that is due now; None: none."""
        if self._is_ready() and (self._must_append() or now_ms >= self._ready_since_ms + self._limits.linger_ms):
            return Append(self._ready, self._ready_lsn)
        if self._failure is not None:
            return None if self._is_ready() else Stop(self._failure)
        if self._open.size >= self._limits.stage_bytes:
            changes, self._open, self._staged = self._open, Changes(self._table), True
            return StageChanges(changes)
        ahead = 0 if self._is_ready() or self._begun is not None else self._seen - self._at
        if ahead >= self._limits.idle_bytes or (ahead > 0 and self._asked):
            return Append(self._ready, self._seen)
        return None

    def wake_ms(self) -> int | None:
        """Return when `due` may have something; None: not before a message arrives."""
        return self._ready_since_ms + self._limits.linger_ms if self._is_ready() else None

    def appended(self, lsn: int) -> None:
        """Note the end of an append."""
        assert lsn > self._at, "positions grow"
        self._at = lsn
        self._ready, self._staged, self._asked = Changes(self._table), False, False

    def _is_ready(self) -> bool:
        return self._ready_lsn > self._at

    def _must_append(self) -> bool:
        held = self._ready.size + self._open.size
        return self._failure is not None or held >= self._limits.batch_bytes

    def _take(self, message: Message, now_ms: int) -> None:
        match message:
            case TransactionBegin(commit_lsn):
                assert self._begun is None and commit_lsn >= 0, "a transaction ends before another one begins"
                self._begun = message
            case TransactionCommit(_, end_lsn):
                self._commit(end_lsn, now_ms)
            case Relation():
                self._relate(message)
            case Insert(oid) | Update(oid) | Delete(oid):
                if oid in self._relations and not self._is_known():
                    self._open.add(message, self._order(oid))
            case Truncate(oids):
                if any(oid in self._relations for oid in oids) and not self._is_known():
                    raise self._truncated()
            case _:
                pass

    def _is_known(self) -> bool:
        """Return whether the transaction that has begun is in the log."""
        assert self._begun is not None, "a change is inside a transaction"
        return self._begun.commit_lsn < self._start

    def _commit(self, end_lsn: int, now_ms: int) -> None:
        assert self._begun is not None, "what is committed has begun"
        if not self._is_known() and (len(self._open) or self._staged):
            assert end_lsn > self._ready_lsn, "transactions arrive in the order of their commits"
            if not self._is_ready():
                self._ready_since_ms = now_ms
            self._ready.extend(self._open)
            self._ready_lsn, self._open = end_lsn, Changes(self._table)
        self._begun = None
        self._note_end(end_lsn)

    def _note_end(self, lsn: int) -> None:
        if self._begun is None:
            self._seen = max(self._seen, lsn)

    def _relate(self, relation: Relation) -> None:
        """Note a table of the stream, if it is the captured one. An error waits for the first change."""
        table = self._table
        ours = (relation.schema, relation.name) == (table.schema, table.name)
        if not ours and relation.oid != table.oid:
            self._relations.pop(relation.oid, None)
            return
        names = [name for name, _, _ in relation.columns]
        column_names = {column.name for column in table.columns}
        columns = [each for each in relation.columns if not table.partial or each[0] in column_names]
        problem = None
        if not ours or relation.oid != table.oid:
            problem = "it was renamed, or replaced by another table"
        elif sorted(columns) != sorted(column.shape for column in table.columns):
            problem = f"its columns were {', '.join(c.name for c in table.columns)}, and are {', '.join(names)} now"
            if {name for name, _, _ in columns} == column_names:
                shapes = {column.shape for column in table.columns}
                changed = [name for name, *kind in columns if (name, *kind) not in shapes]
                problem = f"the type of {', '.join(changed)} was changed"
        elif relation.identity not in (FULL, FULL if table.full else DEFAULT):
            problem = f"its REPLICA IDENTITY is no longer {'FULL' if table.full else 'DEFAULT'}"
        self._relations[relation.oid] = (
            tuple(names.index(column.name) for column in table.columns) if problem is None else self._changed(problem)
        )

    def _order(self, oid: int) -> Order:
        found = self._relations[oid]
        if isinstance(found, ConfigError):
            raise found
        return found

    def _changed(self, how: str) -> ConfigError:
        return ConfigError(
            f"{self._table.where} has changed while it was captured: {how}",
            not_done="no change after that was captured; all before it are in the log, and the server keeps the others",
            next_step="undo it if no row was changed since, and start again; else capture the table into another log",
        )

    def _truncated(self) -> ConfigError:
        return ConfigError(
            f"{self._table.where} was truncated, which is not captured",
            not_done="no change after that was captured; all before it are in the log",
            next_step="capture the table into another log, and use DELETE for this table from now on",
        )
