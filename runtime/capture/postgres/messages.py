"""Messages of a replication stream: the envelope of the server, and its contents by `pgoutput` (protocol 1).

| message | content |
|---|---|
| w | position of the data, end of the log, time, then one message of pgoutput |
| k | end of the log, time, whether an answer is asked for immediately |
| B, C | a transaction begins, and was committed |
| R | the columns of a table, before its first change in a connection, and after they changed |
| I, U, D, T | rows inserted, updated, deleted; tables truncated |

Positions (LSN) are bytes of the server's log since its creation.

Pure: no clock, thread or I/O.
Source: postgresql.org/docs/current: protocol-replication.html, protocol-logicalrep-message-formats.html.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

from holdfast.errors import Damaged


class Absent(Enum):
    """A value that was not sent."""

    UNCHANGED = "unchanged"
    """A long value that an update left as it was."""


Cell: TypeAlias = bytes | None | Literal[Absent.UNCHANGED]
Row: TypeAlias = tuple[Cell, ...]
"""Values in text, in the order of the table's columns."""


@dataclass(frozen=True)
class TransactionBegin:
    """A transaction begins."""

    commit_lsn: int
    """Where its commit begins."""


@dataclass(frozen=True)
class TransactionCommit:
    """The transaction that began last was committed."""

    commit_lsn: int
    end_lsn: int
    """The position after its commit."""


@dataclass(frozen=True)
class Relation:
    """The columns of a table, as the changes that follow have them."""

    oid: int
    schema: str
    name: str
    identity: str
    """REPLICA IDENTITY: d(efault), n(othing), f(ull), i(ndex)."""
    columns: tuple[tuple[str, int, int], ...]
    """Name, type and type modifier."""


@dataclass(frozen=True)
class Insert:
    """A row was inserted."""

    oid: int
    new: Row


@dataclass(frozen=True)
class Update:
    """A row was updated."""

    oid: int
    old: Row | None
    """Before: all values with REPLICA IDENTITY FULL; else the key, if it has changed, and nulls."""
    new: Row


@dataclass(frozen=True)
class Delete:
    """A row was deleted."""

    oid: int
    old: Row


@dataclass(frozen=True)
class Truncate:
    """Tables were truncated."""

    oids: tuple[int, ...]


@dataclass(frozen=True)
class Other:
    """A message without meaning here: a type, an origin, a user's own message."""


Change: TypeAlias = Insert | Update | Delete
Message: TypeAlias = TransactionBegin | TransactionCommit | Relation | Change | Truncate | Other


@dataclass(frozen=True)
class Data:
    """A message of pgoutput."""

    message: Message


@dataclass(frozen=True)
class KeepAlive:
    """All transactions that were committed before a position were sent."""

    end_lsn: int
    asks: bool
    """Whether the server waits for an answer."""


_XLOG = struct.Struct("!QQq")
_KEEP_ALIVE = struct.Struct("!QqB")
_STATUS = struct.Struct("!cQQQqB")
_BEGIN = struct.Struct("!QqI")
_COMMIT = struct.Struct("!BQQq")
_COLUMN = struct.Struct("!Ii")
_COUNT, _LENGTH, _OID = struct.Struct("!H"), struct.Struct("!I"), struct.Struct("!I")
_TRUNCATED = struct.Struct("!IB")
_NEW, _KEY, _OLD = ord("N"), ord("K"), ord("O")
_NULL, _UNCHANGED, _TEXT = ord("n"), ord("u"), ord("t")


def envelope(data: bytes) -> Data | KeepAlive:
    """Return the contents of a message of the stream.

    Raises:
        Damaged: it is none of those that Postgres sends.
    """
    try:
        if data[:1] == b"w":
            return Data(decode(data[1 + _XLOG.size :]))
        if data[:1] == b"k":
            end, _, asks = _KEEP_ALIVE.unpack_from(data, 1)
            return KeepAlive(end, bool(asks))
    except (struct.error, IndexError, ValueError) as error:
        raise _unknown(data) from error
    raise _unknown(data)


def status(confirmed: int, asks: bool = False) -> bytes:
    """Return the message by which a client reports that it keeps everything before a position.

    Args:
        asks: Whether the server shall answer immediately.
    """
    return _STATUS.pack(b"r", confirmed, confirmed, confirmed, 0, asks)


def decode(data: bytes) -> Message:
    """Return a message of pgoutput. Raises struct.error, IndexError, ValueError: it is cut off or malformed."""
    match data[:1]:
        case b"B":
            return TransactionBegin(_BEGIN.unpack_from(data, 1)[0])
        case b"C":
            _, commit, end, _ = _COMMIT.unpack_from(data, 1)
            return TransactionCommit(commit, end)
        case b"R":
            return _relation(data)
        case b"I":
            _expect(data[5] == _NEW)
            return Insert(_oid(data), _row(data, 6)[0])
        case b"U":
            old, at = (None, 5) if data[5] == _NEW else _old_row(data, 5)
            _expect(data[at] == _NEW)
            return Update(_oid(data), old, _row(data, at + 1)[0])
        case b"D":
            return Delete(_oid(data), _old_row(data, 5)[0])
        case b"T":
            count, _ = _TRUNCATED.unpack_from(data, 1)
            return Truncate(struct.unpack_from(f"!{count}I", data, 1 + _TRUNCATED.size))
        case b"Y" | b"O" | b"M":
            return Other()
        case _:
            raise ValueError("an unknown kind")


def lsn_of(text: str) -> int:
    """Return the position that the server writes as "16/B374D848"."""
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def lsn_text(lsn: int) -> str:
    """Return a position as the server writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def _oid(data: bytes) -> int:
    oid: int = _OID.unpack_from(data, 1)[0]
    return oid


def _old_row(data: bytes, at: int) -> tuple[Row, int]:
    _expect(data[at] in (_KEY, _OLD))
    return _row(data, at + 1)


def _row(data: bytes, at: int) -> tuple[Row, int]:
    """Return the row at an offset, and the offset after it."""
    (count,) = _COUNT.unpack_from(data, at)
    at += _COUNT.size
    cells: list[Cell] = []
    for _ in range(count):
        kind = data[at]
        at += 1
        if kind == _TEXT:
            (length,) = _LENGTH.unpack_from(data, at)
            at += _LENGTH.size
            _expect(at + length <= len(data))
            cells.append(data[at : at + length])
            at += length
        elif kind == _NULL:
            cells.append(None)
        else:
            _expect(kind == _UNCHANGED)
            cells.append(Absent.UNCHANGED)
    return tuple(cells), at


def _relation(data: bytes) -> Relation:
    schema, at = _text(data, 1 + _OID.size)
    name, at = _text(data, at)
    identity, (count,) = chr(data[at]), _COUNT.unpack_from(data, at + 1)
    at += 1 + _COUNT.size
    columns = []
    for _ in range(count):
        column, at = _text(data, at + 1)  # after a flag: whether it belongs to the key
        columns.append((column, *_COLUMN.unpack_from(data, at)))
        at += _COLUMN.size
    return Relation(_oid(data), schema or "pg_catalog", name, identity, tuple(columns))


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode(), end + 1


def _expect(holds: bool) -> None:
    if not holds:
        raise ValueError("not the form of the message")


def _unknown(data: bytes) -> Damaged:
    return Damaged(
        f"the replication stream has a message of {len(data)} bytes, kind {data[:1]!r}, that Postgres does not send",
        not_done="no change from this transaction on was captured",
        next_step="check that no proxy changes the stream; else report the versions of Postgres and Holdfast",
    )
