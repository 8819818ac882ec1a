"""Where the values of a redacted column go: each way is replaced everywhere, or refused with operator and column."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from replayed_jobs import code_of, stored

import holdfast as hf
from holdfast.errors import ConfigError
from holdfast.runtime.replay.epochs import newest
from holdfast.runtime.replay.incidents.container import IncidentWriter, Unpacked
from holdfast.runtime.replay.incidents.incident import About, read, write
from holdfast.runtime.replay.incidents.making import made
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import TestDriver

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NAMES = ("Xaver Quint", "Yvonne Zwick", "Zacharias Jux")


@dataclass
class Order:
    shop: str
    customer: str
    cents: int
    at: datetime


@dataclass
class Named:
    who: str
    cents: int


def orders(app: hf.App) -> hf.Stream[Order]:
    return app.source("orders", hf.Log("unused/orders", Order), event_time="at")


def sunk(stream: Any, key: list[str] | None = None) -> None:
    stream.sink("out", MemorySink(key))


def by_customer(app: hf.App) -> None:
    sunk(orders(app).key_by("customer").agg("totals", cents=hf.sum("cents")), ["customer"])


def by_shop_and_customer(app: hf.App) -> None:
    sunk(orders(app).key_by("shop", "customer").agg("totals", cents=hf.sum("cents")), ["shop", "customer"])


def renamed(app: hf.App) -> None:
    renaming = orders(app).select(who=pl.col("customer"), cents=pl.col("cents"))
    sunk(renaming.key_by("who").agg("totals", cents=hf.sum("cents")), ["who"])


def extremes(app: hf.App) -> None:
    shops = orders(app).key_by("shop")
    sunk(shops.agg("shops", first=hf.min("customer"), last=hf.max("customer"), orders=hf.count()), ["shop"])


def unaffected(app: hf.App) -> None:
    sunk(orders(app).key_by("shop").agg("shops", cents=hf.sum("cents"), biggest=hf.max("shop")), ["shop"])


def deduplicating(app: hf.App) -> None:
    sunk(orders(app).key_by("customer").dedup("once", within="1h"))


def windowed(app: hf.App) -> None:
    hours = orders(app).key_by("customer").window(hf.tumbling("1h"))
    sunk(hours.agg("hours", cents=hf.sum("cents")))


def mapped(app: hf.App) -> None:
    sunk(orders(app).map(lambda r: Named(r.customer, r.cents), to=Named).key_by("who").agg("t", n=hf.count()), ["who"])


def late(app: hf.App) -> None:
    """The second order of the second epoch is older than the window that the first closes."""
    hours = orders(app).key_by("shop").window(hf.tumbling("1s")).agg("hours", cents=hf.sum("cents"))
    hours.late.sink("late", MemorySink())
    sunk(hours)


REPLACED: tuple[Callable[[hf.App], None], ...] = (
    late,
    *(by_customer, by_shop_and_customer, renamed, extremes, unaffected, deduplicating, windowed),
)


def computed(app: hf.App) -> None:
    upper = orders(app).select(loud=pl.col("customer").str.to_uppercase(), cents=pl.col("cents"))
    sunk(upper.key_by("loud").agg("totals", cents=hf.sum("cents")), ["loud"])


def sketched(app: hf.App) -> None:
    sunk(orders(app).key_by("shop").agg("shops", customers=hf.approx_distinct("customer")), ["shop"])


def collected(app: hf.App) -> None:
    sunk(orders(app).key_by("shop").agg("shops", customers=hf.collect("customer")), ["shop"])


class Remembers(hf.KeyedProcess[Order, Named]):
    """Keeps texts of records."""

    seen = hf.Map(str, int)

    def on_record(self, ctx: hf.Context, r: Order) -> None:
        self.seen.set(r.customer, r.cents)
        ctx.emit(Named("x", r.cents))


def remembered(app: hf.App) -> None:
    sunk(orders(app).key_by("cents").process("memory", Remembers(), to=Named))


REFUSED: tuple[tuple[Callable[[hf.App], None], str], ...] = (
    (computed, "column 'loud' in the state of operator 'totals'"),
    (sketched, "in the state of operator 'shops'"),
    (collected, "in the state of operator 'shops'"),
    (mapped, "column 'who' in the state of operator 't'"),
    (remembered, "column 'map_key' in the state of operator 'memory.seen'"),
)


def played(t: TestDriver) -> None:
    """Two epochs, in which keys of the first come again."""
    for number, order in enumerate(((0, 1), (1, 2, 0))):
        ats = [NOON + timedelta(minutes=number + 5 * (place == 0)) for place, _ in enumerate(order)]
        rows = [Order("north" if n else "south", NAMES[n], 100 * n + 1, at) for n, at in zip(order, ats, strict=True)]
        t.push("orders", rows[:1])
        t.advance("1s")
        t.push("orders", rows[1:])
        t.checkpoint()


def members(data: bytes) -> list[bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [data, *(archive.read(name) for name in archive.namelist())]


@pytest.mark.parametrize("job", REPLACED, ids=lambda job: job.__name__)
def test_copies_are_replaced_and_the_file_replays(job: Callable[[hf.App], None]) -> None:
    app = hf.App("replayed")
    job(app)
    with TestDriver(app) as t:
        played(t)
        incident, proof = made(code_of(t), newest(stored(t), 1)[0], About(), columns=["customer"])
        plan = t._plan
    assert job is not late or incident.rows["late"], "a record was late"
    into = io.BytesIO()
    write(incident, IncidentWriter(into))
    again = read(Unpacked(io.BytesIO(into.getvalue()), "a file"))
    assert proof.exact and again.replayed(again.code(plan)).exact
    for part in members(into.getvalue()):
        assert not any(word.encode() in part for name in NAMES for word in (name, *name.split()))
    assert any(b"north" in part for part in members(into.getvalue())), "other columns stay"


@pytest.mark.parametrize(("job", "what"), REFUSED, ids=lambda each: getattr(each, "__name__", ""))
def test_other_forms_are_refused_with_operator_and_column(job: Callable[[hf.App], None], what: str) -> None:
    app = hf.App("replayed")
    job(app)
    with TestDriver(app) as t:
        played(t)
        with pytest.raises(ConfigError) as refused:
            made(code_of(t), newest(stored(t), 1)[0], About(), columns=["customer"])
    assert what in str(refused.value) and "no file was written" in str(refused.value), refused.value
