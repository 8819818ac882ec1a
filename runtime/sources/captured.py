"""Tables of databases that `holdfast capture` captures into a log, as sources: what they have in common.

A change of a table is seen once, so a job never reads one: it reads the log, which has each change as a record that
puts or deletes a row by its primary key. For the job this source is that log in everything but its name; only
`holdfast capture` looks at the rest.

Source: API.md (sources, captured); docs/decisions/0087-postgres-capture.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.runtime.plan.source import Captured
from holdfast.runtime.sources.log import Log, LogSource
from holdfast.storage.log.format import LogMeta
from holdfast.storage.log.reader import read_meta
from holdfast.storage.objects import open_objects
from holdfast.traits import SourceTraits


class TableShape(Protocol):
    """A table, as its log has to fit it."""

    @property
    def key(self) -> tuple[str, ...]:
        """The primary key."""

    @property
    def where(self) -> str:
        """How messages name it."""

    def rows(self) -> pa.Schema:
        """Return the columns of its rows. Raises ConfigError: one cannot be captured."""


class CapturedTable(Captured, Protocol):
    """The configuration of a table that is captured."""

    @property
    def place(self) -> Mapping[str, str]:
        """Where the table is, as a sink that writes to it says; empty if that is not known."""

    def records(self) -> pa.Schema:
        """Ask the database for the columns that the log will have. Raises ConfigError, NotAdmitted, Unavailable."""


@dataclass(frozen=True)
class CapturedTableSource(LogSource):
    """The log of a captured table: to the job it is a log."""

    capturing: CapturedTable | None = field(default=None, compare=False)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the log; those of the table, as long as there is no log. Raises ConfigError, Unavailable."""
        if (meta := read_meta(open_objects(self.path, writable=False))) is not None:
            return meta.schema
        return self.captured.records()

    @property
    def traits(self) -> SourceTraits:
        """The kind stays that of a log: a job may name the log itself instead, and resume."""
        captures = {} if self.capturing is None else self.capturing.place
        return replace(super().traits, captures=captures)

    @property
    def captured(self) -> CapturedTable:
        assert self.capturing is not None, "the connector gives it"
        return self.capturing

    def _meta(self) -> LogMeta:
        if (meta := read_meta(open_objects(self.path, writable=False))) is None:
            raise ConfigError(
                f"no log exists at {self.path}: nothing was captured yet",
                not_done="the source was not opened",
                next_step="start the process that captures the changes, which creates the log: "
                "holdfast capture JOB.py, with the file of this job",
            )
        return meta


def log_for(connector: str, into: object) -> LogSource:
    """Return the log that a connector captures into. Raises ConfigError: it is none, or has a schema or a key."""
    if not isinstance(into, Log):
        raise _refused(
            connector, f"into is {into!r}", 'give the log to append to, such as into=hf.Log("data/customers")'
        )
    log = into.source()
    if log.expected is not None or log.key is not None:
        raise _refused(connector, "into has a schema or a key", "leave them out: the log has those of the table")
    return log


def one_table(connector: str, tables: object) -> str:
    """Return the name of the table. Raises ConfigError: it is not exactly one."""
    names = [tables] if isinstance(tables, str) else list(tables) if isinstance(tables, list | tuple) else [tables]
    if len(names) != 1:
        raise _refused(
            connector,
            f"tables has {len(names)} names, and a log has the columns of one table",
            "make a source for each table, with a log of its own, and run one process for each (--source NAME)",
        )
    return str(names[0])


def _refused(connector: str, what: str, next_step: str) -> ConfigError:
    return ConfigError(f"{connector}: {what}", not_done="the job was not planned", next_step=next_step)
