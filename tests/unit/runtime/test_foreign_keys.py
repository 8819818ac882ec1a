"""Joins of tables where a column of one refers to the key of the other, by an oracle in plain Python; refusals."""

from __future__ import annotations

from typing import Any

import foreign_jobs
import pyarrow as pa
import pytest
from foreign_jobs import CUSTOMERS, ORDERS, STEPS, Oracle, app_of, customer, no_order, order
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lookup_jobs import never

import holdfast as hf
from holdfast.runtime.plan.shown.report import render
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import TestDriver

IN_BOTH_MODES = True


class TestForeignKeys:
    @settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(st.lists(STEPS, min_size=3, max_size=10), st.sampled_from(["inner", "left"]), st.integers(0, 2**16))
    def test_rows_follow_the_changes_of_both_tables(self, steps: list[Any], how: str, seed: int) -> None:
        with TestDriver(app_of(how), 3, seed) as t:
            foreign_jobs.play(t, steps, Oracle(how))

    def test_a_row_that_refers_to_another_key_is_replaced_and_never_deleted(self) -> None:
        with TestDriver(app_of("inner")) as t:
            t.push("customers", [customer("ann", 7), customer("bob", 8)])
            t.push("orders", [order(1, "ann", 1)])
            t.checkpoint()
            t.push("orders", [order(1, "bob", 1)])
            t.push("customers", [customer("ann", 9)])
            t.checkpoint()
            changes = [(row["holdfast_deleted"], row["buyer"], row["amount_right"]) for row in t.rows("changes")]
            assert changes == [(False, "ann", 7), (False, "bob", 8)]

    def test_rows_that_go_and_come_back_in_one_epoch_keep_their_match(self) -> None:
        with TestDriver(app_of("inner")) as t:
            t.push("customers", [customer("ann", 7)])
            t.push("orders", [order(1, "ann", 1)])
            t.checkpoint()
            t.push("orders", [no_order(1), order(1, "bob", 2), order(1, "ann", 3)])
            t.checkpoint()
            [row] = t.rows("out")
            assert (row["amount"], row["amount_right"]) == (3, 7)

    def test_the_state_forgets_rows_that_are_gone(self) -> None:
        with TestDriver(app_of("left")) as t:
            t.push("customers", [customer("ann", 7)])
            t.push("orders", [order(1, "ann", 1)])
            t.checkpoint()
            assert t.state("both", 1) is not None
            assert t.state("both-matches", ("ann", 1)) == {"exists": True, "answered": True}
            t.push("orders", [no_order(1)])
            t.checkpoint()
            assert t.rows("out") == []
            kept = t.state("both", 1), t.state("both-rows", 1), t.state("both-matches", ("ann", 1))
            assert kept == (None, None, None)

    def test_part_of_the_key_may_be_the_reference(self) -> None:
        app = hf.App("lines")
        lines = app.table("lines", never(ORDERS), key=["buyer", "id"], deleted="gone")
        customers = app.table("customers", never(CUSTOMERS), key="name", deleted="gone")
        lines.join("both", customers, on=[("buyer", "name")]).sink("out", MemorySink(key=["buyer", "id"]))
        with TestDriver(app, 2) as t:
            t.push("lines", [order(1, "ann", 1), order(1, "bob", 2), order(2, None, 3)])
            t.push("customers", [customer("ann", 7)])
            t.checkpoint()
            t.push("customers", [customer("bob", 8)])
            t.checkpoint()
            found = sorted((row["buyer"], row["id"], row["amount_right"]) for row in t.rows("out"))
            assert found == [("ann", 1, 7), ("bob", 1, 8)]

    def test_a_table_may_refer_to_itself_by_a_number(self) -> None:
        schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("boss", pa.int64())])
        app = hf.App("staff", key_groups=8)
        staff = app.table("staff", never(schema), key="id")
        staff.join("both", staff, on=[("boss", "id")], how="left").sink("out", MemorySink(key=["id"]))

        def above(t: TestDriver) -> dict[int, tuple[int | None, int | None]]:
            return {row["id"]: (row["boss"], row["boss_right"]) for row in t.rows("out")}

        with TestDriver(app, 3) as t:
            t.push("staff", [{"id": n, "boss": n // 2 or None} for n in range(1, 8)])
            t.checkpoint()
            assert above(t) == {n: (n // 2 or None, n // 4 or None) for n in range(1, 8)}
            t.push("staff", [{"id": 2, "boss": 3}, {"id": 7, "boss": None}])
            t.checkpoint()
            assert above(t) == {
                1: (None, None),
                2: (3, 1),
                3: (1, None),
                4: (2, 3),
                5: (2, 3),
                6: (3, 1),
                7: (None, None),
            }

    def test_a_plan_names_the_three_states(self) -> None:
        shown = render(app_of("left").plan())
        assert "retractions both-rows by id: keeps one row per key" in shown
        assert "matches both-matches by buyer: keeps each id that refers to it, and the row of the right table" in shown
        assert "join both of tables by buyer of each id, left: keeps one row per id" in shown


class TestRefusals:
    @pytest.mark.parametrize("how", ["right", "full"])
    def test_right_rows_to_which_no_left_row_refers(self, how: str) -> None:
        with pytest.raises(hf.ConfigError) as refused:
            app_of(how)
        assert f"how={how!r}" in refused.value.what and "would have no key" in refused.value.what
        assert "use one of 'inner', 'left'" in refused.value.next_step
        assert refused.value.not_done == "the job was not planned"

    def test_a_name_whose_matches_are_taken(self) -> None:
        app = hf.App("orders")
        orders = app.table("orders", never(ORDERS), key="id", deleted="gone")
        customers = app.table("both-matches", never(CUSTOMERS), key="name", deleted="gone")
        with pytest.raises(hf.ConfigError) as refused:
            orders.join("both", customers, on=[("buyer", "name")])
        assert "'both-matches'" in refused.value.what
