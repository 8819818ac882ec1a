"""A branch of the job with text in its keys and text, bytes and nulls in its state.

Every word keeps the least of its texts and the greatest of its bytes; either may be null. Texts have
different lengths, so the memory of the texts is compacted and grows.

Source: docs/decisions/0040-values-of-any-width.md.
"""

from __future__ import annotations

import polars as pl

import holdfast as hf
from holdfast.runtime.api.stream import Stream
from holdfast.sinks.memory.sink import MemorySink

SPELLED, SPELLED_OPERATOR = "spelled", "words"
SPELLED_COLUMNS = {"n": "n.count", "least": "least.min", "blob": "blob.max"}
"""Columns of a word's row, by their names in the state."""


def spell(records: Stream) -> None:
    """Add the branch to a job."""
    text = pl.when(pl.col("value") % 3 == 0).then(None).otherwise(pl.col("value").cast(pl.String))
    words = records.select(
        word="word " + (pl.col("key") % 4).cast(pl.String) + "\x00",
        text=text + " of " + pl.col("bucket").cast(pl.String),
        blob=pl.when(pl.col("value") > 0).then(pl.col("id").cast(pl.String).cast(pl.Binary)),
    )
    kept = words.key_by("word").agg(SPELLED_OPERATOR, n=hf.count(), least=hf.min("text"), blob=hf.max("blob"))
    kept.sink(SPELLED, MemorySink(key=["word"]))
