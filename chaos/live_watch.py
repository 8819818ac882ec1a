"""What is seen of a job while faults strike it: samples, epochs, recoveries, from what the job itself publishes.

Epochs come from the job log, the only truth about a job; everything else from the driver's progress and `live.json`.

Invariant
    - A recovery is written once, when the first epoch after it is complete, or when the run ends.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from holdfast.chaos.journal import Journal
from holdfast.chaos.live_job import LiveJob
from holdfast.chaos.observer import JobLog

SAMPLE_EVERY_S = 1.0
US_PER_MS = 1_000


@dataclass
class _Recovery:
    cause: str
    recovery_ms: int
    began_us: float | None
    """Wall clock of the driver when the failure was noticed; None if unknown."""
    first_record_ms: int | None = None


class Watch:
    """Follows one job. Call `look` often."""

    def __init__(self, job: LiveJob, journal: Journal) -> None:
        self._job, self._journal = job, journal
        self._log = JobLog(job.root)
        self._next_sample = 0.0
        self._open: list[_Recovery] = []
        self._told: set[tuple[int, int]] = set()
        self._lost_driver: tuple[str, float, float] | None = None
        self.epoch: int | None = None
        self.epochs = 0
        self.generation: int | None = None
        self.epoch_seen = time.monotonic()
        """When the newest epoch was found complete."""
        self.disorder: list[str] = []
        """Where numbers in the job log went back, in words."""
        self.causes: list[str] = []
        """Why generations were started."""

    @property
    def running(self) -> bool:
        """Return whether every subtask runs, as far as the driver that runs now has said."""
        return self._job.progress.get("state") == "running"

    def driver_lost(self, cause: str) -> None:
        """Take the time from here until the next driver runs the job."""
        if self._lost_driver is None:
            self._lost_driver = (cause, time.monotonic(), time.time())

    def look(self) -> None:
        """Take in what is new."""
        self._read_log()
        self._find_recoveries()
        if time.monotonic() >= self._next_sample:
            self._next_sample = time.monotonic() + SAMPLE_EVERY_S
            self._sample()

    def end(self) -> None:
        """Write what is still open."""
        self._read_log()
        self._find_recoveries()
        for recovery in self._open:
            self._write(recovery, None)
        self._open = []

    def _read_log(self) -> None:
        for record in self._log.news():
            self._take(record)

    def _take(self, record: dict[str, Any]) -> None:
        generation, body = record["generation"], record["body"]
        if self.generation is not None and generation < self.generation:
            self.disorder.append(f"record {record['seq']} is of generation {generation} after {self.generation}")
        self.generation = generation
        if body["kind"] == "GenerationStarted":
            self.causes.append(body["cause"])
        if body["kind"] != "CheckpointCompleted":
            return
        if self.epoch is not None and body["epoch"] <= self.epoch:
            self.disorder.append(f"epoch {body['epoch']} was completed after epoch {self.epoch}")
        self.epoch, self.epoch_seen = body["epoch"], time.monotonic()
        self.epochs += 1
        self._journal.write("epoch", epoch=self.epoch, generation=generation, duration_ms=body["duration_ms"])
        over = [each for each in self._open if each.began_us is None or record["at"] > each.began_us]
        self._open = [each for each in self._open if each not in over]
        for recovery in over:
            self._write(recovery, record["at"])

    def _find_recoveries(self) -> None:
        for number, restart in enumerate(self._job.progress.get("restarts", ())):
            key = (self._job.drivers, number)
            if restart["recovery_ms"] is not None and key not in self._told:
                self._told.add(key)
                self._open.append(self._recovery(restart))
        if self._lost_driver is not None and self.running:
            cause, since, wall = self._lost_driver
            self._lost_driver = None
            self._open.append(_Recovery(cause, round((time.monotonic() - since) * 1000), wall * 1e6))

    def _recovery(self, restart: dict[str, Any]) -> _Recovery:
        """Return it with what `live.json` knows besides: when it began, and when a new worker took a record."""
        recovery = _Recovery(restart["cause"], restart["recovery_ms"], restart["at"])
        folder = self._job.folder()
        try:
            live = json.loads((folder / "live.json").read_bytes()) if folder is not None else {}
        except (FileNotFoundError, ValueError):
            return recovery
        same = [each for each in live.get("restarts", ()) if each["at"] == restart["at"] and each["at"] is not None]
        if same:
            recovery.began_us = same[0]["at"] - same[0]["logged_ms"] * US_PER_MS
            first = [w["first_record_at"] for w in live["workers"] if w["how"] == "restored" and w["first_record_at"]]
            if first and live["generation"] == same[0]["generation"]:
                recovery.first_record_ms = round((max(first) - recovery.began_us) / US_PER_MS)
        return recovery

    def _write(self, recovery: _Recovery, epoch_at_us: int | None) -> None:
        known = {"first_record_ms": recovery.first_record_ms}
        if epoch_at_us is not None and recovery.began_us is not None:
            known["next_epoch_ms"] = round((epoch_at_us - recovery.began_us) / US_PER_MS)
        more = {name: value for name, value in known.items() if value is not None}
        self._journal.write("recovery", cause=recovery.cause, recovery_ms=recovery.recovery_ms, **more)

    def _sample(self) -> None:
        told = self._job.progress
        self._journal.write(
            "sample",
            state=told.get("state", "starting"),
            generation=told.get("generation"),
            epoch=self.epoch,
            epoch_age_ms=None if self.epoch is None else round((time.monotonic() - self.epoch_seen) * 1000),
            records_in=told.get("records_in"),
            rate=told.get("records_per_s"),
            lag=told.get("lag"),
            rss_bytes=self._job.rss_bytes(),
        )
