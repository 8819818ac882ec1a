"""A job whose function misbehaves at one record: HOLDING_HOW chooses how, HOLDING_ONCE limits it to once."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

import holdfast as hf

FOLDER = Path(os.environ["COUNTING_FOLDER"])
HOW = os.environ.get("HOLDING_HOW", "")
SECONDS = float(os.environ.get("HOLDING_S", "8"))
AT = 600


@dataclass
class Item:
    n: int
    text: str


def backtracks(text: str, seconds: float) -> None:
    """Hold the interpreter for at least this long, with one call of a pattern that tries every division of the text."""
    length, took = 16, 0.0
    while took < 0.05:
        length, began = length + 1, time.monotonic()
        re.match(r"(a|a)*$", "a" * length + "b")
        took = time.monotonic() - began
    while took < seconds:  # one more letter takes twice as long
        length, took = length + 1, 2 * took
    re.match(r"(a|a)*$", "a" * length + "b")


def parse(item: Item) -> Item:
    marker = FOLDER / "misbehaved"
    if item.n == AT and HOW and not marker.exists():
        if "HOLDING_ONCE" in os.environ:
            marker.touch()
        if HOW == "exit":
            os._exit(3)
        backtracks(item.text, SECONDS)
    return item


app = hf.App("holding", root=str(FOLDER / "root"), checkpoint_every="500ms")
source = hf.Generator(Item, lambda n: {"n": n, "text": f"text {n}"}, count=1_000)
app.source("items", source).map(parse, to=Item).sink("out", hf.SQLite(str(FOLDER / "out.db"), table="items"))
