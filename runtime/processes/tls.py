"""The credentials of a run's peers, and TLS for the streams between them.

The driver makes a secret for each run and, if streams are encrypted, a private key with a self-signed certificate.
Spark brings them to the workers with the task. Both ends of a stream present this certificate and accept no other; no
authority is trusted and no host name is checked.

Reads and writes go through memory buffers, because one thread must not read an OpenSSL connection while another writes
to it, as happens on a control stream. The lock is held only for encryption, never while the socket waits.

Invariants
    - With TLS, the handshake of streams.py exchanges no byte with a peer in the clear.
    - A private key is in memory only, never in a file system.
    - The wall clock decides nothing: the certificate never expires, its use ends with the run (P3).

Source: docs/decisions/0013-clusters.md; RFC 8446.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
import ssl
import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from holdfast.errors import Unavailable

SECRET_BYTES = 32
CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True, repr=False)
class Credentials:
    """Secrets of the processes of this run: a secret and, if streams are encrypted, a key pair as PEM."""

    secret: bytes
    certificate: bytes | None = None
    private_key: bytes | None = None

    def __repr__(self) -> str:
        return "Credentials(***, tls)" if self.encrypted else "Credentials(***)"

    @property
    def encrypted(self) -> bool:
        """Return whether streams use TLS."""
        return self.certificate is not None


def make_credentials(encrypted: bool) -> Credentials:
    """Make the credentials of a new run."""
    secret = secrets.token_bytes(SECRET_BYTES)
    return Credentials(secret, *_key_pair()) if encrypted else Credentials(secret)


def is_wanted(setting: str, driver_host: str) -> bool:
    """Return whether to encrypt streams.

    Args:
        setting: `on`, `off`, or `auto`: if the driver is reached over a network. A process that reaches it at a
            loopback address is on its machine, and so are all peers of that process.
        driver_host: Address or name at which the driver listens.
    """
    if setting != "auto":
        return setting == "on"
    try:
        return not ipaddress.ip_address(socket.gethostbyname(driver_host)).is_loopback
    except OSError:
        return True  # an unknown name is not a loopback name


class Link(Protocol):
    """The carrier of the encrypted bytes: a connected socket, or a wrapper of one."""

    def recv(self, size: int, /) -> bytes:
        """Receive some bytes, none at the end of the stream. Raises OSError."""

    def sendall(self, data: bytes, /) -> None:
        """Send all of it. Raises OSError."""


class TlsConnection:
    """An encrypted connection over a connected socket. One thread may send while another receives.

    Args:
        connection: The caller shuts down and closes it, which frees threads that are blocked here.
        context: From `context_of`.
        accepting: Whether this is the end that was connected to.
    """

    def __init__(self, connection: Link, context: ssl.SSLContext, accepting: bool) -> None:
        self._socket = connection
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=accepting)
        self._lock, self._sending = threading.Lock(), threading.Lock()

    def handshake(self) -> None:
        """Authenticate both ends. Raises OSError, also if the peer does not use TLS."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                if not self._fill():
                    raise ConnectionResetError("the peer left during the TLS handshake") from None
            except ssl.SSLError:
                self._flush()  # sends the alert with the reason to the peer
                raise
            else:
                self._flush()
                return

    def sendall(self, data: bytes | memoryview) -> None:
        """Send all of it. Raises OSError."""
        view = memoryview(data).cast("B")
        with self._sending:
            for start in range(0, len(view), CHUNK_BYTES):
                with self._lock:
                    self._tls.write(view[start : start + CHUNK_BYTES])
                    sealed = self._outgoing.read()
                self._socket.sendall(sealed)

    def recv_into(self, view: memoryview) -> int:
        """Receive some bytes; return how many, 0 at the end of the stream. Raises OSError."""
        while True:
            try:
                with self._lock:
                    count: Any = self._tls.read(len(view), view)  # with a buffer it returns a number
                return int(count)
            except ssl.SSLWantReadError:
                if not self._fill():
                    return 0
            except ssl.SSLZeroReturnError:
                return 0

    def _fill(self) -> bool:
        data = self._socket.recv(CHUNK_BYTES)
        with self._lock:
            self._incoming.write(data)
        return bool(data)

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._socket.sendall(self._outgoing.read())


@lru_cache(maxsize=8)
def context_of(credentials: Credentials, accepting: bool) -> ssl.SSLContext:
    """Return the TLS settings of one end: TLS 1.3, this run's certificate presented and the only one accepted."""
    assert credentials.certificate is not None and credentials.private_key is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if accepting else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate names no host: a process with its key is a peer on any host
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=credentials.certificate.decode("ascii"))
    if accepting:
        context.num_tickets = 0  # no session is ever resumed
    # ssl reads keys only from files: this one has no name and vanishes when it is closed.
    descriptor = os.memfd_create("holdfast", os.MFD_CLOEXEC)
    with open(descriptor, "wb") as file:
        file.write(credentials.private_key + credentials.certificate)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    return context


def _key_pair() -> tuple[bytes, bytes]:
    """Make a certificate and its private key, both PEM."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise Unavailable(
            f"streams must be encrypted, but the package cryptography cannot be imported: {error}",
            not_done="the job was not started",
            next_step="pip install cryptography where the driver runs; or, on an isolated network, set tls=off",
        ) from error
    from datetime import datetime

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a run of Holdfast")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime(2000, 1, 1))
        .not_valid_after(datetime(9999, 12, 31))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(pem), private
