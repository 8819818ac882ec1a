from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.manifest import (
    Confirmed,
    Manifest,
    OperatorState,
    SubtaskPart,
    decode,
    encode,
    follow,
    named_in,
    objects,
)
from holdfast.errors import ConfigError, Damaged
from holdfast.model import (
    CHANGELOG,
    Epoch,
    Generation,
    JobUuid,
    ObjectRef,
    Pending,
    SegmentRef,
    SnapshotHandle,
    SourcePosition,
    Staged,
    Subtask,
    Tag,
    Timeline,
    Writer,
)

REF = ObjectRef("manifests/00000001/000000000007-a.json", 1, "0" * 64)
OUT0, OUT1 = Writer("out", Subtask(0)), Writer("out", Subtask(1))


def blob(name: str) -> ObjectRef:
    return ObjectRef(name, 10, "f" * 64)


def header(epoch: int = 7, follows: int = 6) -> Manifest:
    return Manifest(JobUuid("u"), Generation(1), Timeline(1), Epoch(epoch), Epoch(follows), 2, 128, (), (), (), (), ())


def segment(subtask: int, epoch: int = 7, follows: int = 6) -> SegmentRef:
    return SegmentRef(Epoch(epoch), Epoch(follows), blob(f"segments/{epoch}/{subtask}"))


def handle(subtask: int, *segments: SegmentRef) -> SnapshotHandle:
    return SnapshotHandle(Subtask(subtask), (64 * subtask, 64 * subtask + 64), (), Epoch(0), segments)


HANDLES = (handle(0, segment(0, 5, 4)), handle(1))


def staged(*names: str) -> Staged:
    return Staged(tuple(blob(name) for name in names), len(names))


def pending(writer: Writer, epoch: int) -> Pending:
    return Pending(writer, tag(epoch), staged(f"staged/{epoch}/{writer.sink}-{writer.subtask}"))


def tag(epoch: int) -> Tag:
    return Tag(Timeline(1), Epoch(epoch))


def part(subtask: int, **fields: Any) -> SubtaskPart:
    known = {"positions": (), "segment": None, "staged": {}, "delivered": ()} | fields
    return SubtaskPart(Subtask(subtask), **known)


def following(
    *parts: SubtaskPart,
    positions: Iterable[SourcePosition] = (),
    waiting: Iterable[Pending] = (),
    confirmed: Mapping[Writer, Tag] | None = None,
) -> Manifest:
    """Epoch 7 after epoch 6, with these acks."""
    return follow(HANDLES, positions, waiting, confirmed or {}, header(), parts)


class TestState:
    def test_a_segment_is_added_to_those_of_its_subtask(self) -> None:
        made = following(part(1, segment=segment(1)), part(0, segment=segment(0)))
        assert made.state == (handle(0, segment(0, 5, 4), segment(0)), handle(1, segment(1)))

    def test_a_subtask_without_changes_keeps_what_it_has(self) -> None:
        assert following(part(0), part(1)).state == HANDLES

    def test_an_ack_of_every_subtask_is_needed(self) -> None:
        with pytest.raises(AssertionError, match="a part is missing"):
            following(part(1))

    def test_a_segment_of_another_epoch_stops_the_driver(self) -> None:
        with pytest.raises(AssertionError, match="another epoch"):
            following(part(0, segment=segment(0, epoch=6)), part(1))

    def test_a_segment_based_on_an_incomplete_epoch_stops_the_driver(self) -> None:
        """P8: the changes of an epoch given up would be lost."""
        made = follow(HANDLES, (), (), {}, header(9, 6), (part(0, segment=segment(0, 9, follows=6)), part(1)))
        assert made.state[0].segments[-1] == segment(0, 9, follows=6)
        with pytest.raises(AssertionError, match="between two completed epochs"):
            follow(HANDLES, (), (), {}, header(9, 6), (part(0, segment=segment(0, 9, follows=8)), part(1)))


