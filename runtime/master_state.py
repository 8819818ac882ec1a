"""What the job master knows, and what it asks its interpreter to do.

Values only; runtime/master.py steps them.

Pure: no clock, thread or I/O.
Source: DESIGN sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.checkpoint import append, coordinator, joblog
from holdfast.checkpoint.catalogue import Retention
from holdfast.checkpoint.manifest import Manifest, OperatorState
from holdfast.model import NO_EPOCH, Epoch, Generation, JobUuid, ObjectRef, Subtask, Tag, WorkerId, Writer
from holdfast.runtime import messages as m


@dataclass(frozen=True)
class GoneSinks:
    """Sinks that the job's code no longer has, and all whose output up to an epoch is delivered."""

    names: tuple[str, ...]
    through: Epoch


@dataclass(frozen=True)
class Rules:
    """What the master is told at its start; times in seconds."""

    name: str
    job_uuid: JobUuid
    """Used only if the job does not exist yet."""
    host: str
    key_groups: int
    key_ranges: tuple[tuple[int, int], ...]
    """Key groups of each subtask; its length is the parallelism."""
    partitions: Mapping[str, tuple[int, ...]]
    operators: tuple[OperatorState, ...]
    checkpoint_every: float
    silent_after: float
    epoch_deadline: float
    redeploy_every: float
    failures_max: int
    failures_window: float
    backoff_first: float
    """Wait before a worker is started after the second failure in a row; doubles up to `backoff_max`."""
    backoff_max: float
    until: Mapping[str, Mapping[int, int]] | None = None
    """With `run --once`: where each partition of each source ended when the run began; read no further."""
    retention: Retention = Retention()
    machine: tuple[str, str] | None = None
    """Host name and boot id of the driver."""
    local_paths: tuple[str, ...] = ()
    """What the job keeps on the driver's disk, for people; empty if every machine sees it all."""
    unrepairable: tuple[str, ...] = ()
    """Sinks whose output no rewind can take back."""
    audit: str = "rows"
    """off, counts or rows: what workers digest."""
    shape: dict[str, Any] | None = None
    """What the job's code is, to be kept with every checkpoint (runtime/shape.py)."""
    gone_sinks: GoneSinks | None = None
    adopted: tuple[str, ...] = ()
    """Owners of other histories, from which the user lets this run take targets over."""

    @property
    def parallelism(self) -> int:
        """Return the number of subtasks of each fragment."""
        return len(self.key_ranges)


@dataclass(frozen=True)
class Hosted:
    """A registered worker."""

    address: tuple[str, int]
    host: str
    pid: int
    launch: int
    seen: float
    subtask: Subtask | None = None
    ready: bool = False
    how: str | None = None
    ended: bool = False
    caught_up: bool = False
    """It has read as far as a run with `until` reads."""
    quiet: Epoch = NO_EPOCH
    """As in `Heartbeat`."""
    progress: m.Progress = m.Progress()
    last_words: m.Vitals | None = None
    """What its companion reported last, unless the worker has spoken since."""


@dataclass(frozen=True)
class Restart:
    """One recovery, for people: when, why, and how long until all subtasks took records again."""

    at: float
    cause: str
    generation: Generation
    logged_after: float
    """Until the new generation was in the log."""
    deployed_after: float | None = None
    """Until every subtask had a worker."""
    ready_after: float | None = None
    rewind: bool = False
    """Nothing had failed: the job went back because that was asked."""


@dataclass(frozen=True)
class Failure:
    """One failure that counts against the restart limit."""

    at: float
    launch: int | None
    error: Mapping[str, Any]


@dataclass(frozen=True)
class Opening:
    """The log is being created or the generation's start is being appended."""

    cause: str


@dataclass(frozen=True)
class Gathering:
    """The generation is in the log; its base is known when the manifest was read; workers come."""

    base: Manifest | None
    base_known: bool
    repaired: bool = True
    """No target shows what a rewind has undone (P21)."""


