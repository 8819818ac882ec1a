"""The effects of the master, which its interpreter performs.

Values only; runtime/driver/loop.py performs them.

Pure: no clock, thread or I/O.
Source: DESIGN sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.checkpoint import joblog
from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import ErrorReport
from holdfast.model import (
    ObjectRef,
    SourcePosition,
    WorkerId,
)
from holdfast.runtime.driver.state import Master, Site
from holdfast.runtime.wire import messages as m

# Effects


@dataclass(frozen=True)
class CreateRecord:
    """Create the record conditionally; answer with record_found, whichever record it is; no answer if unknown."""

    record: joblog.Record


@dataclass(frozen=True)
class LoadManifest:
    """Read and verify the manifest; answer with base_loaded."""

    ref: ObjectRef


@dataclass(frozen=True)
class StoreManifest:
    """Store the manifest durably; answer with manifest_stored."""

    manifest: Manifest
    started: float


@dataclass(frozen=True)
class RepairTargets:
    """In the background: deliver what the base left, take back newer output; answer with repaired (P21)."""

    job: joblog.Job
    base: Manifest


@dataclass(frozen=True)
class ListPartitions:
    """In the background: list the partitions of every source; answer with `listed` or `unlisted`.

    If a source lists other partitions than those known, it must be the one that was read up to these positions.
    """

    number: int
    known: Mapping[str, tuple[int, ...]]
    positions: tuple[SourcePosition, ...]


@dataclass(frozen=True)
class Sweep:
    """In the background: delete objects that no checkpoint of this fold needs, and prune the log."""

    job: joblog.Job


@dataclass(frozen=True)
class Send:
    """Send the message to the worker."""

    worker: WorkerId
    message: m.FromDriver


@dataclass(frozen=True)
class Launch:
    """Start a Spark job that hosts one worker."""

    number: int
    avoid: tuple[Site, ...] = ()
    """Where it should not run if there is a free slot elsewhere, the worst place first."""


@dataclass(frozen=True)
class Dismiss:
    """Close the worker's stream; its later messages are ignored."""

    worker: WorkerId
    launch: int


@dataclass(frozen=True)
class Cancel:
    """End the Spark job of a worker that never came up."""

    launch: int


@dataclass(frozen=True)
class End:
    """The run is over: dismiss the workers and return the outcome."""

    outcome: str
    error: ErrorReport | None = None


Effect = (
    CreateRecord
    | LoadManifest
    | StoreManifest
    | RepairTargets
    | ListPartitions
    | Sweep
    | Send
    | Launch
    | Dismiss
    | Cancel
    | End
)
Step = tuple[Master, list[Effect]]
