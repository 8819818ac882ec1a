"""The state of the job master: the driver's knowledge in each phase of a job.

Values only; runtime/driver/master.py steps them.

Pure: no clock, thread or I/O.
Source: DESIGN sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from holdfast.checkpoint import append, coordinator, joblog
from holdfast.checkpoint.catalogue import Retention
from holdfast.checkpoint.manifest import Manifest, OperatorState
from holdfast.errors import ErrorReport
from holdfast.model import (
    NO_EPOCH,
    Epoch,
    Generation,
    JobUuid,
    SnapshotHandle,
    SourcePosition,
    Subtask,
    Tag,
    WorkerId,
    Writer,
)
from holdfast.runtime.time.time_alignment import Aligned, Group
from holdfast.runtime.wire import messages as m
from holdfast.runtime.wire.messages import Killer
from holdfast.runtime.wire.vitals import At
from holdfast.sinks.protocol.delivery import BACKLOG_BYTES_MAX

SAVEPOINTS_WAITING_MAX = 16
Site = tuple[str, str]
"""A host: its name, and its address in the network of the workers."""
ALIGNED_WITHIN_S = 2.0
"""A subtask may be ahead of another in event time by the most that one of them has lately gained in this time."""


@dataclass(frozen=True)
class GoneSinks:
    """Sinks that the job's code no longer has; all their output through an epoch is delivered."""

    names: tuple[str, ...]
    through: Epoch


@dataclass(frozen=True)
class Rules:
    """The master's parameters, fixed for the run; times in seconds."""

    name: str
    job_uuid: JobUuid
    """Used only if the job does not exist yet."""
    host: str
    key_groups: int
    key_ranges: tuple[tuple[int, int], ...]
    """Key groups of each subtask; its length is the parallelism."""
    partitions: Mapping[str, tuple[int, ...]]
    """Partitions of every source, as listed when the run started."""
    operators: tuple[OperatorState, ...]
    checkpoint_every: float
    silent_after: float
    epoch_deadline: float
    redeploy_every: float
    restart_failures_max: int
    restart_window: float
    restart_backoff_first: float
    """Wait before a worker is started after the second failure in a row; doubles up to `restart_backoff_max`."""
    restart_backoff_max: float
    heartbeat_every: float = 0.5
    """Time between two heartbeats of a worker."""
    until: Mapping[str, Mapping[int, int]] | None = None
    """With `run --once`: the end of each partition of each source when the run began; read no further."""
    retention: Retention = Retention()
    machine: tuple[str, str] | None = None
    """Host name and boot id of the driver."""
    local_paths: tuple[str, ...] = ()
    """Paths of the job on the driver's disk, as text for messages; empty if every machine sees them."""
    unrepairable: tuple[str, ...] = ()
    """Sinks whose output no rewind can take back."""
    audit: str = "rows"
    """Which digests workers compute: off, counts or rows."""
    shape: dict[str, Any] | None = None
    """The shape of the job's code, kept with every checkpoint (runtime/plan/shape.py)."""
    gone_sinks: GoneSinks | None = None
    checked: Checked | None = None
    """Against which checkpoint the code was checked; None: any."""
    adopted: tuple[str, ...] = ()
    """Owners of other histories whose targets the user allows this run to take over."""
    standbys: int = 0
    """Workers beyond the parallelism that follow the state of subtasks, to take one over."""
    discover_every: float = 0.0
    """Time between two listings of the sources while the job runs; 0: they are listed only where the run may end."""
    loses_partitions: bool = False
    """A source's partitions may be deleted, which only a listing notes: it is listed as long as anything is read."""
    loss_alarm: float = 0.0
    """Warn of unread records that a source removes within this time; 0: never."""
    changelog: Mapping[str, str] | None = None
    """The place of the topic that takes the changelog; None: it stays in the root."""
    aligned: tuple[Group, ...] = ()
    """Sources whose subtasks keep together in event time."""
    committed_once: tuple[str, ...] = ()
    """Sinks whose output of an epoch one committer delivers for all writers."""
    staged_bytes_max: int = BACKLOG_BYTES_MAX
    """As in the settings: undelivered output per writer before sources stop."""
    fixed: Mapping[str, str] = field(default_factory=dict)
    """Sources that must not get new partitions, each with a sink that is written immediately from it (P22)."""
    functions: Mapping[str, Called] = field(default_factory=dict)
    """The Python functions of the job, by operator."""
    in_bytes: tuple[str, ...] = ()
    """Sources whose offsets count bytes of text, not records."""
    record_order: bool = False
    """Workers record the order in which they take their input."""

    @property
    def parallelism(self) -> int:
        """Return the number of subtasks of each fragment."""
        return len(self.key_ranges)


