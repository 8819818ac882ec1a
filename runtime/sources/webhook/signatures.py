"""Signatures of webhooks: HMAC-SHA256 over the body, and over a time where the sender adds one.

| scheme | header | what is signed |
|---|---|---|
| stripe | `Stripe-Signature: t=TIME,v1=HEX`; several v1 while a secret is replaced | `TIME.BODY` |
| github | `X-Hub-Signature-256: sha256=HEX` | `BODY` |
| shopify | `X-Shopify-Hmac-Sha256: BASE64` | `BODY` |
| slack | `X-Slack-Signature: v0=HEX` and `X-Slack-Request-Timestamp: TIME` | `v0:TIME:BODY` |
| hmac-sha256:HEADER | `HEADER: HEX` or `HEADER: BASE64`, with or without `sha256=` before it | `BODY` |

Invariants
    - Signatures are compared in constant time, as bytes.
    - A signed time that is further from now than the tolerance is refused, whatever its signature.
    - No reason repeats a signature or a secret.

Pure: no clock or I/O.
Source: docs.stripe.com/webhooks/signature; docs.github.com, Validating webhook deliveries; shopify.dev, Verify webhook
deliveries; docs.slack.dev, Verifying requests from Slack; RFC 2104.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.errors import ConfigError

_HEADERS = {
    "stripe": "stripe-signature",
    "github": "x-hub-signature-256",
    "shopify": "x-shopify-hmac-sha256",
    "slack": "x-slack-signature",
}
_SLACK_TIME = "x-slack-request-timestamp"
_GENERIC = "hmac-sha256"
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""A name of a header, RFC 9110 section 5.1."""
_TIME = re.compile(r"[0-9]{1,12}")
"""Seconds since 1970."""
SIGNATURES_MAX = 8
"""Signatures of one request that are compared."""


@dataclass(frozen=True)
class Scheme:
    """How a sender signs."""

    name: str
    header: str
    """The header with the signature, in lower case."""


@dataclass(frozen=True)
class _Signed:
    """The signature of a request, as its headers give it."""

    prefix: bytes
    """The bytes that are signed before the body."""
    given: tuple[str, ...]
    time_s: int | None = None


def is_header(name: str) -> bool:
    """Return whether a text can be the name of a header."""
    return _TOKEN.fullmatch(name) is not None


def scheme_of(text: str) -> Scheme:
    """Return the scheme that is named "stripe", "github", "shopify", "slack" or "hmac-sha256:HEADER".

    Raises:
        ConfigError: there is no such scheme.
    """
    kind, _, header = str(text).partition(":")
    if text in _HEADERS:
        return Scheme(text, _HEADERS[text])
    if kind == _GENERIC and is_header(header):
        return Scheme(_GENERIC, header.lower())
    raise ConfigError(
        f"hf.Webhook: signature is {text!r}",
        not_done="the job was not planned",
        next_step=f'use one of {", ".join(_HEADERS)}; or "hmac-sha256:HEADER", with the name of the header that holds '
        "the signature of the body",
    )


def problem_of(
    scheme: Scheme, headers: Mapping[str, str], body: bytes, secrets: Sequence[bytes], now_s: float, tolerance_s: float
) -> str | None:
    """Return why a request is not signed with one of the secrets; None if it is.

    Args:
        headers: By name in lower case.
        body: As it was sent, before anything parses it.
        secrets: At least one; several while a secret is replaced.
        now_s: Seconds since 1970.
        tolerance_s: How far a signed time may be from now, in both directions.
    """
    assert secrets, "a scheme comes with a secret"
    signature = _signed(scheme, headers)
    if isinstance(signature, str):
        return signature
    if signature.time_s is not None and (off := abs(now_s - signature.time_s)) > tolerance_s:
        return f"the signed time is {off:.0f} s from the time here; at most {tolerance_s:.0f} s are accepted"
    given = [each.encode("utf-8", "surrogateescape") for each in signature.given[:SIGNATURES_MAX]]
    for secret in secrets:
        digest = hmac.new(secret, signature.prefix + body, hashlib.sha256).digest()
        if any(_equal(scheme, digest, each) for each in given):
            return None
    return "the signature is not that of this body with the secret"


def _signed(scheme: Scheme, headers: Mapping[str, str]) -> _Signed | str:
    """Return what the headers say; a text, why they say nothing."""
    value = headers.get(scheme.header, "").strip()
    if not value:
        return f"the header {scheme.header} is missing"
    match scheme.name:
        case "stripe":
            return _of_stripe(value)
        case "slack":
            return _of_slack(value, headers.get(_SLACK_TIME, "").strip())
        case "github":
            return _Signed(b"", (value[7:],)) if value.startswith("sha256=") else "the signature is not sha256=HEX"
        case _:
            return _Signed(b"", (value.removeprefix("sha256="),))


def _of_stripe(value: str) -> _Signed | str:
    pairs = [part.strip().partition("=") for part in value.split(",")]
    times = [text for name, _, text in pairs if name == "t"]
    given = tuple(text for name, _, text in pairs if name == "v1")
    if len(times) != 1 or not _TIME.fullmatch(times[0]) or not given:
        return "the header stripe-signature is not t=TIME,v1=HEX"
    return _Signed(f"{times[0]}.".encode(), given, int(times[0]))


def _of_slack(value: str, time: str) -> _Signed | str:
    if not value.startswith("v0="):
        return "the signature is not v0=HEX"
    if not _TIME.fullmatch(time):
        return f"the header {_SLACK_TIME} is missing or is no time"
    return _Signed(f"v0:{time}:".encode(), (value[3:],), int(time))


def _equal(scheme: Scheme, digest: bytes, given: bytes) -> bool:
    as_hex, as_base64 = digest.hex().encode(), base64.b64encode(digest)
    match scheme.name:
        case "shopify":
            return hmac.compare_digest(as_base64, given)
        case "stripe" | "github" | "slack":
            return hmac.compare_digest(as_hex, given)
        case _:  # both are compared, so that the time does not depend on the form
            return hmac.compare_digest(as_hex, given.lower()) | hmac.compare_digest(as_base64, given)
