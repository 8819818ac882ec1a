"""`hf.Rows`: the rows of a list as a source with an end."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import SourceKit, TestDriver, source_conformance


@dataclass
class Sale:
    shop: str
    amount: float | None = None


SALES = [Sale("north", 1.5), Sale("south"), Sale("north", 2.0)]


@pytest.fixture
def source_kit() -> SourceKit:
    return SourceKit(lambda: hf.Rows(SALES))


@source_conformance
def test_rows(promise: Any, source_kit: SourceKit) -> None:
    promise(source_kit)


class TestRows:
    def test_take_their_columns_from_the_dataclass_of_the_rows(self) -> None:
        source = hf.Rows(SALES)
        assert (source.row_type, source.schema.names) == (Sale, ["shop", "amount"])
        assert source.batch.to_pylist() == [vars(sale) for sale in SALES]
        assert hf.Rows([{"shop": "north"}], Sale).batch.to_pylist() == [{"shop": "north", "amount": None}]
        assert hf.Rows([], Sale).batch.num_rows == 0

    @pytest.mark.parametrize(
        ("make", "why"),
        [
            (lambda: hf.Rows([]), "the rows do not say their columns"),
            (lambda: hf.Rows([{"shop": "north"}]), "the rows do not say their columns"),
            (lambda: hf.Rows([Sale("north"), {"shop": 1}], Sale), "row 1 does not fit the schema: column 'shop' takes"),
            (lambda: hf.Rows("north", Sale), "'north' is not a list of rows"),
        ],
    )
    def test_are_refused_at_once_with_the_row(self, make: Any, why: str) -> None:
        with pytest.raises(hf.ConfigError, match=why):
            make()

    def test_are_limited_in_size_as_each_worker_gets_them(self) -> None:
        with pytest.raises(hf.ConfigError, match="the rows take 65 MiB"):
            hf.Rows([("x" * (65 << 20),)], pa.schema([("x", pa.string())]))

    def test_are_read_again_alike_in_another_process_up_to_their_end(self) -> None:
        source: hf.Rows[Sale] = pickle.loads(pickle.dumps(hf.Rows(SALES)))  # noqa: S301 - as it reaches a worker
        opened = source.open()
        batch, following = opened.read(0, 1, 1)
        assert batch is not None and batch.to_pylist() == [vars(SALES[1])] and following == 2
        assert opened.end_offsets() == {0: 3} and opened.read(0, 3, 1 << 20) == (None, 3)
        assert [opened.ended(0, at) for at in (2, 3)] == [False, True]

    def test_know_their_history_by_its_content(self) -> None:
        identity = hf.Rows(SALES).open().identity(0, 2)
        assert hf.Rows([*SALES, Sale("east")]).open().changed(identity) is None
        changed = hf.Rows([SALES[0], Sale("west"), SALES[2]]).open().changed(identity)
        assert changed == "one of its first 2 rows, which were read, has changed"
        assert hf.Rows(SALES[:1]).open().changed(identity) == "it has 1 rows, but 2 were read"
        assert (
            hf.Rows(
                [{"shop": "north", "amount": 1.5, "n": 1}] * 3,
                pa.schema([("shop", pa.string()), ("amount", pa.float64()), ("n", pa.int64())]),
            )
            .open()
            .changed(identity)
            is not None
        )

    def test_are_a_source_of_the_test_driver(self) -> None:
        app = hf.App("sales")
        app.source("sales", hf.Rows(SALES)).key_by("shop").agg("n", n=hf.count()).sink("out", MemorySink(key=["shop"]))
        with TestDriver(app) as t:
            t.push("sales", SALES)
            t.finish()
            assert sorted((row["shop"], row["n"]) for row in t.rows("out")) == [("north", 2), ("south", 1)]

    def test_run_to_their_end_and_are_refused_after_a_change(self, tmp_path: Path) -> None:
        def run(rows: list[Sale]) -> list[dict[str, Any]]:
            app, out = hf.App("sales", root=str(tmp_path / "root")), hf.Collect()
            totals = app.source("sales", hf.Rows(rows)).key_by("shop").agg("n", n=hf.count())
            totals.sink("out", out)
            app.run(once=True, local=True, progress="none")
            return out.frame().sort("shop").to_dicts()

        assert run(SALES) == run(SALES) == [{"shop": "north", "n": 2}, {"shop": "south", "n": 1}]
        for rows, why in (
            ([Sale("west"), *SALES[1:]], "one of its first 3 rows, which were read, has changed"),
            ([*SALES, Sale("west")], "it has 4 rows, and 3 were read"),
        ):
            with pytest.raises(
                hf.ConfigError, match="has finished, and its source 'sales' has other rows now"
            ) as caught:
                run(rows)
            assert why in caught.value.what

    def test_are_part_of_the_plan(self) -> None:
        places = [hf.Rows(rows).traits.place["rows"] for rows in (SALES, SALES, SALES[::-1], SALES[:1])]
        assert places[0] == places[1] and len(set(places)) == 3
