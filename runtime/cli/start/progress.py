"""Shows the progress of a run: a line updated in place, a line per second, or JSON.

"records" is how far the sources are read: the sum over all partitions of the highest next offset seen. So it continues
across restarts, and does not fall while a recovery rereads records. "lag" is unknown while a partition that has been
read is assigned to no worker, because then nothing measures its unread records.

Source: API.md, `holdfast run`.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import IO, Any, Literal

from holdfast.model import EPOCHS_GIVEN_UP_MAX
from holdfast.runtime.cli import text
from holdfast.runtime.cli.start.share import Share, bar
from holdfast.runtime.cli.start.starting import IN_PLACE_S, REPEAT_S, Starting
from holdfast.runtime.config.settings import MICROBATCH
from holdfast.runtime.execution.signals import NEXT_RUN
from holdfast.runtime.job.live import SourceRow, Status
from holdfast.runtime.job.stopping import is_stopping, stop_waits
from holdfast.runtime.job.waiting import SLOW_FUNCTION, SLOW_SOURCE

Style = Literal["auto", "plain", "json", "none"]
STYLES: tuple[Style, ...] = ("auto", "plain", "json", "none")
SHOW_EVERY_S = 0.9
"""Statuses come about twice a second; every other one is shown."""
RATE_WINDOW_S = 5.0
STOP_SLOW_S = 5.0
"""A stop that takes longer is explained; one that waits for a sink which refuses its output, with the next status."""
_OVER = frozenset({"stopped", "finished", "failed"})


class Tally:
    """Turns the statuses of one run into lines of progress.

    Args:
        start: Next offset by (source, partition) where the run begins, as far as known.
        in_bytes: The sources whose offsets count bytes, not records.
        until: The end of each partition of each source, if the run reads no further.
    """

    def __init__(
        self,
        start: Mapping[tuple[str, int], int],
        in_bytes: Collection[str] = (),
        until: Mapping[str, Mapping[int, int]] | None = None,
    ) -> None:
        self._offsets, self._in_bytes = dict(start), frozenset(in_bytes)
        ends = {(name, number): end for name, each in (until or {}).items() for number, end in each.items()}
        self._share = Share(ends, start, in_bytes)
        self._seen: set[tuple[str, int]] = set()
        """Partitions that a worker of this run has reported."""
        self._began_at = self._totals()
        self._samples: deque[tuple[float, tuple[int, int]]] = deque()

    @property
    def records(self) -> int:
        """Return how far the sources that count records were read since the start of the run."""
        return self._totals()[0] - self._began_at[0]

    @property
    def bytes(self) -> int | None:
        """Return how far the sources that count bytes were read since the start of the run; None: there are none."""
        return self._totals()[1] - self._began_at[1] if self._in_bytes else None

    def _totals(self) -> tuple[int, int]:
        """Return the sum of all offsets that count records, and of those that count bytes."""
        of_bytes = sum(at for (name, _), at in self._offsets.items() if name in self._in_bytes)
        return sum(self._offsets.values()) - of_bytes, of_bytes

    def take(self, status: Status, now_s: float) -> dict[str, Any]:
        """Return the part of a status that is shown.

        Args:
            now_s: The monotonic clock, for rates.
        """
        partitions = len(self._offsets)
        for row in status.sources:
            if row.offset is not None and row.offset >= 0:
                self._offsets[row.place] = max(row.offset, self._offsets.get(row.place, 0))
        self._share.seen(self._offsets)
        records_in, bytes_in = self._totals()
        has_records = any(name not in self._in_bytes for name, _ in self._offsets)
        has_bytes = any(name in self._in_bytes for name, _ in self._offsets)
        rates = self._rates(now_s, grown=len(self._offsets) != partitions, known=bool(status.sources))
        lags = self._lags(status.sources)
        left_s = self._share.left_s(self._offsets, rates)
        return {
            "state": status.state,
            "reason": status.reason,
            "stopping": is_stopping(status),
            "records_in": records_in if has_records else None,
            "records_per_s": rates[0] if has_records else None,
            "epoch": None if status.checkpoint is None else status.checkpoint.epoch,
            "lag": lags[0] if has_records else None,
            "bytes_in": bytes_in if has_bytes else None,
            "bytes_per_s": rates[1] if has_bytes else None,
            "lag_bytes": lags[1] if has_bytes else None,
            "done": self._share.done(self._offsets),
            "left_ms": None if left_s is None else round(left_s * 1000),
            "late": _sum(row.late for row in status.operators),
            "dlq": _sum(row.dlq for row in status.operators),
            "generation": status.generation,
            "workers": [{"id": w.id, "pid": w.pid, "subtasks": list(w.subtasks), "how": w.how} for w in status.workers],
            "restarts": [
                {"at": r.at, "cause": r.cause, "recovery_ms": r.recovery_ms, "rewind": r.rewind}
                for r in status.restarts
            ],
            "problems": [{"code": p.code, "what": p.what, "next": p.next} for p in status.problems],
        }

    def _lags(self, rows: Sequence[SourceRow]) -> tuple[int | None, int | None]:
        """Return how many records and bytes wait in all partitions; None unless every partition is reported."""
        lags = {row.place: row.lag for row in rows}
        self._seen |= lags.keys()
        # A checkpoint also knows partitions of sources that the job no longer has; no worker reports these.
        names = {name for name, _ in lags}
        known = self._seen | {at for at in self._offsets if at[0] in names}
        measured_lags = {place: lag for place, lag in lags.items() if lag is not None}
        if not lags or not known <= lags.keys() or len(measured_lags) != len(lags):
            return None, None
        of_bytes = sum(lag for (name, _), lag in measured_lags.items() if name in self._in_bytes)
        return sum(measured_lags.values()) - of_bytes, of_bytes

    def _rates(self, now_s: float, *, grown: bool, known: bool) -> tuple[int | None, int | None]:
        """Return records and bytes per second over the last seconds; a new partition restarts the count."""
        if grown:
            self._samples.clear()
        if known:
            self._samples.append((now_s, self._totals()))
        while len(self._samples) > 2 and self._samples[1][0] <= now_s - RATE_WINDOW_S:
            self._samples.popleft()
        if len(self._samples) < 2 or self._samples[-1][0] <= self._samples[0][0]:
            return None, None
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        return round((last[0] - first[0]) / (last_s - first_s)), round((last[1] - first[1]) / (last_s - first_s))


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _amounts(shown: Mapping[str, Any]) -> list[str]:
    """Return how much was read, in the units that the sources count in."""
    parts = []
    if shown["records_in"] is not None or shown["bytes_in"] is None:
        parts += [text.plural(shown["records_in"], "record"), f"{text.count(shown['records_per_s'])}/s"]
        parts.append(f"lag {text.count(shown['lag'])}")
    if shown["bytes_in"] is not None:
        parts += [f"{text.size(shown['bytes_in'])} of text", f"{text.size(shown['bytes_per_s'])}/s"]
        parts.append(f"lag {text.size(shown['lag_bytes'])}")
    parts += [f"{text.count(shown['late'])} late"] if shown["late"] else []
    parts += [text.plural(shown["dlq"], "dead letter")] if shown["dlq"] else []
    return parts


def _share(shown: Mapping[str, Any]) -> list[str]:
    """Return how much of a run with an end is done, and how long the rest takes."""
    if shown["done"] is None:
        return []
    left_ms = shown["left_ms"]
    return [bar(shown["done"]), *([] if left_ms is None or shown["done"] >= 1 else [f"{text.span(left_ms)} left"])]


def line(shown: Mapping[str, Any]) -> str:
    """Return progress as one line of text."""
    workers = sum(bool(worker["subtasks"]) for worker in shown["workers"])
    parts = [
        *_share(shown),
        f"epoch {shown['epoch'] if shown['epoch'] is not None else text.UNKNOWN}",
        *_amounts(shown),
        text.plural(workers, "worker"),
        f"generation {text.count(shown['generation'])}",
    ]
    if shown["stopping"]:
        parts = ["stopping", *parts]
    if shown["state"] != "running":
        state = f"{shown['state']}: {shown['reason']}" if shown["reason"] else shown["state"]
        is_known = shown["records_in"] is not None or shown["bytes_in"] is not None
        parts = [state, *parts] if is_known else [state]
    return " | ".join(parts)


class ProgressWriter:
    """Writes the progress of one run in the requested style.

    JSON goes to stdout, because programs read it; everything else goes to stderr.
    """

    def __init__(self, style: Style, tally: Tally) -> None:
        self._tally, self._style = tally, style
        self._in_place = style == "auto" and sys.stderr.isatty()
        self._out: IO[str] = sys.stdout if style == "json" else sys.stderr
        self._shown_at = float("-inf")
        self._state: str | None = None
        self._recoveries = 0
        self._starting = Starting(self._during_start, IN_PLACE_S if self._in_place else REPEAT_S)
        self._epoch: int | None = None
        """Epoch of the last status."""
        self._explained: set[str] = set()
        """Numbers that were explained in this run."""
        self._problems: dict[str, str] = {}
        """Reported problems that last, by code."""
        self._stopping_since: float | None = None
        self._stop_waits_on: frozenset[str] | None = None
        self._open = False
        self._last_line: str | None = None

    def note(self, words: str) -> None:
        """Print a line for the user on stderr, unless the style is none."""
        if not self._starting.is_over:
            self._starting.step(words)
            return
        self._say(words)

    def close(self) -> None:
        """Show nothing more: the run has ended, or could not begin."""
        self._starting.end()
        self._clear()

    def _during_start(self, words: str, begins: bool) -> None:
        """Show a step of the start; on a terminal its line stays open for the elapsed time."""
        if not self._in_place:
            self._say(words)
            return
        if begins:
            self._clear()
        self._put(words)

    def _say(self, words: str) -> None:
        if self._style != "none":
            self._clear()
            print(words, file=sys.stderr, flush=True)

    def update(self, status: Status) -> None:
        """Take the newest status; show it if one is due or the state has changed."""
        self._starting.end()
        now_s = time.monotonic()
        report = self._tally.take(status, now_s)
        if self._style != "json":
            self._note_counts(status, report)
            self._note_recoveries(report)
            self._note_problems(report)
        self._note_stop(status, now_s)
        due = now_s - self._shown_at >= SHOW_EVERY_S or report["state"] != self._state
        if due and report["state"] not in _OVER:
            self._shown_at, self._state = now_s, report["state"]
            self._show(report)

    def end(self, status: Status, state: str) -> None:
        """Show the last status of the run, once."""
        shown = self._tally.take(status, time.monotonic()) | {"state": state}
        if self._style == "json":
            self._show(shown)
        self.close()

    def _note_recoveries(self, shown: Mapping[str, Any]) -> None:
        recoveries = [restart for restart in shown["restarts"] if restart["recovery_ms"] is not None]
        for restart in recoveries[self._recoveries :]:
            did = "went back" if restart["rewind"] else "recovered"
            self.note(f"{did} in {text.span(restart['recovery_ms'])}: {restart['cause']}")
        self._recoveries = len(recoveries)

    def _note_counts(self, status: Status, shown: Mapping[str, Any]) -> None:
        """Explain numbers that look like faults: epochs that jump, and records that stay 0 while the first job runs."""
        before, self._epoch = self._epoch, shown["epoch"]
        now = self._epoch
        if before is not None and now is not None and now > before + EPOCHS_GIVEN_UP_MAX:
            self._explain(
                "epoch",
                f"epoch {now} follows epoch {before}: each restart leaves out {EPOCHS_GIVEN_UP_MAX} numbers, "
                "which the processes before it may have used. Nothing is lost",
            )
        if status.mode == MICROBATCH and shown["state"] == "running" and now is None:
            words = "the first epoch is being read; in microbatch mode records count when their epoch is complete"
            self._explain("records", words)

    def _explain(self, number: str, words: str) -> None:
        if number not in self._explained:
            self._explained.add(number)
            self.note(words)

    def _note_problems(self, shown: Mapping[str, Any]) -> None:
        """Report each problem when it begins and when it is over, not each attempt in between.

        A slow function would come and go with every batch; `status` and `explain` name it.
        """
        if shown["state"] in _OVER:
            return  # the end of the run reports its error
        present = {each["code"]: each for each in shown["problems"] if each["code"] not in (SLOW_FUNCTION, SLOW_SOURCE)}
        for code in [code for code in self._problems if code not in present]:
            self.note(f"resolved: {self._problems.pop(code)}")
        for code in [code for code in present if code not in self._problems]:
            self._problems[code] = present[code]["what"]
            self.note(f"problem: {present[code]['what']}. Next: {present[code]['next'] or 'nothing, Holdfast retries'}")

    def _note_stop(self, status: Status, now_s: float) -> None:
        """Report the reason of a waiting stop when it begins to wait: the wait may be endless."""
        if not is_stopping(status):
            return
        since = self._stopping_since = now_s if self._stopping_since is None else self._stopping_since
        waits = stop_waits(status)
        if waits is None or waits.on == self._stop_waits_on or not (waits.refused or now_s - since >= STOP_SLOW_S):
            return
        self._stop_waits_on = waits.on
        self.note(
            f"the stop waits: {waits.what}. Next: {waits.next or 'wait'}. To end the run without waiting: a second "
            f"Ctrl-C, or holdfast stop {status.job} --now. Nothing is lost: {NEXT_RUN}"
        )

    def _show(self, shown: Mapping[str, Any]) -> None:
        if self._style == "json":
            print(json.dumps(shown), file=self._out, flush=True)
        elif self._in_place:
            self._put(self._timed(shown))
        elif self._style != "none" and (shown["state"] == "running" or line(shown) != self._last_line):
            self._last_line = line(shown)
            print(self._timed(shown), file=self._out, flush=True)

    def _timed(self, shown: Mapping[str, Any]) -> str:
        """Return the line of progress, with the time since the start while the run has not begun to read."""
        return self._starting.line(line(shown)) if shown["state"] == "starting" else line(shown)

    def _put(self, words: str) -> None:
        """Show a line that the next one replaces."""
        width = shutil.get_terminal_size().columns - 1
        print(f"\r\x1b[K{words[:width]}", end="", file=self._out, flush=True)
        self._open = True

    def _clear(self) -> None:
        """End the line that is updated in place, and begin a new one."""
        if self._open:
            print(file=self._out, flush=True)
            self._open = False
