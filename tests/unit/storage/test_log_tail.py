"""The newest commit of a log is found in few requests, and is the one that a listing of all commits shows."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pytest
from counted import PAGE, BulkObjects, CountingObjects
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Damaged
from holdfast.storage.bulk import Page
from holdfast.storage.log.format import commit_path, sequence_of
from holdfast.storage.log.log import LogReader, LogWriter, create_log
from holdfast.storage.log.tail import newest_sequence
from holdfast.storage.objects import MemoryObjects


class Names(MemoryObjects):
    """A store that only lists: commits with these sequences, in order; others are appended meanwhile."""

    def __init__(self, sequences: Sequence[int], page: int = PAGE, appended: int = 0) -> None:
        super().__init__()
        self.sequences, self.page, self.appended = list(sequences), page, appended
        self.requests = Counter[str]()

    def list_after(self, folder: str, path: str) -> Page:
        assert folder == "commits"
        self.requests["list"] += 1
        first = bisect.bisect_right(self.sequences, sequence_of(path))
        found = self.sequences[first : first + self.page]
        answer = Page([commit_path(each) for each in found], first + self.page < len(self.sequences))
        last = self.sequences[-1] if self.sequences else 0
        self.sequences += range(last + 1, last + 1 + self.appended)
        self.appended = self.appended // 2
        return answer


class TestNewestSequence:
    @given(st.sets(st.integers(1, 300)), st.integers(1, 7))
    def test_is_that_of_a_whole_listing_whatever_is_missing(self, sequences: set[int], page: int) -> None:
        """A commit that is created in a hole would rewrite history."""
        assert newest_sequence(Names(sorted(sequences), page)) == max(sequences, default=0)

    @given(st.integers(0, 400), st.integers(1, 7), st.integers(0, 200))
    def test_is_at_least_that_of_the_begin_while_others_append(self, count: int, page: int, appended: int) -> None:
        store = Names(range(1, count + 1), page, appended)
        assert count <= newest_sequence(store) <= len(store.sequences)

    def test_a_million_commits_take_few_requests(self) -> None:
        store = Names(range(1, 1_000_001))
        assert newest_sequence(store) == 1_000_000
        assert store.requests["list"] <= 25, "a listing of all takes a thousand"

    def test_a_short_log_takes_one_request(self) -> None:
        for count in (0, 1, 700, PAGE):
            store = Names(range(1, count + 1))
            assert newest_sequence(store) == count and store.requests["list"] == 1

    def test_a_store_without_an_order_is_listed_whole(self) -> None:
        store = CountingObjects()
        for sequence in (1, 2, 3):
            store.put(commit_path(sequence), b"1")
        assert newest_sequence(store) == 3 and store.requests["list"] == 1


class TestAnOpen:
    def test_opening_a_long_log_does_not_list_it(self) -> None:
        store = BulkObjects()
        create_log(store, pa.schema([("n", pa.int64())]), 1)
        writer = LogWriter(store)
        for number in range(30):
            writer.append({0: pa.table({"n": [number]})})
        store.requests.clear()
        assert LogReader(store).end_offsets() == {0: 30}
        assert "list" not in store.requests and store.requests["list after"] == 1

    def test_a_commit_that_is_lost_below_the_newest_is_still_found_missing(self) -> None:
        store = BulkObjects()
        create_log(store, pa.schema([("n", pa.int64())]), 1)
        writer = LogWriter(store)
        for number in range(9):
            writer.append({0: pa.table({"n": [number]})})
        store.delete(commit_path(5))
        reader = LogReader(store)
        with pytest.raises(Damaged, match="is missing, but a later commit exists"):
            reader.read(0, 4, 1 << 20)
        assert LogWriter(store).append({0: pa.table({"n": [9]})}) == {0: 9}
