"""A target inside the process, for tests: the same tag semantics without a database.

The test driver and the simulator replace every sink by one of these. All targets that one `MemorySink` opens share its
contents, as all connections to a database do. A delivery builds its changes aside and publishes them in one assignment
under a lock. A fault raised at any point before `after_commit` leaves the contents as they were.

Invariants
    - Rows, before-images and tag change together or not at all.
    - A before-image of an added row names its number; numbers are never used again.
    - A reader of the contents sees whole deliveries.

Source: PROTOCOL P17, P21; the conformance suite holds this and every real target to the same contract.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.model import Tag, Writer
from holdfast.sinks.contract.owners import Claim, Held, Holding, Ownership, check_continues
from holdfast.sinks.contract.sink import Repair, Repairs, Rewinding, Sink, check_key, check_null_keys
from holdfast.sinks.contract.target import (
    DELETE,
    OP,
    AlreadyDelivered,
    Delivered,
    EpochOutput,
    Fault,
    Merges,
    Outcome,
    Target,
    Upload,
    UploadedOutput,
    already,
    no_fault,
)
from holdfast.sinks.protocol.undo import (
    SAMPLE_MAX,
    RowChange,
    dropped,
    impossible,
    is_undone,
    overtaken,
    refused,
    take_back,
    untouched,
)
from holdfast.traits import SinkTraits

Row = dict[str, Any]
Key = tuple[Any, ...]


@dataclass(frozen=True)
class BeforeImage:
    """A row that a delivery replaced; `before` holds the columns outside the key, None if there was no row.

    Without a key, one image stands for all rows of a delivery: its key has their `first` and `last` number.
    """

    job_uuid: str
    writer: Writer
    tag: Tag
    n: int
    key: Row
    before: Row | None


@dataclass
class DeliveryDraft:
    """Changes of a delivery in progress, kept aside from the contents."""

    numbered: int
    names: tuple[str, ...]
    images: list[BeforeImage] = field(default_factory=list)
    added: dict[int, Row] = field(default_factory=dict)
    changed: list[tuple[Key, Row | None]] = field(default_factory=list)
    """In order; None: the row is deleted."""
    newest: dict[Key, Row | None] = field(default_factory=dict)
    """The last change of each key."""


class MemorySink(Repairs, Ownership, Sink):
    """A table in memory. Not picklable on purpose: its contents belong to one process."""

    def __init__(
        self, key: Iterable[str] | None = None, fault: Fault = no_fault, *, commits_once: bool = False
    ) -> None:
        self._key, self._commits_once = None if key is None else tuple(key), commits_once
        self.fault = fault
        """Called at every fault point of every delivery; may raise."""
        self._lock = Lock()
        self._schema: pa.Schema | None = None
        self._added: dict[int, Row] = {}
        self._numbered = 0
        self._names: tuple[str, ...] = ()
        self._kept: dict[Key, Row] = {}
        self._tags: dict[tuple[str, Writer], Tag] = {}
        self._before: list[BeforeImage] = []
        self._horizon: dict[tuple[str, Writer], Tag] = {}
        self._owners: dict[tuple[str, str], Held] = {}
        self._uploaded: dict[str, list[pa.RecordBatch]] = {}

    @property
    def key(self) -> tuple[str, ...] | None:
        return self._key

    @property
    def where(self) -> str:
        """How messages name the target."""
        return "memory sink"

    @property
    def traits(self) -> SinkTraits:
        return SinkTraits(
            kind=type(self).__name__,
            local_paths=(),
            keyed=self._key is not None,
            commits_once=self._commits_once,
        )

    def check(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        check_key("memory sink", schema, upsert_key, self._key)

    def prepare(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        self.check(schema, upsert_key)
        with self._lock:
            if self._schema is not None and self._schema.names != schema.names:
                raise ConfigError(
                    f"memory sink: holds the columns {self._schema.names}, the stream has {schema.names}",
                    next_step="give the stream a sink of its own",
                )
            self._schema = schema

    def alter(self) -> None:
        """Let the next `prepare` bring other columns, as a user alters a table."""
        self._schema = None

    def accept(self, batch: pa.RecordBatch) -> None:
        check_null_keys("memory sink", self._key, batch)

    def open(self, job_uuid: str, writer: Writer, claim: Claim | None = None) -> MemoryTarget:
        return MemoryTarget(self, job_uuid, writer, claim)

    @property
    def uploads(self) -> MemorySink | None:
        return self if self._commits_once else None

    def upload(self, upload: Upload, batches: Iterable[pa.RecordBatch]) -> str:
        """Keep the rows beside the table."""
        within = f"{upload.job_uuid}/{upload.sink}/{upload.timeline}/{upload.epoch:012d}"
        name = f"{within}/{upload.generation}-{upload.worker}"
        with self._lock:
            self._uploaded[name] = list(batches)
        return name

    def sweep(self, job_uuid: str, sink: str, timeline: int, after: int, before: int) -> None:
        """Drop the uploads that `swept` lists."""
        with self._lock:
            for name in self.swept(job_uuid, sink, timeline, after, before):
                del self._uploaded[name]

    def swept(self, job_uuid: str, sink: str, timeline: int, after: int, before: int) -> list[str]:
        """Return the uploads that `sweep` deletes."""
        within = f"{job_uuid}/{sink}/{timeline}/"
        first, end = f"{within}{after + 1:012d}/", f"{within}{before:012d}/"
        return [name for name in self._uploaded if first <= name < end]

    def whole(self, output: UploadedOutput) -> list[pa.RecordBatch]:
        """Return all rows of an epoch: those that were uploaded, and the staged ones of the others."""
        found = [None if each is None else self._uploaded.get(each) for each in output.uploads]
        left = output.read([place for place, each in enumerate(found) if each is None])
        return [*(batch for each in found for batch in each or ()), *left]

    def holding(self, job_uuid: str, name: str) -> Holding:
        with self._lock:
            return Holding(self._owners.get((job_uuid, name)), self._newest(job_uuid, name))

    def rows(self) -> list[Row]:
        """Return the rows that are visible, in order of arrival of the row or of its key."""
        with self._lock:
            return [dict(row) for row in (self._added if self._key is None else self._kept).values()]

    def before_images(self) -> list[BeforeImage]:
        """Return the rows that deliveries replaced, in order."""
        with self._lock:
            return list(self._before)

    def delivered(self, job_uuid: str, writer: Writer) -> Tag | None:
        """Return the writer's tag."""
        with self._lock:
            return self._tags.get((job_uuid, writer))

    def check_claim(self, job_uuid: str, sink: str, claim: Claim | None) -> bool:
        """Return whether this claim has to be noted before anything is written. Raises Fenced."""
        held = self._owners.get((job_uuid, sink))
        where, newest = f"memory sink {sink!r}", lambda: self._newest(job_uuid, sink)
        return claim is not None and claim.must_take_over(where, held, newest)

    def _newest(self, job_uuid: str, sink: str) -> Tag | None:
        tags = (tag for (job, writer), tag in self._tags.items() if (job, writer.sink) == (job_uuid, sink))
        return max(tags, default=None)

    def compared(self, job_uuid: str, writer: Writer, claim: Claim | None) -> Tag | None:
        """Return the writer's tag, if it is one of this history. Raises Fenced."""
        self.check_claim(job_uuid, writer.sink, claim)
        return self._tags.get((job_uuid, writer))

    def take_over(self, job_uuid: str, sink: str, claim: Claim | None) -> None:
        """Note the owner, after `check_claim`."""
        if claim is not None:
            self._owners[job_uuid, sink] = Held(claim.owner, claim.generation)

    def deliver(
        self,
        job_uuid: str,
        writer: Writer,
        tag: Tag,
        batches: Iterable[pa.RecordBatch],
        known: Tag | None = None,
        claim: Claim | None = None,
    ) -> Outcome:
        """Deliver one epoch of a writer."""
        return self.deliver_together(job_uuid, writer, [EpochOutput(tag, batches)], known, claim)

    def deliver_together(
        self,
        job_uuid: str,
        writer: Writer,
        epochs: Sequence[EpochOutput],
        known: Tag | None = None,
        claim: Claim | None = None,
    ) -> Outcome:
        """Deliver several epochs of a writer in one assignment."""
        first, last = epochs[0].tag, epochs[-1].tag
        where = f"memory sink {writer.sink!r}, writer {writer.subtask}"
        standing = self.compared(job_uuid, writer, claim)
        if standing is not None and standing >= first:
            return already(where, first, standing)
        incoming = [(epoch.tag, self._read(epoch.batches)) for epoch in epochs]
        self.fault("before_begin")
        with self._lock:
            self.compared(job_uuid, writer, claim)
            refused = self._advance(where, job_uuid, writer, first)
            if refused is not None:
                return refused
            standing = self._tags.get((job_uuid, writer))
            if known is not None:
                check_continues(where, standing, known)
            self.fault("after_tag")
            self.publish(job_uuid, writer, incoming)
            self._tags[job_uuid, writer] = last
            self.take_over(job_uuid, writer.sink, claim)
        self.fault("after_commit")
        return Delivered(sum(len(rows) for _, rows in incoming))

    def forget(self, job_uuid: str, writer: Writer, through: Tag) -> None:
        """Drop the before-images of a writer up to a tag."""
        with self._lock:
            ours = [image for image in self._before if (image.job_uuid, image.writer) == (job_uuid, writer)]
            gone = {image.tag for image in ours if _is_up_to(image, through)}
            if gone:
                self._horizon[job_uuid, writer] = max({self._horizon.get((job_uuid, writer), max(gone)), *gone})
                self._before = [
                    image
                    for image in self._before
                    if (image.job_uuid, image.writer) != (job_uuid, writer) or not _is_up_to(image, through)
                ]

    def plan_repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        with self._lock:
            self.check_claim(rewinding.job_uuid, rewinding.sink, rewinding.claim)
            return self._planned(rewinding)[0]

    def repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        self.fault("before_begin")
        with self._lock:
            self.check_claim(rewinding.job_uuid, rewinding.sink, rewinding.claim)
            moving = self._moving(rewinding)
            self.fault("after_tag")
            repair_plan, rows, images = self._planned(rewinding)
            if repair_plan.verdict == "impossible":
                raise refused("memory sink", repair_plan.reason)
            self.fault("before_commit")
            self.take_over(rewinding.job_uuid, rewinding.sink, rewinding.claim)
            if moving:
                self._tags.update(dict.fromkeys(moving, rewinding.to))
                self._before = images
                if self._key is None:
                    self._added = rows
                else:
                    self._kept = rows
        self.fault("after_commit")
        return repair_plan

    def _moving(self, rewinding: Rewinding) -> list[tuple[str, Writer]]:
        """Return the writers whose tags move: the given ones, and those that delivered."""
        known = {writer for job, writer in self._tags if job == rewinding.job_uuid and writer.sink == rewinding.sink}
        writers = [(rewinding.job_uuid, writer) for writer in sorted(known.union(rewinding.writers), key=_by_subtask)]
        newest = max((self._tags[writer] for writer in writers if writer in self._tags), default=rewinding.to)
        if newest.timeline > rewinding.to.timeline:
            raise overtaken("memory sink", newest, rewinding)
        return [writer for writer in writers if writer not in self._tags or self._tags[writer] < rewinding.to]

    def _planned(self, rewinding: Rewinding) -> tuple[Repair, dict[Any, Row], list[BeforeImage]]:
        """Return the verdict, and the rows and images after the repair."""
        rows: dict[Any, Row] = dict(self._added if self._key is None else self._kept)
        if not self._moving(rewinding):
            return untouched("truncate" if self._key is None else "overwrite", rewinding), rows, self._before
        ours = [i for i in self._before if i.job_uuid == rewinding.job_uuid and i.writer.sink == rewinding.sink]
        ids = rewinding.job_uuid, rewinding.sink
        lost = [tag for (job, writer), tag in self._horizon.items() if (job, writer.sink) == ids]
        if beyond := [tag.epoch for tag in lost if is_undone(tag, rewinding)]:
            return impossible(dropped(max(beyond), rewinding)), rows, self._before
        undone = [image for image in ours if is_undone(image.tag, rewinding)]
        places = {id(image) for image in undone}
        remaining_images = [image for image in self._before if id(image) not in places]
        if self._key is None:
            numbers = [n for image in undone for n in range(image.key["first"], image.key["last"] + 1)]
            gone = [rows.pop(n) for n in numbers]
            reason = f"rows added after epoch {rewinding.to.epoch} are removed"
            return Repair("truncate", 0, len(gone), 0, tuple(gone[:SAMPLE_MAX]), reason), rows, remaining_images
        return self._overwritten(rewinding, ours, rows, remaining_images)

    def _overwritten(
        self, rewinding: Rewinding, ours: list[BeforeImage], rows: dict[Any, Row], kept: list[BeforeImage]
    ) -> tuple[Repair, dict[Any, Row], list[BeforeImage]]:
        of_key: dict[Key, list[BeforeImage]] = {}
        for image in ours:
            of_key.setdefault(tuple(image.key.values()), []).append(image)
        restore_count, delete_count, sample = 0, 0, []
        for key, images in of_key.items():
            reversal = take_back(RowChange(image, image.before, is_undone(image.tag, rewinding)) for image in images)
            for image, before in reversal.rewritten:
                kept[kept.index(image)] = replace(image, before=before)
            if reversal.last is None:
                continue
            sample.append(dict(reversal.last.key))
            if reversal.before is not None:
                restore_count += 1
                whole = {**reversal.last.key, **reversal.before}
                rows[key] = {name: whole[name] for name in (*self._names, *whole) if name in whole}
            elif rows.pop(key, None) is not None:
                delete_count += 1
        reason = f"rows get back their values as of epoch {rewinding.to.epoch}"
        return Repair("overwrite", restore_count, delete_count, 0, tuple(sample[:SAMPLE_MAX]), reason), rows, kept

    def _advance(self, where: str, job_uuid: str, writer: Writer, tag: Tag) -> AlreadyDelivered | None:
        standing = self._tags.get((job_uuid, writer))
        return already(where, tag, standing) if standing is not None and standing >= tag else None

    def _read(self, batches: Iterable[pa.RecordBatch]) -> list[Row]:
        rows: list[Row] = []
        for batch in batches:
            self.accept(batch)
            rows += batch.to_pylist(maps_as_pydicts="lossy")
        return rows

    def publish(self, job_uuid: str, writer: Writer, epochs: Sequence[tuple[Tag, list[Row]]]) -> None:
        """Apply rows and before-images of these epochs in order; the tag is for the caller to move."""
        draft = DeliveryDraft(self._numbered, self._names)
        for n, (tag, rows) in enumerate(epochs):
            if n:
                self.fault("between_epochs")
            self._draft(draft, job_uuid, writer, tag, rows)
        self.fault("before_commit")
        self._before += draft.images
        self._numbered, self._names = draft.numbered, draft.names
        self._added.update(draft.added)
        for key, row in draft.changed:
            if row is None:
                self._kept.pop(key, None)
            else:
                self._kept[key] = row

    def _draft(self, draft: DeliveryDraft, job_uuid: str, writer: Writer, tag: Tag, rows: list[Row]) -> None:
        if self._key is None:
            first, last = draft.numbered + 1, draft.numbered + len(rows)
            if rows:
                draft.images.append(BeforeImage(job_uuid, writer, tag, 0, {"first": first, "last": last}, None))
                draft.added.update(enumerate(rows, first))
                draft.numbered = last
            return
        latest: dict[Key, Row] = {tuple(row[name] for name in self._key): row for row in rows}
        draft.images += [
            BeforeImage(job_uuid, writer, tag, n, dict(zip(self._key, key, strict=True)), self._value(draft, key))
            for n, key in enumerate(sorted(latest))
        ]
        draft.names = next((tuple(name for name in row if name != OP) for row in rows), draft.names)
        for key, row in latest.items():
            gone = row.get(OP) == DELETE
            draft.newest[key] = None if gone else {name: value for name, value in row.items() if name != OP}
            draft.changed.append((key, draft.newest[key]))

    def _value(self, draft: DeliveryDraft, key: Key) -> Row | None:
        row = draft.newest[key] if key in draft.newest else self._kept.get(key)
        return None if row is None else {name: value for name, value in row.items() if name not in (self._key or ())}


