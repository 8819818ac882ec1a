"""Holdfast: fault-tolerant stateful stream processing in Python on Spark.

import holdfast as hf

Names load at first use, so importing the package costs nothing. `hf.__version__` is the version of the installed
distribution, "0+unknown" for a copy that was not installed, such as a folder or a zip file on the path.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast import errors as errors
    from holdfast import testing as testing
    from holdfast.errors import (
        ConfigError,
        Damaged,
        Fenced,
        HoldfastError,
        JobFailed,
        Unavailable,
    )
    from holdfast.runtime.api.app import App
    from holdfast.runtime.api.stream import Stream
    from holdfast.runtime.functions.membership import may_contain
    from holdfast.runtime.functions.named import (
        approx_distinct,
        collect,
        count,
        distinct,
        first,
        last,
        max,
        mean,
        member,
        min,
        quantile,
        sum,
        top,
        var,
    )
    from holdfast.runtime.functions.users.custom import Aggregate
    from holdfast.runtime.functions.users.keyed_process import Context, KeyedProcess, List, Map, Timer, Value
    from holdfast.runtime.inspect.frame import state
    from holdfast.runtime.inspect.logframe import log
    from holdfast.runtime.rows.row_types import Row
    from holdfast.runtime.rows.schema import field
    from holdfast.runtime.sources.files.connector import Files
    from holdfast.runtime.sources.generator import Generator
    from holdfast.runtime.sources.installed import connector
    from holdfast.runtime.sources.kafka.avro import Avro
    from holdfast.runtime.sources.kafka.connector import Kafka
    from holdfast.runtime.sources.kafka.protobuf.form import Protobuf
    from holdfast.runtime.sources.kafka.values import JSON, Raw
    from holdfast.runtime.sources.log import Log
    from holdfast.runtime.sources.postgres.connector import PostgresChanges
    from holdfast.runtime.sources.rows import Rows
    from holdfast.runtime.sources.sqlite.connector import SQLiteChanges
    from holdfast.runtime.sources.webhook.connector import Webhook
    from holdfast.runtime.spark.tables.frames import SparkFrame
    from holdfast.runtime.time.calendar import calendar
    from holdfast.runtime.time.event_times import device_clock
    from holdfast.runtime.time.join_bounds import between
    from holdfast.runtime.time.patterns import pattern
    from holdfast.runtime.time.triggers import all_time, count_of, every
    from holdfast.runtime.time.windows import hopping, session, sliding, tumbling
    from holdfast.secrets import secret
    from holdfast.sinks.delta.sink import Delta
    from holdfast.sinks.http.sink import Http
    from holdfast.sinks.iceberg.sink import Iceberg
    from holdfast.sinks.postgres.sink import Postgres
    from holdfast.sinks.program.collect import Collect
    from holdfast.sinks.program.console import Console
    from holdfast.sinks.redis.sink import Redis
    from holdfast.sinks.sqlite.sink import SQLite

    __version__: str

_MODULES = {
    "errors": "holdfast.errors",
    "state": "holdfast.state",  # a package that can be called: hf.state(...)
    "testing": "holdfast.testing",
}
_HOMES = {
    "App": "holdfast.runtime.api.app",
    "Stream": "holdfast.runtime.api.stream",
    "Aggregate": "holdfast.runtime.functions.users.custom",
    "count": "holdfast.runtime.functions.named",
    "sum": "holdfast.runtime.functions.named",
    "min": "holdfast.runtime.functions.named",
    "max": "holdfast.runtime.functions.named",
    "mean": "holdfast.runtime.functions.named",
    "may_contain": "holdfast.runtime.functions.membership",
    "member": "holdfast.runtime.functions.named",
    "approx_distinct": "holdfast.runtime.functions.named",
    "collect": "holdfast.runtime.functions.named",
    "distinct": "holdfast.runtime.functions.named",
    "first": "holdfast.runtime.functions.named",
    "last": "holdfast.runtime.functions.named",
    "quantile": "holdfast.runtime.functions.named",
    "top": "holdfast.runtime.functions.named",
    "var": "holdfast.runtime.functions.named",
    "Context": "holdfast.runtime.functions.users.keyed_process",
    "KeyedProcess": "holdfast.runtime.functions.users.keyed_process",
    "List": "holdfast.runtime.functions.users.keyed_process",
    "Map": "holdfast.runtime.functions.users.keyed_process",
    "Timer": "holdfast.runtime.functions.users.keyed_process",
    "Value": "holdfast.runtime.functions.users.keyed_process",
    "Row": "holdfast.runtime.rows.row_types",
    "field": "holdfast.runtime.rows.schema",
    "device_clock": "holdfast.runtime.time.event_times",
    "between": "holdfast.runtime.time.join_bounds",
    "pattern": "holdfast.runtime.time.patterns",
    "tumbling": "holdfast.runtime.time.windows",
    "hopping": "holdfast.runtime.time.windows",
    "session": "holdfast.runtime.time.windows",
    "sliding": "holdfast.runtime.time.windows",
    "all_time": "holdfast.runtime.time.triggers",
    "count_of": "holdfast.runtime.time.triggers",
    "every": "holdfast.runtime.time.triggers",
    "calendar": "holdfast.runtime.time.calendar",
    "Log": "holdfast.runtime.sources.log",
    "log": "holdfast.runtime.inspect.logframe",
    "Files": "holdfast.runtime.sources.files.connector",
    "Generator": "holdfast.runtime.sources.generator",
    "Rows": "holdfast.runtime.sources.rows",
    "Kafka": "holdfast.runtime.sources.kafka.connector",
    "Avro": "holdfast.runtime.sources.kafka.avro",
    "Protobuf": "holdfast.runtime.sources.kafka.protobuf.form",
    "JSON": "holdfast.runtime.sources.kafka.values",
    "Raw": "holdfast.runtime.sources.kafka.values",
    "SparkFrame": "holdfast.runtime.spark.tables.frames",
    "Delta": "holdfast.sinks.delta.sink",
    "Http": "holdfast.sinks.http.sink",
    "Iceberg": "holdfast.sinks.iceberg.sink",
    "PostgresChanges": "holdfast.runtime.sources.postgres.connector",
    "Webhook": "holdfast.runtime.sources.webhook.connector",
    "Postgres": "holdfast.sinks.postgres.sink",
    "Redis": "holdfast.sinks.redis.sink",
    "SQLite": "holdfast.sinks.sqlite.sink",
    "SQLiteChanges": "holdfast.runtime.sources.sqlite.connector",
    "Collect": "holdfast.sinks.program.collect",
    "Console": "holdfast.sinks.program.console",
    "connector": "holdfast.runtime.sources.installed",
    "secret": "holdfast.secrets",
    "HoldfastError": "holdfast.errors",
    "ConfigError": "holdfast.errors",
    "Damaged": "holdfast.errors",
    "Unavailable": "holdfast.errors",
    "Fenced": "holdfast.errors",
    "JobFailed": "holdfast.errors",
}

__all__ = [
    "JSON",
    "Aggregate",
    "App",
    "Avro",
    "Collect",
    "ConfigError",
    "Console",
    "Context",
    "Damaged",
    "Delta",
    "Fenced",
    "Files",
    "Generator",
    "HoldfastError",
    "Http",
    "Iceberg",
    "JobFailed",
    "Kafka",
    "KeyedProcess",
    "List",
    "Log",
    "Map",
    "Postgres",
    "PostgresChanges",
    "Protobuf",
    "Raw",
    "Redis",
    "Row",
    "Rows",
    "SQLite",
    "SQLiteChanges",
    "SparkFrame",
    "Stream",
    "Timer",
    "Unavailable",
    "Value",
    "Webhook",
    "all_time",
    "approx_distinct",
    "between",
    "calendar",
    "collect",
    "connector",
    "count",
    "count_of",
    "device_clock",
    "distinct",
    "errors",
    "every",
    "field",
    "first",
    "hopping",
    "last",
    "log",
    "max",
    "may_contain",
    "mean",
    "member",
    "min",
    "pattern",
    "quantile",
    "secret",
    "session",
    "sliding",
    "state",
    "sum",
    "testing",
    "top",
    "tumbling",
    "var",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name == "__version__":
        globals()[name] = found = _version()
        return found
    home = _HOMES.get(name)
    if home is None:
        if name.startswith("_"):
            raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
        unsupported = import_module("holdfast.runtime.api.unsupported")
        raise unsupported.no_attribute("hf", name, {}, __all__)
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def _version() -> str:
    from importlib import metadata  # slow to load

    try:
        return metadata.version("holdfast")
    except metadata.PackageNotFoundError:
        return "0+unknown"


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
