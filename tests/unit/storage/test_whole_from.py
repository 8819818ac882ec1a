"""From where on a log has lost nothing: rewinds and compactions in any order, against a list in plain Python."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model import Epoch, Tag, Timeline
from holdfast.storage.log.compaction import Compactor, Wishes
from holdfast.storage.log.log import LogReader, LogWriter, create_log
from holdfast.storage.log.rewrite import Sizes
from holdfast.storage.log.voids import TakeBack
from holdfast.storage.objects import MemoryObjects

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])
WRITER = "job/out/0"
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(st.integers(0, 9), min_size=1, max_size=4)),
        st.tuples(st.just("rewind"), st.integers(0, 3)),
        st.tuples(st.just("compact"), st.sampled_from([1 << 20, 200])),
    ),
    max_size=12,
)


def lines(keys: list[int]) -> pa.Table:
    return pa.table({"k": keys, "v": [1] * len(keys)}, SCHEMA)


class History:
    """A log of one partition, and the offsets that hold a row which counts."""

    def __init__(self) -> None:
        self.store = MemoryObjects()
        create_log(self.store, SCHEMA, partitions=1, key=["k"])
        self.counts: dict[int, int] = {}
        """Epoch of the row, by offset."""
        self._end, self._compacted, self._epoch, self._timeline = 0, 0, 0, 1

    def append(self, keys: list[int]) -> None:
        self._epoch += 1
        tag = Tag(Timeline(self._timeline), Epoch(self._epoch))
        LogWriter(self.store).append_tagged({0: lines(keys)}, WRITER, tag)
        self.counts |= {self._end + n: self._epoch for n in range(len(keys))}
        self._end += len(keys)

    def rewind(self, epochs: int) -> None:
        """Take back the newest epochs, as far as they were not compacted."""
        base = max(self._epoch - epochs, self._compacted)
        self._timeline += 1
        back = TakeBack(Tag(Timeline(self._timeline), Epoch(base)), (WRITER,), lambda name: False)
        LogWriter(self.store).take_back(back)
        self.counts = {offset: epoch for offset, epoch in self.counts.items() if epoch <= base}

    def compact(self, segment_bytes: int = 1 << 20) -> None:
        sizes = Sizes(segment_bytes=segment_bytes)
        Compactor(self.store, pause=lambda _: None).compact(Wishes(0, 10**15, sizes=sizes))
        self._compacted = self._epoch

    def left(self) -> set[int]:
        reader, at, found = LogReader(self.store), 0, set[int]()
        batch, offsets, at = reader.read_placed(0, at, 1 << 20)
        while batch is not None:
            found |= set(range(at - batch.num_rows, at) if offsets is None else offsets.tolist())
            batch, offsets, at = reader.read_placed(0, at, 1 << 20)
        return found


class TestWholeFrom:
    def test_a_rewind_before_the_compaction_has_lost_no_valid_row(self) -> None:
        history = History()
        history.append([1, 2, 3])
        history.append([4, 5])
        history.rewind(1)
        history.compact()
        assert LogReader(history.store).whole_from(0) == 0

    def test_several_rewinds_with_rows_between_them_have_lost_no_valid_row(self) -> None:
        history = History()
        for key in range(0, 60, 10):
            history.append([key, key + 1])
            history.append([key + 2, key + 3, key + 4])
            history.rewind(1)
        history.append([5])
        history.compact()
        assert LogReader(history.store).whole_from(0) == 0

    def test_a_row_replaced_by_another_is_missing_after_a_rewind(self) -> None:
        history = History()
        history.append([1])
        history.append([1])
        history.append([2])
        history.rewind(1)
        history.compact()
        assert LogReader(history.store).whole_from(0) == 1

    @settings(max_examples=200, deadline=None)
    @given(steps)
    def test_no_row_from_that_offset_on_is_missing_after_any_history(self, given: list[tuple[str, Any]]) -> None:
        history = History()
        for name, argument in given:
            getattr(history, name)(argument)
        whole, left = LogReader(history.store).whole_from(0), history.left()
        assert left <= history.counts.keys()
        assert {offset for offset in history.counts if offset >= whole} <= left

    @settings(max_examples=200, deadline=None)
    @given(steps)
    def test_nothing_is_missing_if_no_row_replaces_another(self, given: list[tuple[str, Any]]) -> None:
        history, key = History(), 0
        for name, argument in given:
            if name == "append":
                argument, key = [key + n for n in range(len(argument))], key + len(argument)
            getattr(history, name)(argument)
        assert history.left() == history.counts.keys()
        assert LogReader(history.store).whole_from(0) == 0
