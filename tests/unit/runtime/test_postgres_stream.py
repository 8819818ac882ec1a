"""How a replication stream is read: what arrives is taken, whatever the socket says."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.runtime.capture.postgres.messages import KeepAlive
from holdfast.runtime.capture.postgres.stream import Replication

KEEP_ALIVE = b"k" + (7).to_bytes(8, "big") + bytes(8) + b"\0"


class Decrypted:
    """A connection of libpq over TLS: bytes that were decrypted are no longer in the socket."""

    def __init__(self, mine: socket.socket) -> None:
        self.socket = mine.fileno()
        self.decrypted, self.taken = deque[bytes](), deque[bytes]()

    def consume_input(self) -> None:
        self.taken += self.decrypted
        self.decrypted.clear()

    def get_copy_data(self, _async: int) -> tuple[int, bytes]:
        return (len(self.taken[0]), self.taken.popleft()) if self.taken else (0, b"")


@pytest.fixture
def connection() -> Iterator[Decrypted]:
    mine, others = socket.socketpair()
    with mine, others:
        yield Decrypted(mine)


def replication(connection: Decrypted) -> Replication:
    db: Any = SimpleNamespace(pgconn=connection)
    return Replication(db, lambda: False)


class TestReceive:
    def test_takes_what_was_decrypted_although_the_socket_has_nothing(self, connection: Decrypted) -> None:
        connection.decrypted.append(KEEP_ALIVE)
        stream = replication(connection)
        assert stream.receive(0.0) == [KeepAlive(7, asks=False)]
        stream.close()

    def test_returns_nothing_if_nothing_arrives(self, connection: Decrypted) -> None:
        stream = replication(connection)
        assert stream.receive(0.0) == []
        stream.close()
