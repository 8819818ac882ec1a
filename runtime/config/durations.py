"""Durations that users give: text such as "10s", or `datetime.timedelta`. A number alone has no unit and is refused.

Pure.
"""

from __future__ import annotations

import re
from datetime import timedelta

from holdfast.errors import ConfigError

Duration = str | timedelta
SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000
UNITS_MS = {"ms": 1, "s": SECOND_MS, "m": MINUTE_MS, "h": HOUR_MS, "d": DAY_MS}
NOT_STARTED = "the job was not started"
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_BARE = re.compile(r"-?\d+(?:\.\d+)?")
_MILLISECOND = timedelta(milliseconds=1)
_WANTED = 'a duration such as "250ms", "1s", "5m" or "1h", in whole milliseconds'


def duration_ms(given: object, called: str, not_done: str = NOT_STARTED) -> int:
    """Return the milliseconds of "250ms", "1s", "5m", "1.5h", "2d" or of a timedelta that is not negative.

    Args:
        called: The name of the setting, argument or flag in messages.
        not_done: The part of an error that states what was not done, for commands that start no job.

    Raises:
        ConfigError: it has another form, no unit, or is not a whole number of milliseconds.
    """
    if isinstance(given, timedelta):
        milliseconds, rest = divmod(given, _MILLISECOND)
        if rest or milliseconds < 0:
            raise malformed(called, str(given), f"{_WANTED}, or a timedelta that is not negative", not_done)
        return milliseconds
    text = str(given).strip()
    match = _DURATION.fullmatch(text) if isinstance(given, str) else None
    if match is None and not isinstance(given, bool) and _BARE.fullmatch(text):
        raise _without_unit(called, given, text.removeprefix("-"), not_done)
    exact = float(match[1]) * UNITS_MS[match[2]] if match else 0.5
    if not exact.is_integer():
        raise malformed(called, given, _WANTED, not_done)
    return int(exact)


def malformed(called: str, given: object, wanted: str, not_done: str = NOT_STARTED) -> ConfigError:
    """Return the refusal of a value that has another form."""
    return ConfigError(
        f"{called} is {given!r}, which is not {wanted}",
        not_done=not_done,
        next_step=f"give {wanted}",
    )


def _without_unit(called: str, given: object, number: str, not_done: str) -> ConfigError:
    spellings = f'"{number}s" for seconds or "{number}ms" for milliseconds'
    if not called.startswith(("--", "HOLDFAST_", "spark.")):  # code may also give an object
        spellings = f'"{number}s" or timedelta(seconds={number}) for seconds, "{number}ms" for milliseconds'
    return ConfigError(
        f"{called} is {given!r}, a number without a unit",
        not_done=not_done,
        next_step=f"write {spellings}",
    )
