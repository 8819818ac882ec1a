"""Makes a seed's scenario: a job, its input, when the input arrives, and which faults are armed.

The job reads integer records, keeps one or two keyed aggregates in upsert sinks and adds (filtered)
records to an append sink. In some seeds it unites two sources, counts in event-time windows,
changes its parallelism with every driver, or sends the last record of every place to a sink with
immediate writes. Everything is tiny: a bug in a protocol needs few records and many interleavings.

Invariants
    - A scenario is a function of its seed.
    - A record has the same offset and bytes however often it is read.

Source: DESIGN section 10.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import polars as pl
import pyarrow as pa

import holdfast as hf
from holdfast.chaos.sim.faults import aims, faults
from holdfast.chaos.sim.faults.aims import Aim
from holdfast.chaos.sim.faults.faults import Fault
from holdfast.chaos.sim.faults.points import Point
from holdfast.chaos.sim.jobs import dropping, evolving, ledger, lettered, spelled
from holdfast.chaos.sim.jobs.arriving import ArrivingSource
from holdfast.chaos.sim.jobs.branches.registry import BRANCHES
from holdfast.chaos.sim.jobs.functions import calling
from holdfast.chaos.sim.jobs.oracle import PARTITION_STRIDE, Input
from holdfast.checkpoint.bases import Thresholds
from holdfast.checkpoint.catalogue import Retention
from holdfast.runtime.api.stream import Stream
from holdfast.runtime.plan.model import Plan
from holdfast.runtime.worker.uploads import UPLOAD_FROM_BYTES
from holdfast.sinks.memory.immediate import ImmediateTable
from holdfast.sinks.memory.sink import MemorySink

SCHEMA = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("id", "key", "bucket", "value", "place")])
TIMED_SCHEMA = SCHEMA.append(pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False))
SOURCE, SECOND = "in", "in2"
"""Every seed reads the first; in some it has the even partitions, the second the odd ones, and they are united."""
ADDED, LASTS = "added", "lasts"
WINDOWS, LATE = "windows", "late"
"""Sinks of seeds with windows: a row per closed window, and the late records."""
OUT_OF_ORDERNESS_S = 1
UPSERTS = {"by_key": "key", "by_bucket": "bucket"}
"""Upsert sinks, each after an operator, with their key column."""
APPENDS_AFTER_S = (0.0, 0.02, 0.3, 2.0)
"""Seconds between a user's look at the log and the record that names a checkpoint."""
TIMED_SHARE, RESCALED_SHARE, UNITED_SHARE, LEDGER_SHARE, REGROUPED_SHARE = 0.5, 0.3, 0.3, 0.15, 0.25
SMALL_BOUNDS_SHARE = 0.1
ENDS_SHARE, ONCE_SHARE, LETTERS_SHARE = 0.2, 0.1, 0.15
GROWING_SHARE, ADDED_MAX, LISTED_EVERY_S = 0.25, 3, (0.15, 0.4, 1.0)
REGROWING_SHARE, REGROWS_AT = 0.12, (1.5, 3.0, 4.5, 6.0, 7.5)
TEXTS_SHARE, BUDGET_SHARE = 0.05, 0.1
STATE_MEMORY = (400, 1_600, 6_400)
"""Bytes: one changed key is above the share of changes, or some are, or about all of them."""
BATCHES_SHARE = 0.25
FINISHED_IN_BATCHES_SHARE, REWOUND_IN_BATCHES_SHARE = 0.3, 0.5
"""Shares of the seeds with drivers in microbatch mode that have no such request yet."""
STANDBYS_SHARE = 0.2
SURVIVORS_SHARE, KILLED, KILLED_FROM_S = 0.4, (2, 3, 4), 1.0
"""Share of the seeds with branches; how many workers are killed, and from when on."""
INSPECTED_SHARE = 0.4
"""Share of the seeds with branches."""
COMMITTER_SHARE = 0.15
COPIES_SHARE, COPIED_PER_TURN = 0.2, (1, 2, 5)
"""Frozen records that a worker copies, or committed ones that it writes, in a turn: rows are processed between them."""
BACKLOG_SHARE, BACKLOG_RECORDS, BACKLOG_RATES = 0.35, (12, 25, 40), (6.0, 12.0)
"""Share of the seeds with event time in which nothing happens at its time; records per partition; records per
second."""
LAST_RATE, LAST_AFTER_S = 8.0, 9.0
"""If one partition gets its records late: after the world has healed, when the others have been read."""
NEVER_DUE_S = 1_000.0
"""Between two checkpoints, in half of the seeds with a budget: epochs are closed because memory is full, or never."""
RESTING_SHARE = 0.5
RESTING_MIN = 6
"""Records of the active partition that arrive while the other one is idle."""
RESTS_S, ACTIVE_S, LATE_AFTER_S = 9.0, 0.4, 2.0
"""After the world has healed: until the last of them, between two of them, and until the idle one resumes."""
PLANS_MAX = 32
"""Plans kept for later seeds; there are thousands, and a process that plays for hours must not keep them all."""
ON_DISK = frozenset({Fault.DISK_FULL, Fault.DISK_ERROR, Fault.POWER_LOST})
"""Faults that strike folders of workers."""


