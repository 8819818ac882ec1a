"""A job whose function ends its process at two records: KILLING_HOW says how, KILLING_WHERE in which function."""

from __future__ import annotations

import ctypes
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import holdfast as hf

FOLDER = Path(os.environ["COUNTING_FOLDER"])
HOW, WHERE = os.environ["KILLING_HOW"], os.environ.get("KILLING_WHERE", "map")
ON_ERROR: Any = os.environ.get("KILLING_ON_ERROR", "fail")
AT = (77, 150)
COUNT = 400


@dataclass
class Item:
    n: int
    group: int


def deadly() -> None:
    match HOW:
        case "exit":
            os._exit(3)
        case "crash":
            ctypes.string_at(0)
        case "memory":
            os.kill(os.getpid(), signal.SIGKILL)  # as the system does if memory runs out


def parse(item: Item) -> Item:
    if item.n in AT:
        deadly()
    return item


class Keep(hf.KeyedProcess[Item, Item]):
    last = hf.Value(int)

    def on_record(self, ctx: Any, item: Item) -> None:
        if item.n in AT:
            deadly()
        self.last.set(item.n)
        ctx.emit(item)


app = hf.App("killing", root=str(FOLDER / "root"), checkpoint_every="500ms", dlq=hf.Log(str(FOLDER / "dlq")))


def read(n: int) -> dict[str, int]:
    """Stand in for the decoder of a source: it runs during reads."""
    if WHERE == "read" and n in AT:
        deadly()
    return {"n": n, "group": n % 7}


items = app.source("items", hf.Generator(Item, read, count=COUNT))
if WHERE == "map":
    items = items.map(parse, to=Item, on_error=ON_ERROR)
else:
    items = items.key_by("group").process("keep", Keep(), to=Item, on_error=ON_ERROR)
items.sink("out", hf.SQLite(str(FOLDER / "out.db"), table="items"))
