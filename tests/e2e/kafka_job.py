"""A job from Kafka to Kafka through keyed state: a record per record, with the count of its key so far."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import holdfast as hf


@dataclass
class Row:
    key: str
    n: int


folder, servers = Path(os.environ["COUNTING_FOLDER"]), os.environ["KAFKA_SERVERS"]
app = hf.App("kafka-to-kafka", root=str(folder / "root"), checkpoint_every="500ms")
rows = app.source("rows", hf.Kafka(servers, os.environ["KAFKA_INPUT"], hf.JSON(Row)))
counted = rows.key_by("key").agg("counted", emit="each", keep="n", count=hf.count())
counted.sink("counted-out", hf.Kafka(servers, os.environ["KAFKA_OUTPUT"], key="key"))

if __name__ == "__main__":
    app.main()
