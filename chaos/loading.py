"""Reads scenarios, and tells before a run is started whether it can be carried out."""

from __future__ import annotations

import random
import tomllib
from dataclasses import replace
from pathlib import Path

from holdfast.chaos import live_checks
from holdfast.chaos.findings import Check
from holdfast.chaos.nemesis import Planned, schedule
from holdfast.chaos.proxy import find_server
from holdfast.chaos.scenario import Scenario, parse
from holdfast.errors import ConfigError

SCENARIOS = Path(__file__).parent / "scenarios"


def load(path: Path, *, checked_elsewhere: bool = False, seed: int | None = None) -> Scenario:
    """Read a scenario: a file, or the name of one that comes with this package.

    Raises:
        ConfigError: it is not there, or cannot be carried out here.
    """
    named = str(path.absolute())
    if not path.exists() and path.name == str(path) and (shipped := SCENARIOS / f"{path}.toml").exists():
        path, named = shipped, str(path)
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read as a scenario: {error}",
            not_done="nothing was started",
            next_step=f"name a TOML file, or one of {', '.join(sorted(p.stem for p in SCENARIOS.glob('*.toml')))}",
        ) from error
    if seed is not None:
        raw["seed"] = seed
    scenario = parse(raw, path.stem, toxiproxy=find_server() is not None, checked_elsewhere=checked_elsewhere)
    return replace(scenario, path=named)


def prepared(scenario: Scenario, job: Path) -> tuple[tuple[Planned, ...], list[Check]]:
    """Return the faults to come and the scenario's check; raises ConfigError if a run would."""
    plan = schedule(scenario, random.Random(scenario.seed).random)
    if not job.is_file():
        raise ConfigError(f"there is no file {job}", not_done="nothing was started", next_step="name the job's file")
    named = Path(scenario.path or "")  # no absolute path if it comes with this package, or is in no file
    folders = [job.absolute().parent, *([named.parent] if named.is_absolute() else [])]
    checks = [] if scenario.check is None else [live_checks.resolve(scenario.check, folders)]
    return plan, checks
