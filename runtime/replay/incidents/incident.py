"""An incident: one epoch of a job with all that a replay needs, taken from a job or read from a file.

Invariants
    - A replay of it needs the job's code and nothing else: neither root nor sources nor targets are opened.
    - A replay is compared with production: with the digests and the state of its checkpoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.checkpoint import manifest as manifests
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.repository import read_each
from holdfast.errors import Damaged, Unavailable
from holdfast.frozen import replace
from holdfast.model import ObjectRef, Pending, Staged, Subtask, Tag, Writer
from holdfast.runtime.inspect.stored import Stored
from holdfast.runtime.plan.model import Plan, SinkSpec
from holdfast.runtime.replay.checking import replayed
from holdfast.runtime.replay.epochs import Replayable
from holdfast.runtime.replay.incidents.container import (
    VERSION,
    IncidentContents,
    IncidentWriter,
    OnlyKey,
    PackedCheckpoint,
    Unpacked,
)
from holdfast.runtime.replay.incidents.cutting import is_clock
from holdfast.runtime.replay.incidents.recorded import RecordedSource, TakenPartition, pack, taken_from, unpacked
from holdfast.runtime.replay.incidents.states import job_with, state_of
from holdfast.runtime.replay.player import Code, Player, Start
from holdfast.runtime.replay.proof import Proof
from holdfast.runtime.replay.spans import Span
from holdfast.runtime.rows.dead_letters import DLQ
from holdfast.sinks.protocol.staging import encode


@dataclass(frozen=True)
class TakenCheckpoint:
    """A checkpoint in memory.

    Args:
        at: When it was completed; microseconds since 1970, UTC.
        state: By operator; those without state are missing.
    """

    at: int
    manifest: Manifest
    state: Mapping[str, pa.Table]


@dataclass(frozen=True)
class About:
    """Facts about the run, beside the epoch.

    Args:
        settings: Those of the run that a replay may depend on; no places, no secrets.
        versions: Python and packages.
        code: SHA-256 of the job's file, by its name.
        verdict: How the replay differed when the file was written; none: it was equal.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    code: Mapping[str, str] = field(default_factory=dict)
    verdict: tuple[str, ...] = ()


@dataclass(frozen=True)
class Incident:
    """One epoch.

    Args:
        start: The checkpoint that it follows; None: it is the first.
        end: Its checkpoint.
        input: The records that it took.
        rows: Its staged output, by sink; sinks whose rows could not be read are missing.
        only: The key to which its state is limited; None: it has the state of all key groups.
        redacted: Columns with pseudonyms for values.
    """

    job: str
    start: TakenCheckpoint | None
    end: TakenCheckpoint
    input: tuple[TakenPartition, ...]
    rows: Mapping[str, tuple[pa.RecordBatch, ...]]
    only: OnlyKey | None = None
    redacted: tuple[str, ...] = ()
    about: About = About()

    @property
    def span(self) -> Span:
        """Return the offsets of its records."""
        ranges = [each.at for each in self.input]
        return tuple(sorted(ranges, key=lambda each: (each.source, each.partition)))

    @property
    def records(self) -> int:
        """Return how many records it has."""
        reads = (read.batch for each in self.input for read, _ in each.reads)
        return sum(batch.num_rows for batch in reads if batch is not None)

    @property
    def key_groups(self) -> tuple[int, int] | None:
        """Return the key groups [first, end) whose state it has; None: all."""
        return None if self.only is None else (self.only.group, self.only.group + 1)

    def code(self, plan: Plan) -> Code:
        """Return code with the records of the incident in place of its sources."""
        by_source = {spec.name: [each for each in self.input if each.at.source == spec.name] for spec in plan.sources}
        return Code(plan, {name: RecordedSource(name, given) for name, given in by_source.items()})

    def epoch(self) -> Replayable:
        """Return it as an epoch that can be replayed."""
        pending, parts = _staged(self.end.manifest, self.rows)
        ending = job_with(self.job, self.end.manifest, self.end.at, self.end.state, pending, parts)
        start, end = Start(ending, None), ending.job.completed[-1]
        if self.start is not None:
            before = job_with(self.job, self.start.manifest, self.start.at, self.start.state)
            start = Start(before, before.job.completed[-1])
        manifest = ending.repository.load_manifest(end.body.manifest)
        return Replayable(end, manifest, start, self.span, ending, self.key_groups)

    def replayed(self, code: Code, seen: Callable[[Player], None] = lambda _: None) -> Proof:
        """Replay it whole, and compare it with what production did.

        Args:
            seen: Called with the job in memory behind the epoch.

        Raises:
            ConfigError: the code lacks a source, or cannot read the state.
            JobFailed: the code fails.
        """
        return replayed(code, self.epoch(), seen)


