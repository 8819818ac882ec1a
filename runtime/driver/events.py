"""The events that the master takes, and the effects that its interpreter performs.

Values only. A message of a worker (runtime/wire/messages.py) is an event too.

Pure: no clock, thread or I/O.
Source: DESIGN sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.checkpoint import append, joblog
from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import ErrorReport, HoldfastError
from holdfast.frozen import replace
from holdfast.model import Generation, ObjectRef, SourcePosition, WorkerId, Writer
from holdfast.runtime.driver.state import Master, Site
from holdfast.runtime.wire import messages as m


@dataclass(frozen=True)
class Moment:
    """When an event is taken."""

    now: float
    """Seconds of the driver's clock, which never goes back."""
    at_us: int = 0
    """Microseconds since 1970, for records of the log."""


# Events


@dataclass(frozen=True)
class RecordFound:
    """This record occupies the number of the record in flight."""

    record: joblog.Record


@dataclass(frozen=True)
class AppendUnknown:
    """The outcome of the append in flight is unknown (P4)."""


@dataclass(frozen=True)
class ManifestLoaded:
    """The manifest from which the generation continues."""

    manifest: Manifest


@dataclass(frozen=True)
class TargetsRepaired:
    """Every target is at the base of the timeline, for all these writers."""

    generation: Generation
    writers: frozenset[Writer]


@dataclass(frozen=True)
class ManifestStored:
    """The manifest is durable, under this name."""

    manifest: Manifest
    ref: ObjectRef


@dataclass(frozen=True)
class SourcesListed:
    """Every partition that the sources have. The offset is that of the first record; ignored for a known partition."""

    number: int
    partitions: Sequence[SourcePosition]


@dataclass(frozen=True)
class SourcesUnlisted:
    """The sources could not be listed."""

    number: int
    error: HoldfastError


@dataclass(frozen=True)
class WorkerStreamClosed:
    """A worker's control stream closed."""

    worker: WorkerId
    why: str


@dataclass(frozen=True)
class LaunchEnded:
    """The Spark job that hosts a worker ended, for any reason."""

    number: int
    error: str | None


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True)
class Beat:
    """It is time to show the workers that the driver is alive, and to repeat messages that may have been lost."""

    every: float
    """Seconds between two of these."""


@dataclass(frozen=True)
class StopAsked:
    """The user wants a last checkpoint and the end of the run."""


@dataclass(frozen=True)
class EpochAsked:
    """The next epoch is wanted when it is due, even if nothing is new."""


Event = (
    RecordFound
    | AppendUnknown
    | ManifestLoaded
    | TargetsRepaired
    | ManifestStored
    | SourcesListed
    | SourcesUnlisted
    | WorkerStreamClosed
    | LaunchEnded
    | Tick
    | Beat
    | StopAsked
    | EpochAsked
    | m.FromWorker
)


# Effects


@dataclass(frozen=True)
class CreateRecord:
    """Create the record conditionally; answered by `RecordFound`, whichever record it is, or `AppendUnknown`."""

    record: joblog.Record


@dataclass(frozen=True)
class LoadManifest:
    """Read and verify the manifest; answered by `ManifestLoaded`."""

    ref: ObjectRef


@dataclass(frozen=True)
class StoreManifest:
    """Store the manifest durably; answered by `ManifestStored`."""

    manifest: Manifest
    started: float


@dataclass(frozen=True)
class RepairTargets:
    """In the background: deliver the base's pending output, take back newer output; see `TargetsRepaired` (P21)."""

    job: joblog.Job
    base: Manifest


@dataclass(frozen=True)
class ListPartitions:
    """In the background: list the partitions of every source; answered by `SourcesListed` or `SourcesUnlisted`.

    If a source lists other partitions than those known, it must be the one that was read up to these positions.
    """

    number: int
    known: Mapping[str, tuple[int, ...]]
    positions: tuple[SourcePosition, ...]


@dataclass(frozen=True)
class SweepObjects:
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
    | SweepObjects
    | Send
    | Launch
    | Dismiss
    | Cancel
    | End
)
Step = tuple[Master, list[Effect]]


def append_record(state: Master, draft: append.Draft, at_us: int) -> Step:
    """Append a record to the log; nothing is in flight."""
    assert isinstance(state.log, append.Quiet), "one record is in flight at a time (P4)"
    log, creates = append.append(state.log, draft, at_us)
    return replace(state, log=log), [CreateRecord(each.record) for each in creates if isinstance(each, append.Create)]
