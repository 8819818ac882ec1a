"""What a source or a sink can do, as data.

The runtime decides by these values what it may ask of a connector, never by its class or by the methods that it
happens to have. They are known before anything is opened, so a job that needs what a connector lacks is refused when
it is planned.

Invariants
    - `local_paths` has no default: a connector that does not state it cannot be planned with.
    - A connector has every method that its traits name; `missing` finds those that it lacks.

Pure: no clock, thread or I/O. Source: docs/design/0032-connectors.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.secrets import Secret


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What sources and sinks have in common."""

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
        instead: What gives it an end, as an instruction.
        for_microbatch: What gives it an end at any time, if there is more than that; as an instruction.
    """

    what: str
    instead: str
    for_microbatch: str | None = None


@dataclass(frozen=True, kw_only=True)
class SourceTraits(Traits):
    """What a source can do."""

    replayable: bool = True
    """Reading a partition at the same offset again gives the same records. Other sources are refused."""
    endless: Endless | None = None
    """Why `end_offsets` is no end that a run could read to; None: it is one."""
    sparse: bool = False
    """Single records may go away while others before them stay; the open source has `whole_from`."""
    partitioned_by: tuple[str, ...] = ()
    """Columns whose values choose a record's partition; empty: unknown."""
    tells_time: bool = False
    """The open source has `watermark`: it knows more about event time than its records show."""
    paced: bool = False
    """Records appear over time at a rate. `unpaced` gives the source that has all of them already, and the open source
    has `appeared`."""
    copied: bool = False
    """It is read from a copy in the job's folder, which the first start of a job makes: `in_folder`, `copied`."""
    copies: str = "rows"
    """With `copied`: what is copied, for messages."""
    captured: bool = False
    """The log that it reads is filled by a process of its own, `holdfast capture`: `capture`."""
    captures: Mapping[str, str] = field(default_factory=dict)
    """With `captured`: where the table is whose changes fill the log, as `place` of a sink that writes to it."""
    publishes: bool = False
    """It shows the positions of completed checkpoints where tools of its own system look for them: `publisher`."""
    finds: bool = False
    """It finds by itself what it reads, so that may be what a sink of the job writes: `would_read`."""
    removes_old: bool = False
    """Its system removes old records by itself, read or not; the open source has `kept`."""
    counts_bytes: bool = False
    """Positions, and so offsets and lag, count bytes of text, not records."""
    in_plan: bool = False
    """Its records are part of the plan: a job that has finished is refused with others, where it would run nothing."""
    loses_partitions: bool = False
    """A partition may be deleted while the others are read on; the open source has `gone`."""


@dataclass(frozen=True, kw_only=True)
class SinkTraits(Traits):
    """What a sink is; contract/sink.py says what it can do. A delivery is always atomic with its tag."""

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


_SOURCE = ("traits", "schema", "row_type", "where", "check", "open")
_BY_TRAIT: Mapping[str, tuple[str, ...]] = {
    "paced": ("unpaced",),
    "copied": ("in_folder", "copied"),
    "captured": ("capture",),
    "publishes": ("publisher",),
    "finds": ("would_read",),
}


def local(*paths: str) -> tuple[str, ...]:
    """Return those of the paths and URLs under which another machine or process would find something else."""
    return tuple(path for path in paths if "://" not in path or path.startswith(("file://", "memory://")))


def not_a_source(given: object) -> str | None:
    """Return why an object cannot be read by a job; None if it can."""
    if given is None:
        return "no source is given"
    lacking = list(missing(given, _SOURCE))
    if len(lacking) == len(_SOURCE) or isinstance(given, type):
        return f"{given!r} is not a source"
    if lacking:
        return f"{given!r} is not a source: it has no {', '.join(lacking)}"
    traits = given.traits  # type: ignore[attr-defined]
    if not isinstance(traits, SourceTraits):
        return f"{given!r} is not a source: its traits are {traits!r}"
    for trait, methods in _BY_TRAIT.items():
        if getattr(traits, trait) and (lacking := list(missing(given, methods))):
            return f"{given!r} has the trait {trait!r}, but no {', '.join(lacking)}"
    return None


def missing(given: object, names: Iterable[str]) -> Iterable[str]:
    """Return the attributes that an object lacks, without evaluating its properties, which may look at the outside."""
    return (name for name in names if not hasattr(type(given), name) and name not in vars_of(given))


def vars_of(given: object) -> Mapping[str, object]:
    """Return what was set on the object itself."""
    return vars(given) if hasattr(given, "__dict__") else {}