class TestSegmentsOfATopic:
    """A segment stays in every handle that names it until the topic is known to have it."""

    def test_leave_once_their_writer_has_confirmed_them(self) -> None:
        def of(writer: int, epoch: int) -> SegmentRef:
            return msgspec.structs.replace(segment(writer, epoch, epoch - 1), writer=Subtask(writer))

        moved = msgspec.structs.replace(of(1, 4), key_groups=(0, 10))
        handles = (handle(0, moved, of(0, 5), of(0, 6)), handle(1, of(1, 5), segment(1, 6, 5)))
        done = tuple(Confirmed(Writer(CHANGELOG, Subtask(n)), tag(5)) for n in (0, 1))
        parts = (part(0, segment=of(0, 7), delivered=done[:1]), part(1, segment=of(1, 7)))
        made = follow(handles, (), (), {done[1].writer: tag(4)}, header(), parts)
        assert [each.segments for each in made.state] == [(of(0, 6), of(0, 7)), (of(1, 5), segment(1, 6, 5), of(1, 7))]

    def test_stay_while_other_sinks_alone_confirm(self) -> None:
        mine = msgspec.structs.replace(segment(0, 5, 4), writer=Subtask(0))
        made = follow(
            (handle(0, mine), handle(1)), (), (), {Writer("out", Subtask(0)): tag(9)}, header(), (part(0), part(1))
        )
        assert made.state[0].segments == (mine,)


class TestPositions:
    def test_partitions_that_no_subtask_read_keep_their_offset(self) -> None:
        made = following(
            part(1, positions=(SourcePosition("s", 1, 50),)),
            part(0, positions=(SourcePosition("s", 0, 40),)),
            positions=[SourcePosition("s", 0, 10), SourcePosition("s", 1, 11), SourcePosition("r", 0, 12)],
        )
        assert made.positions == (
            SourcePosition("r", 0, 12),
            SourcePosition("s", 0, 40, subtask=Subtask(0)),
            SourcePosition("s", 1, 50, subtask=Subtask(1)),
        )

    def test_the_watermark_of_a_partition_is_stored_with_its_offset(self) -> None:
        """P11"""
        made = following(part(0, positions=(SourcePosition("s", 0, 40, 7),)), part(1))
        assert made.positions == (SourcePosition("s", 0, 40, 7, subtask=Subtask(0)),)


class TestPending:
    """P18: output that no ack has confirmed as delivered is in every manifest."""

    def test_new_output_follows_output_that_is_already_pending(self) -> None:
        made = following(part(0, staged={"out": staged("a", "b")}), part(1), waiting=(pending(OUT0, 6),))
        assert made.pending == (pending(OUT0, 6), Pending(OUT0, tag(7), staged("a", "b")))

    def test_output_that_an_ack_confirms_is_removed_and_its_tag_kept(self) -> None:
        made = following(
            part(0, delivered=(Confirmed(OUT0, tag(5)),)), part(1), waiting=(pending(OUT0, 5), pending(OUT0, 6))
        )
        assert made.pending == (pending(OUT0, 6),)
        assert made.confirmed == (Confirmed(OUT0, tag(5)),)

    def test_output_that_a_heartbeat_confirmed_is_removed(self) -> None:
        made = following(part(0), part(1), waiting=(pending(OUT0, 6), pending(OUT1, 6)), confirmed={OUT1: tag(6)})
        assert made.pending == (pending(OUT0, 6),)

    def test_a_tag_never_decreases(self) -> None:
        made = following(part(0, delivered=(Confirmed(OUT0, tag(4)),)), part(1), confirmed={OUT0: tag(6)})
        assert made.confirmed == (Confirmed(OUT0, tag(6)),)

    def test_output_of_a_writer_that_no_longer_exists_stays_pending(self) -> None:
        """P20"""
        gone = pending(Writer("out", Subtask(7)), 3)
        assert following(part(0), part(1), waiting=(gone,)).pending == (gone,)

    def test_an_epoch_without_output_is_not_pending(self) -> None:
        assert following(part(0, staged={"out": Staged((), 0)}), part(1)).pending == ()

    @given(st.integers(0, 2**32))
    def test_every_output_is_listed_until_it_is_confirmed(self, seed: int) -> None:
        order = random.Random(seed)
        made, tags = header(1, 0), dict[Writer, Tag]()
        everything: list[Pending] = []
        for epoch in range(1, 12):
            parts = []
            for subtask in (0, 1):
                writer = Writer("out", Subtask(subtask))
                behind = [p for p in everything if p.writer == writer]
                if behind and order.random() < 0.5:
                    tags[writer] = max(order.choice(behind).tag, tags.get(writer, tag(0)))
                output = staged(f"{epoch}/{subtask}") if order.random() < 0.7 else Staged((), 0)
                done = (Confirmed(writer, tags[writer]),) if writer in tags else ()
                parts.append(part(subtask, staged={"out": output}, delivered=done))
            made = follow((), {}, made.pending, {}, header(epoch, epoch - 1), parts)
            everything += [
                Pending(Writer("out", p.subtask), tag(epoch), p.staged["out"]) for p in parts if p.staged["out"].parts
            ]
            open_ = [p for p in everything if p.writer not in tags or tags[p.writer] < p.tag]
            assert list(made.pending) == open_


