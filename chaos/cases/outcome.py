"""A case of a user's test, and its outcome: the same for the test driver and for real runs.

Source: API.md (tests).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from holdfast.errors import ConfigError

Driver = Literal["spark", "test"]


@dataclass(frozen=True)
class Case:
    """The arguments of a test."""

    job: Any
    driver: Driver
    faults: Mapping[str, float]
    seeds: tuple[int, ...]
    rows: Mapping[str, Any]
    parallelism: int
    duration: str
    check: Any
    scenario: Mapping[str, Any]


@dataclass(frozen=True, repr=False)
class Outcome:
    """The outcome of a job under faults; `assert outcome.held`."""

    verdict: Literal["held", "violated", "not_proven"]
    reasons: tuple[str, ...]
    seed: int
    faults: Mapping[str, int]
    """How many fired, by kind."""
    recoveries: int
    lost: int | None
    """Rows or records that are missing; None: not counted."""
    duplicated: int | None
    """Rows or records that are present too often; None: not counted."""
    again: str
    """The command that repeats the run."""
    delivered: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    """By sink; test driver only."""
    folder: Path | None = None
    """A real run only: the folder with journal, report.json, report.html and the root."""

    @property
    def held(self) -> bool:
        """Return whether every check held and the faults were real."""
        return self.verdict == "held"

    def rows(self, sink: str) -> list[dict[str, Any]]:
        """Return the rows delivered to a sink under the test driver, in order of arrival.

        Raises:
            ConfigError: there is no such sink, or the job ran on Spark and wrote to its own targets.
        """
        if sink not in self.delivered:
            names = ", ".join(map(repr, self.delivered))
            raise ConfigError(
                f"there are no rows of a sink {sink!r}",
                not_done="nothing was compared",
                next_step=f"use one of {names}" if names else "read the target that the job wrote to",
            )
        return self.delivered[sink]

    def lines(self) -> list[str]:
        """Return the lines shown below a failed test."""
        faults = ", ".join(f"{count} {kind}" for kind, count in self.faults.items()) or "none"
        lines = [f"{self.verdict.replace('_', ' ')}, seed {self.seed}; faults: {faults}; {self.recoveries} recoveries"]
        lines += [f"  {reason}" for reason in self.reasons]
        lines += [] if self.folder is None else [f"page: {self.folder / 'report.html'}"]
        return [*lines, f"again: {self.again}"]

    def __repr__(self) -> str:
        return f"<Outcome {'; '.join(line.strip() for line in self.lines())}>"
