"""Byte counts of this machine's TCP connections, from the kernel: the evidence that a network fault fired.

Requests every IPv4 socket with its `tcp_info` by netlink; needs no privilege and touches no connection.

Source: sock_diag(7), linux/inet_diag.h, linux/tcp.h.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_DUMP_REQUEST = 0x301
"""NLM_F_REQUEST, NLM_F_ROOT, NLM_F_MATCH."""
_DONE, _ERROR = 3, 2
_INET_DIAG_INFO = 2
_ESTABLISHED = 1
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBBI48x")
_MESSAGE = struct.Struct("=4B2s2s16s16sI8s5I")
_ATTRIBUTE = struct.Struct("=HH")
_BYTES_RECEIVED = 128
"""Offset of tcpi_bytes_received in tcp_info."""
_ANSWER_BYTES = 1 << 16


@dataclass(frozen=True)
class TcpConnection:
    """One end of an established connection over IPv4."""

    local: int
    """Port."""
    remote: int
    cookie: bytes
    """Distinguishes it from a later connection with the same ports."""
    received: int
    """Bytes, so far."""


def established() -> list[TcpConnection]:
    """Return every established IPv4 connection of this network namespace, both ends of those on loopback."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
        wanted = _REQUEST.pack(socket.AF_INET, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 0, 1 << _ESTABLISHED)
        length = _HEADER.size + len(wanted)
        kernel.send(_HEADER.pack(length, _SOCK_DIAG_BY_FAMILY, _DUMP_REQUEST, 1, 0) + wanted)
        return list(_answers(kernel))


def _answers(kernel: socket.socket) -> Iterator[TcpConnection]:
    while True:
        data = kernel.recv(_ANSWER_BYTES)
        while len(data) >= _HEADER.size:
            length, kind, _, _, _ = _HEADER.unpack_from(data)
            if kind == _DONE:
                return
            if kind == _ERROR:
                raise OSError("the kernel refused to list connections")
            yield _connection(data[_HEADER.size : length])
            data = data[(length + 3) & ~3 :]


def _connection(message: bytes) -> TcpConnection:
    *_, local, remote, _, _, _, cookie, _, _, _, _, _ = _MESSAGE.unpack_from(message)
    received_bytes, rest = 0, message[_MESSAGE.size :]
    while len(rest) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(rest)
        if kind == _INET_DIAG_INFO and length >= _ATTRIBUTE.size + _BYTES_RECEIVED + 8:
            (received_bytes,) = struct.unpack_from("=Q", rest, _ATTRIBUTE.size + _BYTES_RECEIVED)
        rest = rest[max(_ATTRIBUTE.size, (length + 3) & ~3) :]
    return TcpConnection(int.from_bytes(local, "big"), int.from_bytes(remote, "big"), cookie, received_bytes)
