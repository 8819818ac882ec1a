"""The log of a soak, batches of simulated runs and single live runs, and the statement made from it.

The log has a line per finished batch (appended.py); a batch with a torn line does not count. The statement is a fold
over the log alone.

A *recovery* ends with a completed epoch, however many attempts the job needed. In a live run every recovery in its
journal counts; in a simulated one every generation that completed an epoch, less one for the run's beginning and two
for every rewind: the generation that it begins, and the start that may have to follow it. So the count is a lower
bound. Live runs that proved nothing add none.

Invariants
    - A seed is played once, whichever version of the code played it.
    - No bound is given for a mixture of versions.

Pure.
Source: DESIGN section 10.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast.chaos.evidence import odds
from holdfast.chaos.explore.report import VACUOUS_AFTER, Summary, replay_command
from holdfast.chaos.judge.appended import read_lines
from holdfast.chaos.judge.records import Verdict
from holdfast.runtime.cli.text import count, plural, span

FIRST_SEED = 1_000_000
"""First seed of a soak, far from the seeds of tests."""
GENERATIONS_PER_REWIND_MAX = 2
WHAT_LENGTH_MAX = 500
FAILURES_SHOWN = 10


class CodeVersion(msgspec.Struct, frozen=True):
    """Identity of the code. `source` distinguishes versions: a commit does not cover changes made since."""

    source: str
    """Hash over every file of the package but the examples."""
    version: str
    git: str | None = None


class Failure(msgspec.Struct, frozen=True):
    """A violation, and the command that repeats it."""

    what: str
    replay: str | None
    seed: int | None = None


class Simulated(msgspec.Struct, frozen=True, tag_field="kind", tag="simulated"):
    """A finished batch of simulated runs, of the seeds from `first`."""

    at: str
    took_s: float
    code: CodeVersion
    first: int
    runs: int
    recoveries: int
    failures: list[Failure]
    armed: dict[str, int]
    """Number of runs in which each fault was armed."""
    fired: dict[str, int]
    """Number of strikes of each fault."""


class Lived(msgspec.Struct, frozen=True, tag_field="kind", tag="live"):
    """A finished live run."""

    at: str
    took_s: float
    code: CodeVersion
    folder: str
    seed: int
    verdict: Verdict
    recoveries: int
    faults: int
    """Faults that fired."""
    failures: list[Failure]
    reasons: list[str]


Batch = Simulated | Lived


@dataclass(frozen=True)
class SoakLog:
    """All finished batches, in order."""

    batches: tuple[Batch, ...]
    whole_bytes: int
    """Bytes of complete lines; the rest of the file is torn."""

    @property
    def next_seed(self) -> int:
        """Return the first seed that no finished batch has played."""
        return max((b.first + b.runs for b in self.batches if isinstance(b, Simulated)), default=FIRST_SEED)

    @property
    def live_seed(self) -> int:
        """Return the seed of the next live run."""
        return max((batch.seed + 1 for batch in self.batches if isinstance(batch, Lived)), default=0)

    def spent_s(self, code: CodeVersion, kind: type[Batch] | None = None) -> float:
        """Return the time spent on batches (of a kind) with this code."""
        return sum(b.took_s for b in self.batches if b.code.source == code.source and isinstance(b, kind or object))


def parse(data: bytes, called: str) -> SoakLog:
    """Read the log of a soak.

    Raises:
        Damaged: a line that is not the last cannot be read.
    """
    batches, end = read_lines(
        data,
        called,
        _batch_of,
        not_done="nothing was played and no statement was made",
        next_step="inspect that line, or name another folder to start over",
    )
    return SoakLog(tuple(batches), end)


_BATCH: msgspec.json.Decoder[Batch] = msgspec.json.Decoder(Batch)


def _batch_of(line: bytes) -> Batch:
    return _BATCH.decode(line)


def encode(batch: Batch) -> bytes:
    """Return the batch as a line."""
    return msgspec.json.encode(batch) + b"\n"


def simulated(summary: Summary, first: int, code: CodeVersion, at: str, took_s: float) -> Simulated:
    """Return the record of a batch."""
    failures = [
        Failure("; ".join(run.violations)[:WHAT_LENGTH_MAX], replay_command(run.seed), run.seed)
        for run in summary.failed
    ]
    return Simulated(
        at,
        took_s,
        code,
        first,
        summary.runs,
        recoveries_of(summary),
        failures,
        {fault.value: times for fault, times in summary.armed.items() if times},
        {fault.value: times for fault, times in summary.fired.items() if times},
    )


def recoveries_of(summary: Summary) -> int:
    """Return how often an epoch was completed after one or more faults; a lower bound."""
    counts = summary.counts
    return max(0, counts["generations_that_completed"] - summary.runs - GENERATIONS_PER_REWIND_MAX * counts["rewinds"])


class Stated(msgspec.Struct, frozen=True):
    """Evidence of the log about one version of the code."""

    code: CodeVersion
    recoveries: int
    violations: int
    upper_count: float | None
    """Upper bound of the mean number of violations; divided by the recoveries it is the bound. None: no recovery."""
    upper_bound: float | None
    confidence: float
    rule: str
    simulated_runs: int
    simulated_recoveries: int
    live_runs: int
    live_recoveries: int
    live_not_proven: int
    took_s: float
    never_struck: list[str]
    """Faults that were armed often and never struck: nothing is proven about them."""
    failures: list[Failure]


@dataclass
class _Tally:
    code: CodeVersion
    runs: Counter[str] = field(default_factory=Counter)
    recoveries: Counter[str] = field(default_factory=Counter)
    not_proven: int = 0
    took_s: float = 0.0
    armed: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def add(self, batch: Batch) -> None:
        self.took_s += batch.took_s
        self.failures += batch.failures
        if isinstance(batch, Simulated):
            self.runs["simulated"] += batch.runs
            self.recoveries["simulated"] += batch.recoveries
            self.armed.update(batch.armed)
            self.fired.update(batch.fired)
        elif batch.verdict == "not_proven":
            self.not_proven += 1
        else:
            self.runs["live"] += 1
            self.recoveries["live"] += batch.recoveries

    def stated(self) -> Stated:
        trials, violations = self.recoveries.total(), len(self.failures)
        upper_bound = odds.upper_bound(violations, trials)
        return Stated(
            code=self.code,
            recoveries=trials,
            violations=violations,
            upper_count=None if upper_bound is None else odds.upper_count(violations),
            upper_bound=upper_bound,
            confidence=odds.CONFIDENCE,
            rule=odds.source_of(violations),
            simulated_runs=self.runs["simulated"],
            simulated_recoveries=self.recoveries["simulated"],
            live_runs=self.runs["live"],
            live_recoveries=self.recoveries["live"],
            live_not_proven=self.not_proven,
            took_s=round(self.took_s, 1),
            never_struck=sorted(f for f, n in self.armed.items() if n >= VACUOUS_AFTER and not self.fired[f]),
            failures=self.failures,
        )


def state(log: SoakLog) -> list[Stated]:
    """Return the log's evidence about each version of the code in it, newest first."""
    tallies: dict[str, _Tally] = {}
    newest: dict[str, int] = {}
    for number, batch in enumerate(log.batches):
        tallies.setdefault(batch.code.source, _Tally(batch.code)).add(batch)
        newest[batch.code.source] = number
    return [tallies[source].stated() for source in sorted(tallies, key=lambda source: -newest[source])]


