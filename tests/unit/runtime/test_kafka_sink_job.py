"""What a job sends to topics: the sinks' doubles stand in for a broker. Jobs on a real one are in test_sink_jobs.py."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from played_jobs import Said

import holdfast as hf
from holdfast.runtime.config.settings import MODES
from holdfast.testing import TestDriver


@dataclass
class Total:
    word: str
    rows: int
    total: int


class TestWhatAJobSends:
    def app(self) -> hf.App:
        app = hf.App("words")
        rows = app.source("rows", hf.Log("input", Said))
        rows.sink("copy", hf.Kafka("broker.example:9092", "copy", hf.JSON(Said), key="word"))
        totals = rows.key_by("word").agg("totals", rows=hf.count(), total=hf.sum("n"))
        totals.sink("totals-out", hf.Kafka("broker.example:9092", "totals", hf.JSON(Total), key="word"))
        return app

    @pytest.mark.parametrize("mode", MODES)
    def test_a_test_driver_needs_no_broker(self, mode: str) -> None:
        with TestDriver(self.app(), mode=mode) as t:
            t.push("rows", [Said(1, "a"), Said(2, "b"), Said(3, "a")])
            t.finish()
            assert sorted(row["n"] for row in t.rows("copy")) == [1, 2, 3]
            assert sorted(t.rows("totals-out"), key=lambda row: str(row["word"])) == [
                {"word": "a", "rows": 2, "total": 4},
                {"word": "b", "rows": 1, "total": 2},
            ]

    def test_a_stream_that_replaces_rows_needs_its_key(self) -> None:
        app = hf.App("words")
        totals = app.source("rows", hf.Log("input", Said)).key_by("word").agg("totals", rows=hf.count())
        with pytest.raises(hf.ConfigError, match=r"the stream replaces rows by \['word'\], the sink has no key"):
            totals.sink("out", hf.Kafka("broker.example:9092", "totals"))
