"""A job with two shuffles, one after the other: a keyed function by user, and totals of its results by another key.

Its result does not depend on the order in which the partitions of the input are read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import holdfast as hf

ROUND = 10
store = os.environ["COUNTING_STORE"]
"""Where root and logs are."""


@dataclass
class Visit:
    user: str
    page: int
    amount: int
    part: int


@dataclass
class Numbered:
    turn: int
    """Which visit of its user it is, modulo ROUND."""
    user: int


class Numbering(hf.KeyedProcess[Visit, Numbered]):
    """Numbers the visits of each user."""

    seen = hf.Value(int)

    def on_record(self, ctx: hf.Context, r: Visit) -> None:
        seen = (self.seen.get() or 0) + 1
        self.seen.set(seen)
        ctx.emit(Numbered(seen % ROUND, int(r.user.removeprefix("user-"))))


app = hf.App("shuffled-twice", root=f"{store}/root", checkpoint_every="500ms")
visits = app.source("visits", hf.Log(f"{store}/input", Visit), partitioned_by=["part"])
numbered = visits.key_by("user").process("numbered", Numbering(), to=Numbered)
turns = numbered.key_by("turn").agg("turns", n=hf.count(), users=hf.sum("user"))
turns.sink("turns-out", hf.Log(f"{store}/turns", key=["turn"]))

if __name__ == "__main__":
    app.main()