@dataclass(frozen=True)
class RewindWanted:
    """Somebody wants the job to go back to this epoch; with `stop`, to end there."""

    epoch: Epoch
    stop: bool
    accepted: tuple[str, ...] = ()
    """As in `Rewound`."""


@dataclass(frozen=True)
class Running:
    """Every subtask has a worker; epochs are closed once all are ready."""

    base: Manifest | None
    deployed_at: float
    epochs: coordinator.Coordinator
    last_trigger: float
    last: Manifest | None
    """Manifest of the last completed epoch."""
    storing: Manifest | None = None
    finishing: bool = False
    """The last barrier was sent because all input is read, not because of a stop (P13)."""
    halted: bool = False
    """A last barrier was sent: workers that have it read no more in this generation, even if its epoch is given up."""
    final: Epoch | None = None
    """Epoch whose barrier was the last one and which is completed."""
    broken_since: float | None = None
    """A worker reported a broken channel although nobody is lost."""
    savepoint: str | None = None
    """The name that the epoch being closed will have."""


@dataclass(frozen=True)
class Over:
    """The run has ended; `outcome` is finished, stopped, ended (at once), fenced, refused or failed."""

    outcome: str
    error: Mapping[str, Any] | None = None


Phase = Opening | Gathering | Running | Over


@dataclass(frozen=True)
class Master:
    """Everything the driver knows about the job."""

    rules: Rules
    log: append.Appender
    phase: Phase
    workers: Mapping[WorkerId, Hosted] = field(default_factory=dict)
    launching: Mapping[int, float] = field(default_factory=dict)
    """Spark jobs started whose worker has not registered yet, with their start."""
    launches: int = 0
    failures: tuple[Failure, ...] = ()
    """Those within the window, oldest first: the first one is the cause that is reported."""
    failures_in_a_row: int = 0
    """Since the last completed epoch."""
    struck: int = 0
    """Workers up to this launch belong to the last failure, until every subtask runs again: they count once."""
    confirmed: Mapping[Writer, Tag] = field(default_factory=dict)
    stopping: bool = False
    finish_asked: bool = False
    """The input of all sources ends: behind what exists, or where it stands with `drop_unread`."""
    drop_unread: bool = False
    epoch_wanted: bool = False
    """The next epoch is closed when it is due, although nothing may be new."""
    savepoints: tuple[str, ...] = ()
    """Names that were asked for and no completed epoch carries yet, oldest first."""
    recover: str | None = None
    """A recovery is due as soon as the append in flight is settled (P4)."""
    rewind: RewindWanted | None = None
    """A rewind is due then; it takes the place of a recovery."""
    ends_repaired: bool = False
    """The run ends as soon as the targets are repaired: no worker is needed any more."""
    restarts: tuple[Restart, ...] = ()
    recovering_since: float | None = None
    given_up: int = 0
    looked_at: float | None = None
    """When time was last looked at."""

    @property
    def job(self) -> joblog.Job:
        """Return the fold of the log."""
        assert self.log is not None and self.log.job is not None
        return self.log.job


# Effects


@dataclass(frozen=True)
class CreateRecord:
    """Create the record conditionally; answer with record_found, whoever's it is; else nothing."""

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
    """In the background: deliver what the base left, take back what is newer; answer with repaired (P21)."""

    job: joblog.Job
    base: Manifest


@dataclass(frozen=True)
class Sweep:
    """In the background: delete what no checkpoint of this fold needs, and prune the log."""

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


@dataclass(frozen=True)
class Dismiss:
    """Close the worker's stream; whatever it still says is not heard."""

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
    error: Mapping[str, Any] | None = None


Effect = CreateRecord | LoadManifest | StoreManifest | RepairTargets | Sweep | Send | Launch | Dismiss | Cancel | End
Step = tuple[Master, list[Effect]]
