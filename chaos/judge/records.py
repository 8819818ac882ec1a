"""The records of a live run's journal.

A run under live faults writes one JSON object per line as things happen (appended.py). If the run was killed, the
journal's last record is missing. Records of unknown kinds are counted and left out.

Invariants
    - An unknown value is None, never zero.

Pure.
Source: DESIGN sections 10 and 13 (unknown is never zero).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

import msgspec

from holdfast.chaos.judge.appended import read_lines
from holdfast.chaos.judge.findings import Finding

Phase = Literal["armed", "fired", "healed", "missed"]
Verdict = Literal["held", "violated", "not_proven"]


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """Any record but a check: its time in milliseconds since the run began."""

    at_ms: float


class Begin(JournalEntry, frozen=True, kw_only=True, tag="begin"):
    """The job, its scenario and its surroundings."""

    job: str | None = None
    seed: int | None = None
    scenario: Any = None
    """The path of a scenario, or the scenario itself."""
    platform: Any = None
    git: str | None = None
    started_at: Any = None
    faults: tuple[str, ...] = ()
    """Kinds of the scenario, each of which has to fire; missing in journals of earlier versions."""
    planned: int | None = None
    """The number of faults in the schedule."""


class FaultNews(JournalEntry, frozen=True, kw_only=True, tag="fault"):
    """One step in the life of a fault: armed, then fired and perhaps healed, or missed."""

    id: str | int
    fault: str
    phase: Phase
    target: Any = None
    plane: str | None = None
    detail: Any = None


class Sample(JournalEntry, frozen=True, kw_only=True, tag="sample"):
    """The state of the job, once a second."""

    state: str | None = None
    generation: int | None = None
    epoch: int | None = None
    epoch_age_ms: float | None = None
    records_in: int | None = None
    rate: float | None = None
    """Records per second."""
    lag: float | None = None
    """Records not read yet."""
    rss_bytes: float | None = None


class EpochDone(JournalEntry, frozen=True, kw_only=True, tag="epoch"):
    """A completed epoch."""

    epoch: int
    generation: int | None = None
    duration_ms: float | None = None


class Recovery(JournalEntry, frozen=True, kw_only=True, tag="recovery"):
    """All subtasks take records again and epochs are completed: one per epoch, however many attempts it took."""

    cause: str | None = None
    recovery_ms: float | None = None
    first_record_ms: float | None = None
    next_epoch_ms: float | None = None
    """All three times count from when the first failure was noticed."""
    attempts: int = 1
    """How often the job became ready since the previous epoch."""
    since_ms: float | None = None
    """When the first failure was noticed, since the run began."""

    @property
    def began_ms(self) -> float | None:
        """Return when the failure was noticed, None if unknown."""
        if self.since_ms is not None:
            return max(0.0, self.since_ms)
        took = self.recovery_ms if self.next_epoch_ms is None else self.next_epoch_ms
        return None if took is None else max(0.0, self.at_ms - took)


class DriverNews(JournalEntry, frozen=True, kw_only=True, tag="driver"):
    """A driver process started or ended."""

    phase: Literal["started", "ended"]
    pid: int | None = None
    exit: int | None = None


class CheckRecord(Finding, frozen=True, kw_only=True, tag_field="kind", tag="check"):
    """One finding, and its time."""

    at_ms: float
    detail: Any = None


class EndRecord(JournalEntry, frozen=True, kw_only=True, tag="end"):
    """The run's own verdict."""

    verdict: Verdict
    reason: str | None = None
    failed: Literal["job", "harness"] | None = None
    """Which of the two did not complete; None: neither, or a journal of an earlier version."""


Record = Begin | FaultNews | Sample | EpochDone | Recovery | DriverNews | CheckRecord | EndRecord
KINDS = frozenset(str(kind.__struct_config__.tag) for kind in get_args(Record))
R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class Journal:
    """The records of a run, in the order of writing."""

    records: tuple[Record, ...]
    torn: bool = False
    """The last line was cut off."""
    unknown: int = 0
    """Records of unknown kinds."""

    def of(self, kind: type[R]) -> list[R]:
        """Return the records of a kind."""
        return [record for record in self.records if isinstance(record, kind)]


def parse(data: bytes, called: str) -> Journal:
    """Read a journal.

    Args:
        called: How errors name it.

    Raises:
        Damaged: a line that is not the last cannot be read.
    """
    lines, end = read_lines(
        data,
        called,
        record_of,
        not_done="no report was made",
        next_step="a journal is append-only; use the file that the run wrote, or an intact copy",
    )
    records = tuple(record for record in lines if record is not None)
    return Journal(records, end < len(data), len(lines) - len(records))


def record_of(line: bytes) -> Record | None:
    """Return the record of a line; None for an unknown kind."""
    value = msgspec.json.decode(line)
    if isinstance(value, dict) and value.get("kind") not in KINDS:
        return None
    record: Record = msgspec.convert(value, type=Record)
    return record


def of_lines(lines: Iterable[Mapping[str, Any]]) -> Journal:
    """Return the journal made of lines in memory."""
    return Journal(tuple(msgspec.convert(line, type=Record) for line in lines))


def encode(records: Sequence[Record]) -> bytes:
    """Return records as the lines of a journal."""
    return b"".join(msgspec.json.encode(record) + b"\n" for record in records)
