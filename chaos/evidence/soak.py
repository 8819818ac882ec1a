"""Alternates between the simulator and live runs for hours, and keeps the result of each batch in a log.

A soak resumes from its log alone: started again in the same folder, it continues after the last finished batch until
the hours are spent, however the previous soak ended. A batch is in the log or it is played again.

Invariants
    - A line of the log is durable before the next batch begins; a torn line is cut off before the next append.
    - Only one soak at a time appends to a log.
    - A live run begins only after a simulated batch, and while live runs have taken no more time than simulated ones.

Source: DESIGN section 10.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import holdfast
from holdfast.chaos.evidence import page
from holdfast.chaos.evidence.report import summarise
from holdfast.chaos.evidence.soak_log import (
    Batch,
    CodeVersion,
    Failure,
    Lived,
    Simulated,
    SoakLog,
    encode,
    parse,
    simulated,
)
from holdfast.chaos.explore.report import Summary
from holdfast.chaos.live.checkout import commit
from holdfast.chaos.live.folders import make_folder
from holdfast.chaos.live.port import Play
from holdfast.errors import ConfigError, Fenced, Unavailable

LOG = "soak.jsonl"
BATCH_SEEDS = 500
NOT_HASHED = frozenset({"__pycache__", "examples"})


@dataclass(frozen=True)
class LiveRuns:
    """The parts of live runs."""

    play: Play
    job: Path


@dataclass(frozen=True)
class Soak:
    """A soak and its settings.

    Args:
        folder: Holds the log, and a folder for every live run.
        hours: Stop after this much time for batches of this code, including earlier soaks in this folder.
        play: Plays seeds.
        live: None: simulated runs only.
        batch_seeds: Seeds per batch.
        progress: Receives a line of text for every batch.
    """

    folder: Path
    hours: float
    play: Callable[[range], Summary]
    live: LiveRuns | None = None
    batch_seeds: int = BATCH_SEEDS
    progress: Callable[[str], None] = lambda _: None
    clock: Callable[[], float] = time.monotonic

    def run(self) -> SoakLog:
        """Play batches until the hours are spent; return the log.

        Raises:
            Fenced: another soak runs in this folder.
            Damaged: the log cannot be read.
        """
        make_folder(self.folder)
        code = code_of_package()
        with _appending(self.folder / LOG) as file:
            log = read(self.folder)
            while log.spent_s(code) < 3_600 * self.hours:
                batch = self._lived(log, code) if self._live_is_next(log, code) else self._simulated(log, code)
                _append(file, batch)
                self.progress(described(batch))
                log = read(self.folder)
        return log

    def _live_is_next(self, log: SoakLog, code: CodeVersion) -> bool:
        if self.live is None or not log.batches or isinstance(log.batches[-1], Lived):
            return False
        return log.spent_s(code, Lived) <= log.spent_s(code, Simulated)

    def _simulated(self, log: SoakLog, code: CodeVersion) -> Simulated:
        began, at = self.clock(), _now()
        summary = self.play(range(log.next_seed, log.next_seed + self.batch_seeds))
        return simulated(summary, log.next_seed, code, at, self.clock() - began)

    def _lived(self, log: SoakLog, code: CodeVersion) -> Lived:
        assert self.live is not None
        began, at = self.clock(), _now()
        out = _unused(self.folder)
        try:
            journal = self.live.play(self.live.job, out, log.live_seed)
        except Unavailable as error:  # the next run may start
            return Lived(at, self.clock() - began, code, out.name, log.live_seed, "not_proven", 0, 0, [], [error.what])
        page.write(journal)
        report = summarise(page.read(journal))
        violated = report.verdict == "violated"
        if report.verdict == "held":
            _keep_evidence(journal)
        failures = [Failure("; ".join(report.reasons), report.replay, log.live_seed)] if violated else []
        fault_count = sum(each.fired for each in report.faults.values())
        return Lived(
            at,
            self.clock() - began,
            code,
            out.name,
            log.live_seed,
            report.verdict,
            report.recoveries,
            fault_count,
            failures,
            report.reasons,
        )


def read(folder: Path) -> SoakLog:
    """Read the log of a soak; raises ConfigError if there is none, Damaged if it cannot be read."""
    path = folder / LOG
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigError(
            f"there is no log {path}",
            not_done="no statement was made",
            next_step=f"start one: holdfast chaos soak --hours 1 --folder {folder}",
        ) from error
    return parse(data, str(path))


def described(batch: Batch) -> str:
    """Return a batch as a line of text."""
    failure_note = f", {len(batch.failures)} FAILED" if batch.failures else ""
    if isinstance(batch, Simulated):
        seeds = f"seeds {batch.first} to {batch.first + batch.runs - 1}"
        return f"{batch.at}  simulated  {seeds}: {batch.recoveries} recoveries{failure_note}, {batch.took_s:.0f} s"
    what = f"{batch.faults} faults, {batch.recoveries} recoveries"
    return f"{batch.at}  live       {batch.folder}: {batch.verdict}, {what}{failure_note}, {batch.took_s:.0f} s"


def code_of_package() -> CodeVersion:
    """Return the identity of the running code."""
    root = Path(holdfast.__path__[0])
    hashed = hashlib.sha256()
    for path in sorted(_sources(root)):
        hashed.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return CodeVersion(hashed.hexdigest()[:12], holdfast.__version__, commit())


def _sources(root: Path) -> Iterator[Path]:
    for folder, below, names in os.walk(root, followlinks=True):
        below[:] = [name for name in below if name not in NOT_HASHED]
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


@contextmanager
def _appending(path: Path) -> Iterator[BinaryIO]:
    """Open the log exclusively, and cut off a torn line."""
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Fenced(
                f"another soak runs in {path.parent}",
                not_done="nothing was played",
                next_step="let it run, or name another folder",
            ) from error
        file.truncate(parse(path.read_bytes(), str(path)).whole_bytes)
        yield file


def _append(file: BinaryIO, batch: Batch) -> None:
    file.write(encode(batch))
    file.flush()
    os.fsync(file.fileno())


def _keep_evidence(journal: Path) -> None:
    """Remove all but journal and report of a run that held: hours of runs would fill the disk."""
    for path in journal.parent.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name not in (page.JOURNAL, page.SUMMARY, page.PAGE):
            path.unlink()


def _unused(folder: Path) -> Path:
    """Return a new folder for a live run; the folder of an interrupted run stays."""
    taken = {path.name for path in folder.glob("live-*")}
    return folder / next(name for n in range(1, len(taken) + 2) if (name := f"live-{n:04}") not in taken)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
