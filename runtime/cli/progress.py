"""Shows how a run is doing while it runs: a line renewed in place, a line per second, or JSON.

"records" is how far the sources are read: the sum of the next offsets of all partitions, the highest seen of each.
So it goes on over restarts, and does not fall back while a recovery reads some records again. "lag" is unknown while
any partition that has been read is with no worker: nobody looks at what waits there.

Source: API.md, `holdfast run`.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import IO, Any, Literal

from holdfast.runtime.cli import text

Style = Literal["auto", "plain", "json", "none"]
STYLES: tuple[Style, ...] = ("auto", "plain", "json", "none")
SHOW_EVERY_S = 0.9
"""Statuses come about twice a second; every other one is shown."""
RATE_WINDOW_S = 5.0
_OVER = frozenset({"stopped", "finished", "failed"})


class Tally:
    """Turns the statuses of one run into lines of progress.

    Args:
        start: Next offset by (source, partition) where the run begins, as far as known.
    """

    def __init__(self, start: Mapping[tuple[str, int], int]) -> None:
        self._offsets = dict(start)
        self._seen: set[tuple[str, int]] = set()
        """Partitions that a worker of this run has told of."""
        self._began_at = sum(start.values())
        self._samples: deque[tuple[float, int]] = deque()

    @property
    def records(self) -> int:
        """How many records further than at the start of the run the sources are read."""
        return sum(self._offsets.values()) - self._began_at

    def take(self, status: Mapping[str, Any], now_s: float) -> dict[str, Any]:
        """Return what is shown of a status.

        Args:
            now_s: The monotonic clock, for rates.
        """
        partitions = len(self._offsets)
        for row in status["sources"]:
            if row["offset"] is not None and row["offset"] >= 0:
                at = (row["name"], row["partition"])
                self._offsets[at] = max(row["offset"], self._offsets.get(at, 0))
        checkpoint = status["checkpoint"]
        return {
            "state": status["state"],
            "reason": status["reason"],
            "records_in": sum(self._offsets.values()) if self._offsets else None,
            "records_per_s": self._rate(now_s, grown=len(self._offsets) != partitions, known=bool(status["sources"])),
            "epoch": None if checkpoint is None else checkpoint["epoch"],
            "lag": self._lag(status["sources"]),
            "generation": status["generation"],
            "workers": [
                {"id": w["id"], "pid": w["pid"], "subtasks": w["subtasks"], "how": w["how"]} for w in status["workers"]
            ],
            "restarts": [
                {"at": r["at"], "cause": r["cause"], "recovery_ms": r["recovery_ms"], "rewind": r.get("rewind", False)}
                for r in status["restarts"]
            ],
        }

    def _lag(self, rows: Sequence[Mapping[str, Any]]) -> int | None:
        """Return how many records wait in all partitions; None unless every one of them is told of."""
        lags = {(row["name"], row["partition"]): row["lag"] for row in rows}
        self._seen |= lags.keys()
        # A checkpoint also knows partitions of sources that the job has no more: nobody will tell of these.
        known = self._seen | {at for at in self._offsets if at[0] in {name for name, _ in lags}}
        return sum(lags.values()) if lags and known <= lags.keys() and None not in lags.values() else None

    def _rate(self, now_s: float, *, grown: bool, known: bool) -> int | None:
        """Records per second over the last seconds; a partition seen for the first time begins them anew."""
        if grown:
            self._samples.clear()
        if known:
            self._samples.append((now_s, sum(self._offsets.values())))
        while len(self._samples) > 2 and self._samples[1][0] <= now_s - RATE_WINDOW_S:
            self._samples.popleft()
        if len(self._samples) < 2 or self._samples[-1][0] <= self._samples[0][0]:
            return None
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        return round((last - first) / (last_s - first_s))


def line(shown: Mapping[str, Any]) -> str:
    """Return progress as one line of text."""
    workers = sum(bool(worker["subtasks"]) for worker in shown["workers"])
    parts = [
        f"epoch {shown['epoch'] if shown['epoch'] is not None else text.UNKNOWN}",
        f"{text.count(shown['records_in'])} records",
        f"{text.count(shown['records_per_s'])}/s",
        f"lag {text.count(shown['lag'])}",
        text.plural(workers, "worker"),
        f"generation {text.count(shown['generation'])}",
    ]
    if shown["state"] != "running":
        state = f"{shown['state']}: {shown['reason']}" if shown["reason"] else shown["state"]
        parts = [state, *parts] if shown["records_in"] is not None else [state]
    return " | ".join(parts)


class Progress:
    """Writes the progress of one run in the style asked for.

    JSON goes to stdout, because programs read it; everything else goes to stderr.
    """

    def __init__(self, style: Style, tally: Tally) -> None:
        self._tally, self._style = tally, style
        self._in_place = style == "auto" and sys.stderr.isatty()
        self._out: IO[str] = sys.stdout if style == "json" else sys.stderr
        self._shown_at = float("-inf")
        self._state: str | None = None
        self._recoveries = 0
        self._open = False

    def note(self, words: str) -> None:
        """Show a line for people; programs get none."""
        if self._style != "none":
            self._clear()
            print(words, file=sys.stderr, flush=True)

    def update(self, status: Mapping[str, Any]) -> None:
        """Take the newest status; show it if it is time to, or if the state is another."""
        now_s = time.monotonic()
        shown = self._tally.take(status, now_s)
        if self._style != "json":
            self._note_recoveries(shown)
        due = now_s - self._shown_at >= SHOW_EVERY_S or shown["state"] != self._state
        if due and shown["state"] not in _OVER:
            self._shown_at, self._state = now_s, shown["state"]
            self._show(shown)

    def end(self, status: Mapping[str, Any], state: str) -> None:
        """Show the last status of the run, once."""
        shown = self._tally.take(status, time.monotonic()) | {"state": state}
        if self._style == "json":
            self._show(shown)
        self._clear()

    def _note_recoveries(self, shown: Mapping[str, Any]) -> None:
        recovered = [restart for restart in shown["restarts"] if restart["recovery_ms"] is not None]
        for restart in recovered[self._recoveries :]:
            did = "went back" if restart["rewind"] else "recovered"
            self.note(f"{did} in {text.span(restart['recovery_ms'])}: {restart['cause']}")
        self._recoveries = len(recovered)

    def _show(self, shown: Mapping[str, Any]) -> None:
        if self._style == "json":
            print(json.dumps(shown), file=self._out, flush=True)
        elif self._in_place:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{line(shown)[:width]}", end="", file=self._out, flush=True)
            self._open = True
        elif self._style != "none":
            print(line(shown), file=self._out, flush=True)

    def _clear(self) -> None:
        """Leave the line that is renewed in place as it stands, and begin a new one."""
        if self._open:
            print(file=self._out, flush=True)
            self._open = False