@dataclass(frozen=True)
class TimedFault:
    """A fault of PER_RUN: when it strikes, and for how long, if it lasts."""

    at: float
    fault: Fault
    seconds: float


@dataclass(frozen=True)
class SavepointAsked:
    """A user wants a savepoint: asks the driver if `delay` is None, otherwise names the last checkpoint directly."""

    at: float
    delay: float | None
    """Seconds between the user's look at the log and the record."""


@dataclass(frozen=True)
class Windowing:
    """Tumbling windows per bucket, emitted once; seconds of event time."""

    size_s: int
    lateness_s: int
    idles: bool
    """Whether partitions become idle; their later records may then be late."""


@dataclass(frozen=True)
class RewindAsked:
    """A user wants the job to go back by some checkpoints: asks the driver, or fences it with a separate driver."""

    at: float
    back: int
    delay: float | None
    """None: the newest driver is asked; otherwise seconds between the user's look at the log and the record."""


@dataclass(frozen=True)
class EndAsked:
    """A user asks the newest driver to end its run."""

    at: float
    how: str | None
    """None: stop; finish: treat the input as complete; now: without a last checkpoint."""


@dataclass(frozen=True)
class Scenario:
    """Everything that a seed decides before the run; times in virtual seconds since its start."""

    seed: int
    partitions: tuple[tuple[Input, ...], ...]
    arrivals: tuple[tuple[float, ...], ...]
    batch_rows_max: int
    upserts: tuple[str, ...]
    """The upsert sinks of the job."""
    above: int | None
    """The append sink takes records with a value above this; None: all of them."""
    windowing: Windowing | None
    """None: no event time."""
    parallelisms: tuple[int, ...]
    """The parallelism of each driver, in turn."""
    checkpoint_every: float
    epoch_deadline: float
    channel_frames_max: int
    earlier_job: bool
    """Whether a deleted job of the same name left its tags in the targets (P1)."""
    verify_every_checkpoint: bool
    merging: Thresholds
    retention: Retention
    savepoints: tuple[SavepointAsked, ...]
    immediate: bool
    """Whether a sink with immediate writes holds the last record of every place."""
    united: bool
    """Whether the partitions belong to two sources whose streams are united."""
    ledger: bool
    """Whether records move their values between accounts."""
    regroups: bool
    """Whether the results of windows are aggregated again after a second shuffle."""
    rewinds: tuple[RewindAsked, ...]
    folders: bool
    """Whether workers keep committed state in folders that outlive them."""
    armed: dict[Fault, float]
    moments: tuple[TimedFault, ...]
    aims: tuple[Aim, ...]
    call_s: float
    """Seconds that every third call of a Python function takes."""
    heal_at: float
    ends: tuple[EndAsked, ...] = ()
    regrows: bool = False
    """Whether key groups move often, between merges of state and deletions of rows."""
    letters: bool = False
    """Whether there is a branch whose function fails on some records, and a DLQ."""
    once: tuple[bool, ...] = (False,)
    """Whether each driver, in turn, reads only up to the end of the sources at its start, and then stops."""
    evolves: bool = False
    """Whether each driver brings the next version of the code."""
    drops: bool = False
    """Whether an evolving job has a branch whose state is given up."""
    rests: tuple[int, ...] = ()
    """Ids of records that must be late: their partition was idle for so long before them while another was active."""
    appears: tuple[float, ...] = ()
    """When each partition is added; empty: all are there from the start."""
    listed_every: float = 0.0
    """Time between two listings of the sources; 0: they are listed only where a run may end."""
    texts: bool = False
    """Whether there is a branch with text in its keys and its state."""
    branches: tuple[str, ...] = ()
    """The names of the branches that read the records by event time (branches/registry.py)."""
    inspects: bool = False
    """Whether the state of the branches is read from every checkpoint: it may be wrong where no result shows it."""
    state_memory: int | None = None
    """The budget of every worker's state in bytes; None: there is none."""
    batches: tuple[bool, ...] = (False,)
    """Whether each driver, in turn, runs in microbatch mode."""
    rate: float | None = None
    """How many records per second a worker, or an epoch, reads at most; None: as many as there are."""
    standbys: int = 0
    """Workers that follow the state of others."""
    committers: tuple[bool, ...] = (False,)
    """Whether, with each driver in turn, one committer delivers the output of all writers of a sink."""
    upload_from: int = UPLOAD_FROM_BYTES
    """Bytes from which workers upload a part of it."""
    copied_per_turn: int | None = None
    """How many frozen records a worker copies per turn; None: all of them, in the turn after the barrier."""

    def offers(self, feature: str) -> bool:
        """Return whether there is a feature, which is a branch or an attribute of this class."""
        return feature in self.branches if feature in BRANCHES else bool(getattr(self, feature))

    @property
    def rescales(self) -> bool:
        """Return whether key groups, and with them a writer's rows, move between subtasks."""
        return len(set(self.parallelisms)) > 1

    @property
    def hands_over(self) -> bool:
        """Return whether some drivers have one worker deliver the output of all."""
        return any(self.committers)

    @property
    def switches(self) -> bool:
        """Return whether only some drivers do so."""
        return len(set(self.committers)) > 1

    @property
    def moves_rows(self) -> bool:
        """Return whether a row may come from one writer now and from another later."""
        return self.rescales or self.switches

    @property
    def sources(self) -> dict[str, tuple[int, ...]]:
        """Return the partitions of each source."""
        every = range(len(self.partitions))
        return {SOURCE: tuple(every[::2]), SECOND: tuple(every[1::2])} if self.united else {SOURCE: tuple(every)}

    @property
    def budgeted(self) -> bool:
        """Return whether workers have a budget for their state."""
        return self.state_memory is not None

    @property
    def batched(self) -> bool:
        """Return whether some drivers run in microbatch mode."""
        return any(self.batches)

    @property
    def aligns(self) -> bool:
        """Return whether some partitions are behind others in event time, for a long time."""
        return self.rate is not None

    @property
    def copies_slowly(self) -> bool:
        """Return whether rows are processed between a barrier and the copies of the records that it froze."""
        return self.copied_per_turn is not None

    @property
    def grows(self) -> bool:
        """Return whether partitions are added while the job runs."""
        return bool(self.appears)

    @property
    def added(self) -> frozenset[int]:
        """Return the partitions that are not there from the start."""
        return frozenset(partition for partition, at in enumerate(self.appears) if at > 0.0)

    def sources_at(self, at: float) -> dict[str, tuple[int, ...]]:
        """Return the partitions of each source that exist at a time."""
        return {
            name: tuple(p for p in partitions if not self.appears or self.appears[p] <= at)
            for name, partitions in self.sources.items()
        }

    @property
    def reads_damaged(self) -> bool:
        """Return whether restored objects may be damaged."""
        return Fault.READ_DAMAGED in self.armed or Fault.OBJECT_DAMAGED in self.armed

    @property
    def damages_records(self) -> bool:
        """Return whether records of the job log may be read damaged."""
        return Fault.RECORD_DAMAGED in self.armed

    @property
    def functions(self) -> bool:
        """Return whether there are Python functions, which then fail."""
        return Fault.FUNCTION_FAILED in self.armed

    @property
    def slow_functions(self) -> bool:
        """Return whether a worker's turns end before its functions are done with a batch."""
        return self.functions and self.call_s > 0.0

    @property
    def small_bounds(self) -> bool:
        """Return whether only few epochs may be abandoned in a row, and only few queued for a target."""
        return random.Random(f"{self.seed}/bounds").random() < SMALL_BOUNDS_SHARE

    @property
    def loses_power(self) -> bool:
        """Return whether the power may be lost."""
        return Fault.POWER_LOST in self.armed

    @property
    def records(self) -> int:
        """Return the number of records."""
        return sum(len(records) for records in self.partitions)


