"""The progress topic of a Kafka target: how far each writer has delivered, and which driver took the target over.

The topic is compacted: the newest record of a key counts. A key is a JSON list that begins with its kind. Tags and
owners are written in the transactions whose rows they describe, so a read_committed reader sees both or neither.

Pure: no clock, thread or I/O. Source: PROTOCOL P17, P19; docs/decisions/0076-kafka-sink.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.errors import Damaged
from holdfast.model import Epoch, Generation, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract.owners import Claim, Held
from holdfast.sinks.contract.phrases import NOTHING

VERSION = 1
SUFFIX = "-holdfast-progress"
NAME_MAX = 249
"""Characters that a topic's name may have."""


def progress_topic(topic: str) -> str:
    """Return the name of the topic that holds the tags of a topic's writers."""
    return f"{topic}{SUFFIX}"


def tag_record(job_uuid: str, writer: Writer, tag: Tag) -> tuple[bytes, bytes]:
    """Return key and value of the record that moves a writer's tag."""
    value = {"v": VERSION, "timeline": tag.timeline, "epoch": tag.epoch}
    return _bytes(["tag", job_uuid, writer.sink, writer.subtask]), _bytes(value)


def owner_record(job_uuid: str, sink: str, claim: Claim) -> tuple[bytes, bytes]:
    """Return key and value of the record by which a driver takes the target over."""
    value = {"v": VERSION, "owner": claim.owner, "generation": claim.generation}
    return _bytes(["owner", job_uuid, sink]), _bytes(value)


def topic_record(job_uuid: str, sink: str, topic: str) -> tuple[bytes, bytes]:
    """Return key and value of the record that says to which topic of this name a sink has delivered."""
    return _bytes(["topic", job_uuid, sink]), _bytes({"v": VERSION, "id": topic})


@dataclass(frozen=True)
class Layout:
    """The properties that a changelog's topic has to keep.

    Args:
        partitions: Their number: the key group of a record decides on its partition.
        topic: Differs between topics of one name; None if the brokers have no such ids.
    """

    partitions: int
    topic: str | None


def layout_record(layout: Layout) -> tuple[bytes, bytes]:
    """Return key and value of the record by which the first delivery makes a topic that of a changelog."""
    return _bytes(["changelog"]), _bytes({"v": VERSION, "partitions": layout.partitions, "topic": layout.topic})


@dataclass(frozen=True)
class Compacted:
    """The part of a changelog that a compaction left.

    Args:
        id: That of its records.
        through: The delivery up to which it holds the newest row of each key.
        at: By partition, an offset before its first record, and the one behind the end of that delivery.
        records: Number of its records.
    """

    id: str
    through: Tag
    at: tuple[tuple[int, int], ...]
    records: int


def base_record(job_uuid: str, sink: str, base: Compacted) -> tuple[bytes, bytes]:
    """Return key and value of the record by which a compaction takes effect."""
    through = {"timeline": base.through.timeline, "epoch": base.through.epoch}
    value = {"v": VERSION, **through, "id": base.id, "at": base.at, "records": base.records}
    return _bytes(["base", job_uuid, sink]), _bytes(value)


class Progress:
    """The result of all records read so far.

    Args:
        where: How messages name the progress topic.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._tags: dict[tuple[str, str, int], Tag] = {}
        self._owners: dict[tuple[str, str], Held] = {}
        self._topics: dict[tuple[str, str], str] = {}
        self._bases: dict[tuple[str, str], Compacted] = {}
        self.layout: Layout | None = None
        """That of the changelog which the topic holds; None: it holds rows of streams, or nothing yet."""

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Take the next record in. A value of None deletes what the key had.

        Raises:
            Damaged: Holdfast did not write the record, or a newer version did.
        """
        try:
            self._apply(json.loads(key or b""), None if value is None else json.loads(value))
        except (ValueError, KeyError, TypeError) as error:
            raise self._unreadable(key, value) from error

    def tag_of(self, job_uuid: str, writer: Writer) -> Tag | None:
        """Return the writer's tag; None if it never delivered."""
        return self._tags.get((job_uuid, writer.sink, writer.subtask))

    def newest(self, job_uuid: str, sink: str) -> Tag | None:
        """Return the newest tag of a sink's writers."""
        return max((tag for (job, name, _), tag in self._tags.items() if (job, name) == (job_uuid, sink)), default=None)

    def held(self, job_uuid: str, sink: str) -> Held | None:
        """Return who owns the target for a sink of a job."""
        return self._owners.get((job_uuid, sink))

    def topic_of(self, job_uuid: str, sink: str) -> str | None:
        """Return the id of the topic to which a sink has delivered; None if no delivery has noted it."""
        return self._topics.get((job_uuid, sink))

    def base_of(self, job_uuid: str, sink: str) -> Compacted | None:
        """Return what the last compaction left; None if there was none."""
        return self._bases.get((job_uuid, sink))

    @property
    def any_tag(self) -> bool:
        """Return whether any writer of any job has delivered."""
        return bool(self._tags)

    def tags_of(self, job_uuid: str, sink: str) -> dict[Subtask, Tag]:
        """Return the tag of each writer of a sink."""
        mine = self._tags.items()
        return {Subtask(subtask): tag for (job, name, subtask), tag in mine if (job, name) == (job_uuid, sink)}

    def others(self, job_uuid: str | None, sink: str) -> Iterator[tuple[str, Tag]]:
        """Yield other jobs that delivered under this sink name, each with a tag."""
        for (job, name, _), tag in self._tags.items():
            if name == sink and job != job_uuid:
                yield job, tag

    def _apply(self, key: list[Any], value: dict[str, Any] | None) -> None:
        match key:
            case ["tag", str(job), str(sink), int(subtask)]:
                if value is None:
                    self._tags.pop((job, sink, subtask), None)
                else:
                    self._tags[job, sink, subtask] = Tag(
                        Timeline(_known(value, "timeline")), Epoch(_known(value, "epoch"))
                    )
            case ["owner", str(job), str(sink)]:
                if value is None:
                    self._owners.pop((job, sink), None)
                else:
                    generation = Generation(_known(value, "generation"))
                    self._owners[job, sink] = Held(str(value["owner"]), generation)
            case ["topic", str(job), str(sink)]:
                if value is None:
                    self._topics.pop((job, sink), None)
                else:
                    _known(value, "v")
                    self._topics[job, sink] = str(value["id"])
            case ["base", str(job), str(sink)] if value is not None:
                through = Tag(Timeline(_known(value, "timeline")), Epoch(_known(value, "epoch")))
                at = tuple((int(first), int(behind)) for first, behind in value["at"])
                self._bases[job, sink] = Compacted(str(value["id"]), through, at, _known(value, "records"))
            case ["changelog"]:
                self.layout = None if value is None else Layout(_known(value, "partitions"), value["topic"])
            case _:
                raise ValueError("unknown kind of key")

    def _unreadable(self, key: bytes | None, value: bytes | None) -> Damaged:
        return Damaged(
            f"{self._where} holds a record that this version cannot read: key {key!r:.200}, value {value!r:.200}",
            not_done=NOTHING,
            next_step="if a newer version of Holdfast wrote it, use that version; else let no other program write to "
            "this topic, and delete the record with a tombstone of the same key",
        )


def _known(value: dict[str, Any], name: str) -> int:
    if value["v"] != VERSION or not isinstance(value[name], int):
        raise ValueError(f"version {value['v']!r}")
    found: int = value[name]
    return found


def _bytes(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
