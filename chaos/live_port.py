"""The way to live runs for what only wants one done: a soak, a test.

Live runs need Java and Spark, and take their own modules with them; those are loaded when a run is asked for, so that
asking whether one is possible costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError

LIVE = "holdfast.chaos.live"
Play = Callable[[Path, Path, int], Path]
"""Does one live run: the job's file, an empty folder to write to, a seed; returns the journal."""


def missing() -> str | None:
    """Return what live runs lack here, None if nothing."""
    from holdfast.runtime.cli import doctor  # asks programs for their versions: only when it matters

    java = next(doctor.java())  # what comes after it starts Spark
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
    """Return what does a run of a scenario's file.

    Raises:
        ConfigError: there is no such scenario or job, or it cannot be carried out here, whatever the seed.
    """
    live, loading = _live(), import_module("holdfast.chaos.loading")
    loading.prepared(loading.load(scenario), job)  # refuse it now, not in the middle of the night

    def play(job: Path, out: Path, seed: int) -> Path:
        journal: Path = live.run(loading.load(scenario, seed=seed), job, out)
        return journal

    return play


def of_table(raw: Mapping[str, Any], name: str, check: Callable[..., Any] | None) -> Play:
    """Return what does a run of a scenario that is given as the table of its file.

    Args:
        check: As `holdfast.chaos.live.run` takes it, beside the scenario's own.
    """

    def play(job: Path, out: Path, seed: int) -> Path:
        live, proxy = _live(), import_module("holdfast.chaos.proxy")
        scenario = import_module("holdfast.chaos.scenario").parse(
            {**raw, "seed": seed}, name, toxiproxy=proxy.find_server() is not None, checked_elsewhere=check is not None
        )
        journal: Path = live.run(scenario, job, out, check=check)
        return journal

    return play


def _live() -> Any:
    required()
    return import_module(LIVE)
