"""Promises of every source, as tests that a connector of any package runs against itself.

    @pytest.fixture
    def source_kit(tmp_path):
        return SourceKit(lambda: Numbers(tmp_path / "numbers"), append=...)

    @source_conformance
    def test_numbers(promise, source_kit):
        promise(source_kit)

Source: runtime/plan/source.py; docs/decisions/0032-connectors.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from holdfast.runtime.plan.ahead import Ahead, Read, inline
from holdfast.runtime.plan.source import OpenSource, Source, not_a_source, same_from
from holdfast.runtime.sources.reading import split

ANY_BYTES = 1 << 20
READS_MAX = 10_000

Job = tuple[Callable[[], object], Callable[[object], None]]


@dataclass(frozen=True)
class SourceKit:
    """A source to be tested.

    Args:
        source: Makes the source; each call names the same records. Some partition has three records or more.
        append: Adds records after those that are there; None: records are never added.
        add_partition: Adds a partition that has records; None: partitions are never added.
    """

    source: Callable[[], Source]
    append: Callable[[], None] | None = None
    add_partition: Callable[[], None] | None = None


Promise = Callable[[SourceKit], None]


class _SlowLane:
    """A lane that works only on command."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def submit(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        self.jobs.append((work, done))

    def step(self) -> None:
        work, done = self.jobs.pop(0)
        done(work())


@contextmanager
def _opened(kit: SourceKit) -> Iterator[OpenSource]:
    source = kit.source()
    source.check()
    open_source = source.open()
    try:
        yield open_source
    finally:
        open_source.close()


def _rows(opened: OpenSource, partition: int, offset: int, max_bytes: int = ANY_BYTES) -> dict[int, dict[str, Any]]:
    """Return the records from an offset on, by offset; checks that offsets advance and agree."""
    records: dict[int, dict[str, Any]] = {}
    for _ in range(READS_MAX):
        batch, following = opened.read(partition, offset, max_bytes)
        if batch is None and following == offset:
            return records
        assert following > offset, "a read without records stays where it is, or passes a gap"
        if batch is not None:
            _put(records, batch, offset, following)
        offset = following
    raise AssertionError(f"partition {partition} has no end after {READS_MAX} reads")


def _put(found: dict[int, dict[str, Any]], batch: pa.RecordBatch, offset: int, following: int) -> None:
    assert batch.num_rows > 0, "a batch has at least one record; None means none"
    records, given = split(batch)
    offsets = list(range(offset, following)) if given is None else given.tolist()
    assert len(offsets) == records.num_rows, "without an offset per record, offsets count records"
    assert offsets == sorted(set(offsets)) and offset <= offsets[0] and offsets[-1] < following, "offsets advance"
    found.update(zip(offsets, records.to_pylist(), strict=True))


def _all(opened: OpenSource) -> dict[int, dict[int, dict[str, Any]]]:
    return {each: _rows(opened, each, opened.retention_start(each)) for each in opened.partitions()}


def states_what_it_can_do(kit: SourceKit) -> None:
    """It has every member of a source, and those that its traits name."""
    assert not_a_source(kit.source()) is None
    assert kit.source().where


def travels(kit: SourceKit) -> None:
    """A copy that was taken apart and put together again, as for a worker, reads the same."""
    shipped = deepcopy(kit.source())
    with _opened(kit) as here, _opened(SourceKit(lambda: shipped)) as there:
        assert _all(there) == _all(here)


def has_the_columns_that_it_names(kit: SourceKit) -> None:
    """Every batch has the columns of `schema`, in order."""
    names = kit.source().schema.names
    with _opened(kit) as opened:
        for partition in opened.partitions():
            batch, _ = opened.read(partition, opened.retention_start(partition), ANY_BYTES)
            assert batch is None or split(batch)[0].schema.names[: len(names)] == names


def has_enough_records_to_be_tested(kit: SourceKit) -> None:
    """Some partition has three records."""
    with _opened(kit) as opened:
        assert max(len(rows) for rows in _all(opened).values()) >= 3


