"""Staged parts outlive the process that wrote them: a later version must deliver them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from holdfast.sinks.protocol.staging import decode

GOLDEN = Path(__file__).parent / "staged_part_v1.arrow"


class TestStagedPart:
    def test_a_part_of_version_1_is_read(self) -> None:
        (batch,) = decode(GOLDEN.read_bytes())
        at = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)
        assert batch.to_pylist() == [
            {"auction": 7, "window_end": at, "top": 2.5, "name": "é", "_op": 0},
            {"auction": 8, "window_end": at, "top": None, "name": None, "_op": 1},
        ]
