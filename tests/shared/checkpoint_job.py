"""The job whose checkpoints are golden files: aggregates, windows and deduplication, and how its code changed.

python tests/shared/checkpoint_job.py FOLDER [evolved | text]      writes the objects of its root into FOLDER
python tests/shared/checkpoint_job.py FOLDER topic     those into FOLDER/root, its changelog into FOLDER/topic
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

import holdfast as hf
from holdfast.ports import ObjectStore
from holdfast.sinks.memory.sink import MemorySink
from holdfast.storage.objects import open_objects

SCHEMA = pa.schema(
    [
        pa.field("shop", pa.string(), nullable=False),
        pa.field("item", pa.int32(), nullable=False),
        pa.field("pieces", pa.int32(), nullable=False),
        pa.field("price", pa.float64()),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
    ]
)
START = datetime(2026, 1, 1, tzinfo=UTC)
TEXT: dict[str, Any] = {"first": hf.min("note"), "last": hf.max("note"), "raw": hf.max("raw")}
NOTED = SCHEMA.append(pa.field("note", pa.string())).append(pa.field("raw", pa.binary(), nullable=False))
FIRST: dict[str, Any] = {"n": hf.count(), "least": hf.min("pieces"), "top": hf.max("price"), "mean": hf.mean("price")}


def app_of(
    totals: dict[str, Any], hours: dict[str, Any], schema: pa.Schema = SCHEMA, changelog: Any = "root"
) -> hf.App:
    app = hf.App("golden", key_groups=4, changelog=changelog)
    sales = app.source("sales", hf.Log("unused", schema), event_time="at", out_of_orderness="1h")
    sales.key_by("shop", "item").agg("totals", **totals).sink("totals-out", MemorySink(key=["shop", "item"]))
    windows = sales.key_by("item").window(hf.tumbling("1h")).agg("hours", emit="final", **hours)
    windows.sink("hours-out", MemorySink())
    sales.key_by("item").dedup("first", within="1d").sink("first-out", MemorySink())
    return app


def sale(n: int) -> dict[str, Any]:
    """Record n."""
    price = None if n % 3 == 0 else n / 4
    shop = ("east", "north", "süd")[n % 3]
    return {"shop": shop, "item": n % 4, "pieces": n, "price": price, "at": START + timedelta(minutes=10 * n)}


def noted(n: int) -> dict[str, Any]:
    """Record n with text and bytes."""
    note = None if n % 2 == 0 else f"{chr(0xE0 + n)} {'long ' * (n % 5)}"
    return sale(n) | {"note": note, "raw": bytes([n, 255])}


def write_text(folder: Path) -> None:
    """Write the objects of the job after 20 records in two checkpoints, with state that is text, bytes or null."""
    with hf.testing.TestDriver(app_of(FIRST | TEXT, TEXT, NOTED), parallelism=2, seed=0) as t:
        for first in (0, 10):
            t.push("sales", [noted(n) for n in range(first, first + 10)])
            t.checkpoint()
        store_into(folder, t.cluster._store)


def write_topic(folder: Path) -> None:
    """Write the objects of the job of `write_text` with its changelog in a log, which alone has the state."""
    app = app_of(FIRST | TEXT, TEXT, NOTED, hf.Log("unused", partitions=2))
    with hf.testing.TestDriver(app, parallelism=2, seed=0) as t:
        for first in (0, 10):
            t.push("sales", [noted(n) for n in range(first, first + 10)])
            t.checkpoint()
        root = t.cluster._store
        for path in root.list("segments"):
            root.delete(path)
        store_into(folder / "root", root)
        store_into(folder / "topic", open_objects(t.cluster.changelog.place["path"], writable=False))


def write(folder: Path, evolved: bool) -> None:
    """Write the objects of the job after 20 records in two checkpoints; evolved: in four, with a changed app."""
    with hf.testing.TestDriver(app_of(FIRST, {"n": hf.count()}), parallelism=2, seed=0) as t:
        t.push("sales", [sale(n) for n in range(10)])
        t.checkpoint()
        t.push("sales", [sale(n) for n in range(10, 20)])
        t.checkpoint()
        if evolved:
            fewer = {name: each for name, each in FIRST.items() if name != "n"}
            t.upgrade(app_of(fewer, {"sales": hf.count().was("n")}), drop_state=["totals.n"])
            t.push("sales", [sale(n) for n in range(20, 25)])
            t.checkpoint()
            again = {"highest": hf.max("price").was("top"), "n": hf.count(), "mean": hf.mean("price")}
            again["least"] = hf.min("pieces")
            t.upgrade(app_of(again, {"sales": hf.count(), "top": hf.max("price")}))
            t.push("sales", [sale(n) for n in range(25, 30)])
            t.checkpoint()
        store_into(folder, t.cluster._store)


def store_into(folder: Path, store: ObjectStore) -> None:
    """Write all objects of a store below a folder."""
    for path in store.list(""):
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(store.get(path))


if __name__ == "__main__":
    if "topic" in sys.argv:
        write_topic(Path(sys.argv[1]))
    elif "text" in sys.argv:
        write_text(Path(sys.argv[1]))
    else:
        write(Path(sys.argv[1]), "evolved" in sys.argv)