@dataclass(frozen=True)
class Called:
    """A Python function of the job."""

    source: str | None
    """The source whose records it gets, if its step reads a source directly."""
    leaves_out: bool
    """Its on_error allows leaving out a row for which it ends its process."""


@dataclass(frozen=True)
class Checked:
    """The operators of the checkpoint whose state the code was found to read."""

    epoch: Epoch
    operators: tuple[OperatorState, ...]


Offsets = tuple[tuple[str, int, int], ...]
"""Source, partition and offset."""


@dataclass(frozen=True)
class Death:
    """The end of a worker during a call of a function."""

    generation: Generation
    launch: int
    at: At
    """Rows of the call; no rows: the call was for a timer, a window, or anything else that is not a row of a stream."""
    how: str = ""
    """How its process ended; empty if that is not known yet."""


@dataclass(frozen=True)
class Kill:
    """A function of one subtask that has ended its process."""

    operator: str
    subtask: Subtask
    partition: int
    """Partition of the records that it was called for; UNKNOWN after a shuffle, and if it was not called for a
    record."""
    source: str | None
    """The source of its records, if they reach it without a shuffle."""
    positions: Offsets
    """Where the last completed epoch was at the first death."""
    deaths: tuple[Death, ...] = ()
    """Since a row was found, or since an epoch got past the place; after a shuffle those that may be of the same."""
    launches: tuple[int, ...] = ()
    """Launches of all deaths of this search, including those whose count an epoch has ended."""
    older: int = 0
    """So many of the deaths were before the last progress; they help the search, and prove no standstill."""
    epochs: int = 0
    """Completed since the last death, each with progress, where the place is unknown."""
    quiet: int = 0
    """Completed since the last death without progress, where the place is unknown."""
    rows_max: int = 0
    """How many rows to give to it together; 0: no limit."""
    killers: tuple[Killer, ...] = ()
    """Rows to leave out, oldest first."""
    recent: int = 0
    """So many of them, the newest, may be ahead although their offsets are unknown."""


Kills = tuple[Kill, ...]


@dataclass(frozen=True)
class Waypoint:
    """The last completed epoch without a base that the next one has, and the handle of a subtask as of it."""

    epoch: Epoch
    handle: SnapshotHandle


Waypoints = Mapping[Subtask, tuple[Waypoint, ...]]
"""Oldest first."""


@dataclass(frozen=True)
class Hosted:
    """A registered worker."""

    address: tuple[str, int]
    host: str
    pid: int
    launch: int
    seen: float
    heartbeat: m.Heartbeat
    """The last one; before the first, and after the start of a generation, one that reports nothing of the epoch."""
    role: m.Role | None = None
    """None until it is assigned one."""
    ready: bool = False
    how: str | None = None
    last_words: m.Vitals | None = None
    """The last report of its companion, unless the worker has sent a message since."""

    @property
    def subtask(self) -> Subtask | None:
        """Return the subtask that the worker runs; None if it runs none."""
        return self.role.subtask if isinstance(self.role, m.ActiveRole) else None

    @property
    def site(self) -> Site:
        """Return where the worker is."""
        return self.host, self.address[0]

    def copied(self, subtask: Subtask) -> Epoch:
        """Return the epoch of the copy of a subtask; 0 if it has none."""
        return next((each.epoch for each in self.heartbeat.copies if each.subtask == subtask), NO_EPOCH)


@dataclass(frozen=True)
class Restart:
    """One recovery, for display: when, why, and how long until all subtasks took records again."""

    at: float
    cause: str
    generation: Generation
    logged_after: float
    """Until the new generation was in the log."""
    deployed_after: float | None = None
    """Until every subtask had a worker."""
    ready_after: float | None = None
    rewind: bool = False
    """Nothing failed: a user requested a rewind."""


@dataclass(frozen=True)
class RunFailure:
    """One failure that counts against the restart limit."""

    at: float
    launch: int | None
    error: ErrorReport
    code: str | None = None
    """The error of Python code that ended the worker, if it is of a kind that recurs in the next worker."""