def reads_the_same_again_from_every_offset(kit: SourceKit) -> None:
    """Recovery returns to an offset, and the records after it are the same as before."""
    with _opened(kit) as first, _opened(kit) as second:
        for partition, rows in _all(first).items():
            for offset in [*rows][:20]:
                assert _rows(second, partition, offset) == {at: row for at, row in rows.items() if at >= offset}


def cuts_batches_without_losing_a_record(kit: SourceKit) -> None:
    """With room for one byte, a read returns at least one record, and all reads together return all records."""
    with _opened(kit) as opened:
        for partition, rows in _all(opened).items():
            assert _rows(opened, partition, opened.retention_start(partition), 1) == rows


def ends_where_it_says(kit: SourceKit) -> None:
    """`end_offsets` is after every existing record, and `ended` is not reported before it."""
    with _opened(kit) as open_source:
        found, ends = _all(open_source), open_source.end_offsets()
        assert sorted(ends) == sorted(open_source.partitions())
        for partition, rows in found.items():
            assert all(offset < ends[partition] for offset in rows)
            assert not any(open_source.ended(partition, offset) for offset in rows)


def reads_in_the_background_what_it_reads_at_once(kit: SourceKit) -> None:
    """A reader returns the same records, inline and ahead, and reports when there are no more."""
    with _opened(kit) as open_source:
        for partition, rows in _all(open_source).items():
            for slow in (None, _SlowLane()):
                ahead = inline() if slow is None else Ahead(slow)
                assert _read_by(open_source, partition, open_source.retention_start(partition), ahead, slow) == rows


def goes_back_while_a_read_is_under_way(kit: SourceKit) -> None:
    """Recovery drops readers and returns to an offset: new readers return each record once, despite open reads."""
    with _opened(kit) as open_source:
        for partition, rows in _all(open_source).items():
            starts = [*rows][:3]
            for offset in [*starts, *reversed(starts)]:
                slow = _SlowLane()
                ahead = Ahead(slow)
                given_up = open_source.reader(partition, open_source.retention_start(partition), ahead)
                given_up.poll(1)
                given_up.close()
                found = _read_by(open_source, partition, offset, ahead, slow)
                assert found == {at: row for at, row in rows.items() if at >= offset}


def _read_by(
    opened: OpenSource, partition: int, offset: int, ahead: Ahead, slow: _SlowLane | None
) -> dict[int, dict[str, Any]]:
    """Return a reader's records from an offset on, by offset."""
    reader, records = opened.reader(partition, offset, ahead), dict[int, dict[str, Any]]()
    while (read := _next(reader.poll, slow)).following > offset:
        if read.batch is not None:
            _put(records, read.batch, offset, read.following)
        offset = read.following
    reader.close()
    return records


def _next(poll: Callable[[int], Read | None], slow: _SlowLane | None) -> Read:
    for _ in range(READS_MAX):
        if (read := poll(ANY_BYTES)) is not None:
            return read
        assert slow is not None and slow.jobs, "a reader that does not know yet has asked its lane"
        slow.step()
    raise AssertionError("a reader never answers")


def knows_itself_again(kit: SourceKit) -> None:
    """Another opening recognises the source that was read, and rejects another source."""
    with _opened(kit) as first, _opened(kit) as second:
        for partition, rows in _all(first).items():
            for offset in [at + 1 for at in rows][:20]:
                identity = first.identity(partition, offset)
                assert second.identity(partition, offset) == identity and second.changed(identity) is None
        assert second.changed("of-no-source at-all") is not None


