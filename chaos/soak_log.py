"""What the log of a soak says: batches of simulated runs and single live runs, and the statement made from them.

The log has a line per finished batch (appended.py); a batch whose line is torn counts for nothing. The
statement is a fold over the log and nothing else.

A *recovery* ends with a completed epoch, however often the job had to try before: in a live run every recovery that its
journal tells of, in a simulated one every generation that completed an epoch, less one for the run's beginning and two
for every rewind: the one that it begins, and the start that may have to follow it. So they are rather too few than too
many. Live runs that proved nothing add none.

Invariants
    - A seed is played once, whatever version of the code played it.
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

from holdfast.chaos import odds
from holdfast.chaos.appended import read_lines
from holdfast.chaos.live_records import Verdict
from holdfast.chaos.report import VACUOUS_AFTER, Summary, replay_command
from holdfast.runtime.cli.text import count, plural, span

FIRST_SEED = 1_000_000
"""Far from the seeds that tests play, so that a soak sees new ones."""
GENERATIONS_PER_REWIND_MAX = 2
WHAT_LENGTH_MAX = 500
FAILURES_SHOWN = 10


class Code(msgspec.Struct, frozen=True):
    """Which code ran. Versions are told apart by `source`: a commit says nothing of what was changed since."""

    source: str
    """Hash over every file of the package but the examples."""
    version: str
    git: str | None = None


class Failure(msgspec.Struct, frozen=True):
    """Something that did not hold, and how to see it again."""

    what: str
    replay: str | None
    seed: int | None = None


class Simulated(msgspec.Struct, frozen=True, tag_field="kind", tag="simulated"):
    """A finished batch of simulated runs, of the seeds from `first`."""

    at: str
    took_s: float
    code: Code
    first: int
    runs: int
    recoveries: int
    failures: list[Failure]
    armed: dict[str, int]
    """By fault, in how many runs it was armed."""
    fired: dict[str, int]
    """By fault, how often it struck."""


class Lived(msgspec.Struct, frozen=True, tag_field="kind", tag="live"):
    """A finished live run."""

    at: str
    took_s: float
    code: Code
    folder: str
    seed: int
    verdict: Verdict
    recoveries: int
    faults: int
    """That fired."""
    failures: list[Failure]
    reasons: list[str]


Batch = Simulated | Lived


@dataclass(frozen=True)
class SoakLog:
    """All finished batches, in order."""

    batches: tuple[Batch, ...]
    whole_bytes: int
    """Up to here the file holds whole lines; what follows is torn."""

    @property
    def next_seed(self) -> int:
        """Return the first seed that no finished batch has played."""
        return max((b.first + b.runs for b in self.batches if isinstance(b, Simulated)), default=FIRST_SEED)

    @property
    def live_seed(self) -> int:
        """Return the seed of the next live run."""
        return max((batch.seed + 1 for batch in self.batches if isinstance(batch, Lived)), default=0)

    def spent_s(self, code: Code, kind: type[Batch] | None = None) -> float:
        """Return how long batches (of a kind) took with this code."""
        return sum(b.took_s for b in self.batches if b.code.source == code.source and isinstance(b, kind or object))


def parse(data: bytes, called: str) -> SoakLog:
    """Read the log of a soak.

    Raises:
        Damaged: a line that is not the last cannot be read.
    """
    batches, end = read_lines(
        data, called, _batch_of,
        not_done="nothing was played and nothing is stated",
        next_step="look at that line; to begin anew, name another folder",
    )  # fmt: skip
    return SoakLog(tuple(batches), end)


_BATCH: msgspec.json.Decoder[Batch] = msgspec.json.Decoder(Batch)


def _batch_of(line: bytes) -> Batch:
    return _BATCH.decode(line)


def encode(batch: Batch) -> bytes:
    """Return the batch as a line."""
    return msgspec.json.encode(batch) + b"\n"


def simulated(summary: Summary, first: int, code: Code, at: str, took_s: float) -> Simulated:
    """Return the record of a batch."""
    failures = [
        Failure("; ".join(run.violations)[:WHAT_LENGTH_MAX], replay_command(run.seed), run.seed)
        for run in summary.failed
    ]
    return Simulated(
        at, took_s, code, first, summary.runs, recoveries_of(summary), failures,
        {fault.value: times for fault, times in summary.armed.items() if times},
        {fault.value: times for fault, times in summary.fired.items() if times},
    )  # fmt: skip


def recoveries_of(summary: Summary) -> int:
    """Return after how many faults, or series of them, an epoch was completed, rather too few than too many."""
    counts = summary.counts
    return max(0, counts["generations_that_completed"] - summary.runs - GENERATIONS_PER_REWIND_MAX * counts["rewinds"])


class Stated(msgspec.Struct, frozen=True):
    """What the log proves of one version of the code."""

    code: Code
    recoveries: int
    violations: int
    upper_count: float | None
    """Violations that such a series may have on average; the bound is this by recovery. None: nothing was tried."""
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
    """Faults that were armed often and struck never: nothing is proven about those."""
    failures: list[Failure]


@dataclass
class _Tally:
    code: Code
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
        bound = odds.upper_bound(violations, trials)
        return Stated(
            code=self.code, recoveries=trials, violations=violations,
            upper_count=None if bound is None else odds.upper_count(violations), upper_bound=bound,
            confidence=odds.CONFIDENCE, rule=odds.source_of(violations),
            simulated_runs=self.runs["simulated"], simulated_recoveries=self.recoveries["simulated"],
            live_runs=self.runs["live"], live_recoveries=self.recoveries["live"], live_not_proven=self.not_proven,
            took_s=round(self.took_s, 1),
            never_struck=sorted(f for f, n in self.armed.items() if n >= VACUOUS_AFTER and not self.fired[f]),
            failures=self.failures,
        )  # fmt: skip


def state(log: SoakLog) -> list[Stated]:
    """Return what the log proves, for each version of the code that is in it, the newest first."""
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
        return ["no batch is finished: nothing can be stated"]
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
    simulated = f"simulated {count(stated.simulated_recoveries)} in {plural(stated.simulated_runs, 'run')}"
    live = f"live {count(stated.live_recoveries)} in {plural(stated.live_runs, 'run')}"
    lines = [
        sentence,
        f"  {simulated}, {live}; {span(1000 * stated.took_s)}; code {code}, source {stated.code.source}",
        f"  at {stated.confidence:.0%} confidence ({stated.rule}), if recoveries are alike and independent",
    ]
    if stated.live_not_proven:
        lines.append(f"  not counted: {plural(stated.live_not_proven, 'live run')} that proved nothing")
    lines += [f"  nothing is proven about: {fault} (armed, never struck)" for fault in stated.never_struck]
    lines += [f"  FAILED  {each.what}\n          again: {each.replay}" for each in stated.failures[:FAILURES_SHOWN]]
    hidden = len(stated.failures) - FAILURES_SHOWN
    return lines + ([f"  and {count(hidden)} more; see --json"] if hidden > 0 else [])
