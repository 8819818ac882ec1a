"""A job whose function forks: children come back from it, live on, or are those of multiprocessing."""

from __future__ import annotations

import multiprocessing
import os
import time
from dataclasses import dataclass
from pathlib import Path

import holdfast as hf

FOLDER = Path(os.environ["COUNTING_FOLDER"])
COUNT = 300


@dataclass
class Item:
    n: int


def sleep() -> None:
    (FOLDER / f"sleeps-{os.getpid()}").touch()
    time.sleep(600)


def parse(item: Item) -> Item:
    if item.n == 50:
        multiprocessing.get_context("fork").Process(target=sleep, daemon=True).start()
    if item.n % 100 == 10:
        os.fork()  # the child comes back
        (FOLDER / f"pids-{os.getpid()}").touch()
    return item


app = hf.App("forking", root=str(FOLDER / "root"), checkpoint_every="200ms")
items = app.source("items", hf.Generator(Item, lambda n: {"n": n}, count=COUNT, rate=300))
items.map(parse, to=Item).sink("out", hf.SQLite(str(FOLDER / "out.db"), table="items"))
