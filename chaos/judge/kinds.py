"""The faults of real runs: the target of each, the means, and the platform.

A fault is named for its victim and its effect: `worker-kill`, `data-blackhole`. Its duration follows from the
timeouts of the job: a *stop* outlasts every one of them, a *pause* none. Spark's own timeouts are longer still.

Pure: a table and the rules that read it.
Source: research of fault matrices (F1 to F24); DESIGN section 10.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Victim = Literal["worker", "daemon", "executor", "host", "driver", "control", "data", "checkpoint"]
Lasting = Literal["instant", "pause", "stop", "cut"]
PLANES = ("control", "data")
_TRICKLE: tuple[str, dict[str, tuple[int, int]]] = ("slicer", {"bytes_per_second": (16, 128)})
"""Toxiproxy's bandwidth unit is KB/s, and a control stream carries less than 1 KB in a second."""
_FLOWS = {"control": ("upstream", "downstream"), "data": ("upstream",)}
"""Directions in which a plane's connections carry data after the handshake; upstream is towards the listener."""


@dataclass(frozen=True)
class FaultKind:
    """One kind of fault."""

    victim: Victim
    does: str
    """kill, signal-stop, a Toxiproxy toxic or `down`, full, corrupt."""
    lasting: Lasting
    about: str
    needs_cluster: bool = False
    """Whether it needs a platform with processes outside the driver's."""
    attributes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """For a toxic: the range of each attribute."""

    directions: tuple[str, ...] = ()
    """For a toxic: the directions to which it can be applied."""

    @property
    def plane(self) -> str | None:
        """Return the plane whose connections it strikes, None if none."""
        return self.victim if self.victim in PLANES else None


_KILLS: tuple[tuple[Victim, str, bool], ...] = (
    ("worker", "the Python process of a subtask", False),
    (
        "daemon",
        "the process that forks workers: the daemon of Spark or the zygote of local runs",
        False,
    ),
    ("executor", "the JVM of an executor", True),
    ("host", "a standalone cluster's worker daemon", True),
    ("driver", "the driver; it is started again, as a supervised one is", False),
)
_TOXICS: tuple[tuple[str, str, str, dict[str, tuple[int, int]]], ...] = (
    ("latency", "latency", "every chunk comes late", {"latency": (20, 400), "jitter": (0, 100)}),
    ("bandwidth", "bandwidth", "few KB/s pass, of the control plane few bytes/s", {"rate": (16, 256)}),
    ("slow-close", "slow_close", "the end of a connection is passed on late", {"delay": (200, 3_000)}),
    ("blackhole", "timeout", "nothing passes, nothing is closed", {"timeout": (0, 0)}),
    ("cut", "timeout", "nothing passes, then it is closed", {"timeout": (50, 400)}),
    ("reset", "reset_peer", "connections are reset", {"timeout": (0, 200)}),
    ("limit", "limit_data", "closed after a number of bytes, in the middle of a frame", {"bytes": (1, 600)}),
)


def _kinds() -> dict[str, FaultKind]:
    kinds = {}
    for victim, whom, cluster in _KILLS:
        kinds[f"{victim}-kill"] = FaultKind(victim, "kill", "instant", f"SIGKILL of {whom}", cluster)
        kinds[f"{victim}-stop"] = FaultKind(
            victim, "signal-stop", "stop", f"SIGSTOP beyond our timeouts: {whom}", cluster
        )
        kinds[f"{victim}-pause"] = FaultKind(victim, "signal-stop", "pause", f"a short SIGSTOP of {whom}", cluster)
    for plane in ("control", "data"):
        who: Victim = "control" if plane == "control" else "data"
        for name, toxic, about, attributes in _TOXICS:
            # A slow close affects the end that did not close, so the worker is killed: it connects to the driver, and
            # its peers connect to it.
            flows = _FLOWS[plane] if name != "slow-close" else _FLOWS["data"] if who == "control" else ("downstream",)
            does = f"{plane} plane: {about}"
            if name == "bandwidth" and who == "control":
                toxic, attributes = _TRICKLE
            kinds[f"{plane}-{name}"] = FaultKind(who, toxic, "cut", does, attributes=attributes, directions=flows)
        kinds[f"{plane}-down"] = FaultKind(
            who, "down", "cut", f"{plane} plane: closed, and new connections are refused"
        )
    kinds["worker-disk-full"] = FaultKind("worker", "full", "pause", "no worker can write to a file")
    kinds["driver-disk-full"] = FaultKind("driver", "full", "pause", "the driver can write to no file")
    kinds["older-object-corrupt"] = FaultKind(
        "checkpoint", "corrupt", "pause", "a bit flips in an object that only older checkpoints need"
    )
    kinds["newest-object-corrupt"] = FaultKind(
        "driver", "corrupt", "cut", "the driver is killed and a bit flips in an object of the newest checkpoint"
    )
    return kinds


KINDS: Mapping[str, FaultKind] = MappingProxyType(_kinds())


def needs_toxiproxy(kinds: Mapping[str, object]) -> bool:
    """Return whether any of these faults strikes connections."""
    return any(KINDS[name].plane is not None for name in kinds)


def lasts_ms(kind: FaultKind, silent_after_ms: int, session_timeout_ms: int) -> tuple[int, int]:
    """Return the range of time that a fault lasts, for a job with these timeouts."""
    longest = max(silent_after_ms, session_timeout_ms)
    match kind.lasting:
        case "instant":
            return 0, 0
        case "pause":
            return max(50, silent_after_ms // 20), max(100, silent_after_ms // 2)
        case "stop":
            return longest * 11 // 10, longest * 3 // 2
        case "cut":
            return max(100, silent_after_ms // 10), longest * 3 // 2
