"""Dead letters outlive the job that wrote them: their columns and the bytes in `raw` never change."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from holdfast.runtime.job.dlq_places import Places, read
from holdfast.runtime.rows.dead_letters import DEAD_LETTERS, decode_row
from holdfast.storage.objects import MemoryObjects

GOLDEN = Path(__file__).parent / "dead_letter_raw_v1.arrow"


class TestDeadLetter:
    def test_it_has_the_fixed_columns(self) -> None:
        assert [f"{f.name}: {f.type}{'?' if f.nullable else ''}" for f in DEAD_LETTERS] == [
            "operator: string",
            "source: string?",
            "partition: int64?",
            "offset: int64?",
            "error: string",
            "form: string",
            "raw: binary",
        ]

    def test_a_raw_record_of_version_1_is_read(self) -> None:
        at = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)
        batch = decode_row(GOLDEN.read_bytes())
        assert batch.to_pylist() == [{"auction": None, "name": "é", "at": at, "price": 2.5}]
        assert [field.nullable for field in batch.schema] == [True, True, False, False]


class TestPlaces:
    def test_places_of_version_1_are_read(self) -> None:
        store = MemoryObjects()
        store.put("dlq.json", b'{"target":"log /d","log":"/d","sources":{"bids":"/b"},"v":1}')
        assert read(store, "job") == Places("log /d", "/d", {"bids": "/b"})
