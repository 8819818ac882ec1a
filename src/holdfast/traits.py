"""Traits of sources and sinks, as data.

The runtime handles a connector according to these values, never by its class. They are known before anything is opened,
so a job that needs a capability that a connector lacks is refused when it is planned. Capabilities of a connector are
not
here: its base class has a method or a property for each.

Invariants
    - `local_paths` has no default: a connector that does not state it cannot be planned with.

Pure: no clock, thread or I/O. Source: docs/decisions/0032-connectors.md, 0125-capabilities-of-connectors.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.secrets import Secret


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Traits of both sources and sinks."""

    kind: str
    """The word for it in plans, such as "Log"; part of the recorded shape of a job, so it must not change."""
    local_paths: tuple[str, ...]
    """Paths, and `file://` and `memory://` URLs, under which each machine or process finds something else."""
    place: Mapping[str, str] = field(default_factory=dict)
    """Where it reads or writes, by argument: shown in plans, and recorded with the shape of a job. No secrets."""
    log: str | None = None
    """The path, if it is an embedded log: commands read it without the job's code."""
    secrets: tuple[Secret, ...] = ()
    """Secrets that it reads when it connects. A start reads each on the driver before it opens a source or a sink."""


@dataclass(frozen=True, kw_only=True)
class Endless:
    """A source without an end to read to.

    Args:
        what: The source, for a message: "a generator without a count".
        instead: An instruction that gives the source an end.
        for_microbatch: An instruction that gives the source an end at any time, if there is another one.
    """

    what: str
    instead: str
    for_microbatch: str | None = None


@dataclass(frozen=True, kw_only=True)
class SourceTraits(Traits):
    """Traits of a source."""

    replayable: bool = True
    """Reading a partition at the same offset again gives the same records. Other sources are refused."""
    endless: Endless | None = None
    """Why a run cannot read to `end_offsets`; None: it can."""
    partitioned_by: tuple[str, ...] = ()
    """Columns whose values choose a record's partition; empty: unknown."""
    paced: bool = False
    """Records appear over time at a rate. `unpaced` gives the source that has all of them already, and the open source
    has `appeared`."""
    copied: bool = False
    """It is read from a copy in the job's folder, which the first start of a job makes: `in_folder`, `copied`."""
    copies: str = "rows"
    """With `copied`: the word for the copied data, for messages."""
    captures: Mapping[str, str] = field(default_factory=dict)
    """For a captured log: the place of the table whose changes fill the log, as `place` of a sink that writes to it."""
    finds: bool = False
    """It discovers its input, which may include output of a sink of the same job: `would_read`."""
    removes_old: bool = False
    """Its system removes old records, read or not; the open source has `kept`."""
    counts_bytes: bool = False
    """Positions, and so offsets and lag, count bytes of text, not records."""
    in_plan: bool = False
    """Its records are part of the plan: a job that has finished is refused with others, where it would run nothing."""
    loses_partitions: bool = False
    """A partition may be deleted while the others are read on; the open source has `gone`."""


@dataclass(frozen=True, kw_only=True)
class SinkTraits(Traits):
    """Traits of a sink. A delivery is always atomic with its tag."""

    keyed: bool = False
    """A row replaces the one with its key, also a row of an append stream. A changelog keeps all of them."""
    repeats: bool = False
    """With `Sink.immediate`: rows keep no tag. It is always written before the commit, from any place in the job, and
    rows come again after a failure."""
    exclusive: bool = False
    """Its target belongs to one sink of one job: two sinks with the same place are refused."""
    commits_once: bool = False
    """One commit shows an epoch's output of all its writers: the first of them delivers it, under its own tag."""


@dataclass(frozen=True, kw_only=True)
class Library:
    """The library that a connector is made with, for `holdfast connectors`: the class attribute `library`.

    Args:
        name: As installers name it: "psycopg".
        extra: The extra of the connector's own package that installs it; None: it comes with that package.
        version: Its version, if it is not an installed package.
    """

    name: str
    extra: str | None = None
    version: str | None = None


def local(*paths: str) -> tuple[str, ...]:
    """Return those of the paths and URLs under which another machine or process would find something else."""
    return tuple(path for path in paths if "://" not in path or path.startswith(("file://", "memory://")))


def missing(given: object, names: Iterable[str]) -> Iterable[str]:
    """Return the attributes that an object lacks, without evaluating its properties, which may look at the outside."""
    return (name for name in names if not hasattr(type(given), name) and name not in vars_of(given))


def vars_of(given: object) -> Mapping[str, object]:
    """Return the attributes set on the object itself."""
    return vars(given) if hasattr(given, "__dict__") else {}
