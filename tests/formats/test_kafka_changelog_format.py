"""A changelog in Kafka outlives the version that wrote it: a later one restores state from it, and writes it alike.

Each folder of `kafka_changelog_v1` has a topic of two partitions and its progress topic: `delivered` after deliveries
and a rewind, `compacted` after a compaction and one more delivery. Each line is a record; keys of rows are in hex.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka_changelogs import InMemory
from kafka_fake import Record

from holdfast.errors import Damaged
from holdfast.model import CHANGELOG, EPOCH_MAX, NO_EPOCH, Epoch, Generation, Stretch, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract.changelogs import AsOf, partitions_of
from holdfast.sinks.contract.owners import Claim, Held
from holdfast.sinks.contract.sink import Rewinding
from holdfast.sinks.contract.target import DELETE, OP, PUT
from holdfast.sinks.kafka.changelog.reading import OpenKafkaChangelog
from holdfast.sinks.kafka.changelog.sink import KafkaChangelog, KafkaTopicSink
from holdfast.sinks.kafka.progress import Compacted
from holdfast.state.records import KEY, RECORDS
from holdfast.storage.kafka.place import KafkaPlace

GOLDEN = Path(__file__).parent / "kafka_changelog_v1"
JOB, GROUPS, WRITER, CLAIM = "0" * 32, 8, Writer(CHANGELOG, Subtask(0)), Claim("a" * 32, Generation(3))
PLACE = KafkaPlace("broker:9092", "state", (("message.max.bytes", 2_000),))
HISTORY = (Stretch(Timeline(1), Epoch(1), Epoch(2)), Stretch(Timeline(2), Epoch(102), EPOCH_MAX))
LARGE = bytes(range(256)) * 12
A, B, C, L = (
    bytes([0, 1, 0, group]) + name for group, name in ((0, b"a"), (7, b"b"), (0, "ü".encode()), (3, b"large"))
)
FIRST: Mapping[bytes, bytes | None] = {A: b"\x01a1", B: b"\x01b1", L: LARGE}
SECOND: Mapping[bytes, bytes | None] = {A: b"\x01a2", B: None}
ABANDONED: Mapping[bytes, bytes | None] = {A: b"\x01a3", C: b"\x01c3"}
REWOUND: Mapping[bytes, bytes | None] = {C: b"\x01c102"}
LAST: Mapping[bytes, bytes | None] = {A: None, B: b"\x01b103"}


def tag(epoch: int, timeline: int = 1) -> Tag:
    return Tag(Timeline(timeline), Epoch(epoch))


def changes(epoch: int, rows: Mapping[bytes, bytes | None]) -> pa.RecordBatch:
    columns: dict[str, Any] = {
        "operator": ["totals" for _ in rows],
        "key": pa.array(list(rows), pa.large_binary()),
        "epoch": [epoch for _ in rows],
        "row_key": [json.dumps({"shop": key[4:].decode()}, ensure_ascii=False) for key in rows],
        "row": [json.dumps({"n": len(value or b"")}) for value in rows.values()],
        "layout": ['[["1","int64"]]' for _ in rows],
        "value": pa.array(list(rows.values()), pa.large_binary()),
        OP: pa.array([DELETE if value is None else PUT for value in rows.values()], pa.int8()),
    }
    return pa.RecordBatch.from_pydict(columns, schema=RECORDS.append(pa.field(OP, pa.int8(), nullable=False)))


class Written:
    """The deliveries, step by step."""

    def __init__(self) -> None:
        self.memory = InMemory(partitions=2, id="V0u2KS3mQcGW3nHo0Ye4qA")
        self.sink = KafkaTopicSink(PLACE, KEY, GROUPS, self.memory)

    def deliver(self, of: Tag, rows: Mapping[bytes, bytes | None]) -> None:
        self.sink.open(JOB, WRITER, CLAIM).deliver(of, [changes(of.epoch, rows)])

    def delivered(self) -> Written:
        self.deliver(tag(1), FIRST)
        self.deliver(tag(2), SECOND)
        self.deliver(tag(3), ABANDONED)
        self.sink.repair(Rewinding(JOB, CHANGELOG, tag(2, 2), (WRITER,), CLAIM), RECORDS, KEY)
        self.deliver(tag(102, 2), REWOUND)
        return self

    def compacted(self) -> Written:
        compaction = KafkaChangelog(PLACE, self.delivered().memory, 1).compaction(JOB)
        assert compaction.compact(CLAIM.owner, HISTORY, Epoch(102))
        self.deliver(tag(103, 2), LAST)
        return self


STEPS = {"delivered": Written.delivered, "compacted": Written.compacted}


def lines_of(memory: InMemory) -> dict[str, list[str]]:
    """Return the lines of both files."""
    records = [
        (partition, offset, *record)
        for partition, log in sorted(memory.fake.logs.items())
        for offset, record in enumerate(log)
        if record is not None
    ]
    return {
        "topic.txt": [f"{p} {offset} {key.hex()} {value.decode()}" for p, offset, key, value in records],
        "progress.txt": [f"{key.decode()} {value.decode()}" for key, value in memory.fake.marks],
    }


def stored(step: str) -> InMemory:
    """Return the topic of a folder."""
    memory = InMemory(partitions=2, id="V0u2KS3mQcGW3nHo0Ye4qA")
    for line in (GOLDEN / step / "topic.txt").read_text().splitlines():
        partition, offset, key, value = line.split(" ", 3)
        log: list[Record | None] = memory.fake.logs.setdefault(int(partition), [])
        log += [None] * (int(offset) - len(log))
        log.append((bytes.fromhex(key), value.encode()))
    for line in (GOLDEN / step / "progress.txt").read_text().splitlines():
        at = line.index("] {") + 1
        memory.fake.marks.append((line[:at].encode(), line[at + 1 :].encode()))
    if (base := opened(memory)._base) is not None:
        memory.removed = {partition: behind for partition, (_, behind) in enumerate(base.at)}
    return memory


def opened(memory: InMemory) -> OpenKafkaChangelog:
    return KafkaChangelog(PLACE, memory).open(JOB)


def state(found: OpenKafkaChangelog, through: int, after: Epoch = NO_EPOCH) -> dict[bytes, bytes | None]:
    values: dict[bytes, bytes | None] = {}
    for batch in found.records(AsOf(JOB, HISTORY, Epoch(through), after, (0, GROUPS), GROUPS)):
        for row in batch.to_pylist():
            assert row["operator"] == "totals" and (row["deleted"] or row["layout"] == '[["1","int64"]]')
            values[row["key"]] = None if row["deleted"] else row["value"]
    return values


def live(values: Mapping[bytes, bytes | None]) -> dict[bytes, bytes]:
    return {key: value for key, value in values.items() if value is not None}


class TestFormatOne:
    @pytest.mark.parametrize("step", STEPS)
    def test_is_written_byte_for_byte(self, step: str) -> None:
        for name, lines in lines_of(STEPS[step](Written()).memory).items():
            assert "".join(f"{line}\n" for line in lines) == (GOLDEN / step / name).read_text(), name

    def test_is_read_as_of_each_epoch_without_what_a_rewind_abandoned(self) -> None:
        found = opened(stored("delivered"))
        assert state(found, 1) == FIRST
        assert state(found, 2) == {**FIRST, **SECOND}
        assert state(found, 102) == {**FIRST, **SECOND, **REWOUND}
        assert state(found, 102, Epoch(2)) == REWOUND
        assert found.floor == NO_EPOCH and found.delivered == {0: 102}
        assert found.holding.held == Held(CLAIM.owner, CLAIM.generation) and found.holding.newest == tag(102, 2)

    def test_is_read_after_a_compaction(self) -> None:
        found = opened(stored("compacted"))
        base = found._base
        assert isinstance(base, Compacted) and base.id == "base-0" and base.records > 3, "a row in pieces too"
        assert 2 <= found.floor <= 102 and found.delivered == {0: 103}
        assert live(state(found, 103)) == live({**FIRST, **SECOND, **REWOUND, **LAST})
        assert state(found, 103, Epoch(102)) == LAST

    def test_is_continued_by_a_delivery_and_compacted_again(self) -> None:
        for step, last in (("delivered", tag(104, 2)), ("compacted", tag(104, 2))):
            memory = stored(step)
            before = state(opened(memory), 104)
            KafkaTopicSink(PLACE, KEY, GROUPS, memory).open(JOB, WRITER, CLAIM).deliver(
                last, [changes(104, {C: b"\x01c4"})]
            )
            assert KafkaChangelog(PLACE, memory, 1).compaction(JOB).compact(CLAIM.owner, HISTORY, Epoch(104))
            assert live(state(opened(memory), 104)) == live({**before, C: b"\x01c4"})

    def test_puts_each_key_group_into_the_partition_where_it_was(self) -> None:
        keys = [bytes([0, 1, 0, group]) for group in range(GROUPS)]
        assert partitions_of(pa.array(keys, pa.large_binary()), 2, GROUPS).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]

    @pytest.mark.parametrize("step", STEPS)
    def test_records_of_a_later_format_version_are_refused_before_any_is_applied(self, step: str) -> None:
        memory = stored(step)
        for log in memory.fake.logs.values():
            log[:] = [record and (record[0], record[1].replace(b'"end":{"v":1,', b'"end":{"v":2,')) for record in log]
        with pytest.raises(Damaged, match="in version 2 of the format"):
            state(opened(memory), 103)

    def test_a_progress_topic_of_a_later_format_version_is_refused(self) -> None:
        for kind in (b'["tag"', b'["owner"', b'["changelog"', b'["base"'):
            memory = stored("compacted")
            memory.fake.marks[:] = [
                (key, value.replace(b'{"v":1,', b'{"v":2,') if key.startswith(kind) else value)
                for key, value in memory.fake.marks
            ]
            with pytest.raises(Damaged, match="holds a record that this version cannot read"):
                opened(memory)
