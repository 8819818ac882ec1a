"""Counts the records of each key until five seconds of the worker's clock have passed since its last one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import holdfast as hf


@dataclass
class Seen:
    key: str


@dataclass
class Quiet:
    key: str
    records: int
    due: datetime
    noticed: datetime


class Notice(hf.KeyedProcess[Seen, Quiet]):
    records = hf.Value(int)
    due = hf.Value(datetime)
    quiet = hf.Timer("processing")

    def on_record(self, ctx: hf.Context, r: Seen) -> None:
        due = ctx.now() + timedelta(seconds=5)
        self.records.set(self.records.get(0) + 1)
        self.due.set(due)
        self.quiet.set(due)

    @quiet.fires
    def is_quiet(self, ctx: hf.Context) -> None:
        due = self.due.get()
        assert due is not None
        ctx.emit(Quiet(ctx.key, self.records.get(0), due, ctx.now()))
        self.records.clear()
        self.due.clear()


folder = Path(os.environ["REMINDING_FOLDER"])
app = hf.App("reminding", root=str(folder / "root"), checkpoint_every="500ms")
seen = app.source("seen", hf.Log(str(folder / "input"), Seen))
seen.key_by("key").process("notice", Notice(), to=Quiet).sink("quiet", hf.Log(str(folder / "quiet")))

if __name__ == "__main__":
    app.main()
