"""The journal of a simulated quarter of an hour under live faults: a function of its seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from holdfast.chaos.judge.records import (
    Begin,
    CheckRecord,
    DriverNews,
    EndRecord,
    EpochDone,
    FaultNews,
    Record,
    Recovery,
    Sample,
    Verdict,
)

KINDS = (
    ("worker-kill", "worker 1", "process", 0.0, 620.0),
    ("executor-kill", "executor 0", "process", 0.0, 1_450.0),
    ("driver-kill", "driver", "process", 0.0, 9_200.0),
    ("worker-stop", "worker 0", "process", 12_000.0, 700.0),
    ("data-cut", "worker 1", "data", 8_000.0, 2_100.0),
    ("driver-disk-full", "driver", "storage", 15_000.0, 0.0),
)
INPUT_RATE = 42_000.0


@dataclass
class _Job:
    lag: float = 0.0
    epoch: int = 0
    committed_ms: float = 0.0
    records: float = 0.0
    generation: int = 1


def quarter_of_an_hour(seed: int = 7, faults: int = 26, end: Verdict | None = "held") -> list[Record]:
    """Return the records of a run of 900 seconds; without the last record if it was cut off."""
    rng = random.Random(seed)
    records: list[Record] = [
        Begin(
            at_ms=0,
            job="examples/flights.py",
            seed=seed,
            scenario="chaos/scenarios/everything.toml",
            platform={"machine": "x86_64", "cores": 2, "python": "3.11.2", "spark": "4.0.1"},
            git="46887c9",
            started_at="2026-11-21T05:19:24Z",
        ),
        DriverNews(at_ms=140, phase="started", pid=4_711),
    ]
    planned = sorted((rng.uniform(20_000, 850_000), KINDS[number % len(KINDS)]) for number in range(faults))
    planned = [each for each in planned if each[1][0] != "driver-kill" or 300_000 < each[0] < 700_000]
    outages: list[tuple[float, float, str]] = []
    for number, (at, (kind, target, plane, lasts, recovery)) in enumerate(planned):
        name = f"f{number}"
        records.append(FaultNews(at_ms=300 + number, id=name, fault=kind, target=target, plane=plane, phase="armed"))
        records.append(FaultNews(at_ms=at, id=name, fault=kind, phase="fired", detail=_detail(rng, kind)))
        if lasts:
            records.append(FaultNews(at_ms=at + lasts, id=name, fault=kind, phase="healed"))
        if kind == "driver-kill":
            records.append(DriverNews(at_ms=at + 12, phase="ended", pid=4_711 + number, exit=-9))
            records.append(DriverNews(at_ms=at + 900, phase="started", pid=4_712 + number))
        if recovery:
            began = at + (5_000 if kind == "worker-stop" else 0)
            took = recovery * rng.uniform(0.8, 1.6)
            outages.append((began, began + took, "driver-kill" if kind == "driver-kill" else "recovering"))
            records.append(
                Recovery(
                    at_ms=began + took + 1_010,
                    cause=f"{target} was lost",
                    recovery_ms=took,
                    first_record_ms=took * 0.9,
                    next_epoch_ms=took + 1_010,
                )
            )
        else:
            outages.append((at, at + lasts, "no epochs"))
    records += _samples(rng, outages)
    for name, invariant in (("totals", "I1 no loss"), ("hours", "I2 no duplicate"), ("hours-log", "I3 order")):
        records.append(
            CheckRecord(
                at_ms=899_000,
                name=name,
                invariant=invariant,
                passed=end != "violated" or name != "hours",
                lost=0,
                duplicated=3 if end == "violated" and name == "hours" else 0,
                reordered=0,
                detail="664,839 records compared row by row",
            )
        )
    if end is not None:
        records.append(EndRecord(at_ms=900_000, verdict=end, reason=None if end == "held" else "the oracle disagrees"))
    return sorted(records, key=lambda record: record.at_ms)


def _detail(rng: random.Random, kind: str) -> str:
    return f"SIGKILL to pid {rng.randint(3_000, 30_000)}" if kind.endswith("kill") else f"{kind} for a while"


def _samples(rng: random.Random, outages: list[tuple[float, float, str]]) -> list[Record]:
    job, slow = _Job(), 1.0
    records: list[Record] = []
    for second in range(1, 900):
        at = second * 1_000.0
        now = [kind for began, over, kind in outages if began <= at < over + 400]
        down, stuck = any(kind != "no epochs" for kind in now), bool(now)
        slow = min(1.15, max(0.85, slow + rng.uniform(-0.04, 0.04)))
        capacity = 0.0 if down else 105_000.0 * slow
        rate = min(capacity, INPUT_RATE * rng.uniform(0.94, 1.06) + job.lag)
        job.lag = max(0.0, job.lag + INPUT_RATE - rate)
        job.records += rate
        if not stuck:
            job.epoch += 1
            took = 38 * slow + rng.expovariate(1 / 14) + min(120.0, job.lag / 2_000)
            job.committed_ms = at - rng.uniform(0, 300)
            records.append(EpochDone(at_ms=job.committed_ms, epoch=job.epoch, generation=1, duration_ms=took))
        without_driver = "driver-kill" in now
        records.append(
            Sample(
                at_ms=at,
                state=None if without_driver else "recovering" if down else "running",
                generation=1,
                epoch=None if without_driver else job.epoch,
                epoch_age_ms=None if without_driver else at - job.committed_ms,
                records_in=int(job.records),
                rate=None if without_driver else rate,
                lag=None if without_driver else job.lag,
                rss_bytes=None if without_driver else (610 + 30 * slow + second / 60) * (1 << 20),
            )
        )
    return records
