"""Where requests go, and the parts of each besides rows: headers and a signature.

Pure: no clock, thread or I/O. Source: RFC 9110 sections 5.1 and 5.5; docs/decisions/0100-http-sink.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from holdfast.errors import ConfigError
from holdfast.secrets import Secret

KEY_HEADER = "Idempotency-Key"
TYPE_HEADER = "Content-Type"
BATCH_ROWS_MAX = 10_000
TIMEOUT_S_MAX = 300.0
_OWN = frozenset({"connection", "content-length", "content-type", "host", "idempotency-key", "transfer-encoding"})
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?")
_URL = re.compile(r"[\x21-\x7e]+")
_SECRET = re.compile(r"authorization|cookie|credential|password|secret|token|api-?key", re.IGNORECASE)
_HMAC = "hmac-sha256:"
Value = str | Secret


@dataclass(frozen=True)
class HttpPlace:
    """A receiver.

    Args:
        url: Where to POST.
        headers: Names and values of more headers.
        signed: The header with the signature of the body; None: requests are not signed.
        secret: The key that signs; given if `signed` is.
        timeout_s: How long to wait for a connection, and for each part of an answer.
        ca: A file with the certificates of the authorities that sign the server's; None: those of the system.
    """

    url: str = field(repr=False)
    headers: tuple[tuple[str, Value], ...] = ()
    signed: str | None = None
    secret: Secret | None = None
    timeout_s: float = 10.0
    ca: str | None = None

    @property
    def shown(self) -> str:
        """The URL as messages and plans show it: without a query, which may hold a token."""
        return self.url.partition("?")[0]

    @property
    def where(self) -> str:
        """How messages name it."""
        return f"HTTP {self.shown}"

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """The secrets that a request needs."""
        given = [value for _, value in self.headers if isinstance(value, Secret)]
        return (*given, *(() if self.secret is None else (self.secret,)))


def place_of(
    url: str,
    headers: Mapping[str, Value] | None,
    signature: str | None,
    secret: Secret | None,
    timeout_s: float,
    ca: str | None,
) -> HttpPlace:
    """Return the receiver that a job gives. Raises ConfigError."""
    _check_url(url)
    if not 0 < timeout_s <= TIMEOUT_S_MAX:
        raise refused(f"timeout_s is {timeout_s!r}", f"give seconds above 0, at most {TIMEOUT_S_MAX:g}")
    if (signature is None) != (secret is None):
        raise refused(
            "signature and secret are given one without the other",
            'give both: signature="hmac-sha256:X-Signature", secret=hf.secret("env:HTTP_SECRET")',
        )
    signature_header = None if signature is None else _header_of(signature)
    header_items = tuple((headers or {}).items())
    for name, value in header_items:
        _check_header(name, value, signature_header)
    names = [name.lower() for name, _ in header_items]
    if twice := [name for name in names if names.count(name) > 1]:
        raise refused(f"headers names {twice[0]!r} twice", "give each header once; upper and lower case are the same")
    return HttpPlace(url, header_items, signature_header, secret, float(timeout_s), ca)


def is_value(text: str) -> bool:
    """Return whether a header can have this value."""
    return _VALUE.fullmatch(text) is not None


def refused(what: str, next_step: str) -> ConfigError:
    """Return the error for arguments that do not fit."""
    return ConfigError(f"hf.Http: {what}", not_done="the job was not planned", next_step=next_step)


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or port == 0 or parts.scheme not in ("http", "https") or not _URL.fullmatch(url) or "#" in url:
        raise refused("the URL is not one of http or https", 'give one such as "https://api.example.com/rows"')
    if parts.username is not None or parts.password is not None:
        raise refused(
            "the URL holds a user or a password, which a plan or a pickled job would expose; it is not repeated here",
            'remove it, and give headers={"Authorization": hf.secret("env:HTTP_AUTHORIZATION")}',
        )


def _header_of(signature: str) -> str:
    name = signature.removeprefix(_HMAC)
    if name == signature or not _NAME.fullmatch(name) or name.lower() in _OWN:
        raise refused(f"signature is {signature!r}", 'use "hmac-sha256:HEADER", such as "hmac-sha256:X-Signature"')
    return name


def _check_header(name: str, value: object, signed: str | None) -> None:
    if not _NAME.fullmatch(name) or name.lower() in _OWN or (signed or "").lower() == name.lower():
        raise refused(f"headers names {name!r}, which is not a header or is set by the sink", "rename or remove it")
    if not isinstance(value, Secret) and not (isinstance(value, str) and is_value(value)):
        raise refused(
            f"the value of the header {name!r} is not text that a header can hold; it is not repeated here",
            'give printable text, or hf.secret("env:NAME")',
        )
    if isinstance(value, str) and _SECRET.search(name):
        raise refused(
            f"the header {name!r} holds a secret, which a plan or a pickled job would expose; it is not repeated here",
            f'give a reference: headers={{"{name}": hf.secret("env:NAME")}}; then change this secret, as it stands in '
            "the code",
        )
