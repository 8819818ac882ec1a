"""Settings of a job: the name of each, the values that it takes, and where its value came from.

A value is looked up in five places, and the first match wins: command line flag, environment (`HOLDFAST_` and the name
in capitals), Spark (`spark.holdfast.` and the name), the job's code, the default. The origin is kept, because the first
question about a surprising value is where it was set.

Invariants
    - Every value of a `Settings` lies inside the range its `Setting` declares.
    - Outside this module times are milliseconds and sizes are bytes, never text such as "1s".

Pure: the caller passes flags, environment and Spark's configuration as mappings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Literal, Protocol

from holdfast.errors import ConfigError
from holdfast.model import KEY_GROUPS_MAX
from holdfast.runtime.config.durations import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    NOT_STARTED,
    SECOND_MS,
    UNITS_MS,
    Duration,
    duration_ms,
    malformed,
)
from holdfast.storage.paths import refuse_password

Unit = Literal["duration", "bytes", "count", "rate", "text"]
Origin = Literal["flag", "environment", "spark", "code", "default"]

KIB, MIB, GIB = 1024, 1024**2, 1024**3
ENVIRONMENT_PREFIX = "HOLDFAST_"
SPARK_PREFIX = "spark.holdfast."
_LIKE = 0.7
"""Names of variables as similar as this are taken for misspelt settings; programs may have other variables."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|KB|MB|GB)?")
_SIZE_BYTES = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_BINARY = ("B", "KiB", "MiB", "GiB")


@dataclass(frozen=True)
class Setting:
    """One setting: its name for users, unit, range and purpose."""

    name: str
    unit: Unit
    default: int | str | None
    doc: str
    least: int = 0
    most: int | None = None
    choices: tuple[str, ...] = ()

    def text(self, value: int | str) -> str:
        """Return a value in the form that users give: with the largest unit that keeps it whole, such as 64KiB."""
        if not isinstance(value, int):
            return value
        if self.unit not in ("duration", "bytes"):
            return f"{value:,}"
        sizes = UNITS_MS if self.unit == "duration" else {unit: _SIZE_BYTES[unit] for unit in _BINARY}
        unit, size = max(((u, s) for u, s in sizes.items() if u != "d" and value % s == 0), key=lambda us: us[1])
        return f"{value // size}{unit}" if value else f"0{min(sizes, key=lambda u: sizes[u])}"


