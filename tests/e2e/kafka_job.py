"""A job on a topic of Kafka; the test reads its output."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import holdfast as hf

FOLDER = Path(os.environ["COUNTING_FOLDER"])


@dataclass
class Row:
    key: str
    n: int


app = hf.App("from-kafka", root=str(FOLDER / "root"), checkpoint_every="300ms")
rows = app.source("rows", hf.Kafka(os.environ["KAFKA_SERVERS"], os.environ["KAFKA_TOPIC"], hf.JSON(Row)))
rows.sink("every", hf.SQLite(FOLDER / "every.db", table="every"))
sums = rows.key_by("key").agg("sums", rows=hf.count(), total=hf.sum("n"))
sums.sink("sums-out", hf.SQLite(FOLDER / "sums.db", table="sums", key=["key"]))

if __name__ == "__main__":
    app.main()