class TestNamedObjects:
    def made(self) -> Manifest:
        shared = segment(0, 5, 4)
        old = SnapshotHandle(Subtask(0), (0, 64), (blob("base/1"),), Epoch(3), (shared,))
        new = SnapshotHandle(Subtask(1), (64, 128), (blob("base/1"),), Epoch(3), (shared, segment(1)))
        return msgspec.structs.replace(header(), state=(old, new), pending=(pending(OUT0, 6),))

    def test_are_the_manifest_and_all_state_and_output(self) -> None:
        found = named_in(encode(self.made()), REF)
        assert found.epoch == 7
        assert set(found.paths) == {REF.path, "base/1", "segments/5/0", "segments/7/1", "staged/6/out-0"}

    def test_are_listed_once_each(self) -> None:
        found = [ref.path for ref in objects(self.made())]
        assert found == ["base/1", "segments/5/0", "segments/7/1", "staged/6/out-0"]

    def test_are_all_references_that_a_manifest_holds_wherever_they_are(self) -> None:
        """P16: what a sweep overlooks, it deletes."""

        def paths(value: Any) -> Iterable[str]:
            if isinstance(value, dict) and {"path", "size", "sha256"} <= set(value):
                yield value["path"]
            inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
            for each in inner:
                yield from paths(each)

        data = encode(self.made())
        assert set(named_in(data, REF).paths) == {REF.path, *paths(msgspec.json.decode(data))}

    @pytest.mark.parametrize("data", [b"{", b"{}", b'{"v":1}', encode(header())[:-1]])
    def test_objects_named_in_an_unreadable_manifest_are_unknown_rather_than_none(self, data: bytes) -> None:
        with pytest.raises(Damaged, match="000000000007-a.json cannot be read"):
            named_in(data, REF)

    def test_objects_named_in_a_manifest_of_a_later_format_are_unknown_rather_than_none(self) -> None:
        with pytest.raises(ConfigError, match="has format 9"):
            named_in(encode(header()).replace(b'"v":1', b'"v":9'), REF)


class TestBytes:
    def test_a_position_names_the_subtask_that_reads_it(self) -> None:
        """P12, P20: the next generation leaves it there."""
        made = following(part(0), part(1, positions=(SourcePosition("s", 3, 7),)))
        data = encode(made)
        assert b'{"source":"s","partition":3,"offset":7,"subtask":1}' in data
        older = data.replace(b',"subtask":1}', b"}")
        assert decode(older, ObjectRef("m", len(older), "")).positions == (SourcePosition("s", 3, 7),)

    def test_a_manifest_is_read_back(self) -> None:
        made = following(part(0, segment=segment(0), staged={"out": staged("a")}), part(1), waiting=(pending(OUT1, 6),))
        assert decode(encode(made), REF) == made

    @pytest.mark.parametrize("data", [b"{", b"{}", b'{"v":1}', encode(header())[:-1]])
    def test_unreadable_bytes_are_damage_that_names_the_file(self, data: bytes) -> None:
        with pytest.raises(Damaged, match="000000000007-a.json cannot be read"):
            decode(data, REF)

    def test_a_manifest_of_a_later_format_is_not_damage(self) -> None:
        with pytest.raises(ConfigError, match="has format 9"):
            decode(encode(header()).replace(b'"v":1', b'"v":9').replace(b'"state"', b'"states"'), REF)


class TestGivenUpState:
    """The arguments of `--drop-state` are kept with their operator, and only where there are any."""

    def with_operator(self, **given: Any) -> Manifest:
        return msgspec.structs.replace(header(), operators=(OperatorState("totals", 1, {}, **given),))

    def test_is_omitted_if_there_is_none(self) -> None:
        data = encode(self.with_operator())
        assert b"given_up" not in data
        assert decode(data, REF).operators[0].carried_out == ()

    def test_is_read_as_it_was_written(self) -> None:
        manifest = self.with_operator(given_up=("totals", "totals#2"))
        data = encode(manifest)
        assert decode(data, REF) == manifest
        assert manifest.operators[0].carried_out == ("totals", "totals#2")
