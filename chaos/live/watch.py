"""Observes a job while faults strike it: samples, epochs and recoveries, from the job's own published files.

Epochs come from the job log, the only authority on a job; the rest from the driver's progress and `live.json`.

Invariant
    - A recovery is written once, when the driver reports the first epoch after it, or when the run ends.
"""

from __future__ import annotations

import json
import time
from typing import Any

from holdfast.chaos.judge.recoveries import US_PER_MS, Recoveries, RecoveryAttempt
from holdfast.chaos.live.job import LiveJob
from holdfast.chaos.live.journal import JournalWriter
from holdfast.chaos.live.observer import JobLog

SAMPLE_EVERY_S = 1.0


class Watch:
    """Follows one job. Call `look` often."""

    def __init__(self, job: LiveJob, journal: JournalWriter) -> None:
        self._job, self._journal = job, journal
        self._log = JobLog(job.root)
        self._next_sample = 0.0
        self._recoveries = Recoveries()
        self._reported: set[tuple[int, int]] = set()
        self._lost_driver: tuple[str, float, float] | None = None
        self.epoch: int | None = None
        self.epochs = 0
        self.generation: int | None = None
        self.epoch_seen = time.monotonic()
        """When the newest epoch was seen to be complete."""
        self.disorder: list[str] = []
        """Descriptions of numbers that went back in the job log."""
        self.causes: list[str] = []
        """The causes for which generations were started."""

    @property
    def running(self) -> bool:
        """Return whether every subtask runs, according to the present driver."""
        return self._job.progress.get("state") == "running"

    def driver_lost(self, cause: str) -> None:
        """Start timing until the next driver runs the job."""
        self._take_in(reported=None)
        if self._lost_driver is None:
            self._lost_driver = (cause, time.monotonic(), time.time())

    def look(self) -> None:
        """Read new entries."""
        self._take_in(reported=self._job.progress.get("epoch") or 0)
        if time.monotonic() >= self._next_sample:
            self._next_sample = time.monotonic() + SAMPLE_EVERY_S
            self._sample()

    def end(self) -> None:
        """Write the recoveries that are still open."""
        self._job.hear_out()
        self._sample()
        self._take_in(reported=None)
        for recovery in self._recoveries.rest():
            self._journal.write("recovery", **recovery)

    def _take_in(self, reported: int | None) -> None:
        """Read new records; write the recoveries that ended with epochs that the driver has reported."""
        self._find_recoveries()
        self._read_log()
        for recovery in self._recoveries.closed(reported):
            self._journal.write("recovery", **recovery)

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
        self._recoveries.completed(self.epoch, record["at"], self._journal.at_ms())

    def _find_recoveries(self) -> None:
        for number, restart in enumerate(self._job.progress.get("restarts", ())):
            key = (self._job.drivers, number)
            if restart["recovery_ms"] is not None and key not in self._reported:
                self._reported.add(key)
                self._recoveries.open.append(RecoveryAttempt(restart["cause"], restart["recovery_ms"], restart["at"]))
        if self._lost_driver is not None and self.running:
            cause, since, wall = self._lost_driver
            self._lost_driver = None
            wall_us = wall * 1e6
            took_ms = round((time.monotonic() - since) * 1000)
            self._recoveries.open.append(RecoveryAttempt(cause, took_ms, wall_us, wall_us))
        # A worker takes its first record, and reports it, some time after the job is ready.
        self._look_up([each for each in self._recoveries.open if each.began_us is None or each.first_record_us is None])

    def _look_up(self, attempts: list[RecoveryAttempt]) -> None:
        """Add details from `live.json` once it has them: when each began, when a new worker took a record."""
        folder = self._job.folder()
        if not attempts or folder is None:
            return
        try:
            live = json.loads((folder / "live.json").read_bytes())
        except (FileNotFoundError, ValueError):
            return
        known = {restart["at"]: restart for restart in live.get("restarts", ()) if restart["at"] is not None}
        for attempt in attempts:
            if (restart := known.get(attempt.logged_us)) is not None:
                attempt.began_us = restart["at"] - restart["logged_ms"] * US_PER_MS
                workers = live["workers"] if live["generation"] == restart["generation"] else ()
                first = [worker["first_record_at"] for worker in workers if worker["how"] == "restored"]
                attempt.first_record_us = max(first) if first and all(first) else None

    def _sample(self) -> None:
        progress = self._job.progress
        self._journal.write(
            "sample",
            state=progress.get("state", "starting"),
            generation=progress.get("generation"),
            epoch=self.epoch,
            epoch_age_ms=None if self.epoch is None else round((time.monotonic() - self.epoch_seen) * 1000),
            records_in=progress.get("records_in"),
            rate=progress.get("records_per_s"),
            lag=progress.get("lag"),
            rss_bytes=self._job.rss_bytes(),
        )