TLS, BOOLEAN, AUDIT = ("auto", "on", "off"), ("true", "false"), ("off", "counts", "rows")
_SHORT = {"1": "true", "0": "false"}
"""Other spellings of the values of a BOOLEAN."""
_NEARNESS: tuple[Origin, ...] = ("flag", "environment", "spark", "code", "default")
MODES = CONTINUOUS, MICROBATCH = "continuous", "microbatch"
SETTINGS: tuple[Setting, ...] = (
    Setting("root", "text", "./.holdfast", "Where jobs keep their durable history: a folder or any fsspec URL"),
    Setting(
        "mode", "text", CONTINUOUS, "continuous: workers stay; microbatch: every epoch is a Spark job", choices=MODES
    ),
    Setting("checkpoint_every", "duration", SECOND_MS, "Time between two barriers", 10, HOUR_MS),
    Setting("parallelism", "count", 2, "Workers that share the key groups", 1, 1_024),
    Setting("standbys", "count", 0, "More workers, which follow the state of the others to take over", 0, 1_024),
    Setting("key_groups", "count", 128, "Units in which state moves; fixed for the job's life", 1, KEY_GROUPS_MAX),
    Setting("master", "text", None, "Spark master URL; unset: Spark's own setting, else local"),
    Setting(
        "local",
        "text",
        "false",
        "true: driver and workers are processes of this machine; no Spark",
        choices=BOOLEAN,
    ),
    Setting("max_records_per_second", "rate", None, "Limit on the reading of all sources together; unset: no limit", 1),
    Setting("heartbeat_ms", "duration", 500, "Time between two heartbeats, in both directions", 10, MINUTE_MS),
    Setting(
        "silent_after_ms", "duration", 5_000, "Silence after which a worker or channel counts as lost", 50, HOUR_MS
    ),
    Setting("session_timeout_ms", "duration", 10_000, "Silence of the driver after which a worker exits", 50, HOUR_MS),
    Setting("hung_after_ms", "duration", 120_000, "Time in one call before a worker counts as hung", 1_000, DAY_MS),
    Setting("restart_failures_max", "count", 40, "Failures tolerated in a window; one more ends the job", 0, 1_000_000),
    Setting("restart_window_ms", "duration", 10 * MINUTE_MS, "Window in which failures are counted", 1, DAY_MS),
    Setting("restart_backoff_first_ms", "duration", 100, "Wait before the second restart in a row", 1, HOUR_MS),
    Setting("restart_backoff_max_ms", "duration", 10_000, "The wait doubles with every failure up to this", 1, HOUR_MS),
    Setting(
        "partition_discovery_ms", "duration", 10_000, "Time between two listings of partitions; 0: none", 0, DAY_MS
    ),
    Setting(
        "loss_alarm_ms",
        "duration",
        HOUR_MS,
        "Warn of unread records that a source removes within this time; 0: never",
        0,
        30 * DAY_MS,
    ),
    Setting("channel_bytes_max", "bytes", 8 * MIB, "Bytes that may wait in one channel", 64 * KIB, 4 * GIB),
    Setting("retained_checkpoints", "count", 10, "Newest checkpoints that are kept at any age", 1, 1_000_000),
    Setting("retained_for_ms", "duration", HOUR_MS, "Age up to which older checkpoints are also kept", 0, None),
    Setting("staged_bytes_max", "bytes", 256 * MIB, "Undelivered output per writer before sources stop", MIB, None),
    Setting(
        "state_memory",
        "bytes",
        None,
        "Memory of each worker for state; a larger state is swapped to its local folder; jobs with several operators "
        "or workers need more than the least, 80 to 112 MiB for most, and a start says how much; "
        "unset: half of the worker's share of the machine or container",
        64 * MIB,
    ),
    Setting("tls", "text", "auto", "Encrypt streams between processes; auto: if not on loopback", choices=TLS),
    Setting("audit", "text", "rows", "Digests of the input and output of epochs, for `holdfast audit`", choices=AUDIT),
    Setting(
        "record_order",
        "text",
        "false",
        "true: epochs record the order in which workers took their input, so that a replay is exact",
        choices=BOOLEAN,
    ),
    Setting("metrics_port", "count", 0, "Port of the driver that serves metrics at /metrics; 0: none", 0, 65_535),
    Setting(
        "metrics_host", "text", "127.0.0.1", "Address of that port; every process that can connect can read the metrics"
    ),
    Setting("shared_paths", "text", "false", "true: all machines see the same files at local paths", choices=BOOLEAN),
)

_BY_NAME = MappingProxyType({setting.name: setting for setting in SETTINGS})


class CodeSettings(Protocol):
    """The settings that a job's code may give; `holdfast.App` has these."""

    @property
    def name(self) -> str: ...
    @property
    def root(self) -> str | None: ...
    @property
    def checkpoint_every(self) -> Duration: ...
    @property
    def parallelism(self) -> int | None: ...
    @property
    def standbys(self) -> int | None: ...
    @property
    def key_groups(self) -> int: ...
    @property
    def state_memory(self) -> str | int | None: ...
    @property
    def mode(self) -> str: ...
    @property
    def record_order(self) -> bool | None: ...


@dataclass(frozen=True)
class Settings:
    """Every setting of one run, checked, in milliseconds and bytes."""

    root: str
    mode: str
    checkpoint_every_ms: int
    parallelism: int
    standbys: int
    key_groups: int
    master: str | None
    local: str
    max_records_per_second: int | None
    heartbeat_ms: int
    silent_after_ms: int
    session_timeout_ms: int
    hung_after_ms: int
    restart_failures_max: int
    restart_window_ms: int
    restart_backoff_first_ms: int
    restart_backoff_max_ms: int
    partition_discovery_ms: int
    loss_alarm_ms: int
    channel_bytes_max: int
    retained_checkpoints: int
    retained_for_ms: int
    staged_bytes_max: int
    state_memory: int | None
    tls: str
    audit: str
    record_order: str
    metrics_port: int
    metrics_host: str
    shared_paths: str
    origins: Mapping[str, Origin] = field(default_factory=dict)

    def origin(self, name: str) -> Origin:
        """Return which of the five places gave the setting its value."""
        return self.origins[name]

    def value(self, name: str) -> int | str | None:
        """Return the value of the setting with this name in `SETTINGS`."""
        value: int | str | None = getattr(self, _attribute(_setting(name)))
        return value

    def describe(self) -> list[dict[str, Any]]:
        """Return name, value, origin, unit and doc of every setting, for `holdfast plan`."""
        return [
            {
                "name": setting.name,
                "value": self.value(setting.name),
                "unit": _UNITS[setting.unit],
                "origin": self.origin(setting.name),
                "doc": setting.doc,
            }
            for setting in SETTINGS
        ]


