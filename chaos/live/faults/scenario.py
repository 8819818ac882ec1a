"""Reads a scenario: which faults strike a real run, how often, which victims, and how the result is checked.

Everything that cannot be carried out is refused here, before anything starts: an unknown key or fault, a fault that has
no victims on the platform, network faults without Toxiproxy, a run without any check.

Invariants
    - A Scenario can be carried out on its platform; no part of it is skipped later.
    - Every run is checked: a scenario without `check` needs one from its caller.

Pure: takes the dictionary of the parsed file.
Source: docs/decisions/0016-live-chaos.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, NoReturn

from holdfast.chaos.judge.kinds import KINDS, needs_toxiproxy
from holdfast.errors import ConfigError
from holdfast.runtime.config.durations import duration_ms
from holdfast.runtime.config.settings import SETTINGS

_LOCAL = re.compile(r"local\[(\d+)\]")
_STANDALONE = re.compile(r"standalone(?:\[(\d+),(\d+)\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]")
HOSTS, CORES = 2, 2
"""Defaults of a standalone cluster: its worker daemons, and the cores of each."""
_KEYS = (
    "name",
    "duration",
    "seed",
    "every",
    "platform",
    "parallelism",
    "faults",
    "job",
    "drive",
    "check",
    "observe",
    "wait",
)
PROCESSES, PROCESSES_MAX = "processes", 1_024
"""The platform without Spark: `holdfast run --local`, which starts as many workers as requested."""
_DEFAULTS = {setting.name: setting.default for setting in SETTINGS}
_SETTING = "HOLDFAST_"
_MODULE_AND_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


@dataclass(frozen=True)
class Platform:
    """The platform that the job runs on."""

    name: str
    slots: int
    hosts: int = 0
    """Worker daemons of a standalone cluster; 0: all processes are the driver or its children."""
    cores: int = 0


@dataclass(frozen=True)
class Feed:
    """A finished log that is copied into another one while the job reads the copy, which is then sealed."""

    source: str
    target: str
    records_per_second: int | None
    """None: the rate that ends the copy with the faults."""
    prepare: tuple[str, ...] = ()
    """A command, run first, that makes the finished log."""


@dataclass(frozen=True)
class Observed:
    """A target that is read while faults strike."""

    kind: str
    """sqlite or log."""
    path: str
    grows: tuple[str, ...] = ()
    """Tables whose row count never falls."""


@dataclass(frozen=True)
class Waits:
    """Time limits, in milliseconds, after which the run counts as stuck."""

    start: int = 120_000
    recover: int = 60_000
    end: int = 300_000


@dataclass(frozen=True)
class LiveScenario:
    """A run under faults. Texts may hold `{out}`, the folder of the run, `{python}`, this interpreter, and
    $VARIABLES of this environment."""

    name: str
    duration_ms: int
    seed: int
    every_ms: tuple[int, int]
    platform: Platform
    parallelism: int
    rates: Mapping[str, float]
    """Relative rates, by name of the fault."""
    check: str | tuple[str, ...] | None
    """`module:function`, `audit`, or a command; None: the caller provides one."""
    environment: Mapping[str, str] = field(default_factory=dict)
    drive: Feed | tuple[str, ...] | None = None
    """A log to feed, or a command that writes the source."""
    observe: tuple[Observed, ...] = ()
    wait: Waits = Waits()
    path: str | None = None
    """Its name for `holdfast chaos run`: its file, or the name of one in this package; None: no file."""

    def timeout_ms(self, setting: str) -> int:
        """Return a timeout of the job: from its environment, or the default."""
        given = self.environment.get(f"HOLDFAST_{setting.upper()}", _DEFAULTS[setting])
        assert given is not None
        return int(given) if str(given).isdigit() else duration_ms(given, setting)


def parse(raw: Mapping[str, Any], name: str, *, toxiproxy: bool, checked_elsewhere: bool = False) -> LiveScenario:
    """Return the scenario.

    Args:
        raw: The parsed TOML.
        name: The name of the scenario, if its file gives none.
        toxiproxy: Whether the Toxiproxy server can be started.
        checked_elsewhere: Whether the caller provides a check.

    Raises:
        ConfigError: it cannot be carried out; the message lists alternatives.
    """
    _known(raw, _KEYS, "the scenario")
    rates = _rates(raw.get("faults"))
    job = _table(raw, "job", ("environment",))
    scenario = LiveScenario(
        name=_text(raw, "name", name),
        duration_ms=_duration(raw, "duration", None),
        seed=_whole(raw, "seed", 0, least=0),
        every_ms=_range(raw.get("every", "5s..15s")),
        platform=_platform(raw.get("platform")),
        parallelism=_whole(raw, "parallelism", 2, least=1),
        rates=rates,
        check=_check(raw.get("check")),
        environment=_environment(_table(job, "environment", None)),
        drive=_drive(_table(raw, "drive", ("command", "prepare", "from", "to", "records_per_second"))),
        observe=_observed_all(raw.get("observe", [])),
        wait=_waits(_table(raw, "wait", ("start", "recover", "end"))),
    )
    for setting in ("silent_after_ms", "session_timeout_ms"):
        scenario.timeout_ms(setting)  # refuses an invalid duration
    _possible(scenario, toxiproxy)
    if scenario.check is None and not checked_elsewhere:
        _refuse(
            "nothing in the scenario checks the result, so a run would prove nothing",
            'add check = "module:function", check = "audit", or check = ["command", "argument"]',
        )
    return scenario


def _possible(scenario: LiveScenario, toxiproxy: bool) -> None:
    platform, rates = scenario.platform, scenario.rates
    if platform.slots < scenario.parallelism:
        _refuse(
            f"{platform.name} has {platform.slots} slots, too few for {scenario.parallelism} workers",
            "give the platform more slots, or lower the parallelism",
        )
    there = [name for name, kind in KINDS.items() if platform.hosts or not kind.needs_cluster]
    for name in rates:
        if name not in there:
            _refuse(
                f"the fault {name!r} cannot strike on {platform.name}: all processes there are children of the driver",
                f'use platform = "standalone", or these faults: {", ".join(there)}',
            )
    alone = [name for name in rates if KINDS[name].victim == "data"] if scenario.parallelism == 1 else []
    if alone:
        _refuse(
            f"the fault {alone[0]!r} cannot strike: a single worker has no connection to another",
            "give parallelism = 2 or more, or leave out the faults of the data plane",
        )
    keeps_slot = [name for name in rates if KINDS[name].lasting == "stop" and KINDS[name].victim == "worker"]
    if keeps_slot and platform.slots == scenario.parallelism:
        _refuse(
            f"a worker struck by {keeps_slot[0]!r} keeps its slot, and {platform.name} has no spare one",
            f"give the platform at least {scenario.parallelism + 1} slots",
        )
    if needs_toxiproxy(rates) and not toxiproxy:
        without = ", ".join(name for name in there if KINDS[name].plane is None)
        _refuse(
            "network faults need the Toxiproxy server, which was not found",
            "build it: tools/bootstrap.sh toxiproxy (or name it: HOLDFAST_TOXIPROXY=...); "
            f"or use these faults: {without}",
        )


def _rates(raw: Any) -> dict[str, float]:
    if not isinstance(raw, Mapping) or not raw:
        _refuse("the scenario has no [faults]", f"add faults with relative rates: {', '.join(KINDS)}")
    for name, rate in raw.items():
        if name not in KINDS:
            close = get_close_matches(name, KINDS, 1)
            meant = f"did you mean {close[0]}? " if close else ""
            _refuse(f"there is no fault {name!r}", f"{meant}There are: {', '.join(KINDS)}")
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
            _refuse(f"the rate of {name} is {rate!r}", "give a number above 0, or leave the fault out")
    return {name: float(rate) for name, rate in raw.items()}


def _platform(raw: Any) -> Platform:
    if isinstance(raw, str) and (local := _LOCAL.fullmatch(raw)) and int(local[1]):
        return Platform(raw, int(local[1]))
    if raw == PROCESSES:
        return Platform(PROCESSES, PROCESSES_MAX)
    if isinstance(raw, str) and (cluster := _STANDALONE.fullmatch(raw)):
        hosts, cores = (int(cluster[1]), int(cluster[2])) if cluster[1] else (HOSTS, CORES)
        if hosts and cores:
            return Platform(raw, hosts * cores, hosts, cores)
    if isinstance(raw, str) and (cluster := _LOCAL_CLUSTER.fullmatch(raw)):
        _refuse(
            f"platform is {raw!r}, which leaves files outside the run's folder and has no hosts to strike",
            f'give "standalone[{cluster[1]},{cluster[2]}]", which has the same executors',
        )
    _refuse(f"platform is {raw!r}", 'give "processes", "local[N]", "standalone" or "standalone[HOSTS,CORES]"')


def _check(raw: Any) -> str | tuple[str, ...] | None:
    if raw is None:
        return None
    if isinstance(raw, str) and (raw == "audit" or _MODULE_AND_FUNCTION.fullmatch(raw)):
        return raw
    if _is_command(raw):
        return tuple(raw)
    _refuse(f"check is {raw!r}", 'give "module:function", "audit", or a command as a list of words')


def _drive(raw: Mapping[str, Any]) -> Feed | tuple[str, ...] | None:
    if not raw:
        return None
    if "command" in raw:
        if len(raw) > 1 or not _is_command(raw["command"]):
            _refuse(
                "[drive] has other keys besides command, or command is not a list of words",
                "give command = [...] alone, or from and to",
            )
        return tuple(raw["command"])
    if "from" not in raw or "to" not in raw:
        _refuse("[drive] lacks from or to", "name a sealed log and the log that the job reads; or give a command")
    rate = _whole(raw, "records_per_second", 1, least=1) if "records_per_second" in raw else None
    prepare = raw.get("prepare", ())
    if prepare != () and not _is_command(prepare):
        _refuse(f"prepare is {prepare!r}", "give a command as a list of words")
    return Feed(str(raw["from"]), str(raw["to"]), rate, tuple(prepare))


def _environment(raw: Mapping[str, Any]) -> dict[str, str]:
    settings = [_SETTING + setting.name.upper() for setting in SETTINGS]
    for key, value in raw.items():
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            _refuse(f"{key} in [job.environment] is {value!r}", "give text in quotes, or a number")
        if key.startswith(_SETTING) and key not in settings:
            meant = "".join(f"did you mean {close}? " for close in get_close_matches(key, settings, 1))
            _refuse(f"{key} in [job.environment] is not a setting", f"{meant}There are: {', '.join(settings)}")
    return {key: str(value) for key, value in raw.items()}


def _observed_all(raw: Any) -> tuple[Observed, ...]:
    if not isinstance(raw, list | tuple) or not all(isinstance(each, Mapping) for each in raw):
        _refuse("observe is not a list of tables", '[[observe]] sqlite = "{out}/out.db"')
    return tuple(map(_observed, raw))


def _observed(raw: Mapping[str, Any]) -> Observed:
    _known(raw, ("sqlite", "log", "grows"), "[[observe]]")
    kinds = [kind for kind in ("sqlite", "log") if kind in raw]
    if len(kinds) != 1:
        _refuse("[[observe]] must name exactly one target", 'give sqlite = "PATH" or log = "PATH"')
    grows = raw.get("grows", ())
    if not isinstance(grows, list | tuple) or not all(isinstance(table, str) and table for table in grows):
        _refuse(f"grows is {grows!r}", 'give names of tables as a list: grows = ["totals"]')
    return Observed(kinds[0], str(raw[kinds[0]]), tuple(grows))


def _waits(raw: Mapping[str, Any]) -> Waits:
    default = Waits()
    return Waits(**{name: _duration(raw, name, getattr(default, name)) for name in ("start", "recover", "end")})


def _range(raw: Any) -> tuple[int, int]:
    ends = str(raw).split("..")
    if len(ends) == 2:
        low, high = (duration_ms(end, "every") for end in ends)
        if low <= high and high > 0:
            return low, high
    _refuse(f"every is {raw!r}", 'give the shortest and the longest pause between two faults, not both 0: "5s..15s"')


def _duration(raw: Mapping[str, Any], key: str, default: int | None) -> int:
    if key not in raw:
        if default is None:
            _refuse(f"the scenario has no {key}", f'give the time during which faults strike: {key} = "60s"')
        return default
    return duration_ms(raw[key], key)


def _whole(raw: Mapping[str, Any], key: str, default: int, least: int) -> int:
    value = raw.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        _refuse(f"{key} is {value!r}", f"give a whole number, at least {least}")
    return value


def _text(raw: Mapping[str, Any], key: str, default: str) -> str:
    value = raw.get(key, default)
    if not isinstance(value, str) or not value:
        _refuse(f"{key} is {value!r}", "give text that is not empty")
    return value


def _table(raw: Mapping[str, Any], key: str, allowed: Sequence[str] | None) -> Mapping[str, Any]:
    value = raw.get(key, {})
    if not isinstance(value, Mapping):
        _refuse(f"{key} is not a table", f"write [{key}] and its keys below")
    if allowed is not None:
        _known(value, allowed, f"[{key}]")
    return value


def _known(raw: Mapping[str, Any], allowed: Sequence[str], where: str) -> None:
    for key in raw:
        if key not in allowed:
            _refuse(f"{where} has the unknown key {key!r}", f"use {', '.join(allowed)}")


def _is_command(raw: Any) -> bool:
    return isinstance(raw, list | tuple) and bool(raw) and all(isinstance(word, str) and word for word in raw)


def _refuse(what: str, next_step: str) -> NoReturn:
    raise ConfigError(what, not_done="nothing was started", next_step=next_step)
