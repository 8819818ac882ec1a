"""When aggregates of windows are emitted: triggers of windows that never end, and intervals of early results.

Pure.
Source: API.md (windows); docs/decisions/0073-count-windows.md, 0082-early-results.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.arguments import checked, position
from holdfast.errors import ConfigError
from holdfast.runtime.config.durations import Duration, duration_ms
from holdfast.runtime.time.windows import LENGTH_MAX_US, span

RECORDS_MAX = 1_000_000_000
"""Limit on the records of a count window."""


@dataclass(frozen=True)
class CountOf:
    """Fires with every n-th record of a key, and clears its aggregates."""

    records: int


@dataclass(frozen=True)
class AllTime:
    """All records of a key, whatever their event time."""

    trigger: CountOf

    def shown(self) -> str:
        """Return the windows as text for messages."""
        return f"all_time(count_of({self.trigger.records}))"


@checked("hf.count_of", "(100)")
def count_of(records: int) -> CountOf:
    """Fire with every n-th record of a key, and begin again: for `hf.all_time(hf.count_of(100))`.

    Raises:
        ConfigError: the number is not an int from 1 to 1,000,000,000.
    """
    if isinstance(records, bool) or not isinstance(records, int) or not 1 <= records <= RECORDS_MAX:
        raise ConfigError(
            f"count_of({records!r}) at {position()}: give an int from 1 to {RECORDS_MAX:,}",
            not_done="the job was not planned",
            next_step="use, for example, hf.count_of(100)",
        )
    return CountOf(records)


@checked("hf.all_time", "(hf.count_of(100))")
def all_time(trigger: CountOf) -> AllTime:
    """One window per key that never ends; the trigger decides when its aggregates are emitted and begin again.

    `all_time(hf.count_of(100))` emits the aggregates of every 100 records of a key, in the order of arrival. The result
    has the keys, the event time column if the stream has one, and the aggregates. Its event time is that of the record
    that completed the window.

    Raises:
        ConfigError: the trigger is none.
    """
    if not isinstance(trigger, CountOf):
        raise ConfigError(
            f"all_time({trigger!r}) at {position()}: that is not a trigger",
            not_done="the job was not planned",
            next_step="count records, hf.all_time(hf.count_of(100)); to emit by time, use hf.tumbling, or aggregate "
            "without a window: .key_by(...).agg(...)",
        )
    return AllTime(trigger)


@dataclass(frozen=True)
class Every:
    """Emits open windows that have changed, each at most once in this time by the clock of the worker."""

    us: int

    def __str__(self) -> str:
        return f"every({span(self.us)})"


@checked("hf.every", '("10s")')
def every(interval: Duration) -> Every:
    """Emit windows early: `.agg("minutes", emit=hf.every("10s"), sales=hf.count())`.

    Every 10 seconds of processing time, windows that are open and have changed are emitted; a window is emitted again
    when it ends. The results are an upsert stream.

    Raises:
        ConfigError: the interval is not a duration above 0, up to 1,000 years.
    """
    where = f"every({interval!r}) at {position()}"
    try:
        us = 1_000 * duration_ms(interval, f"interval of hf.every at {position()}", "the job was not planned")
    except ConfigError as error:
        if not isinstance(interval, str):
            error.next_step += "; for a result per 100 records, use hf.all_time(hf.count_of(100))"
        raise
    if not 0 < us <= LENGTH_MAX_US:
        raise ConfigError(
            f"{where}: the interval must be above 0 and at most 1,000 years",
            not_done="the job was not planned",
            next_step='use, for example, hf.every("10s")',
        )
    return Every(us)
