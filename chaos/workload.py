"""What a seed runs: a job, its input, when the input arrives, and which faults are armed.

The job reads integer records, keeps one or two keyed aggregates in upsert sinks and adds (filtered)
records to an append sink. Everything is tiny: a bug in a protocol needs few records and many
interleavings.

Invariants
    - A scenario is a function of its seed.
    - A record has the same offset and bytes however often it is read.

Source: DESIGN section 10.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import dataclass
from functools import cache

import polars as pl
import pyarrow as pa

import holdfast as hf
from holdfast.chaos import faults
from holdfast.chaos.faults import Fault
from holdfast.chaos.oracle import Input
from holdfast.checkpoint.bases import Thresholds
from holdfast.checkpoint.catalogue import Retention
from holdfast.ports import Clock
from holdfast.runtime.steps import Plan
from holdfast.sinks.memory import MemorySink

SCHEMA = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("id", "key", "bucket", "value")])
SOURCE, ADDED = "in", "added"
UPSERTS = {"by_key": "key", "by_bucket": "bucket"}
"""Upsert sinks, each behind an operator, with their key column."""
APPENDS_AFTER_S = (0.0, 0.02, 0.3, 2.0)
"""How long somebody who names a checkpoint looks at the log before he appends."""
PARTITION_STRIDE = 1_000_000
"""Ids are partition * stride + offset, so that a row tells where it came from."""


@dataclass(frozen=True)
class Moment:
    """A fault of PER_RUN: when it strikes, and for how long where that means anything."""

    at: float
    fault: Fault
    seconds: float


@dataclass(frozen=True)
class SavepointAsked:
    """Somebody wants a savepoint: of the driver if `delay` is None, else by naming the last checkpoint himself."""

    at: float
    delay: float | None
    """Seconds between his look at the log and his record."""


@dataclass(frozen=True)
class RewindAsked:
    """Somebody wants the job to go back by some checkpoints: the driver is asked, or fenced by a driver of his own."""

    at: float
    back: int
    delay: float | None
    """None: the newest driver is asked; else seconds between his look at the log and his record."""


@dataclass(frozen=True)
class Scenario:
    """Everything that a seed decides before the run; times in virtual seconds from its start."""

    seed: int
    parallelism: int
    partitions: tuple[tuple[Input, ...], ...]
    arrivals: tuple[tuple[float, ...], ...]
    batch_rows_max: int
    upserts: tuple[str, ...]
    """Which upsert sinks there are."""
    above: int | None
    """The append sink takes records with a value above this; None: all of them."""
    checkpoint_every: float
    epoch_deadline: float
    channel_frames_max: int
    earlier_job: bool
    """A deleted job of the same name left its tags in the targets (P1)."""
    verify_every_checkpoint: bool
    merging: Thresholds
    retention: Retention
    savepoints: tuple[SavepointAsked, ...]
    rewinds: tuple[RewindAsked, ...]
    folders: bool
    """Workers keep committed state in folders that outlive them."""
    armed: dict[Fault, float]
    moments: tuple[Moment, ...]
    heal_at: float

    @property
    def records(self) -> int:
        """Return the number of records."""
        return sum(len(records) for records in self.partitions)


def scenario(seed: int) -> Scenario:
    """Return what this seed runs."""
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
    armed = faults.draw(rng)
    heal_at = rng.uniform(1.5, 6.0)
    keeping, backwards = random.Random(seed ^ 0xBA5E), random.Random(seed ^ 0xBACC)
    rewinds = _rewinds(backwards)
    if rewinds and backwards.random() < 0.4:
        armed = {**armed, Fault.SINK_LATE: 0.3}  # what comes late meets another timeline
    return Scenario(
        seed=seed,
        parallelism=parallelism,
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
        rewinds=rewinds,
        folders=rng.random() < 0.4,
        armed=armed,
        moments=tuple(sorted(_moments(rng, armed, heal_at), key=lambda moment: moment.at)),
        heal_at=heal_at,
    )


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
    """In half of the seeds go back once or a few times, soon again too."""
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


def _moments(rng: random.Random, armed: dict[Fault, float], heal_at: float) -> list[Moment]:
    return [
        Moment(rng.uniform(0.1, heal_at), fault, rng.choice((0.2, 0.6, 1.5, 3.0, 8.0)))
        for fault in faults.PER_RUN
        for _ in range(faults.times(armed, fault))
    ]


def operator_of(sink: str) -> str:
    """Return the name of the operator behind an upsert sink."""
    return f"{sink}_totals"


@cache
def plan_of(upserts: tuple[str, ...], above: int | None) -> Plan:
    """Return the job's plan; its source and sinks are stand-ins that every worker replaces by its own."""
    app = hf.App("simulated", key_groups=16)
    records = app.source(SOURCE, ArrivingSource((), (), None, random.Random(0), 1))
    kept = records if above is None else records.filter(pl.col("value") > above)
    kept.sink(ADDED, MemorySink())
    for name in upserts:
        key = UPSERTS[name]
        totals = records.key_by(key).agg(
            operator_of(name), n=hf.count(), total=hf.sum("value"), low=hf.min("value"), high=hf.max("value")
        )
        totals.sink(name, MemorySink(key=[key]))
    return app.plan()


class ArrivingSource:
    """A source whose records become readable as time passes.

    Args:
        batches: All records, one batch per partition.
        arrivals: When each record becomes readable, in seconds of `clock`, ascending.
        rng: Decides where the batches that are read end.
    """

    schema = SCHEMA

    def __init__(
        self,
        batches: tuple[pa.RecordBatch, ...],
        arrivals: tuple[tuple[float, ...], ...],
        clock: Clock | None,
        rng: random.Random,
        rows_max: int,
    ) -> None:
        self._batches, self._arrivals, self._clock = batches, arrivals, clock
        self._random, self._rows_max = rng, rows_max

    def check(self) -> None:
        """There is nothing outside to look at."""

    def open(self) -> ArrivingSource:
        """Return this very source: it keeps no position."""
        return self

    def identity(self) -> str:
        """Return a name."""
        return SOURCE

    def partitions(self) -> list[int]:
        """Return all partitions."""
        return list(range(len(self._batches)))

    def end_offsets(self) -> dict[int, int]:
        """Return how many records each partition will ever have."""
        return {partition: batch.num_rows for partition, batch in enumerate(self._batches)}

    def retention_start(self, partition: int) -> int:
        """Everything is kept."""
        return 0

    def read(self, partition: int, offset: int, max_bytes: int) -> tuple[pa.RecordBatch | None, int]:
        """Return some of the records that have arrived; the seed decides how many."""
        assert self._clock is not None
        left = bisect_right(self._arrivals[partition], self._clock.monotonic()) - offset
        if left <= 0:
            return None, offset
        rows = self._random.randint(1, min(left, self._rows_max))
        return self._batches[partition].slice(offset, rows), offset + rows

    def ended(self, partition: int, offset: int) -> bool:
        """Nothing follows the last record."""
        return offset >= int(self._batches[partition].num_rows)

    def close(self) -> None:
        """Nothing is held."""


def batches_of(partitions: tuple[tuple[Input, ...], ...]) -> tuple[pa.RecordBatch, ...]:
    """Return each partition's records as one batch."""
    return tuple(
        pa.RecordBatch.from_arrays(
            [pa.array([getattr(r, name) for r in records], pa.int64()) for name in SCHEMA.names], schema=SCHEMA
        )
        for records in partitions
    )
