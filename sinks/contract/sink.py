"""The contract of a sink: a plan-time object that users write, and the capabilities of its target besides taking rows.

A `Sink` is configuration: cheap, picklable, without a connection. The driver checks it when the job is planned and
prepares the target when the job starts; each worker opens one `Target` per writer.

Each sink has three methods: `check`, `prepare` and `open`. All else is optional, and is declared once: a property such
as `repairs` returns an object that can do it, or None. A sink that can do it itself derives from `Repairs` before
`Sink`. A job that needs a capability that a sink lacks is refused when it is planned.

Invariants
    - `deliver` can write every row that `accept` admits: a row that the target can never take is
      refused before the epoch is committed, not after, when it could no longer be taken back.
    - A capability depends on the configuration of the sink alone, and is known before anything is opened.

Pure: no clock, thread or I/O. PROTOCOL P1, P17, P21, P24; docs/decisions/0125-capabilities-of-connectors.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.model import Tag, Writer
from holdfast.sinks.contract.audited import Audits
from holdfast.sinks.contract.immediate import AheadTarget, ImmediateTarget, Owner, Written
from holdfast.sinks.contract.owners import Claim, Ownership
from holdfast.sinks.contract.target import OP, Target, Upload
from holdfast.sinks.contract.transactions import Transacts
from holdfast.traits import SinkTraits, missing

TAKES = "takes the stream"
"""Result of `Sink.probe` for a target that it does not look at."""


class Sink(ABC):
    """A target as users configure it."""

    if TYPE_CHECKING:  # at run time these would be the defaults of a dataclass's fields

        @property
        @abstractmethod
        def key(self) -> tuple[str, ...] | None:
            """Columns that identify a row of the target; None if rows are only ever added."""

        @property
        @abstractmethod
        def where(self) -> str:
            """How messages name the target."""

        @property
        @abstractmethod
        def traits(self) -> SinkTraits:
            """Traits of the sink, as data."""

    @abstractmethod
    def check(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        """Refuse a configuration that can never work, at plan time and without touching the target.

        Args:
            schema: The stream's columns, without `_op`.
            upsert_key: The key of an upsert stream, None for an append stream.

        Raises:
            ConfigError: key, types or names do not fit.
        """

    @abstractmethod
    def prepare(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        """On the driver at the start: create the target if it is missing, else check that it fits.

        Raises:
            ConfigError: the existing target differs, or it cannot be written.
            NotAdmitted: the target does not let the user in; a job that has used it before waits anyway.
            Unavailable: the target is unreachable now.
        """

    def accept(self, batch: pa.RecordBatch) -> None:
        """Refuse rows that the target can never take, before they are staged. By default it takes every row.

        Raises:
            ConfigError: names the column and its fault.
        """

    @abstractmethod
    def open(self, job_uuid: str, writer: Writer, claim: Claim | None = None) -> Target:
        """Return the writer's target; no connection is made yet.

        Args:
            claim: The driver on whose behalf the target is written to. Every transaction checks it, and takes the
                target over if necessary. None checks no owner and takes nothing over: for tests.
        """

    def probe(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> str:
        """Look at the target as a start would, for `holdfast doctor JOB.py`; create and change nothing.

        Returns:
            The target that a start would find or create, as a clause; TAKES if the target is not looked at.

        Raises:
            ConfigError, NotAdmitted, Unavailable: as `prepare`.
        """
        self.check(schema, upsert_key)
        return TAKES

    @property
    def repairs(self) -> Repairs | None:
        """Reverts output for a rewind; None: a rewind leaves it if the user accepts that, else it is refused."""
        return None

    @property
    def audits(self) -> Audits | None:
        """Reads the target back for an audit."""
        return None

    @property
    def ownership(self) -> Ownership | None:
        """Knows which job and which driver the target belongs to."""
        return None

    @property
    def uploads(self) -> Uploader | None:
        """Return a new way to put large output of the trait `commits_once` into the target before it is committed."""
        return None

    @property
    def immediate(self) -> ImmediateSink | None:
        """The same target, to be written before the commit: each row keeps its tag, or the sink has `repeats`."""
        return None

    @property
    def transacts(self) -> Transacts | None:
        """Finds the transactions that a writer left open when it died, which hide later records from readers."""
        return None


class ImmediateSink(Sink):
    """A sink that is written immediately.

    A rewind cannot take its rows back, because there are no before-images.
    """

    @property
    def immediate(self) -> ImmediateSink:
        """The sink itself."""
        return self

    @abstractmethod
    def open_immediate(self, owner: Owner) -> ImmediateTarget:
        """Return the owner's target; no connection is made yet."""

    def open_ahead(self, owner: Owner) -> AheadTarget | None:
        """Return the owner's target if it takes writes before others are confirmed; no connection is made yet."""
        return None

    @abstractmethod
    def written(self, job_uuid: str, sink: str) -> tuple[Written, ...]:
        """Return the target's entry for every partition. Raises Unavailable, ConfigError."""


class Uploader(Protocol):
    """Puts rows into a target, invisible to readers; for use by one thread."""

    def upload(self, upload: Upload, batches: Iterable[pa.RecordBatch]) -> str:
        """Make the rows durable and return their name. Repeated, it stores the same.

        Raises:
            HoldfastError: the target does not take them now; nothing depends on them, as the staged part has them too.
        """

    def sweep(self, job_uuid: str, sink: str, timeline: int, after: int, before: int) -> None:
        """Delete uploads of epochs between these two, which were never completed and never will be.

        Raises:
            HoldfastError: some may be left.
        """


Verdict = Literal["overwrite", "truncate", "compensate", "impossible"]
"""How a rewind can handle output in the target: DESIGN section 9."""


