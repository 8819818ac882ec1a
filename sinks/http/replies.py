"""The meaning of a reply: delivered, try again, or never.

| status | meaning |
|---|---|
| 2xx | delivered |
| 401, 403 | the receiver does not let the job in: delivery waits |
| 408, 409, 425, 429, 5xx | try again; 409 means that a request with this key is still being processed |
| 3xx | refused: a redirected POST often becomes a GET, and loses the rows |
| 422 | the receiver knows the key with another body, or does not take the rows |
| other 4xx | the receiver does not take the rows |

Pure: no clock or I/O.
Source: RFC 9110 sections 10.2.3 and 15; draft-ietf-httpapi-idempotency-key-header section 2.7; RFC 6585, RFC 8470.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from holdfast.errors import ConfigError, HoldfastError, NotAdmitted, Unavailable
from holdfast.quantities import plural
from holdfast.sinks.contract.phrases import RETRIES

RETRY_AFTER_MAX_S = 60.0
"""How long a receiver can make a delivery wait."""
REPLY_SHOWN_MAX = 300
_AGAIN = frozenset({408, 409, 425, 429})
_SECONDS = re.compile(r"[0-9]{1,9}")
_NOT_DONE = "the epoch of these rows is not delivered; requests before this one may have been"


@dataclass(frozen=True)
class Reply:
    """A receiver's answer to a request.

    Args:
        status: The status.
        body: The beginning of the body, without secrets.
        location: Where a redirection leads, without secrets and without a query.
    """

    status: int
    body: str = ""
    location: str = ""


def problem_of(where: str, reply: Reply, rows: int, size: int) -> HoldfastError | None:
    """Return the meaning of a reply for a delivery; None if the rows are delivered.

    Args:
        rows: How many rows the request has.
        size: How many bytes its body has.
    """
    status = reply.status
    if 200 <= status < 300:
        return None
    answer = f"HTTP {status}" + (f" to {location}" if (location := _line(reply.location)) else "")
    answer += f": {shown}" if (shown := _line(reply.body)) else ""
    if status in (401, 403):
        return NotAdmitted(
            f"{where} refuses the login, or has no right for it ({answer})",
            not_done=_NOT_DONE,
            next_step="correct headers= or the secrets that it names, or let the receiver take the requests",
        )
    if status in _AGAIN or not 300 <= status < 500:
        return Unavailable(f"{where} cannot take rows now ({answer})", not_done=_NOT_DONE, next_step=RETRIES)
    what = f"a request of {plural(rows, 'row')} in {plural(size, 'byte')}"
    return ConfigError(f"{where} refuses {what} ({answer})", not_done=_NOT_DONE, next_step=_advice(status, rows))


def wait_of(retry_after: str | None, now_s: float) -> float:
    """Return for how many seconds a receiver asks not to be sent anything, within a bound.

    Args:
        retry_after: The value of the header Retry-After, seconds or a date.
        now_s: Seconds since 1970.
    """
    text = (retry_after or "").strip()
    if _SECONDS.fullmatch(text):
        return min(float(text), RETRY_AFTER_MAX_S)
    try:
        at = parsedate_to_datetime(text)
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        left_s = (at - datetime.fromtimestamp(now_s, UTC)).total_seconds()
    except (ValueError, OverflowError):
        return 0.0
    return min(max(0.0, left_s), RETRY_AFTER_MAX_S)


def _advice(status: int, rows: int) -> str:
    if status < 400:
        return "give the URL to which the receiver redirects, and start the job again; a POST does not follow"
    if status == 413 and rows > 1:
        return "let the receiver take larger requests, or lower batch_rows, and start the job again"
    if status == 413:
        return (
            "let the receiver take larger requests, and start the job again; or rewind to before this row, and "
            "leave it out or make it smaller"
        )
    if status == 422:
        return (
            "look at the receiver: it does not take the rows, or it knows the key with another body, so an earlier "
            "request was damaged on its way. Correct it, and start the job again"
        )
    return "correct the URL, headers= or the receiver, and start the job again; or rewind to before these rows"


def _line(reply: str) -> str:
    return "".join(each if each.isprintable() else " " for each in reply).strip()[:REPLY_SHOWN_MAX]
