"""The findings of an audit: one line per item checked, with a verdict.

A line is *proven* (read back and identical), *differs* (read back and different), or *not provable*, with the reason.
Where digests are counts only, a line is marked as proven by count.

Pure. Source: API.md (audit); docs/decisions/0018-audit.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from holdfast.model import RowDigest
from holdfast.quantities import plural

Verdict = Literal["proven", "differs", "not provable"]


@dataclass(frozen=True)
class Line:
    """One item that was checked.

    Args:
        kind: epoch, source, operator or sink.
        name: Name of the source, operator or sink; empty for an epoch's chain.
        part: Partition or writer; None: all of them.
        epoch: None: the line covers more than one epoch.
        rows: Rows that the checkpoint records; None: unknown.
        found: Rows that were read back; None: not read.
        more: Further members of the JSON object.
    """

    kind: Literal["epoch", "source", "operator", "sink"]
    name: str
    part: int | None
    epoch: int | None
    verdict: Verdict
    reason: str | None = None
    rows: int | None = None
    found: int | None = None
    more: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Report:
    """All lines of an audit."""

    job: str
    epochs: tuple[int, ...]
    """Checkpoints that were audited, oldest first."""
    lines: tuple[Line, ...]

    @property
    def verdict(self) -> str:
        """Return "differs" if any line does, "proven" if all are, else "proven in part"."""
        found = {line.verdict for line in self.lines}
        if "differs" in found:
            return "differs"
        return "proven" if found <= {"proven"} else "proven in part" if "proven" in found else "not provable"

    def late(self) -> dict[str, int]:
        """Return how many records were late in the audited epochs, by operator; operators without any are left out."""
        late_rows: dict[str, int] = {}
        for line in self.lines:
            if rows := dict(line.more).get("late"):
                late_rows[line.name] = late_rows.get(line.name, 0) + rows
        return late_rows

    def lost(self) -> dict[tuple[str, int | None], int]:
        """Return how many offsets were removed before they were read, by source and partition."""
        lost_offsets: dict[tuple[str, int | None], int] = {}
        for line in self.lines:
            for first, end in dict(line.more).get("lost", ()):
                lost_offsets[line.name, line.part] = lost_offsets.get((line.name, line.part), 0) + end - first
        return lost_offsets

    def as_json(self) -> dict[str, Any]:
        """Return {job, as_of, epochs, sources, operators, sinks, verdict}."""
        as_of = self.epochs[-1] if self.epochs else None
        contents: dict[str, Any] = {"job": self.job, "as_of": as_of}
        for kind, kinds in (("epoch", "epochs"), ("source", "sources"), ("operator", "operators"), ("sink", "sinks")):
            contents[kinds] = [_json(line) for line in self.lines if line.kind == kind]
        return contents | {"verdict": self.verdict}


def compared(expected: RowDigest, found: RowDigest) -> tuple[Verdict, str | None]:
    """Return the verdict on two digests that must be the same."""
    if expected.rows != found.rows:
        more = found.rows - expected.rows
        return "differs", f"{plural(abs(more), 'row')} {'more' if more > 0 else 'fewer'} than the checkpoint says"
    if expected.sum is None or found.sum is None:
        return "proven", "by count only"
    if (expected.sum, expected.xor) != (found.sum, found.xor):
        return "differs", "as many rows as the checkpoint says, but different ones"
    return "proven", None


def grouped(lines: Iterable[Line]) -> list[tuple[Line, list[int]]]:
    """Merge lines that differ only in the epoch into one line with all their epochs; rows are added up."""
    groups: dict[tuple[Any, ...], tuple[Line, list[int]]] = {}
    for line in lines:
        name = (line.kind, line.name, line.part, line.verdict, line.reason, line.epoch is None)
        first, epochs = groups.get(name, (None, []))
        if first is not None:
            line_sum = None if first.rows is None or line.rows is None else first.rows + line.rows
            first = Line(line.kind, line.name, line.part, first.epoch, line.verdict, line.reason, line_sum)
        groups[name] = first or line, [*epochs, *([] if line.epoch is None else [line.epoch])]
    return list(groups.values())


def _json(line: Line) -> dict[str, Any]:
    names: dict[str, dict[str, Any]] = {
        "epoch": {},
        "source": {"source": line.name, "partition": line.part},
        "operator": {"name": line.name},
        "sink": {"sink": line.name, "writer": line.part},
    }
    counts: dict[str, Any] = {} if line.kind == "epoch" else {"rows": line.rows, "found": line.found}
    reported = {"verdict": line.verdict, "reason": line.reason}
    return {**names[line.kind], "epoch": line.epoch, **counts, **dict(line.more), **reported}
