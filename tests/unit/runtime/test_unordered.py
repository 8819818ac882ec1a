"""Which operators and sinks may differ in a replay without a record: by what the steps say, and by what they take."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import holdfast as hf
from holdfast.runtime.replay.unordered import may_differ
from holdfast.sinks.memory.sink import MemorySink


@dataclass
class Row:
    k: str
    n: int
    x: float
    at: datetime


@dataclass
class Other:
    k: str
    n: int


class Shown(hf.KeyedProcess[Row, Other]):
    def on_record(self, ctx: hf.Context, r: Row) -> None:
        ctx.emit(Other(ctx.key, r.n))


def of(app: hf.App) -> dict[str, tuple[str, ...]]:
    return {f"{each.kind} {each.name}": each.why for each in may_differ(app.plan())}


def rows_of(app: hf.App) -> hf.Stream[Row]:
    return app.source("rows", hf.Log("unused/rows", Row), event_time="at")


class TestMayDiffer:
    def test_counts_and_sums_of_integers_are_the_same_in_any_order(self) -> None:
        app = hf.App("job")
        kept = rows_of(app)
        kept.sink("copy", MemorySink())
        kept.key_by("k").agg("totals", rows=hf.count(), n=hf.sum("n"), most=hf.max("x")).sink("out", MemorySink(["k"]))
        assert of(app) == {}

    def test_sums_of_floats_differ_by_rounding(self) -> None:
        app = hf.App("job")
        rows_of(app).key_by("k").agg("totals", x=hf.sum("x")).sink("out", MemorySink(["k"]))
        assert of(app) == {
            "operator totals": ("the last digits of floating point numbers",),
            "sink out": ("the last digits of floating point numbers in 'totals'",),
        }

    def test_late_rows_matter_to_all_that_stands_behind(self) -> None:
        app = hf.App("job")
        found = rows_of(app).key_by("k").window(hf.tumbling("1m")).agg("minutes", rows=hf.count())
        found.key_by("rows").agg("by-rows", minutes=hf.count()).sink("out", MemorySink(["rows"]))
        found.late.sink("late", MemorySink())
        late = ("which records are late in 'minutes'",)
        assert of(app) == {
            "operator minutes": ("which records are late",),
            "operator by-rows": late,
            "sink out": late,
            "sink late": late,
        }

    def test_early_results_may_differ_although_the_order_is_recorded(self) -> None:
        app = hf.App("job")
        window = rows_of(app).key_by("k").window(hf.tumbling("1m"))
        window.agg("minutes", emit=hf.every("5s"), rows=hf.count()).sink("out", MemorySink(["k", "window_end"]))
        assert may_differ(app.plan(), recorded=True) == (
            ("operator", "minutes", ("when results are shown early",)),
            ("sink", "out", ("when results are shown early in 'minutes'",)),
        )

    def test_a_keyed_function_sees_the_order(self) -> None:
        app = hf.App("job")
        rows_of(app).key_by("k").process("shown", Shown(), to=Other).sink("out", MemorySink())
        assert of(app)["operator shown"] == ("the order of the records of a key",)
        assert of(app)["sink out"] == ("the order of the records of a key in 'shown'",)

    def test_batches_and_the_last_row_of_a_key_count_too(self) -> None:
        app = hf.App("job")
        rows_of(app).map_batches(lambda batch: batch, to=Row).sink("out", MemorySink())
        table = app.table("prices", hf.Log("unused/prices", Other), key="k")
        table.to_changes().sink("changes", MemorySink(["k"]))
        [out], [changes] = of(app)["sink out"], of(app)["sink changes"]
        assert out.startswith("how rows fall into batches") and changes == "which record of a key comes last"