# Phases


@dataclass(frozen=True)
class Opening:
    """The record that creates the job or starts the generation is in flight: the owner of the job is unknown."""

    cause: str
    stops: bool = False
    """The run ends with the rewind being appended, once the targets are repaired."""


@dataclass(frozen=True)
class Loading:
    """The start is in the log, and the manifest of the generation's base is being read."""

    stops: bool = False
    """As in `Opening`."""


@dataclass(frozen=True)
class Repairing:
    """Targets take back output that a rewind has undone (P21)."""

    base: Manifest
    stops: bool = False
    """As in `Opening`."""


@dataclass(frozen=True)
class Repaired:
    """The run ends with the rewind: every target is repaired, and no worker is needed."""

    base: Manifest


@dataclass(frozen=True)
class Gathering:
    """Workers register, until there is one for every subtask."""

    base: Manifest | None


@dataclass(frozen=True)
class Closing:
    """Decisions that the trigger of the closing epoch has fixed."""

    savepoint: str | None
    """The name that the epoch will have."""
    assigned: tuple[m.Assigned, ...]
    """The partitions that its barrier assigns."""
    manifest: Manifest | None = None
    """Once every subtask has acked: the manifest that is being stored, then committed by the record in flight."""


@dataclass(frozen=True)
class Deployed:
    """Every subtask has a worker; epochs are closed once all are ready. The phases below define when that ends."""

    base: Manifest | None
    deployed_at: float
    epochs: coordinator.Coordinator
    last_trigger: float
    last: Manifest | None
    """Manifest of the last completed epoch."""
    closing: Closing | None = None
    """None while no epoch is being closed."""
    waypoints: Waypoints = field(default_factory=dict[Subtask, tuple[Waypoint, ...]])
    """For copies of standbys that are older than a base."""
    broken_since: float | None = None
    """When a worker first reported a broken channel although no worker is lost."""
    known: int = 0
    """How many of the discovered partitions the deployment holds; triggers assign the others."""
    aligned: Aligned = Aligned(ALIGNED_WITHIN_S)
    """How far sources are read in event time."""

    @property
    def shared(self) -> dict[str, Any]:
        """Return the fields that the next phase of this generation takes over."""
        return {name: value for name, value in vars(self).items() if name in Deployed.__dataclass_fields__}


@dataclass(frozen=True)
class Running(Deployed):
    """Sources are read."""


@dataclass(frozen=True, kw_only=True)
class Exhausted(Deployed):
    """Every partition of this run is read to its end, and the sources were listed after that."""

    complete: bool
    """They have no other partition: the next barrier is the last one. Else this run does not read all existing
    records."""


@dataclass(frozen=True, kw_only=True)
class Halted(Deployed):
    """A last barrier was sent. Workers that received it read nothing more, even if its epoch is given up."""

    finishing: bool
    """It was sent because all input is read, not because of a request to stop (P13)."""
    complete: bool
    """As in `Exhausted`."""


@dataclass(frozen=True, kw_only=True)
class Delivering(Deployed):
    """The last epoch is completed; the run ends once its output is delivered."""

    final: Epoch
    finishing: bool
    """As in `Halted`."""


def is_complete(phase: Deployed) -> bool:
    """Return whether a listing has shown that every existing partition is read to its end."""
    return isinstance(phase, Exhausted | Halted) and phase.complete


@dataclass(frozen=True)
class Interrupted:
    """The generation cannot continue; a recovery is due as soon as the append in flight is settled (P4)."""

    deployed: Deployed
    cause: str


@dataclass(frozen=True)
class Over:
    """The run has ended; `outcome` is finished, stopped, ended (`stop --now`), fenced, refused or failed."""

    outcome: str
    error: ErrorReport | None = None


Phase = Opening | Loading | Repairing | Repaired | Gathering | Deployed | Interrupted | Over


# Data that outlives a phase


@dataclass(frozen=True)
class RewindWanted:
    """A request to rewind the job to this epoch; with `stop`, to end the run after the repairs."""

    epoch: Epoch
    stop: bool
    accepted: tuple[str, ...] = ()
    """As in `Rewound`."""


@dataclass(frozen=True)
class Stopping:
    """The user asked for a last checkpoint at the current positions of the sources."""


@dataclass(frozen=True)
class Finishing:
    """The user asked for the end of input: after the records that exist, or at the current positions of the sources."""

    drop_unread: bool
    listed: bool = False
    """The sources were listed after the request: later records are not read."""


