"""What a value in Avro costs until it is a row in Arrow, and back, beside the same rows in JSON.

No broker takes part: values are decoded and encoded in this process, in the batches that a source reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
from harness import Bench

from holdfast.runtime.formats.json_lines import JsonLines
from holdfast.runtime.sources.kafka.avro_columns import AvroColumns
from holdfast.sinks.kafka.avro import AvroRows
from holdfast.sinks.kafka.avro_schema import derived
from holdfast.sinks.kafka.encoding import JsonValues
from holdfast.storage.kafka.avro import parsed

SCHEMA = pa.schema(
    [
        pa.field("auction", pa.int64(), False),
        pa.field("bidder", pa.int64(), False),
        pa.field("price", pa.float64(), False),
        pa.field("channel", pa.utf8()),
        pa.field("url", pa.utf8(), False),
        pa.field("at", pa.timestamp("us", "UTC"), False),
    ]
)
BATCH, ROUNDS = 10_000, 3


def rows(count: int) -> pa.RecordBatch:
    """Return rows that all differ."""
    numbers = range(count)
    columns: list[list[Any]] = [
        [1_000_000 + n for n in numbers],
        [2_000_000 + n * 7_919 % 1_000_000 for n in numbers],
        [n / 8 for n in numbers],
        [None if n % 5 == 0 else f"channel-{n % 7}" for n in numbers],
        [f"https://shop.example/item/{n}" for n in numbers],
        [1_700_000_000_000_000 + n for n in numbers],
    ]
    arrays = [pa.array(each, field.type) for each, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def bench_avro_values(bench: Bench) -> None:
    """Six columns: three numbers, two texts, a time."""
    count = bench.size("rows", smoke=2_000, full=100_000)
    given = rows(count)
    avsc = derived(SCHEMA, "Bid")
    avro, lines = AvroColumns(parsed(avsc), SCHEMA, {}), JsonLines(SCHEMA)
    best: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        began = time.process_time()
        found = work()
        best[name] = min(best.get(name, float("inf")), time.process_time() - began)
        return found

    with bench.timed():
        for _ in range(ROUNDS):
            values = timed("avro out", lambda: AvroRows(avsc).encode(given))
            objects = timed("json out", lambda: JsonValues().encode(given))
            found = timed("avro in", partial(decoded, avro, values))
            known, refused = timed("json in", partial(lines.decode, objects))
            assert not refused
            assert pa.Table.from_batches(found).combine_chunks() == pa.Table.from_batches([given])
            assert pa.Table.from_batches([known]) == pa.Table.from_batches([given])
    shown = ", ".join(f"{name} {seconds / count * 1e6:.2f}" for name, seconds in sorted(best.items()))
    bench.note(f"processor time a row in us, the best of {ROUNDS}: {shown}")
    bench.report(per=count * ROUNDS * 4, unit="row", check=count)


def decoded(avro: AvroColumns, values: list[bytes]) -> list[pa.RecordBatch]:
    """Decode in batches."""
    found: list[pa.RecordBatch] = []
    why: dict[int, str] = {}
    for first in range(0, len(values), BATCH):
        part = values[first : first + BATCH]
        found += avro.decode(part, range(first, first + len(part)), why)
    assert not why
    return found