_UNITS = {"duration": "ms", "bytes": "bytes", "count": None, "rate": "records/s", "text": None}


def resolve(
    app: CodeSettings,
    flags: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    spark_conf: Mapping[str, str] | None = None,
) -> Settings:
    """Return the settings of one run of `app`.

    Args:
        flags: By setting name; None means "not given".
        env: The whole environment; other variables are ignored.
        spark_conf: Spark's whole configuration; other keys are ignored.

    Raises:
        ConfigError: a value has the wrong form or is out of range, a name under `spark.holdfast.` or a flag is unknown,
        or there are more workers than key groups.
    """
    flags, env, spark_conf = flags or {}, env or {}, spark_conf or {}
    for name in (*flags, *(key.removeprefix(SPARK_PREFIX) for key in spark_conf if key.startswith(SPARK_PREFIX))):
        _setting(name)
    values: dict[str, int | str | None] = {}
    origins: dict[str, Origin] = {}
    for setting in SETTINGS:
        given, origin, called = _lookup(setting, app, flags, env, spark_conf)
        value = _parsed(setting, given, called)
        if origin == "code" and value == setting.default:
            origin = "default"  # App's parameters repeat the defaults, so the origin is not the job's code.
        values[_attribute(setting)] = value
        origins[setting.name] = origin
    _choose_place(app.name, values, origins)
    settings = Settings(**values, origins=origins)  # type: ignore[arg-type]
    _check_together(app.name, settings)
    return settings


def wants_local(flags: Mapping[str, object], env: Mapping[str, str]) -> bool:
    """Return whether a run is without Spark, as far as that is known before the job's file is loaded."""
    given = flags.get("local") or env.get(f"{ENVIRONMENT_PREFIX}LOCAL", "false")
    nearer = flags.get("local") is None and flags.get("master") is not None
    return not nearer and _SHORT.get(str(given), given) == "true"


def _choose_place(job: str, values: dict[str, int | str | None], origins: dict[str, Origin]) -> None:
    """Let the nearer one of `local` and `master` win, such as a flag over the environment.

    Raises:
        ConfigError: both were given in one place.
    """
    if values["local"] != "true" or values["master"] is None:
        return
    local, master = _NEARNESS.index(origins["local"]), _NEARNESS.index(origins["master"])
    if local == master:
        raise ConfigError(
            f"job {job!r}: both local=true and master={values['master']!r} were given, but only Spark has masters",
            not_done=NOT_STARTED,
            next_step="give one of them: --local for processes of this machine, --master for Spark",
        )
    loser, winner = ("master", "local") if local < master else ("local", "master")
    values[loser], origins[loser] = (None if loser == "master" else "false"), origins[winner]


