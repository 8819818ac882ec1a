"""What the master does when a worker is lost: let it go, count the failure, start another.

A loss while subtasks run makes a recovery due: a new generation, in which survivors roll back in
place. Too many failures inside the window end the run with the first cause, not the last symptom.

Pure: no clock, thread or I/O. Part of runtime/master.py.
Source: DESIGN section 3 (restart policy); PROTOCOL P2, P4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from holdfast.model import WorkerId
from holdfast.runtime import messages as m
from holdfast.runtime.deployment import launch_allowed_at
from holdfast.runtime.master_state import Dismiss, Effect, End, Launch, Master, Over, Running, Send, Step


def lost(state: Master, worker: WorkerId, cause: str, now: float) -> Step:
    """The worker's stream closed, its Spark job ended, or it was silent for too long."""
    if worker not in state.workers or isinstance(state.phase, Over):
        return state, []
    return lose(state, worker, cause, None, now)


def launch_ended(state: Master, number: int, error: str | None, now: float) -> Step:
    """The Spark job that hosts a worker ended, for whatever reason."""
    if isinstance(state.phase, Over):
        return state, []
    for worker, hosted in state.workers.items():
        if hosted.launch == number:
            return lost(state, worker, f"worker process ended ({error or 'no error'})", now)
    if number not in state.launching:
        return state, []
    launching = {n: at for n, at in state.launching.items() if n != number}
    cause = {"kind": "unavailable", "what": f"a worker could not be started: {error}"}
    return count_failure(replace(state, launching=launching), now, cause)


def lose(state: Master, worker: WorkerId, cause: str, error: Mapping[str, Any] | None, now: float) -> Step:
    hosted = state.workers[worker]
    workers = {w: h for w, h in state.workers.items() if w != worker}
    state = replace(state, workers=workers)
    effects: list[Effect] = [Dismiss(worker, hosted.launch)]
    if isinstance(state.phase, Running):
        since = state.recovering_since if state.recovering_since is not None else now
        state = replace(state, recover=cause, recovering_since=since)
    state, more = count_failure(state, now, error or {"kind": "failed", "what": cause})
    return state, effects + more


def count_failure(state: Master, now: float, error: Mapping[str, Any]) -> Step:
    window = state.rules.failures_window
    recent = (*(at for at in state.failures if now - at < window), now)
    first = state.first_failure if len(recent) > 1 and state.first_failure is not None else error
    state = replace(state, failures=recent, first_failure=first, failures_in_a_row=state.failures_in_a_row + 1)
    if len(recent) > state.rules.failures_max:
        return end(state, "failed", first)
    return state, []


def launch_missing(state: Master, now: float) -> Step:
    missing = state.rules.parallelism - len(state.workers) - len(state.launching)
    if missing > 0 and now < launch_allowed_at(state):
        return state, []
    effects: list[Effect] = []
    for _ in range(max(missing, 0)):
        number = state.launches + 1
        state = replace(state, launches=number, launching={**state.launching, number: now})
        effects.append(Launch(number))
    return state, effects


def end(state: Master, outcome: str, error: Mapping[str, Any] | None) -> Step:
    """End the run with this outcome: finished, stopped, fenced or failed."""
    leaving: list[Effect] = [Send(w, m.Exit(outcome)) for w in state.workers]
    return replace(state, phase=Over(outcome, error)), [*leaving, End(outcome, error)]
