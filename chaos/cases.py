"""`chaos_case`: a test of a user's own job under faults.

With `driver="test"` the app runs under the test driver, in virtual time and memory: every seed cuts the rows otherwise
and brings other crashes at other moments, and what is delivered is compared with a run that nothing disturbed. With
`driver="spark"` the job's file runs on a real Spark under real faults (docs/design/0016), as by `holdfast chaos run`.

Invariants
    - An outcome is "held" only if every kind of fault that was asked for fired and something was compared.
    - The same seed gives the same crashes at the same moments.

Source: DESIGN section 10; API.md (tests).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import pytest

from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.chaos.live_port import Play
    from holdfast.runtime.app import App

Driver = Literal["spark", "test"]
Job = "str | Path | App | Callable[[], App]"
Rows = "Sequence[Any] | Mapping[int, Sequence[Any]]"
Test = TypeVar("Test", bound=Callable[..., Any])
IN_MEMORY = ("worker-kill", "driver-kill")
"""Faults that the test driver can bring about."""
FOR_SPARK = ("worker-kill",)


@dataclass(frozen=True)
class Case:
    """What a test asks for."""

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
    """What came of a job under faults; `assert outcome.held`."""

    verdict: Literal["held", "violated", "not_proven"]
    reasons: tuple[str, ...]
    seed: int
    faults: Mapping[str, int]
    """By kind, how many fired."""
    recoveries: int
    lost: int | None
    """Rows or records that are missing; None: nobody counted."""
    duplicated: int | None
    """Rows or records that are there too often."""
    again: str
    """The command that does the same again."""
    delivered: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    """By sink; of the test driver only."""
    folder: Path | None = None
    """Of a real run: journal, report.json, report.html and the root."""

    @property
    def held(self) -> bool:
        """Return whether everything that was checked held, and the faults were real."""
        return self.verdict == "held"

    def rows(self, sink: str) -> list[dict[str, Any]]:
        """Return the rows that were delivered to a sink under the test driver, in order of arrival.

        Raises:
            ConfigError: there is no such sink, or the job ran on Spark, where its targets are its own.
        """
        if sink not in self.delivered:
            names = ", ".join(map(repr, self.delivered))
            raise ConfigError(
                f"no rows of a sink {sink!r} are at hand",
                not_done="nothing was compared",
                next_step=f"use one of {names}" if names else "read the target that the job wrote to",
            )
        return self.delivered[sink]

    def lines(self) -> list[str]:
        """Return what a reader of a failed test wants to know."""
        faults = ", ".join(f"{count} {kind}" for kind, count in self.faults.items()) or "none"
        lines = [f"{self.verdict.replace('_', ' ')}, seed {self.seed}; faults: {faults}; {self.recoveries} recoveries"]
        lines += [f"  {reason}" for reason in self.reasons]
        lines += [] if self.folder is None else [f"page: {self.folder / 'report.html'}"]
        return [*lines, f"again: {self.again}"]

    def __repr__(self) -> str:
        return f"<Outcome {'; '.join(line.strip() for line in self.lines())}>"


def chaos_case(
    job: Any,
    *,
    driver: Driver = "spark",
    faults: Sequence[str] | Mapping[str, float] | None = None,
    seed: int = 0,
    seeds: int = 1,
    rows: Mapping[str, Any] | None = None,
    parallelism: int = 2,
    duration: str = "30s",
    check: Any = None,
    **scenario: Any,
) -> Callable[[Test], Test]:
    """Let a test have the outcome of a job under faults, as its argument `outcome`.

    Args:
        job: The job's file, relative to that of the test or to where pytest runs. With driver="test" also an app, or a
            function that builds one.
        driver: "spark" runs the file on a real Spark; "test" the app in memory and virtual time, in milliseconds.
        faults: Kinds, or kinds with relative rates. Default: kills of a worker, with driver="test" of the driver too.
        seed: The first seed.
        seeds: How many; each is a test of its own. `pytest --chaos-seed S` plays only that one.
        rows: With driver="test": by source, the rows to push into partition 0, or by partition.
        parallelism: Workers.
        duration: On Spark, for how long faults strike.
        check: On Spark, what compares the result: "audit" (the default), "module:function", a command as a list of
            words, or a function as `holdfast.chaos.findings` describes it.
        scenario: On Spark, whatever else the file of a scenario may say: platform, every, drive, observe, wait.

    Raises:
        ConfigError: something is asked for that the driver cannot do.
    """
    kinds = (IN_MEMORY if driver == "test" else FOR_SPARK) if faults is None else faults
    rates = dict(kinds) if isinstance(kinds, Mapping) else dict.fromkeys(kinds, 1.0)
    case = Case(
        job, driver, rates, tuple(range(seed, seed + seeds)), rows or {}, parallelism, duration, check, scenario
    )
    _check(case)
    mark = pytest.mark.chaos_case(case)

    def marked(test: Test) -> Test:
        with_mark: Test = mark(test)
        return with_mark

    return marked


def play(case: Case, seed: int, beside: Path, out: Path, again: str) -> Outcome:
    """Carry a case out; fail the test if this machine cannot.

    Args:
        beside: The folder of the test's file.
        out: Where a real run may write.
        again: The command that plays it again.
    """
    if case.driver == "test":
        from holdfast.chaos import case_in_memory  # loads the whole runtime

        return case_in_memory.play(case, _builder(case.job, beside), seed, again)
    from holdfast.chaos import live_port

    lacking = live_port.missing()
    if lacking is not None:
        pytest.fail(f"no live run: {lacking}; install it, or give the case driver=\"test\"", pytrace=False)
    raw, function = scenario_of(case)
    return play_live(live_port.of_table(raw, "chaos_case", function), _file(case.job, beside), out, seed, again)


def play_live(run: Play, job: Path, out: Path, seed: int, again: str) -> Outcome:
    """Do one real run; return what its journal amounts to."""
    from holdfast.chaos import page
    from holdfast.chaos.live_report import summarise

    journal = run(job, out, seed)
    page.write(journal, again)
    report = summarise(page.read(journal))
    fired = {kind: counts.fired for kind, counts in report.faults.items()}
    return Outcome(
        report.verdict, tuple(report.reasons), seed, fired, report.recoveries, report.lost, report.duplicated, again,
        folder=journal.parent,
    )  # fmt: skip


def scenario_of(case: Case) -> tuple[dict[str, Any], Callable[..., Any] | None]:
    """Return the table of the scenario, and the check that is no part of it."""
    raw = {"duration": case.duration, "parallelism": case.parallelism, "faults": dict(case.faults)}
    raw |= {"platform": f"local[{case.parallelism + 1}]", **case.scenario}
    if callable(case.check):
        return raw, case.check
    return {**raw, "check": "audit" if case.check is None else case.check}, None


def _check(case: Case) -> None:
    if case.driver not in ("spark", "test"):
        raise _refused(f"driver is {case.driver!r}", 'give driver="spark" or driver="test"')
    if not case.seeds or not case.faults:
        raise _refused("there is no seed or no fault to play", "give seeds of at least 1, and faults")
    if case.driver == "spark":
        if case.rows:
            raise _refused('rows are for driver="test"', "let the job read its own sources")
        if not isinstance(case.job, str | Path):
            raise _refused(f"{case.job!r} cannot run on Spark", "give the path of the job's file")
        return
    if not case.rows:
        raise _refused("the test driver has no rows to push", 'give rows={"source": [...]}')
    unknown = [kind for kind in case.faults if kind not in IN_MEMORY]
    if unknown or case.scenario or case.check is not None:
        names = [*unknown, *case.scenario, *(["check"] if case.check is not None else [])]
        raise _refused(
            f"the test driver does not know {', '.join(names)}",
            f'use the faults {" and ".join(IN_MEMORY)} and compare in the test, or driver="spark"',
        )


def _refused(what: str, next_step: str) -> ConfigError:
    return ConfigError(f"chaos_case: {what}", not_done="the test was not made", next_step=next_step)


def _file(job: str | Path, beside: Path) -> Path:
    near = beside / job
    return near if near.exists() else Path(job)


def _builder(job: Any, beside: Path) -> Callable[[], App]:
    """Return what gives the app of each run; a function is called for each, as what it builds may remember things."""
    from holdfast.runtime.app import App
    from holdfast.runtime.cli.jobfile import load

    given = load(str(_file(job, beside))) if isinstance(job, str | Path) else job

    def build() -> App:
        app = given if isinstance(given, App) else given()
        if not isinstance(app, App):
            raise _refused(f"{job!r} gives no app", "give an hf.App, a function that builds one, or the path of a file")
        return app

    return build