def misspelt(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return a warning for every variable whose name is close to that of a setting, but not that of any."""
    known = {ENVIRONMENT_PREFIX + name.upper() for name in _BY_NAME}
    warnings = []
    for variable in sorted(env):
        if variable.startswith(ENVIRONMENT_PREFIX) and variable not in known:
            bare = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
            warnings += [
                f"{variable} is set, but no setting has this name, so it has no effect; "
                f"did you mean {ENVIRONMENT_PREFIX}{close.upper()}?"
                for close in get_close_matches(bare, _BY_NAME, 1, _LIKE)
            ]
    return tuple(warnings)


def size_bytes(text: str | int, called: str) -> int:
    """Return the bytes of "64MiB", "1GB" or a whole number.

    Raises:
        ConfigError: the text has another form.
    """
    if isinstance(text, int) and not isinstance(text, bool) and text >= 0:
        return text
    match = _SIZE.fullmatch(str(text).strip())
    if match is None:
        raise malformed(called, text, 'a size such as "64MiB", "1GB" or a number of bytes')
    return int(float(match[1]) * _SIZE_BYTES[match[2] or "B"])


def _attribute(setting: Setting) -> str:
    return "checkpoint_every_ms" if setting.name == "checkpoint_every" else setting.name


def _setting(name: str) -> Setting:
    setting = _BY_NAME.get(name)
    if setting is None:
        close = get_close_matches(name, _BY_NAME, 1)
        raise ConfigError(
            f"setting {name!r} does not exist",
            not_done=NOT_STARTED,
            next_step=f"use {close[0]!r}" if close else f"use one of {', '.join(_BY_NAME)}",
        )
    return setting


def root_given(given: str | None, called: str, env: Mapping[str, str]) -> str:
    """Return the root for a reader of jobs: as given, else from the environment, else the default.

    Args:
        called: The argument or flag, for messages.

    Raises:
        ConfigError: the root is empty.
    """
    variable = f"{ENVIRONMENT_PREFIX}ROOT"
    root = given if given is not None else env.get(variable, str(_BY_NAME["root"].default))
    if not root:
        called = called if given is not None else variable
        raise ConfigError(
            f"{called} is empty", not_done="the command did nothing", next_step=f"give {called} a folder or a URL"
        )
    return root


def _lookup(
    setting: Setting,
    app: CodeSettings,
    flags: Mapping[str, object],
    env: Mapping[str, str],
    spark_conf: Mapping[str, str],
) -> tuple[object, Origin, str]:
    """Return the value as given, its origin, and the name of the place in messages."""
    variable, key = ENVIRONMENT_PREFIX + setting.name.upper(), SPARK_PREFIX + setting.name
    if flags.get(setting.name) is not None:
        return flags[setting.name], "flag", "--" + setting.name.replace("_", "-")
    if variable in env:
        return env[variable], "environment", variable
    if key in spark_conf:
        return spark_conf[key], "spark", key
    code = {
        "root": app.root,
        "checkpoint_every": app.checkpoint_every,
        "parallelism": app.parallelism,
        "standbys": app.standbys,
        "key_groups": app.key_groups,
        "state_memory": app.state_memory,
        "mode": app.mode,
        "record_order": None if app.record_order is None else str(app.record_order).lower(),
    }.get(setting.name)
    if code is not None:
        return code, "code", f"App(..., {setting.name}=)"
    return setting.default, "default", setting.name


def _parsed(setting: Setting, given: object, called: str) -> int | str | None:
    if given is None or setting.unit == "text":
        if given is not None and (not isinstance(given, str) or not given):
            raise malformed(called, given, "text that is not empty")
        if setting.choices is BOOLEAN and isinstance(given, str):
            given = _SHORT.get(given, given)
        if setting.choices and given not in setting.choices:
            raise malformed(called, given, f"one of {', '.join(setting.choices)}")
        if isinstance(given, str):
            refuse_password(given, called)
        return given
    value = _number(setting, given, called)
    if value < setting.least or (setting.most is not None and value > setting.most):
        raise _outside(setting, called, given)
    return value


def _number(setting: Setting, given: object, called: str) -> int:
    if setting.unit == "duration":
        if setting.name.endswith("_ms") and not isinstance(given, bool) and str(given).strip().isdigit():
            return int(str(given))  # the name has the unit
        return duration_ms(given, called)
    if setting.unit == "bytes":
        return size_bytes(given if isinstance(given, int) else str(given), called)
    text = str(given).strip()
    if isinstance(given, bool) or not re.fullmatch(r"-?\d+", text):
        raise malformed(called, given, "a whole number")
    return int(text)


def _outside(setting: Setting, called: str, given: object) -> ConfigError:
    least = setting.text(setting.least)
    wanted = f"of at least {least}" if setting.most is None else f"from {least} to {setting.text(setting.most)}"
    error = malformed(called, given, f"a value {wanted}")
    if setting.unit == "duration" and str(given).strip().isdigit():
        error.next_step += "; the number alone counts as milliseconds"
    return error


def _check_together(job: str, settings: Settings) -> None:
    if settings.parallelism > settings.key_groups:
        raise ConfigError(
            f"job {job!r} requests {settings.parallelism} workers but has only {settings.key_groups} key groups, "
            "so some workers would own no state",
            not_done=NOT_STARTED,
            next_step=f"lower parallelism to at most {settings.key_groups}; "
            "key_groups can be raised only for a job that has never run",
        )
    if settings.local == "true" and settings.mode == MICROBATCH:
        raise ConfigError(
            f"job {job!r}: microbatch mode needs Spark: every epoch is a Spark job; local=true runs without",
            not_done=NOT_STARTED,
            next_step="run it without --local (and without HOLDFAST_LOCAL), or with --mode continuous: both modes "
            "continue from the same checkpoint",
        )
    if settings.heartbeat_ms * 2 > settings.silent_after_ms:
        raise ConfigError(
            f"heartbeat_ms is {settings.heartbeat_ms} and silent_after_ms is {settings.silent_after_ms}: one late "
            "heartbeat would count as a lost worker",
            not_done=NOT_STARTED,
            next_step="set silent_after_ms to at least twice heartbeat_ms",
        )