def statement_json(stated: Sequence[Stated]) -> Mapping[str, Any]:
    """Return the statement as JSON-able values."""
    return {"schema": 1, "mixed": len(stated) > 1, "versions": msgspec.to_builtins(stated)}


def statement_lines(stated: Sequence[Stated]) -> list[str]:
    """Return the statement as text; the first line is the sentence."""
    if not stated:
        return ["no batch is finished: no statement can be made"]
    lines = [line for each in stated for line in _lines(each)]
    if len(stated) > 1:
        recoveries, violations = sum(s.recoveries for s in stated), sum(s.violations for s in stated)
        lines.append(
            f"together {count(recoveries)} recoveries, {plural(violations, 'violation')}, of {len(stated)} versions of "
            f"the code: a mixture, for which no bound is given"
        )
    return lines


def _lines(stated: Stated) -> list[str]:
    sentence = f"{count(stated.recoveries)} fault-injected recoveries, {plural(stated.violations, 'violation')}, "
    if stated.upper_bound is None or stated.upper_count is None:
        sentence += "upper bound unknown"
    else:
        over = f"{stated.upper_count:.3g}/{count(stated.recoveries)}"
        sentence += f"upper bound {over} = {stated.upper_bound:.2g} per recovery"
    code = " ".join(part for part in (stated.code.version, stated.code.git) if part)
    simulation_text = f"simulated {count(stated.simulated_recoveries)} in {plural(stated.simulated_runs, 'run')}"
    live = f"live {count(stated.live_recoveries)} in {plural(stated.live_runs, 'run')}"
    lines = [
        sentence,
        f"  {simulation_text}, {live}; {span(1000 * stated.took_s)}; code {code}, source {stated.code.source}",
        f"  at {stated.confidence:.0%} confidence ({stated.rule}), if recoveries are alike and independent",
    ]
    if stated.live_not_proven:
        lines.append(f"  not counted: {plural(stated.live_not_proven, 'live run')} that proved nothing")
    lines += [f"  nothing is proven about: {fault} (armed, never struck)" for fault in stated.never_struck]
    lines += [f"  FAILED  {each.what}\n          again: {each.replay}" for each in stated.failures[:FAILURES_SHOWN]]
    hidden = len(stated.failures) - FAILURES_SHOWN
    return lines + ([f"  and {count(hidden)} more; see --json"] if hidden > 0 else [])