def has_what_its_traits_name_when_it_is_open(kit: SourceKit) -> None:
    """Its reports about partitions are consistent: `whole_from`, `gone`, `watermark`, `kept` and `appeared`."""
    source = kit.source()
    with _opened(kit) as open_source:
        for partition in open_source.partitions():
            assert same_from(open_source, partition) >= open_source.retention_start(partition)
            assert open_source.gone(partition) is None
            at = open_source.watermark(partition, open_source.retention_start(partition))
            assert at is None or isinstance(at, int)
        if source.traits.paced:
            _counts_what_has_appeared(source, open_source)
        else:
            starts = {each: open_source.retention_start(each) for each in open_source.partitions()}
            assert dict(open_source.appeared(starts)) == dict(open_source.end_offsets()), (
                "without a rate all records are there"
            )
        if source.traits.removes_old:
            retention = open_source.kept(60.0)
            assert {each: at.first for each, at in retention.items()} == {
                each: open_source.retention_start(each) for each in retention
            }
            assert {each: at.end for each, at in retention.items()} == open_source.end_offsets()


def _counts_what_has_appeared(source: Source, opened: OpenSource) -> None:
    records, starts = _all(opened), {each: opened.retention_start(each) for each in opened.partitions()}
    ends = opened.appeared(starts)
    assert sorted(ends) == sorted(starts)
    later = opened.appeared({partition: start + 1_000 for partition, start in starts.items()})
    assert all(later[each] >= ends[each] for each in ends), "the rate counts from where the run begins"
    source = source.unpaced(ends)
    assert not source.traits.paced
    there = source.open()
    for partition, rows in records.items():
        assert all(offset < ends[partition] for offset in rows)
        again = _rows(there, partition, starts[partition]) if ends[partition] > starts[partition] else {}
        assert {at: row for at, row in again.items() if at in rows} == rows
    there.close()


def takes_more_records_behind_those_it_has(kit: SourceKit) -> None:
    """Records that are added do not change the records before them or the identity of the source."""
    if kit.append is None:
        pytest.skip("missing: a source to which records are added while it is open")
    with _opened(kit) as open_source:
        before = _all(open_source)
        identities = {p: open_source.identity(p, max(rows) + 1) for p, rows in before.items() if rows}
        kit.append()
        after = _all(open_source)
        assert sum(map(len, after.values())) > sum(map(len, before.values()))
        for partition, rows in before.items():
            assert {at: row for at, row in after[partition].items() if at in rows} == rows
            assert partition not in identities or open_source.changed(identities[partition]) is None


def reads_a_partition_that_is_added(kit: SourceKit) -> None:
    """Connections that were open before list it and read it from its first record on; everything else stays."""
    if kit.add_partition is None:
        pytest.skip("missing: a source to which partitions are added while it is open")
    with _opened(kit) as driver, _opened(kit) as worker:
        before = _all(worker)
        identities = {p: worker.identity(p, max(rows) + 1) for p, rows in before.items() if rows}
        assert sorted(driver.partitions()) == sorted(before)
        kit.add_partition()
        there = driver.partitions()
        assert len(there) == len(set(there)), "a partition is listed once"
        assert set(before) < set(there), "a new partition is listed, and none disappears"
        for partition in set(there) - set(before):
            first = driver.retention_start(partition)
            rows = _rows(worker, partition, first)  # a worker reads the partitions that the driver has listed
            assert rows and rows == _rows(driver, partition, first)
            assert worker.end_offsets()[partition] > max(rows) and not worker.ended(partition, first)
            assert driver.changed(worker.identity(partition, max(rows) + 1)) is None
        assert {each: _rows(driver, each, driver.retention_start(each)) for each in before} == before
        assert all(driver.changed(identity) is None for identity in identities.values())


PROMISES: tuple[Promise, ...] = (
    states_what_it_can_do,
    travels,
    has_the_columns_that_it_names,
    has_enough_records_to_be_tested,
    reads_the_same_again_from_every_offset,
    cuts_batches_without_losing_a_record,
    ends_where_it_says,
    reads_in_the_background_what_it_reads_at_once,
    goes_back_while_a_read_is_under_way,
    knows_itself_again,
    has_what_its_traits_name_when_it_is_open,
    takes_more_records_behind_those_it_has,
    reads_a_partition_that_is_added,
)
source_conformance = pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
"""Makes of a test with the arguments `promise` and `source_kit` one test per promise."""