def taken(code: Code, epoch: Replayable, about: About = About(), key: OnlyKey | None = None) -> Incident:
    """Take an epoch from a job and its sources.

    Args:
        key: Take the state of its key group alone, and no rows of sinks; None: all.

    Raises:
        ConfigError, Damaged, Unavailable: what is needed cannot be read.
    """
    code.check(epoch.span, epoch.manifest)
    job, begins = epoch.start.stored, epoch.start.done
    start = None
    if begins is not None:
        before = job.repository.load_manifest(begins.body.manifest)
        start = TakenCheckpoint(begins.at, before, _states(job, before, key))
    end = TakenCheckpoint(epoch.done.at, epoch.manifest, _states(job, epoch.manifest, key))
    records = tuple(
        each
        for spec in code.plan.sources
        for each in taken_from(code.plan.app, spec, code.opened[spec.name], epoch.span)
    )
    rows = {} if key is not None else dict(_rows(job, epoch.manifest, code.plan.sinks))
    return Incident(job.name, start, end, records, rows, key, about=about)


def write(incident: Incident, into: IncidentWriter) -> IncidentContents:
    """Write an incident as a file."""
    start = None if incident.start is None else _pack("start", incident.start, into)
    end = _pack("end", incident.end, into)
    records = tuple(pack(each, into) for each in incident.input)
    rows = {
        sink: into.add_batches(f"rows/{sink}.arrow", batches[0].schema, batches)
        for sink, batches in sorted(incident.rows.items())
    }
    about = incident.about
    return into.finish(
        lambda members: IncidentContents(
            VERSION,
            incident.job,
            incident.end.manifest.epoch,
            start,
            end,
            records,
            rows,
            incident.only,
            incident.redacted,
            dict(about.settings),
            dict(about.versions),
            dict(about.code),
            about.verdict,
            dict(members),
        )
    )


def read(file: Unpacked) -> Incident:
    """Read an incident from its file. Raises ConfigError, Damaged."""
    contents = file.contents
    start = None if contents.start is None else _unpack(contents.start, file)
    rows = {sink: tuple(file.batches(path)) for sink, path in contents.rows.items()}
    about = About(contents.settings, contents.versions, contents.code, contents.verdict)
    end, records = _unpack(contents.end, file), tuple(unpacked(each, file) for each in contents.input)
    return Incident(contents.job, start, end, records, rows, contents.only, contents.redacted, about)


def _states(stored: Stored, manifest: Manifest, key: OnlyKey | None) -> dict[str, pa.Table]:
    group = None if key is None else (key.group, key.group + 1)
    operators = [each for each in manifest.operators if not each.dropped]
    tables = {each.name: state_of(stored, manifest, each.name, None if is_clock(each) else group) for each in operators}
    return {name: table for name, table in tables.items() if table is not None}


def _pack(folder: str, at: TakenCheckpoint, into: IncidentWriter) -> PackedCheckpoint:
    own = msgspec.structs.replace(
        at.manifest,
        state=tuple(replace(handle, base=(), segments=()) for handle in at.manifest.state),
        pending=(),
        confirmed=(),
        changelog=msgspec.UNSET,
        committed_once=msgspec.UNSET,
    )
    manifest = into.add(f"{folder}/manifest.json", manifests.plain(own))
    state = {
        name: into.add_batches(f"{folder}/state/{name}.arrow", table.schema, table.to_batches())
        for name, table in sorted(at.state.items())
    }
    return PackedCheckpoint(at.at, manifest, state)


def _unpack(at: PackedCheckpoint, file: Unpacked) -> TakenCheckpoint:
    data = file.get(at.manifest)
    manifest = manifests.decode(data, ObjectRef(at.manifest, len(data), ""))
    tables = {name: pa.Table.from_batches(*reversed(file.stream(path))) for name, path in at.state.items()}
    return TakenCheckpoint(at.at, manifest, tables)


def _rows(
    stored: Stored, manifest: Manifest, sinks: Iterable[SinkSpec]
) -> Iterator[tuple[str, tuple[pa.RecordBatch, ...]]]:
    """Yield what an epoch staged for each sink, as far as it can be read."""
    epoch = manifest.epoch
    for spec in sinks:
        staged = [each for each in manifest.pending if each.writer.sink == spec.name and each.tag.epoch == epoch]
        try:
            data = read_each(stored.store, [part for each in staged for part in each.staged.parts])
            batches = tuple(batch for each in data for batch in spec.decode(each))
        except (Damaged, Unavailable):
            continue  # digests are compared; only their difference by rounding needs the rows
        if batches and spec.name != DLQ:
            yield spec.name, batches


def _staged(
    manifest: Manifest, rows: Mapping[str, tuple[pa.RecordBatch, ...]]
) -> tuple[list[Pending], dict[str, bytes]]:
    """Return output as a checkpoint names it, and the objects with it."""
    pending, parts = list[Pending](), dict[str, bytes]()
    for number, (sink, batches) in enumerate(sorted(rows.items())):
        table = pa.Table.from_batches(batches)
        data, path = encode(table), f"staged/{number}"
        parts[path] = data
        ref = ObjectRef(path, len(data), hashlib.sha256(data).hexdigest())
        tag = Tag(manifest.timeline, manifest.epoch)
        pending.append(Pending(Writer(sink, Subtask(0)), tag, Staged((ref,), table.num_rows)))
    return pending, parts
