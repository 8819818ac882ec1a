"""Reads scenarios, and decides before a run starts whether it can be carried out."""

from __future__ import annotations

import os
import random
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

from holdfast.chaos.judge.findings import Check
from holdfast.chaos.live import checks as live_checks
from holdfast.chaos.live.faults.nemesis import Planned, schedule
from holdfast.chaos.live.faults.proxy import find_server
from holdfast.chaos.live.faults.scenario import Feed, LiveScenario, parse
from holdfast.chaos.live.folders import filled
from holdfast.errors import ConfigError

SCENARIOS = Path(__file__).parents[1] / "scenarios"


def load(path: Path, *, checked_elsewhere: bool = False, seed: int | None = None) -> LiveScenario:
    """Read a scenario: a file, or the name of one in this package.

    Raises:
        ConfigError: there is no such scenario, or it cannot be carried out here.
    """
    scenario_path = str(path.absolute())
    if not path.exists() and path.name == str(path) and (shipped := SCENARIOS / f"{path}.toml").exists():
        path, scenario_path = shipped, str(path)
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
    return replace(scenario, path=scenario_path)


def prepared(scenario: LiveScenario, job: Path) -> tuple[tuple[Planned, ...], list[Check]]:
    """Return the planned faults and the scenario's check; raises ConfigError if a run would."""
    plan = schedule(scenario, random.Random(scenario.seed).random)
    if not job.is_file():
        raise ConfigError(f"there is no file {job}", not_done="nothing was started", next_step="name the job's file")
    _check_program(scenario)
    named = Path(scenario.path or "")  # no absolute path if it is part of this package, or not from a file
    folders = [job.absolute().parent, *([named.parent] if named.is_absolute() else [])]
    checks = [] if scenario.check is None else [live_checks.resolve(scenario.check, folders)]
    return plan, checks


def _check_program(scenario: LiveScenario) -> None:
    """Refuse a program of the source that does not exist; one in the run's folder may still be created."""
    drive = scenario.drive
    words = drive.prepare if isinstance(drive, Feed) else drive or ()
    path = scenario.environment.get("PATH", os.environ.get("PATH", ""))
    if not words or "{out}" in words[0] + path:
        return
    program = filled(words[0], "")
    if shutil.which(program, path=filled(path, "")) is None:
        raise ConfigError(
            f"there is no program {program!r} for the source",
            not_done="nothing was started",
            next_step="give [drive] command or prepare as a command that can be run here",
        )