def scenario(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    rng = random.Random(seed)
    parallelism = rng.choice((1, 2, 2, 2, 3, 3))
    partitions = rng.randint(1, 4)
    keys, span = rng.choice((1, 3, 6, 10)), rng.choice((1.0, 2.5, 4.0, 5.5))
    counts = [rng.choice((0, 1, 6, 12, 12, 25)) for _ in range(partitions)]
    records = tuple(
        tuple(_record(rng, partition, offset, keys) for offset in range(count))
        for partition, count in enumerate(counts)
    )
    arrivals = tuple(tuple(sorted(rng.uniform(0.0, span) for _ in range(count))) for count in counts)
    fault_rates = faults.draw(rng)
    heal_at = rng.uniform(1.5, 6.0)
    keeping, timing, backwards = (random.Random(seed ^ salt) for salt in (0xBA5E, 0x71AE, 0xBACC))
    windowing = _windowing(timing)
    if windowing is not None:
        records = tuple(_timed(timing, partition) for partition in records)
    later_parallelisms = tuple(timing.choices((1, 2, 3), k=3)) if timing.random() < RESCALED_SHARE else ()
    rewinds = _rewinds(backwards)
    if rewinds and backwards.random() < 0.4:
        fault_rates = {**fault_rates, Fault.SINK_LATE: 0.3}  # late writes meet another timeline
    cut_short = _cut_short(backwards, rewinds)
    # Immediate writes cannot be undone, so such a job is never rewound.
    immediate = not rewinds and random.Random(seed ^ 0xA70).random() < 0.5
    whole = Scenario(
        seed=seed,
        partitions=records,
        arrivals=arrivals,
        batch_rows_max=rng.choice((2, 5, 20)),
        upserts=tuple(UPSERTS)[: rng.choice((1, 1, 2))],
        above=rng.choice((None, None, None, None, 0)),
        checkpoint_every=rng.choice((0.12, 0.25, 0.6)),
        epoch_deadline=rng.choice((0.25, 0.8, 3.0)),
        channel_frames_max=rng.choice((1, 4, 1_000)),
        earlier_job=rng.random() < 0.2,
        verify_every_checkpoint=rng.random() < 0.1,
        merging=_merging(keeping),
        retention=_retention(keeping),
        savepoints=_savepoints(keeping),
        windowing=windowing,
        parallelisms=(parallelism, *later_parallelisms),
        rewinds=rewinds,
        folders=rng.random() < 0.4,
        immediate=immediate,
        united=not immediate and partitions > 1 and random.Random(seed ^ 0x2011).random() < UNITED_SHARE,
        ledger=random.Random(f"{seed}/ledger").random() < LEDGER_SHARE,
        regroups=windowing is not None and random.Random(f"{seed}/regroups").random() < REGROUPED_SHARE,
        armed=fault_rates,
        moments=tuple(sorted([*_moments(rng, fault_rates, heal_at), *cut_short], key=lambda moment: moment.at)),
        heal_at=heal_at,
        aims=(),
        call_s=0.0,
    )
    variant = _growing(_with_ends(_with_rest(_regrowing(_with_functions(_with_more(whole))))), keys)
    variant = replace(variant, texts=random.Random(f"{seed}/texts").random() < TEXTS_SHARE)
    variant = replace(variant, branches=() if windowing is None else _branches(seed))
    variant = replace(variant, inspects=random.Random(f"{seed}/inspected").random() < INSPECTED_SHARE)
    variant = _in_batches(_with_backlog(_budgeted(_with_slow_copies(variant)), keys))
    return _with_survivors(_with_committer(_with_standbys(variant)))


def _branches(seed: int) -> tuple[str, ...]:
    return tuple(
        each.name for each in BRANCHES.values() if random.Random(f"{seed}/{each.stream}").random() < each.share
    )


def _with_survivors(whole: Scenario) -> Scenario:
    """In some seeds with branches kill workers one at a time, so that others roll back their open epochs in memory.

    Records arrive all the time, so that checkpoints are completed before and after. Worlds in which records or
    epochs come at their time, in which no worker survives (microbatch mode), or without other faults are left out.
    """
    rng = random.Random(f"{whole.seed}/survivors 2266")
    calm = whole.regrows or any(aim.point is Point.SWEEP for aim in whole.aims)
    timed = whole.rests or whole.grows or whole.aligns or whole.budgeted
    if not whole.branches or whole.batched or calm or timed or rng.random() >= SURVIVORS_SHARE:
        return whole
    times = [rng.uniform(KILLED_FROM_S, whole.heal_at) for _ in range(rng.choice(KILLED))]
    kills = [TimedFault(at, Fault.WORKER_KILLED, 0.0) for at in times]
    latest = max((arrivals[-1] for arrivals in whole.arrivals if arrivals), default=whole.heal_at)
    stretch = max(1.0, whole.heal_at / latest)
    return replace(
        whole,
        parallelisms=whole.parallelisms if whole.rescales else (max(2, whole.parallelisms[0]),),
        armed=whole.armed | {Fault.WORKER_KILLED: whole.armed.get(Fault.WORKER_KILLED, 0.0) + len(kills)},
        moments=tuple(sorted((*whole.moments, *kills), key=lambda moment: moment.at)),
        arrivals=tuple(tuple(at * stretch for at in times) for times in whole.arrivals),
        checkpoint_every=0.25,
    )


def _with_slow_copies(whole: Scenario) -> Scenario:
    copies = random.Random(f"{whole.seed}/copies")
    return replace(whole, copied_per_turn=copies.choice(COPIED_PER_TURN)) if copies.random() < COPIES_SHARE else whole


def _with_committer(whole: Scenario) -> Scenario:
    """In some seeds give every sink one committer, in half of these only with some drivers: the job was begun without,
    or its sinks have been replaced."""
    chance = random.Random(f"{whole.seed}/handed-over")
    if chance.random() >= COMMITTER_SHARE:
        return whole
    committers = chance.choice(((True,), (True,), (False, True), (True, False)))
    more = {Fault.MESSAGE_LOST: 0.1}
    if len(set(committers)) > 1:
        more = {Fault.SINK_REFUSED: 0.5, Fault.DRIVER_CRASH: 0.5}
    armed = whole.armed | {fault: max(rate, whole.armed.get(fault, 0.0)) for fault, rate in more.items()}
    return replace(whole, committers=committers, upload_from=chance.choice((0, 1_000, UPLOAD_FROM_BYTES)), armed=armed)


def with_committers(plan: Plan) -> Plan:
    """Return the plan; one committer delivers the output of all writers of a sink."""
    sinks = (
        s if s.path is not None else replace(s, sink=MemorySink(s.sink.key, commits_once=True)) for s in plan.sinks
    )
    return replace(plan, sinks=tuple(sinks))


def _with_standbys(whole: Scenario) -> Scenario:
    chance = random.Random(f"{whole.seed}/takeovers")
    if any(whole.batches) or chance.random() >= STANDBYS_SHARE:
        return whole
    more = {Fault.WORKER_CRASH: 0.5, Fault.MESSAGE_DELAYED: 0.1, Fault.MESSAGE_LOST: 0.05}
    armed = whole.armed | {fault: max(rate, whole.armed.get(fault, 0.0)) for fault, rate in more.items()}
    return replace(whole, standbys=chance.choice((1, 1, 2, 3)), armed=armed)


def _in_batches(whole: Scenario) -> Scenario:
    """In some seeds run some or all drivers in microbatch mode.

    Immediate sinks are refused there. The worlds left out wait for workers: for one whose memory is full, for a
    partition that rests at its time, or for epochs at theirs.
    """
    rng = random.Random(f"{whole.seed}/batches")
    unfit = whole.immediate or whole.budgeted or whole.rests or whole.regrows
    unfit = unfit or any(aim.point is Point.SWEEP for aim in whole.aims)
    if rng.random() >= BATCHES_SHARE or unfit:
        return whole
    modes = rng.choice(((True,), (True, False), (False, True), (True, True, False), (False, False, True)))
    fault_rates = {**whole.armed, **faults.draw_batches(rng)}
    all_aims, ends, rewinds = (*whole.aims, *aims.draw_at_batches(rng)), whole.ends, whole.rewinds
    if not ends and rng.random() < FINISHED_IN_BATCHES_SHARE:
        ends = (EndAsked(rng.uniform(0.3, 5.0), "finish"),)
    if not rewinds and rng.random() < REWOUND_IN_BATCHES_SHARE:
        rewinds = tuple(RewindAsked(rng.uniform(0.5, 4.0), rng.choice((0, 1, 2)), None) for _ in range(2))
    return replace(whole, batches=modes, armed=fault_rates, aims=all_aims, ends=ends, rewinds=rewinds)


def _with_more(whole: Scenario) -> Scenario:
    """Add the parts with their own streams of numbers: aims, and faults outside the swarm."""
    seed, rng = whole.seed, random.Random(f"{whole.seed}/more")
    records = faults.draw_records(random.Random(f"{seed}/records"))
    after = faults.draw_after(random.Random(f"{seed}/after"))
    more, new_aims = {**faults.draw_more(rng), **records, **after}, aims.draw(random.Random(f"{seed}/aims"))
    whole = replace(
        whole,
        aims=new_aims,
        armed={**more, **whole.armed},
        moments=tuple(sorted((*whole.moments, *_moments(rng, more, whole.heal_at)), key=lambda moment: moment.at)),
        folders=whole.folders or bool(ON_DISK & more.keys()),
    )
    if any(aim.fault is Fault.RESCALED for aim in new_aims) and len(whole.parallelisms) == 1:
        whole = replace(whole, parallelisms=(*whole.parallelisms, whole.parallelisms[0] % 3 + 1))
    if any(aim.point is Point.SWEEP for aim in new_aims):
        # Checkpoints must be completed before any expires, so this world has no other faults.
        calm = {**more, Fault.WRITE_LATE: 0.2}
        whole = replace(whole, armed=calm, moments=(), checkpoint_every=0.12, retention=Retention(1, 0, 2))
    return whole


def _budgeted(whole: Scenario) -> Scenario:
    """In some seeds give workers little memory for their state, and sometimes fill the disks that it may leave to."""
    rng = random.Random(f"{whole.seed}/budget")
    # Those worlds need an epoch, or a record, at its time.
    timed = whole.regrows or whole.rests or any(aim.point is Point.SWEEP for aim in whole.aims)
    if timed or rng.random() >= BUDGET_SHARE:
        return whole
    memory, every = rng.choice(STATE_MEMORY), rng.choice((whole.checkpoint_every, NEVER_DUE_S))
    full = {Fault.DISK_FULL: 2.0} if rng.random() < 0.5 else {}
    moments = tuple(sorted((*whole.moments, *_moments(rng, full, whole.heal_at)), key=lambda moment: moment.at))
    armed = {**full, **whole.armed}
    return replace(whole, state_memory=memory, checkpoint_every=every, folders=True, armed=armed, moments=moments)


def _with_rest(whole: Scenario) -> Scenario:
    """In some seeds with idle partitions let one be idle after the world has healed, while another is active."""
    rng, windowing = random.Random(f"{whole.seed}/rest"), whole.windowing
    long = [partition for partition, records in enumerate(whole.partitions) if len(records) >= RESTING_MIN]
    if windowing is None or not windowing.idles or len(long) < 2 or rng.random() >= RESTING_SHARE:
        return whole
    resting, active = rng.sample(long, 2)
    partitions, arrivals = list(whole.partitions), list(whole.arrivals)
    times = tuple(whole.heal_at + RESTS_S - ACTIVE_S * (RESTING_MIN - n) for n in range(RESTING_MIN))
    now = max(record.at for records in partitions for record in records)
    going_on = [
        replace(record, at=now + 1_000_000 * 20 * (n + 1)) for n, record in enumerate(partitions[active][-RESTING_MIN:])
    ]
    late = replace(partitions[resting][-1], at=0)
    partitions[active] = (*partitions[active][:-RESTING_MIN], *going_on)
    arrivals[active] = (*arrivals[active][:-RESTING_MIN], *times)
    partitions[resting] = (*partitions[resting][:-1], late)
    arrivals[resting] = (*arrivals[resting][:-1], whole.heal_at + RESTS_S + LATE_AFTER_S)
    return replace(whole, partitions=tuple(partitions), arrivals=tuple(arrivals), rests=(late.id,))


def _regrowing(whole: Scenario) -> Scenario:
    """In some seeds with windows change the parallelism often, while pieces are merged and windows are deleted.

    This world has no other faults, so that each generation completes some epochs.
    """
    rng = random.Random(f"{whole.seed}/regrowing")
    if whole.windowing is None or rng.random() >= REGROWING_SHARE:
        return whole
    heal_at = REGROWS_AT[-1] + 0.5
    latest = max((times[-1] for times in whole.arrivals if times), default=1.0)
    stretch = (heal_at + 1.0) / latest
    kills = tuple(TimedFault(at + rng.uniform(0.0, 0.4), Fault.DRIVER_KILLED, 0.2) for at in REGROWS_AT)
    return replace(
        whole,
        parallelisms=rng.choice(((1, 2), (1, 2), (1, 3), (1, 2, 1, 3), (3, 2, 1))),
        merging=Thresholds(rng.choice((4_000, 8_000, 14_000, 20_000)), rng.choice((3, 64))),
        checkpoint_every=0.12,
        armed={Fault.DRIVER_KILLED: float(len(kills))},
        moments=kills,
        aims=(),
        arrivals=tuple(tuple(at * stretch for at in times) for times in whole.arrivals),
        heal_at=heal_at,
        regrows=True,
    )


def _growing(whole: Scenario, keys: int) -> Scenario:
    """In some seeds add partitions while the job runs, half of the time with faults that wait for that moment."""
    rng = random.Random(f"{whole.seed}/growing")
    # A job that is written immediately must not get partitions; one with a rest must be idle at its time.
    if whole.immediate or whole.rests or rng.random() >= GROWING_SHARE:
        return whole
    first = len(whole.partitions)
    appears = [rng.uniform(0.1, whole.heal_at + 2.0) for _ in range(rng.randint(1, ADDED_MAX))]
    records, arrivals = [], []
    for partition, at in enumerate(appears, first):
        count = rng.choice((0, 1, 6, 12, 25))
        made = tuple(_record(rng, partition, offset, keys) for offset in range(count))
        records.append(made if whole.windowing is None else _timed(rng, made))
        arrivals.append(tuple(sorted(at + rng.choice((0.0, rng.uniform(0.0, 2.0))) for _ in range(count))))
    refusal_rates = {Fault.LISTING_REFUSED: rng.choice((0.2, 0.6))} if rng.random() < 0.4 else {}
    return replace(
        whole,
        partitions=(*whole.partitions, *records),
        arrivals=(*whole.arrivals, *arrivals),
        appears=(*(0.0,) * first, *appears),
        listed_every=rng.choice(LISTED_EVERY_S),
        armed={**whole.armed, **refusal_rates},
        aims=(*whole.aims, *aims.draw_at_partitions(rng)),
    )


def _with_backlog(whole: Scenario, keys: int) -> Scenario:
    """In some seeds with event time give the partitions a backlog that is read slowly, so some lag for a long time.

    Partitions differ in how many records they have per second of event time. In most of these seeds one gets its
    records late, while another rests that is far ahead, and resumes meanwhile.
    """
    rng = random.Random(f"{whole.seed}/backlog")
    here = [partition for partition in range(len(whole.partitions)) if partition not in whole.added]
    timed = whole.rests or whole.regrows or whole.budgeted or any(aim.point is Point.SWEEP for aim in whole.aims)
    if whole.windowing is None or timed or len(here) < 2 or rng.random() >= BACKLOG_SHARE:
        return whole
    partitions, arrivals = list(whole.partitions), list(whole.arrivals)
    resting, last = rng.choice(((None, None), (here[0], here[1]), (here[1], here[0])))
    for partition in here:
        count, pace = rng.choice(BACKLOG_RECORDS), rng.choice((0.1, 1.0, 3.0))
        starts = [0.0, *(rng.uniform(1.0, 6.0) for _ in range(rng.choice((0, 1, 2))))]
        times = sorted(rng.choice(starts) for _ in range(count))
        if last is not None:
            count, first = {last: (40, 2), resting: (42, 36)}.get(partition, (2, 2))
            pace = 0.1 if partition == last else 3.0
            back = whole.heal_at + LAST_AFTER_S + (rng.uniform(0.3, 2.5) if partition == resting else 0.0)
            times = [0.0] * first + [back] * (count - first)
        made = _timed(rng, tuple(_record(rng, partition, offset, keys) for offset in range(count)))
        partitions[partition] = tuple(replace(record, at=int(pace * record.at)) for record in made)
        arrivals[partition] = tuple(times)
    windowing = whole.windowing if last is None else replace(whole.windowing, idles=True)
    rate = rng.choice(BACKLOG_RATES) if last is None else LAST_RATE
    parallelisms = tuple(max(2, each) for each in whole.parallelisms)
    given = tuple(partitions), tuple(arrivals)
    whole = replace(whole, partitions=given[0], arrivals=given[1], parallelisms=parallelisms)
    return replace(whole, windowing=windowing, rate=rate)


def _with_ends(whole: Scenario) -> Scenario:
    """In some seeds ask for the end of the run, and let some runs end by themselves."""
    rng = random.Random(f"{whole.seed}/ends")
    requests: tuple[EndAsked, ...] = ()
    if rng.random() < ENDS_SHARE:
        hows = rng.choice(((None,), (None, None), ("now",), (None, "now", None), ("finish",), (None, "finish")))
        requests = tuple(EndAsked(rng.uniform(0.3, 5.0), how) for how in hows)
    once = rng.choice(((True, False), (True, True, False))) if rng.random() < ONCE_SHARE else (False,)
    letters = random.Random(f"{whole.seed}/letters").random() < LETTERS_SHARE
    evolves = random.Random(f"{whole.seed}/evolves").random() < evolving.EVOLVES_SHARE
    drops = evolves and random.Random(f"{whole.seed}/drops").random() < dropping.DROPS_SHARE
    ends = tuple(sorted(requests, key=lambda end: end.at))
    return replace(whole, ends=ends, once=once, letters=letters, evolves=evolves, drops=drops)


def _with_functions(whole: Scenario) -> Scenario:
    """In some seeds give the job functions that fail, also in a world without other faults."""
    rng = random.Random(f"{whole.seed}/functions")
    failing = faults.draw_functions(rng)
    if not failing:
        return whole
    armed, aimed = {**whole.armed, **failing}, (*whole.aims, *aims.draw_at_calls(rng))
    return replace(whole, armed=armed, aims=aimed, call_s=rng.choice((0.0, 0.03, 0.07, 0.15)))


def _windowing(rng: random.Random) -> Windowing | None:
    windowing = Windowing(rng.choice((2, 5)), rng.choice((0, 0, 3)), rng.random() < 0.4)
    return windowing if rng.random() < TIMED_SHARE else None


def _timed(rng: random.Random, records: tuple[Input, ...]) -> tuple[Input, ...]:
    """Give the records of a partition growing event times, some out of order, a few far back."""
    now, timed_records = 0.0, []
    for record in records:
        now += rng.choice((0.0, 0.3, 1.0, 3.0))
        back = rng.choice((0.0, 0.0, 0.5, 1.0, 4.0, 12.0))
        timed_records.append(replace(record, at=int(1_000_000 * (now - back))))
    return tuple(timed_records)


def _merging(rng: random.Random) -> Thresholds:
    """In half of the seeds merge very often."""
    tiny = Thresholds(rng.choice((1, 3_000, 1 << 20)), rng.choice((2, 3, 5)))
    return rng.choice((tiny, Thresholds()))


def _retention(rng: random.Random) -> Retention:
    """In half of the seeds keep next to nothing."""
    tiny = Retention(rng.choice((1, 2, 4)), rng.choice((0, 0, 500_000)), rng.choice((2, 6)))
    return rng.choice((tiny, Retention()))


def _savepoints(rng: random.Random) -> tuple[SavepointAsked, ...]:
    return tuple(
        SavepointAsked(rng.uniform(0.2, 6.0), rng.choice((None, None, *APPENDS_AFTER_S)))
        for _ in range(rng.choice((0, 1, 2, 4)))
    )


def _rewinds(rng: random.Random) -> tuple[RewindAsked, ...]:
    """In half of the seeds go back once or a few times, sometimes in quick succession."""
    first = rng.uniform(0.3, 3.5)
    return tuple(
        RewindAsked(
            first + i * rng.choice((0.05, 0.5, 1.5)), rng.choice((0, 1, 1, 2, 5)), rng.choice((None, None, 0.0, 0.3))
        )
        for i in range(rng.choice((0, 0, 0, 1, 1, 3)))
    )


def _record(rng: random.Random, partition: int, offset: int, keys: int) -> Input:
    key, bucket = rng.randrange(keys), rng.randrange(3)
    return Input(partition * PARTITION_STRIDE + offset, key, bucket, rng.randint(-100, 100))


def _cut_short(rng: random.Random, rewinds: tuple[RewindAsked, ...]) -> list[TimedFault]:
    """In a third of the seeds that rewind, make the target unreachable then, and kill the driver before it is back."""
    if rng.random() < 0.65:
        return []
    down = [TimedFault(max(0.0, asked.at - 0.05), Fault.SINK_DOWN, 1.0) for asked in rewinds]
    return down + [TimedFault(asked.at + rng.uniform(0.1, 0.8), Fault.DRIVER_KILLED, 0.2) for asked in rewinds]


def _moments(rng: random.Random, armed: dict[Fault, float], heal_at: float) -> list[TimedFault]:
    return [
        TimedFault(rng.uniform(0.1, heal_at), fault, rng.choice((0.2, 0.6, 1.5, 3.0, 8.0)))
        for fault in faults.PER_RUN
        for _ in range(faults.times(armed, fault))
    ]


def operator_of(sink: str) -> str:
    """Return the name of the operator whose results an upsert sink takes."""
    return f"{sink}_totals"


@lru_cache(maxsize=PLANS_MAX)
def plan_of(
    upserts: tuple[str, ...],
    above: int | None,
    windowing: Windowing | None = None,
    immediate: bool = False,
    with_ledger: bool = False,
    regroups: bool = False,
    united: bool = False,
    functions: bool = False,
    letters: bool = False,
    texts: bool = False,
    drops: bool = False,
    branches: tuple[str, ...] = (),
    version: int | None = None,
) -> Plan:
    """Return the job's plan; every worker replaces its source and sinks, which are stand-ins, by its own.

    Args:
        version: Version of an evolving job's code.
    """
    app = hf.App("simulated", key_groups=16, dlq=MemorySink() if letters else None)
    source = ArrivingSource((), (), None, random.Random(0), 1, SCHEMA if windowing is None else TIMED_SCHEMA)
    time_options: dict[str, Any] = {}
    if windowing is not None:
        idle_after = "1s" if windowing.idles else "1h"
        time_options = {"event_time": "at", "out_of_orderness": f"{OUT_OF_ORDERNESS_S}s", "idle_after": idle_after}
    names = (SOURCE, SECOND) if united else (SOURCE,)
    records, *others = [app.source(name, source, partitioned_by=["place"], **time_options) for name in names]
    if others:
        records = records.union(*others)
    if letters:
        lettered.check_each(records)
    records = calling(records, functions)
    if windowing is not None:
        counted = _count_in_windows(records, windowing, functions)
        if regroups:
            ledger.regroup(counted)
    kept = records if above is None else records.filter(pl.col("value") > above)
    kept.sink(ADDED, MemorySink())
    if immediate:
        kept.select("place", "id", "value").sink(LASTS, ImmediateTable(["place"]))
    for name in upserts:
        key = UPSERTS[name]
        totals = calling(records, functions).key_by(key).agg(operator_of(name), **evolving.aggregates(version or 0))
        if version is not None:
            totals = totals.select(key, "n", "total", low="lowest" if version else "low", high="high")
        totals.sink(name, MemorySink(key=[key]))
    if with_ledger:
        ledger.keep_ledger(records)
    if texts:
        spelled.spell(records)
    if drops:
        dropping.count_since(records)
    for name in branches:
        BRANCHES[name].add(records)
    return app.plan()


def _count_in_windows(records: Stream, windowing: Windowing, functions: bool) -> Stream:
    lateness = f"{windowing.lateness_s}s"
    window = records.key_by("bucket").window(hf.tumbling(f"{windowing.size_s}s"), allowed_lateness=lateness)
    window_counts = window.agg(
        operator_of(WINDOWS),
        emit="final",
        n=hf.count(),
        total=hf.sum("value"),
        low=hf.min("value"),
        high=hf.max("value"),
    )
    calling(window_counts, functions).sink(WINDOWS, MemorySink())
    window_counts.late.sink(LATE, MemorySink())
    return window_counts