def _by_subtask(writer: Writer) -> int:
    return writer.subtask


def _is_up_to(image: BeforeImage, through: Tag) -> bool:
    return image.tag.timeline <= through.timeline and image.tag.epoch <= through.epoch


class MemoryTarget(Merges, Target):
    """One writer's access to a MemorySink. See contract.Target."""

    def __init__(self, sink: MemorySink, job_uuid: str, writer: Writer, claim: Claim | None = None) -> None:
        self._sink, self._job, self._writer, self._claim = sink, job_uuid, writer, claim

    def delivered(self) -> Tag | None:
        return self._sink.compared(self._job, self._writer, self._claim)

    def deliver(self, tag: Tag, batches: Iterable[pa.RecordBatch], known: Tag | None = None) -> Outcome:
        return self._sink.deliver(self._job, self._writer, tag, batches, known, self._claim)

    def deliver_uploaded(self, output: UploadedOutput, known: Tag | None = None) -> Outcome:
        return self.deliver(output.tag, self._sink.whole(output), known)

    def deliver_together(self, epochs: Sequence[EpochOutput], known: Tag | None = None) -> Outcome:
        return self._sink.deliver_together(self._job, self._writer, epochs, known, self._claim)

    def forget(self, through: Tag) -> None:
        self._sink.check_claim(self._job, self._writer.sink, self._claim)
        self._sink.forget(self._job, self._writer, through)

    def close(self) -> None:
        """Nothing is held."""