@dataclass(frozen=True)
class Rewinding:
    """Where a rewind takes a sink's target.

    Args:
        to: The new timeline and the base epoch: every writer's tag becomes this one.
        writers: Every writer that any generation of the job may have had for this sink.
    """

    job_uuid: str
    sink: str
    to: Tag
    writers: tuple[Writer, ...]
    claim: Claim | None = None
    """The driver on whose behalf; a repair takes the target over in its transaction, a plan only reads."""


@dataclass(frozen=True)
class Repair:
    """Changes of a repair to the rows of a target, planned or done.

    Args:
        restore: Rows whose values as of the base epoch are restored.
        delete: Rows that did not exist as of the base epoch.
        changed_by_others: The least number of these rows that are no longer as the job left them; None where that
            cannot be seen, and never 0 unless it is known.
        sample: Keys or places of a few of them, for display.
        reason: One sentence.
        takes_more: For a verdict that leaves rows: whether the target could take deliveries of a new timeline on top
            of them. If so, a user may accept the verdict.
    """

    verdict: Verdict
    restore: int
    delete: int
    changed_by_others: int | None
    sample: tuple[Mapping[str, Any], ...]
    reason: str
    takes_more: bool = True


class Repairs(ABC):
    """Takes output back.

    Output pending up to the base epoch is delivered before the repair: after it, its tags are of an older timeline.
    """

    @property
    def repairs(self) -> Repairs | None:
        """The object itself; None where a configuration of a sink cannot."""
        return self

    @abstractmethod
    def plan_repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        """Return the changes that `repair` would make now. Only reads, and a delivery may overtake it.

        Raises:
            Fenced: the target is on a newer timeline, or another history of the job has taken it over.
            ConfigError: the target is not the one that the job wrote to.
            Unavailable: the target is unreachable now.
        """

    @abstractmethod
    def repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        """Move every writer's tag to `rewinding.to` and take back everything newer than its epoch, or change nothing.

        The tags move first, including those of writers that have none yet, so no writer of an older timeline can
        deliver any longer (P21). Repeated, it changes nothing.

        Raises:
            Fenced: the target is on a newer timeline.
            Unavailable: the outcome is unknown, or the target is busy: repeat it.
            ConfigError: the verdict is "impossible", or the target is not the one that the job wrote to; nothing
                changed, no tag moved.
        """


def not_a_sink(given: object) -> str | None:
    """Return why a stream cannot be written to an object; None if it can."""
    if given is None:
        return "no sink is given"
    if not isinstance(given, Sink):
        return f"{given!r} is not a sink; a sink derives from holdfast.connectors.Sink"
    if lacking := list(missing(given, ("traits", "key", "where"))):
        return f"{given!r} is not a sink: it has no {', '.join(lacking)}"
    return None if isinstance(given.traits, SinkTraits) else f"{given!r} is not a sink: its traits are {given.traits!r}"


def abilities(sink: Sink) -> Mapping[str, bool]:
    """Return the capabilities and traits of a sink, by name, for display."""
    traits = sink.traits
    return {
        "keyed": traits.keyed,
        "repairs": sink.repairs is not None,
        "audits": sink.audits is not None,
        "immediate": sink.immediate is not None,
        "ownership": sink.ownership is not None,
        "uploads": sink.uploads is not None,
        "transacts": sink.transacts is not None,
        "repeats": traits.repeats,
        "exclusive": traits.exclusive,
        "commits_once": traits.commits_once,
    }


def check_key(where: str, schema: pa.Schema, upsert_key: tuple[str, ...] | None, key: tuple[str, ...] | None) -> None:
    """Refuse a sink key that does not fit the stream.

    An upsert stream needs the same columns, in any order. An append stream may have a key: the
    last row of a key then wins, which is only meaningful if its rows come from one writer.
    """
    if OP in schema.names:
        raise ConfigError(
            f"{where}: the stream has a column named {OP!r}, which marks puts and deletes",
            next_step=f"rename it, for example .select(pl.exclude({OP!r}), kind={OP!r})",
        )
    if key is None and upsert_key is None:
        return
    if key is None or (upsert_key is not None and set(key) != set(upsert_key)):
        has = "no key" if key is None else f"key={list(key)}"
        raise ConfigError(
            f"{where}: the stream replaces rows by {list(upsert_key or ())}, the sink has {has}",
            next_step=f"give the sink key={list(upsert_key or ())}",
        )
    unknown = [name for name in key if name not in schema.names]
    if unknown or not key or len(set(key)) != len(key):
        fault = f"names unknown columns {unknown}" if unknown else "is empty or names a column twice"
        raise ConfigError(
            f"{where}: key={list(key)} {fault}", next_step=f"choose the key from the columns {schema.names}"
        )


def check_null_keys(where: str, key: tuple[str, ...] | None, batch: pa.RecordBatch) -> None:
    """Refuse rows with a null in a key column: no SQL primary key can hold one. NaN counts, as it equals nothing."""
    for name in key or ():
        column = batch.column(name)
        may_be_nan = pa.types.is_floating(column.type)
        missing = column.is_null(nan_is_null=True).true_count if may_be_nan else column.null_count
        if missing:
            present = f"pl.col({name!r}).{'is_not_nan' if missing > column.null_count else 'is_not_null'}()"
            raise ConfigError(
                f"{where}: {missing} rows have no value in the key column {name!r}",
                not_done="the rows were not written",
                next_step=f"before the sink, drop them with .filter({present}) "
                f"or give them a value with {'fill_nan' if missing > column.null_count else 'fill_null'}",
            )
