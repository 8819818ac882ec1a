"""Drawings of apps, streams and plans for notebooks, and `stream.show`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import combinations
from typing import Any
from xml.etree import ElementTree

import polars as pl
import pytest

import holdfast as hf
from holdfast.runtime.plan.drawing import BOXES_MAX, LETTERS_MAX, Box, drawn
from holdfast.sinks.memory.sink import MemorySink

SVG = "{http://www.w3.org/2000/svg}"
START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Bid:
    auction: int
    price: float
    at: datetime


BIDS = [Bid(i % 3, float(i), START + timedelta(seconds=i)) for i in range(12)]


def app_of(bids: Any = None) -> tuple[hf.App, hf.Stream[Any], Any]:
    app = hf.App("hot")
    stream = app.source("bids", hf.Rows(BIDS) if bids is None else bids, event_time="at")
    best = stream.filter(pl.col("price") < 11).key_by("auction").agg("best", n=hf.count(), top=hf.max("price"))
    table = app.table("auctions", hf.Log("data/<b>&auctions", Bid), key="auction")
    stream.lookup("found", table, on="auction", as_of="latest").sink("found-out", MemorySink())
    best.sink("best-out", MemorySink(key=["auction"]))
    return app, stream, best


def rectangles(html: str) -> dict[str, tuple[float, float, float, float]]:
    """Return the boxes by their first line: left, top, right, bottom."""
    [svg] = re.findall(r"<svg.*</svg>", html, re.DOTALL)
    found = {}
    for group in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        rect, text = group.find(f"{SVG}rect"), group.find(f"{SVG}text")
        assert rect is not None and text is not None and text.text is not None
        x, y, width, height = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
        assert width > 7 * len(text.text), "the text does not fit into its box"
        found[text.text] = (x, y, x + width, y + height)
    return found


class TestDrawings:
    def test_drawings_of_an_app_stream_and_plan_show_each_step_below_its_inputs(self) -> None:
        app, _, best = app_of()
        for html in (app._repr_html_(), app.plan()._repr_html_()):
            boxes = rectangles(html)
            assert {"source bids", "source auctions", "sink best-out", "sink found-out"} <= set(boxes)
            assert boxes["source bids"][3] < boxes["sink best-out"][1]
            assert "by auction" in html
        alone = rectangles(best._repr_html_())
        assert "source bids" in alone and not {"source auctions", "sink best-out"} & set(alone)

    def test_overlap_nowhere(self) -> None:
        app, _, _ = app_of()
        for (x1, y1, x2, y2), (left, top, right, bottom) in combinations(rectangles(app._repr_html_()).values(), 2):
            assert x2 <= left or right <= x1 or y2 <= top or bottom <= y1

    def test_need_nothing_else_and_run_nothing(self) -> None:
        app, _, _ = app_of()
        html = app.plan()._repr_html_() + app._repr_html_()
        assert "<b>" not in html and "&lt;b&gt;&amp;auctions" in html
        assert not re.search(r"<script|<image|<foreignObject|href=|\bon\w+=|url\(", html, re.IGNORECASE)
        assert set(re.findall(r"https?://[^\"' ]*", html)) == {"http://www.w3.org/2000/svg"}  # the name of a namespace

    def test_the_drawing_of_an_app_without_steps_states_that_it_is_empty(self) -> None:
        assert "nothing is built yet" in hf.App("empty")._repr_html_()

    def test_shorten_long_texts_and_list_many_steps(self) -> None:
        [name] = rectangles(drawn("long", [Box(0, ("x" * 200,), "source", "x" * 200)]))
        assert len(name) == LETTERS_MAX
        many = drawn("many", [Box(n, (f"<step {n}>",), "step", "") for n in range(BOXES_MAX + 1)])
        assert "<svg" not in many and many.count("<li>&lt;step") == BOXES_MAX + 1


class TestShow:
    def test_prints_the_first_rows_as_a_table_and_writes_nothing(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        app, stream, best = app_of()
        stream.show(2)
        best.show()
        shown = capsys.readouterr().out
        assert "│ 1       ┆ 1.0   ┆ 2026-01-01 00:00:01 UTC │" in shown and "2 of 12 rows" in shown
        assert re.search(r"│ 2 +┆ 3 +┆ 8\.0 +│", shown) and "3 of 3 rows" in shown
        assert list(tmp_path.iterdir()) == []
        assert "shown" not in app._repr_html_() and len(app.plan().sinks) == 2

    def test_closes_windows_at_the_end_of_the_input(self, capsys: pytest.CaptureFixture[str]) -> None:
        _, stream, _ = app_of()
        stream.key_by("auction").window(hf.tumbling("1h")).agg("hourly", n=hf.count()).show()
        assert "3 of 3 rows" in capsys.readouterr().out

    def test_reads_all_partitions(self, capsys: pytest.CaptureFixture[str]) -> None:
        app_of(hf.Generator(Bid, lambda i: BIDS[i % 12], count=9, partitions=6))[1].show(1)
        assert "1 of 9 rows" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("source", "n", "why"),
        [
            (hf.Generator(Bid, lambda i: BIDS[0]), 1, "source 'bids' is a generator without a count, which has no end"),
            (hf.Rows(BIDS), 0, "n is 0"),
        ],
    )
    def test_refuses_an_endless_source_and_a_wrong_number(self, source: Any, n: int, why: str) -> None:
        with pytest.raises(hf.ConfigError, match=why):
            app_of(source)[1].show(n)
