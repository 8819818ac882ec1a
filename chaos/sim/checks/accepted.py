"""Every request that a driver accepted must be in the job log when its run ends normally.

A driver that dies or is fenced owes nothing: its user sees that in the log and asks the next driver.

Invariants
    - When a run finishes or stops, every savepoint that it accepted is the name of a checkpoint.
    - Every rewind that it accepted has a record.
    - A run that accepted a stop closes only the last epoch, unless a savepoint or a rewind comes before it.
    - A run that accepted to finish does not stop instead, and a run that accepted to end now does so.

Source: PROTOCOL P6, P13; DESIGN section 13 (requests).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.chaos.sim.checks.history import History


class AcceptedRequests:
    """The accepted requests, by the driver's owner token."""

    def __init__(self, history: History, fail: Callable[[str, str], None]) -> None:
        self._history, self._fail = history, fail
        self._savepoints: defaultdict[str, list[str]] = defaultdict(list)
        self._rewinds: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        """Epoch to go back to, and the timeline to leave."""
        self._ends: defaultdict[str, list[str | None]] = defaultdict(list)
        """The requested ending of each run: None, finish or now."""

    def answered(self, owner: str, kind: str, args: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """A driver answered a request."""
        if not answer["accepted"]:
            return
        if kind == "savepoint":
            self._savepoints[owner].append(args["name"])
        elif kind == "rewind":
            self._rewinds[owner].append((args["epoch"], args["timeline"]))
        elif kind == "stop":
            self._ends[owner].append(args.get("how"))

    def triggered(self, owner: str, epoch: int, last: bool) -> None:
        """A driver closes an epoch."""
        ends = self._ends[owner]
        if ends and "finish" not in ends and not (last or self._savepoints[owner] or self._rewinds[owner]):
            self._fail("P13 stop", f"epoch {epoch} is not marked as the last, but its driver had accepted to stop")

    def over(self, owner: str, name: str, outcome: str) -> None:
        """A run ended."""
        if "now" in self._ends[owner] and outcome in ("finished", "stopped"):
            self._fail("P13 stop", f"{name} accepted to end now, and {outcome}")
        if outcome not in ("finished", "stopped"):
            return
        if "finish" in self._ends[owner] and outcome == "stopped":
            self._fail("P13 finish", f"{name} accepted to finish, and stopped")
        for savepoint in self._savepoints[owner]:
            if savepoint not in self._history.savepoints:
                self._fail("P13 savepoint", f"{name} accepted savepoint {savepoint}, then {outcome} without taking it")
        for epoch, timeline in self._rewinds[owner]:
            if self._history.bases.get(timeline + 1) != epoch:
                self._fail("P6 rewind", f"{name} accepted a rewind to epoch {epoch}, then {outcome} without it")
