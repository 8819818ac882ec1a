"""The book of a Redis target: a hash with the tags of writers, the owners of sinks, the columns of the rows, and the
sink to which they belong.

A field is a JSON list that begins with its kind, its value is a JSON object. A change of the book names the values that
it has read: the script that makes the change compares them, so check and change are one step.

Pure: no clock, thread or I/O. Source: PROTOCOL P17; docs/decisions/0021-owned-targets.md, 0081-redis-sink.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from holdfast.errors import Damaged
from holdfast.model import Epoch, Generation, Tag, Timeline, Writer
from holdfast.sinks.contract.owners import Claim, Held, Rival
from holdfast.sinks.contract.phrases import NOTHING

VERSION = 1
COLUMNS = b'["columns"]'
"""The field with the columns of the rows, and those of the key."""
SINK = b'["sink"]'
"""The field with the sink to which the rows belong; an earlier version noted none."""


class RedisBook:
    """The contents of the hash.

    Args:
        where: How messages name the target.
        fields: Fields and values, as they are in Redis.
    """

    def __init__(self, where: str, fields: Mapping[bytes, bytes]) -> None:
        self._where, self._fields = where, fields

    def __len__(self) -> int:
        return len(self._fields)

    def raw(self, field: bytes) -> bytes:
        """Return a value as it is in Redis; empty if it is missing."""
        return self._fields.get(field, b"")

    def tag_of(self, job_uuid: str, writer: Writer) -> Tag | None:
        """Return the writer's tag; None if it never delivered. Raises Damaged."""
        return self._tag(tag_field(job_uuid, writer))

    def tag_fields(self, job_uuid: str, sink: str) -> Iterator[bytes]:
        """Yield the fields with the tags of a sink's writers."""
        start = _json(["tag", job_uuid, sink])[:-1] + b","
        return (field for field in self._fields if field.startswith(start))

    def newest(self, job_uuid: str, sink: str) -> Tag | None:
        """Return the newest tag of a sink's writers. Raises Damaged."""
        tags = (self._tag(field) for field in self.tag_fields(job_uuid, sink))
        return max((tag for tag in tags if tag is not None), default=None)

    def another_job(self, job_uuid: str | None, sink: str) -> str | None:
        """Return another job that delivered under this sink name; None if there is none.

        Args:
            job_uuid: The job; None if it is about to be created.
        """
        for field in self._fields:
            match _parts_of(field):
                case ["tag", str(owner), name, int()] if name == sink and owner != job_uuid:
                    return owner
        return None

    def held(self, job_uuid: str, sink: str) -> Held | None:
        """Return who owns the target for a sink of a job. Raises Damaged."""
        found = self._value(owner_field(job_uuid, sink), {"owner": str, "generation": int})
        return None if found is None else Held(found["owner"], Generation(found["generation"]))

    def noted_rival(self, job_uuid: str, sink: str) -> Rival | None:
        """Return the sink to which the rows are noted to belong, if it is another one. Raises Damaged."""
        found = self._value(SINK, {"job": str, "sink": str})
        if found is None or (found["job"], found["sink"]) == (job_uuid, sink):
            return None
        return Rival(found["job"], found["sink"], self.held(found["job"], found["sink"]))

    def rival(self, job_uuid: str, sink: str) -> Rival | None:
        """Return another sink to which the rows belong, or may belong; None if this one may write. Raises Damaged.

        Args:
            job_uuid: The job; empty if it is about to be created.
        """
        sinks = set(self._delivering())
        if self.raw(SINK) or (job_uuid, sink) in sinks or not sinks:
            return self.noted_rival(job_uuid, sink)
        job, name = min(sinks)
        return Rival(job, name, self.held(job, name), certain=False)

    def _delivering(self) -> Iterator[tuple[str, str]]:
        for field in self._fields:
            match _parts_of(field):
                case ["tag", str(job), str(sink), int()]:
                    yield job, sink

    def _tag(self, field: bytes) -> Tag | None:
        found = self._value(field, {"timeline": int, "epoch": int})
        return None if found is None else Tag(Timeline(found["timeline"]), Epoch(found["epoch"]))

    def _value(self, field: bytes, members: Mapping[str, type]) -> dict[str, Any] | None:
        """Return the value of a field, None if it is missing."""
        text = self._fields.get(field)
        if text is None:
            return None
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        known = isinstance(value, dict) and value.get("v") == VERSION
        if known and all(type(value.get(name)) is kind for name, kind in members.items()):
            return dict(value)
        raise Damaged(
            f"{self._where}: Holdfast's hash holds a value that this version cannot read: field {field!r:.200}, value "
            f"{text!r:.200}",
            not_done=NOTHING,
            next_step="if a newer version of Holdfast wrote it, use that version; else let no other program write to "
            "the hash, and restore it from a backup together with the rows",
        )


def tag_field(job_uuid: str, writer: Writer) -> bytes:
    """Return the field of a writer's tag."""
    return _json(["tag", job_uuid, writer.sink, writer.subtask])


def tag_value(tag: Tag) -> bytes:
    """Return a tag as the hash holds it."""
    return _json({"v": VERSION, "timeline": tag.timeline, "epoch": tag.epoch})


def owner_field(job_uuid: str, sink: str) -> bytes:
    """Return the field of a sink's owner."""
    return _json(["owner", job_uuid, sink])


def owner_value(claim: Claim) -> bytes:
    """Return the owner that a claim makes."""
    return _json({"v": VERSION, "owner": claim.owner, "generation": claim.generation})


def sink_value(job_uuid: str, sink: str) -> bytes:
    """Return the sink to which rows belong as the hash holds it."""
    return _json({"v": VERSION, "job": job_uuid, "sink": sink})


def columns_value(schema: pa.Schema, key: tuple[str, ...]) -> bytes:
    """Return the columns of rows as the hash holds them; equal for streams whose rows are alike."""
    columns = {field.name: str(field.type) for field in sorted(schema, key=lambda field: field.name)}
    return _json({"v": VERSION, "key": list(key), "columns": columns})


def _parts_of(field: bytes) -> object:
    """Return the parts of a field's name; None if another program wrote it."""
    try:
        return json.loads(field)
    except ValueError:
        return None


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
