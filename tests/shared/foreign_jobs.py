"""Jobs that join orders with the customers that they refer to, steps for them, and the result, in plain Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import job_player
import polars as pl
import pyarrow as pa
import state_sizes
from hypothesis import strategies as st
from lookup_jobs import never

import holdfast as hf
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import TestDriver

ORDERS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("buyer", pa.string()),
        pa.field("amount", pa.int64()),
        pa.field("gone", pa.bool_(), nullable=False),
    ]
)
CUSTOMERS = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("amount", pa.int64()),
        pa.field("since", pa.timestamp("us", "UTC")),
        pa.field("gone", pa.bool_(), nullable=False),
    ]
)


def app_of(how: str) -> hf.App:
    app = hf.App("orders", key_groups=8)
    orders = app.table("orders", never(ORDERS), key="id", deleted="gone")
    customers = app.table("customers", never(CUSTOMERS), key="name", deleted="gone")
    joined = orders.join("both", customers, on=[("buyer", "name")], how=how)
    joined.sink("out", MemorySink(key=["id"]))
    joined.to_changes().sink("changes", MemorySink())
    sums = joined.group_by("buyer").agg("sums", orders=hf.count(), credit=hf.max("amount_right"))
    sums.filter(pl.col("buyer").is_not_null()).sink("sums-out", MemorySink(key=["buyer"]))
    return app


def order(id: int, buyer: str | None, amount: int) -> dict[str, Any]:
    return {"id": id, "buyer": buyer, "amount": amount, "gone": False}


def customer(name: str, amount: int | None) -> dict[str, Any]:
    """Return a change of the table of customers; without an amount it deletes."""
    return {"name": name, "amount": amount, "since": None, "gone": amount is None}


def no_order(id: int) -> dict[str, Any]:
    return {"id": id, "buyer": None, "amount": None, "gone": True}


@dataclass
class Oracle:
    """Both tables as they stand."""

    how: str
    orders: dict[int, tuple[str | None, int]] = field(default_factory=dict)
    customers: dict[str, int] = field(default_factory=dict)

    def expected(self) -> dict[int, tuple[Any, ...]]:
        rows = {id: (buyer, amount, self.customers.get(buyer or "")) for id, (buyer, amount) in self.orders.items()}
        return {id: row for id, row in rows.items() if self.how == "left" or row[2] is not None}

    def kept(self) -> dict[str, int]:
        """Return how many rows the state has: both tables, one subscription per order, and the groups of the result."""
        rows = self.expected().values()
        orders = dict.fromkeys(("both-rows", "both-matches", "both"), len(self.orders))
        credits = {(buyer, credit) for buyer, _, credit in rows if credit is not None}
        groups = {"sums-rows": len(rows), "sums": len({buyer for buyer, _, _ in rows}), "sums.credit": len(credits)}
        return orders | {"both-matches.right": len(self.customers)} | groups


BUYERS = st.sampled_from(["ann", "bob", "cy", None])
ORDERED = st.tuples(st.integers(0, 5), st.one_of(st.none(), st.tuples(BUYERS, st.integers(1, 3))))
KNOWN = st.tuples(st.sampled_from(["ann", "bob", "cy"]), st.one_of(st.none(), st.integers(1, 99)))
STEPS = st.one_of(
    st.tuples(st.just("change"), st.lists(st.one_of(ORDERED, KNOWN), min_size=1, max_size=7)),
    st.tuples(st.just("change"), st.lists(st.one_of(ORDERED, KNOWN), min_size=1, max_size=7)),
    *job_player.FAILURES,
    job_player.REWIND,
)


def follows(rows: list[dict[str, Any]]) -> dict[int, tuple[Any, ...]]:
    """Return what changes make of a table; each delete follows a row."""
    held = dict[int, tuple[Any, ...]]()
    for row in rows:
        if row["holdfast_deleted"]:
            assert held.pop(row["id"], None) is not None, "a delete without a row"
        else:
            held[row["id"]] = row["buyer"], row["amount"], row["amount_right"]
    return held


def play(t: TestDriver, steps: list[Any], oracle: Oracle) -> None:
    """Compare both tables at the end; the records of a key are in one partition."""

    def push(changes: list[tuple[Any, Any]]) -> None:
        for key, row in changes:
            if isinstance(key, int):
                t.push("orders", [no_order(key) if row is None else order(key, *row)], key % 3)
                oracle.orders.pop(key, None)
                oracle.orders |= {} if row is None else {key: row}
            else:
                t.push("customers", [customer(key, row)], len(key) % 2)
                oracle.customers.pop(key, None)
                oracle.customers |= {} if row is None else {key: row}

    job_player.play(t, steps, {"change": push})
    t.finish()
    names = ("buyer", "amount", "amount_right")
    assert {row["id"]: tuple(row[name] for name in names) for row in t.rows("out")} == oracle.expected()
    assert follows(t.rows("changes")) == oracle.expected()
    sums = dict[str, tuple[int, int | None]]()
    for buyer, _, credit in oracle.expected().values():
        sums |= {} if buyer is None else {buyer: (sums.get(buyer, (0, None))[0] + 1, credit)}
    assert {row["buyer"]: (row["orders"], row["credit"]) for row in t.rows("sums-out")} == sums
    state_sizes.check(t, oracle.kept())
