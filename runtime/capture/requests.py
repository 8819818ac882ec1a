"""Reads a request: whether it is signed, its idempotency key, and its body as a row.

Pure: no clock or I/O. Source: docs/decisions/0085-webhooks.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from holdfast.runtime.sources.webhook.connector import KeyPlace, Receiving
from holdfast.runtime.sources.webhook.signatures import problem_of

KEY_LENGTH_MAX = 512
"""Characters of an idempotency key."""
_FIELDS: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])
_SCALAR: msgspec.json.Decoder[str | int] = msgspec.json.Decoder(str | int)


class _Challenge(msgspec.Struct):
    """The request that Slack sends once to check whether an address answers."""

    type: str
    challenge: str


_CHALLENGE: msgspec.json.Decoder[_Challenge] = msgspec.json.Decoder(_Challenge)


@dataclass(frozen=True)
class Accepted:
    """A request that can be stored."""

    key: str | None
    row: pa.RecordBatch
    """One row, with the columns of the schema."""


@dataclass(frozen=True)
class RefusedRequest:
    """A request that is not stored."""

    status: int
    """400: the body or the key; 401: the signature."""
    reason: str


@dataclass(frozen=True)
class Echo:
    """A request that is answered with this text, and not stored."""

    text: str


class Requests:
    """Reads requests as a `Receiving` describes them."""

    def __init__(self, receiving: Receiving) -> None:
        self._of, self._lines = receiving, receiving.lines()

    def read(
        self, headers: Mapping[str, str], body: bytes, secrets: Sequence[bytes], now_s: float
    ) -> Accepted | RefusedRequest | Echo:
        """Return the decision about a request.

        Args:
            headers: By name in lower case.
            body: As it was sent.
            secrets: The values of the secrets.
            now_s: Seconds since 1970.
        """
        scheme = self._of.scheme
        if scheme is not None:
            if problem := problem_of(scheme, headers, body, secrets, now_s, self._of.tolerance_s):
                return RefusedRequest(401, problem)
            if scheme.name == "slack" and (text := _challenge(body)) is not None:
                return Echo(text)
        key = None if self._of.key is None else _key_of(self._of.key, headers, body)
        if isinstance(key, RefusedRequest):
            return key
        if self._lines is None:
            return Accepted(key, pa.RecordBatch.from_arrays([pa.array([body], pa.binary())], schema=self._of.schema))
        rows, refused = self._lines.decode([body])
        return RefusedRequest(400, refused[0].error) if refused else Accepted(key, rows)


def _key_of(place: KeyPlace, headers: Mapping[str, str], body: bytes) -> str | RefusedRequest:
    where = f"the header {place.name}" if place.part == "header" else f"the field {place.name!r} of the body"
    key = headers.get(place.name, "").strip() if place.part == "header" else _field(body, place.name)
    if isinstance(key, RefusedRequest):
        return key
    if not key:
        return RefusedRequest(400, f"{where}, which holds the idempotency key, is missing or empty")
    if len(key) > KEY_LENGTH_MAX or not key.isprintable():
        return RefusedRequest(
            400, f"{where} is not a valid key: it has more than {KEY_LENGTH_MAX} characters, or control characters"
        )
    return key


def _field(body: bytes, name: str) -> str | RefusedRequest:
    try:
        value = _FIELDS.decode(body).get(name)
        return "" if value is None else str(_SCALAR.decode(value))
    except msgspec.ValidationError:
        return RefusedRequest(
            400, f"the body is not an object, or its field {name!r} is neither a string nor an integer"
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return RefusedRequest(400, f"the body is not JSON: {error}")


def _challenge(body: bytes) -> str | None:
    try:
        found = _CHALLENGE.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found.challenge if found.type == "url_verification" else None
