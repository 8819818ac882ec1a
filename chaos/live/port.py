"""Access to live runs for callers that only need a run's journal: a soak, a test.

Live runs need Java, Spark and modules of their own; those are loaded when a run is requested, so that asking whether
one is possible costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError

LIVE = "holdfast.chaos.live.running"
Play = Callable[[Path, Path, int], Path]
"""Does one live run, given the job's file, an empty folder and a seed; returns the journal."""


def missing() -> str | None:
    """Return the requirement of live runs that this machine lacks; None if it lacks none."""
    from holdfast.runtime.cli.start import doctor  # runs programs to get their versions: only when needed

    java = next(doctor.java())  # later steps start Spark
    return java.found if java.state == "fail" else None


def required() -> None:
    """Raise ConfigError if live runs are not possible here."""
    lacking = missing()
    if lacking is not None:
        raise ConfigError(
            f"a live run is not possible: {lacking}",
            not_done="nothing was started",
            next_step="see holdfast doctor; holdfast chaos simulate needs neither Java nor Spark",
        )


def of_file(scenario: Path, job: Path) -> Play:
    """Return a function that runs a scenario's file.

    Raises:
        ConfigError: there is no such scenario or job, or it cannot be carried out here with any seed.
    """
    live, loading = _live(), import_module("holdfast.chaos.live.loading")
    loading.prepared(loading.load(scenario), job)  # refuse it now, not hours into a soak

    def play(job: Path, out: Path, seed: int) -> Path:
        journal: Path = live.run(loading.load(scenario, seed=seed), job, out)
        return journal

    return play


def of_table(raw: Mapping[str, Any], name: str, check: Callable[..., Any] | None) -> Play:
    """Return a function that runs a scenario given as a table.

    Args:
        check: In addition to the scenario's own, as in `holdfast.chaos.live.running.run`.
    """

    def play(job: Path, out: Path, seed: int) -> Path:
        live, proxy = _live(), import_module("holdfast.chaos.live.faults.proxy")
        scenario = import_module("holdfast.chaos.live.faults.scenario").parse(
            {**raw, "seed": seed}, name, toxiproxy=proxy.find_server() is not None, checked_elsewhere=check is not None
        )
        journal: Path = live.run(scenario, job, out, check=check)
        return journal

    return play


def _live() -> Any:
    required()
    return import_module(LIVE)
