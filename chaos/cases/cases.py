"""`chaos_case`: a test of a user's own job under faults.

With `driver="test"` the app runs under the test driver, in virtual time and memory: every seed divides the rows in
another way and brings other crashes at other moments, and the delivered rows are compared with an undisturbed run's.
With `driver="spark"` the job's file runs on a real Spark under real faults, as with `holdfast chaos run`
(docs/decisions/0016).

Invariants
    - An outcome is "held" only if every requested kind of fault fired and something was compared.
    - The same seed gives the same crashes at the same moments.

Source: DESIGN section 10; API.md (tests).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from holdfast.chaos.cases.outcome import Case, Driver, Outcome
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.chaos.live.port import Play
    from holdfast.runtime.api.app import App

Job = "str | Path | App | Callable[[], App]"
Rows = "Sequence[Any] | Mapping[int, Sequence[Any]]"
Test = TypeVar("Test", bound=Callable[..., Any])
IN_MEMORY = ("worker-kill", "driver-kill")
"""Faults that the test driver can cause."""
FOR_SPARK = ("worker-kill",)


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
    """Give a test the outcome of a job under faults, as its argument `outcome`.

    Args:
        job: The job's file, relative to the test's file or to where pytest runs. With driver="test" also an app, or a
            function that builds one.
        driver: "spark" runs the file on a real Spark; "test" the app in memory and virtual time, in milliseconds.
        faults: Kinds, or kinds with relative rates. Default: kills of a worker, with driver="test" of the driver too.
        seed: The first seed.
        seeds: How many; each is a separate test. `pytest --chaos-seed S` plays only seed S.
        rows: With driver="test": by source, the rows to push into partition 0, or by partition.
        parallelism: Workers.
        duration: On Spark, how long faults strike.
        check: On Spark, how the result is checked: "audit" (the default), "module:function", a command as a list of
            words, or a function as `holdfast.chaos.judge.findings` describes it.
        scenario: On Spark, the other keys of a scenario file: platform, every, drive, observe, wait.

    Raises:
        ConfigError: the driver does not support the request of an argument.
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
    """Run a case; fail the test if this machine cannot run it.

    Args:
        beside: The folder of the test's file.
        out: Where a real run may write.
        again: The command that plays it again.
    """
    if case.driver == "test":
        from holdfast.chaos.cases import in_memory as case_in_memory  # loads the whole runtime

        return case_in_memory.play(case, _builder(case.job, beside), seed, again)
    from holdfast.chaos.live import port as live_port

    lacking = live_port.missing()
    if lacking is not None:
        pytest.fail(f'no live run: {lacking}; install it, or give the case driver="test"', pytrace=False)
    raw, function = scenario_of(case)
    return play_live(live_port.of_table(raw, "chaos_case", function), _file(case.job, beside), out, seed, again)


def play_live(run: Play, job: Path, out: Path, seed: int, again: str) -> Outcome:
    """Do one real run; return the outcome that its journal shows."""
    from holdfast.chaos.evidence import page
    from holdfast.chaos.evidence.report import summarise

    journal = run(job, out, seed)
    page.write(journal, again)
    report = summarise(page.read(journal))
    fired_by_kind = {kind: counts.fired for kind, counts in report.faults.items()}
    return Outcome(
        report.verdict,
        tuple(report.reasons),
        seed,
        fired_by_kind,
        report.recoveries,
        report.lost,
        report.duplicated,
        again,
        folder=journal.parent,
    )


def scenario_of(case: Case) -> tuple[dict[str, Any], Callable[..., Any] | None]:
    """Return the scenario as a table, and the check if it is not part of that table."""
    raw = {"duration": case.duration, "parallelism": case.parallelism, "faults": dict(case.faults)}
    raw |= {"platform": f"local[{case.parallelism + 1}]", **case.scenario}
    if callable(case.check):
        return raw, case.check
    return {**raw, "check": "audit" if case.check is None else case.check}, None


def _check(case: Case) -> None:
    if case.driver not in ("spark", "test"):
        raise _refused(f"driver is {case.driver!r}", 'give driver="spark" or driver="test"')
    if not case.seeds or not case.faults:
        raise _refused("no seed or no fault was given", "give seeds of at least 1, and faults")
    if case.driver == "spark":
        if case.rows:
            raise _refused('rows are for driver="test"', "let the job read its own sources")
        if not isinstance(case.job, str | Path):
            raise _refused(f"{case.job!r} cannot run on Spark", "give the path of the job's file")
        return
    if not case.rows:
        raise _refused("the test driver was given no rows", 'give rows={"source": [...]}')
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
    """Return a function that gives the app of each run; a user's function is called each time, as apps have state."""
    from holdfast.runtime.api.app import App
    from holdfast.runtime.cli.start.jobfile import load

    given = load(str(_file(job, beside))) if isinstance(job, str | Path) else job

    def build() -> App:
        app = given if isinstance(given, App) else given()
        if not isinstance(app, App):
            raise _refused(
                f"{job!r} is not an app and returns none",
                "give an hf.App, a function that builds one, or the path of a file",
            )
        return app

    return build
