"""A connection that replicates: commands of the walsender, and the stream in both directions.

psycopg has no interface for the stream, but its `pq` has the calls of libpq for it: COPY BOTH. One thread uses the
connection, and no call waits longer than `WAIT_S`, so that a stop is noticed.

Source: postgresql.org/docs/current: protocol-replication.html, libpq-copy.html.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import pq

from holdfast.runtime.capture.postgres.messages import Data, KeepAlive, envelope, lsn_text, status
from holdfast.runtime.capture.sessions import WAIT_S, CaptureStopped

READ_BYTES = 1024 * 1024
"""How much is read before the caller gets it."""
Db = psycopg.Connection[tuple[Any, ...]]


class Replication:
    """A connection that was opened with replication=database.

    Args:
        stopping: Whether a stop was requested.
    """

    def __init__(self, db: Db, stopping: Callable[[], bool]) -> None:
        self._conn, self._stopping = db.pgconn, stopping
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._conn.socket, selectors.EVENT_READ)

    def close(self) -> None:
        """Release this object's own resources; the connection stays."""
        self._selector.close()

    def command(self, text: str) -> list[str]:
        """Run a command that returns one row of texts. Raises psycopg.Error, CaptureStopped."""
        result = self._run(text, pq.ExecStatus.TUPLES_OK)
        row = [result.get_value(0, column) or b"" for column in range(result.nfields)]
        while self._next_result() is not None:
            pass
        return [bytes(value).decode() for value in row]

    def start(self, slot: str, publication: str, at: int) -> None:
        """Start the stream of a slot, at a position or where the slot is, whichever is later. Raises: see `command`."""
        name = publication.replace('"', '""').replace("'", "''")
        options = f"proto_version '1', publication_names '\"{name}\"'"
        command = f'START_REPLICATION SLOT "{slot}" LOGICAL {lsn_text(at)} ({options})'
        self._run(command, pq.ExecStatus.COPY_BOTH)

    def receive(self, wait_s: float) -> list[Data | KeepAlive]:
        """Return the messages that have arrived; none if none arrives within the time.

        Raises:
            psycopg.Error: the server ended the stream, or the connection is lost.
            Damaged: a message is malformed.
        """
        messages = self._arrived()
        if not messages:
            self._wait(wait_s)
            messages = self._arrived()
        return messages

    def confirm(self, lsn: int) -> None:
        """Report that everything before a position is kept. Raises psycopg.Error."""
        self._conn.put_copy_data(status(lsn))
        self._conn.flush()

    def _arrived(self) -> list[Data | KeepAlive]:
        messages, size = list[Data | KeepAlive](), 0
        while size < READ_BYTES:
            length, data = self._conn.get_copy_data(1)
            if length == 0:
                break
            if length < 0:
                self._raise_end()
            messages.append(envelope(bytes(data)))
            size += length
        return messages

    def _raise_end(self) -> None:
        """Raise why the server ended the stream."""
        result = self._next_result()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(result)
        raise psycopg.OperationalError("the server ended the replication stream")

    def _run(self, text: str, expected: pq.ExecStatus) -> Any:
        self._conn.send_query(text.encode())
        self._conn.flush()
        result = self._next_result()
        if result is None:
            raise psycopg.OperationalError("the server gave no answer to a replication command")
        if result.status != expected:
            raise psycopg.errors.error_from_result(result)
        return result

    def _next_result(self) -> Any:
        while self._conn.is_busy():
            self._wait(WAIT_S)
            if self._stopping():
                raise CaptureStopped
        return self._conn.get_result()

    def _wait(self, wait_s: float) -> None:
        """Wait for the server, and take the bytes that have arrived.

        Also when the socket has nothing: with TLS, the rest of a message may have been decrypted already, and nothing
        follows it before the next transaction.
        """
        self._selector.select(min(wait_s, WAIT_S))
        self._conn.consume_input()