Ending = Stopping | Finishing
"""How the user wants the run to end; it outlives recoveries."""

Reason = Literal["interval", "finish", "end"]
"""Why sources are listed: it is time to, the user asked to finish, or every partition is read to its end."""


@dataclass(frozen=True)
class Listing:
    """A listing of the sources that is under way."""

    number: int
    reason: Reason
    generation: Generation
    """In which it began."""
    since: float


@dataclass(frozen=True)
class Master:
    """Everything the driver knows about the job."""

    rules: Rules
    log: append.Appender
    phase: Phase
    workers: Mapping[WorkerId, Hosted] = field(default_factory=dict)
    launching: Mapping[int, float] = field(default_factory=dict)
    """Spark jobs whose worker has not registered yet, with their start time."""
    launches: int = 0
    failures: tuple[RunFailure, ...] = ()
    """Failures within the window, oldest first; the first is reported as the cause."""
    failures_in_a_row: int = 0
    """Since the last completed epoch."""
    standby_failures: int = 0
    """Standbys lost or not started since all were complete."""
    standby_failed_at: float = 0.0
    standby_error: str = ""
    """Why the last one was lost or not started."""
    broken_in_a_row: int = 0
    """Recoveries in place after broken channels, since the last completed epoch."""
    severed: Mapping[frozenset[Site], float] = field(default_factory=dict)
    """Pairs of hosts whose workers exchanged no data although both reached the driver, and when that was reported."""
    doubted: Mapping[str, tuple[Site, float]] = field(default_factory=dict)
    """Hosts whose worker fell silent before it was lost, and when it was; see runtime/driver/failover.py."""
    struck: int = 0
    """The loss of workers up to this launch counts as part of the last failure until every subtask runs again."""
    confirmed: Mapping[Writer, Tag] = field(default_factory=dict)
    ending: Ending | None = None
    epoch_wanted: bool = False
    """The next epoch is closed when it is due, even if nothing is new."""
    savepoints: tuple[str, ...] = ()
    """Requested names that no completed epoch carries yet, oldest first."""
    rewind: RewindWanted | None = None
    """A request that is carried out as soon as nothing is in flight, in any phase; it replaces a recovery."""
    kills: Kills = ()
    """Functions and reads that have ended their process, and not got past the place since."""
    unexplained: tuple[tuple[Subtask, Death], ...] = ()
    """The last end of a process of a subtask since an epoch was completed, whatever it ran."""
    restarts: tuple[Restart, ...] = ()
    recovering_since: float | None = None
    given_up: int = 0
    looked_at: float | None = None
    """The time of the last tick."""
    discovered: tuple[SourcePosition, ...] = ()
    """Partitions of which the driver learnt after the start of the run, at their first record."""
    listing: Listing | None = None
    listings: int = 0
    listed_at: float | None = None
    """When the last listing was answered."""
    list_again_at: float = 0.0
    list_error: ErrorReport | None = None
    """Why the last listing failed; None if it did not."""

    @property
    def job(self) -> joblog.Job:
        """Return the fold of the log."""
        assert self.log is not None and self.log.job is not None
        return self.log.job

    @property
    def deployed(self) -> Deployed | None:
        """Return the phase of the deployed job, or of one that was interrupted; None in every other phase."""
        match self.phase:
            case Deployed() as deployed:
                return deployed
            case Interrupted(deployed=deployed):
                return deployed
            case _:
                return None

    @property
    def ends_repaired(self) -> bool:
        """Return whether the run ends with the rewind that it is carrying out."""
        match self.phase:
            case Opening(stops=stops) | Loading(stops=stops) | Repairing(stops=stops):
                return stops
            case phase:
                return isinstance(phase, Repaired)

    @property
    def assigned(self) -> list[WorkerId]:
        """Return the workers with a subtask."""
        return [worker for worker, hosted in self.workers.items() if hosted.subtask is not None]

    @property
    def all_ready(self) -> bool:
        """Return whether every subtask takes records."""
        ready = [hosted for hosted in self.workers.values() if hosted.subtask is not None and hosted.ready]
        return len(ready) == self.rules.parallelism

    @property
    def all_hosted(self) -> bool:
        """Return whether there is a worker for every subtask, so that only standbys are missing."""
        return len(self.workers) >= self.rules.parallelism
