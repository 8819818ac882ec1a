"""The connection to a receiver: one request at a time, by urllib3, which is an extra (`holdfast[http]`).

Invariants
    - A request is sent once per call. Redirects are not followed, certificates are verified.
    - No value of this module holds a secret longer than a request; no message shows one.
    - Nothing is sent before the time that a receiver asked for by Retry-After.
    - The status of a reply decides, whatever happens to its body: that breaks off, does not end, or cannot be decoded.

Source: docs/decisions/0100-http-sink.md.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Iterable
from contextlib import suppress
from http.client import HTTPException
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import urllib3

from holdfast.errors import ConfigError, HoldfastError, NotAdmitted, Unavailable
from holdfast.secrets import SHOWN, Secret
from holdfast.sinks.contract.phrases import RETRIES
from holdfast.sinks.http.place import KEY_HEADER, TYPE_HEADER, HttpPlace, is_value
from holdfast.sinks.http.replies import REPLY_SHOWN_MAX, Reply, problem_of, wait_of
from holdfast.sinks.http.requests import Request, signature_of

REPLY_BYTES_MAX = 64 * 1024
"""How much of a reply is read; more ends the connection, which changes nothing else."""
PART_MIN = 8
"""How long a part of a secret, such as the token after "Bearer", is at least to be hidden also where it is alone."""
_OBJECT = re.compile(r"<[^<>]*>:? ?|[A-Za-z]*Connection\([^()]*\):? ?")


class HttpClient:
    """Sends requests. The connection is opened at the first one."""

    def __init__(self, place: HttpPlace) -> None:
        self._place = place
        self._pool: Any = None
        self._not_before, self._asked_by = 0.0, ""

    def send(self, request: Request) -> None:
        """Send a request, and return when the receiver has taken it.

        Raises:
            Unavailable, NotAdmitted: it may have taken it or not; the same request may be sent again.
            ConfigError: it never takes it; or a secret is missing.
        """
        left = self._not_before - time.monotonic()
        if left > 0:
            raise Unavailable(
                f"{self._asked_by}, and asked to be sent nothing for {left:.0f} s more",
                not_done="nothing was sent to it",
                next_step=RETRIES,
            )
        headers = self._headers(request)
        try:
            response = self._opened().request(
                "POST", self._place.url, body=request.body, headers=headers, preload_content=False, redirect=False
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            self.close()
            raise self._unreachable(error) from None
        reply = Reply(response.status, self._without_secrets(self._beginning(response)), self._location(response))
        if (problem := problem_of(self._place.where, reply, request.rows, len(request.body))) is None:
            return
        if isinstance(problem, Unavailable):
            self._not_before = time.monotonic() + wait_of(response.headers.get("Retry-After"), time.time())
            self._asked_by = problem.what
        raise problem

    def connect(self) -> None:
        """Open a connection and close it; send nothing. Raises Unavailable."""
        parts, wait = urlsplit(self._place.url), urllib3.Timeout(self._place.timeout_s).connect_timeout
        if parts.scheme == "https":
            secured = {"ssl_context": self._trusting()}
            connection = urllib3.connection.HTTPSConnection(parts.hostname, parts.port, timeout=wait, **secured)
        else:
            connection = urllib3.connection.HTTPConnection(parts.hostname, parts.port, timeout=wait)
        try:
            connection.connect()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._unreachable(error) from None
        finally:
            connection.close()

    def close(self) -> None:
        """Drop the connection; the next request opens one."""
        if self._pool is not None:
            self._pool.clear()
            self._pool = None

    def _opened(self) -> Any:
        if self._pool is None:
            place = self._place
            verified = {"ssl_context": self._trusting()} if urlsplit(place.url).scheme == "https" else {}
            timeout = urllib3.Timeout(connect=place.timeout_s, read=place.timeout_s)
            self._pool = urllib3.PoolManager(num_pools=1, maxsize=1, retries=False, timeout=timeout, **verified)
        return self._pool

    def _trusting(self) -> ssl.SSLContext:
        """Return the context that verifies certificates. Raises NotAdmitted: the file of authorities cannot be read."""
        try:
            return ssl.create_default_context(cafile=self._place.ca)
        except OSError as error:
            raise NotAdmitted(
                f"{self._place.where}: the certificates of ca={self._place.ca!r} cannot be read on "
                f"{socket.gethostname()}: {error.strerror or error}",
                not_done="no connection was opened",
                next_step="put the file there, in PEM, on this host and on every other one; the next attempt reads it",
            ) from None

    def _beginning(self, response: Any) -> str:
        """Return the beginning of a reply, as far as it arrives in time; a whole one keeps the connection open."""
        data, until = b"", time.monotonic() + self._place.timeout_s
        try:
            with response:
                while len(data) < REPLY_BYTES_MAX and time.monotonic() <= until:
                    if not (more := response.read1(REPLY_BYTES_MAX - len(data))):
                        break
                    data += more
        except (urllib3.exceptions.HTTPError, OSError):
            self.close()
        return data.decode(errors="replace")

    def _location(self, response: Any) -> str:
        """Return where a redirection leads, without a query: that may hold a token."""
        return self._without_secrets((response.headers.get("Location") or "").partition("?")[0])

    def _headers(self, request: Request) -> dict[str, str]:
        place = self._place
        headers = {TYPE_HEADER: "application/json", KEY_HEADER: request.key}
        if not any(name.lower() == "user-agent" for name, _ in place.headers):
            headers["User-Agent"] = "holdfast"
        for name, value in place.headers:
            headers[name] = self._value(name, value) if isinstance(value, Secret) else value
        if place.signed is not None and place.secret is not None:
            headers[place.signed] = signature_of(place.secret.value(), request.body)
        return headers

    def _value(self, name: str, secret: Secret) -> str:
        text = secret.value()
        if not is_value(text):  # an exception of the library would hold the value
            raise ConfigError(
                f"{self._place.where}: the secret for the header {name!r} holds characters that no header can have",
                not_done="nothing was sent",
                next_step="correct the value, such as by removing line ends, and start the job again",
            )
        return text

    def _unreachable(self, error: Exception) -> Unavailable:
        cause = error.args[0] if isinstance(error, urllib3.exceptions.SSLError) and error.args else error
        if isinstance(cause, ssl.SSLCertVerificationError):
            return Unavailable(
                f"{self._place.where}: the receiver's certificate is refused: {cause.verify_message}",
                not_done="nothing was sent to it",
                next_step="give the certificate of the authority that signed it in ca=, or correct the certificate or "
                "the name in the URL; delivery retries",
            )
        said = error.args[1] if isinstance(error, urllib3.exceptions.ProtocolError) and len(error.args) > 1 else error
        why = self._without_secrets(_OBJECT.sub("", str(said)))[:REPLY_SHOWN_MAX]
        if isinstance(said, HTTPException) and not isinstance(said, OSError):
            return Unavailable(
                f"{self._place.where} sent a response that is not valid HTTP: {why!r}",
                not_done="the rows of the request may or may not be there",
                next_step="check that the URL names the receiver, its port, and http or https as it expects; delivery "
                "retries",
            )
        return Unavailable(
            f"{self._place.where} is unreachable: {why}",
            not_done="the rows of the request may or may not be there",
            next_step="check that the receiver runs, and that this machine reaches it; delivery retries",
        )

    def _without_secrets(self, text: str) -> str:
        """Return a text without secrets, and without parts of them, as an answer may repeat a token alone."""
        query = urlsplit(self._place.url).query
        parts = [part for value in self._values() for part in (value, *_long(value.split()))]
        parts += [query, *_long(value for _, value in parse_qsl(query))] if query else []
        for part in sorted(parts, key=len, reverse=True):
            text = text.replace(part, SHOWN)
        return text

    def _values(self) -> Iterable[str]:
        for each in self._place.secrets:
            with suppress(HoldfastError):  # it cannot be read any longer; the next request reports that
                yield each.value()


def _long(parts: Iterable[str]) -> list[str]:
    return [part for part in parts if len(part) >= PART_MIN]
