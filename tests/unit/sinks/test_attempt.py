from __future__ import annotations

import pyarrow as pa

from holdfast.errors import Unavailable
from holdfast.model import Epoch, ObjectRef, Pending, Staged, Subtask, Tag, Timeline, Writer
from holdfast.sinks.attempt import attempt, read_tag
from holdfast.sinks.contract import FaultPoint
from holdfast.sinks.delivery import AlreadyThere, Failed, Opened, Succeeded
from holdfast.sinks.memory import MemorySink
from holdfast.sinks.staging import Stage

SCHEMA = pa.schema([pa.field("user", pa.int64())])
WRITER = Writer("out", Subtask(0))


def tag(epoch: int, timeline: int = 1) -> Tag:
    return Tag(Timeline(timeline), Epoch(epoch))


def part(user: int) -> bytes:
    stage = Stage(SCHEMA, None)
    stage.add(pa.RecordBatch.from_pylist([{"user": user}], schema=SCHEMA))
    sealed = stage.seal()
    assert sealed is not None
    return sealed.data


OBJECTS = {"a": part(1), "b": part(2), "torn": part(3)[:-1]}


def pending(at: Tag, *paths: str) -> Pending:
    return Pending(WRITER, at, Staged(tuple(ObjectRef(path, 0, "") for path in paths), rows=len(paths)))


def read(ref: ObjectRef) -> bytes:
    return OBJECTS[ref.path]


class TestAttempt:
    def test_parts_are_delivered_in_the_order_of_the_manifest(self) -> None:
        sink = MemorySink()
        assert attempt(sink.open("job", WRITER), pending(tag(1), "b", "a"), read) == Succeeded(tag(1))
        assert sink.rows() == [{"user": 2}, {"user": 1}]

    def test_a_repetition_says_where_the_target_stands(self) -> None:
        target = MemorySink().open("job", WRITER)
        attempt(target, pending(tag(2), "a"), read)
        assert attempt(target, pending(tag(1), "a"), read) == AlreadyThere(tag(2))
        assert read_tag(target, tag(1)) == Opened(tag(2), tag(1))

    def test_an_unknown_outcome_is_not_permanent(self) -> None:
        def lose(point: FaultPoint) -> None:
            if point == "after_commit":
                raise Unavailable("the reply was lost", next_step="nothing")

        failed = attempt(MemorySink(fault=lose).open("job", WRITER), pending(tag(1), "a"), read)
        assert isinstance(failed, Failed) and not failed.permanent and "the reply was lost" in failed.error

    def test_a_damaged_part_is_permanent_and_delivers_nothing(self) -> None:
        sink = MemorySink()
        failed = attempt(sink.open("job", WRITER), pending(tag(1), "a", "torn"), read)
        assert isinstance(failed, Failed) and (failed.permanent, failed.kind) == (True, "damaged")
        assert sink.rows() == []

    def test_a_fenced_writer_says_so(self) -> None:
        target = MemorySink().open("job", WRITER)
        attempt(target, pending(tag(1, timeline=2), "a"), read)
        failed = attempt(target, pending(tag(9), "a"), read)
        assert isinstance(failed, Failed) and (failed.permanent, failed.kind) == (True, "fenced")
