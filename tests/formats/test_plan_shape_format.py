"""Format 1 of the plan's shape and of operators' identity in manifests is read and written as by its first release.

A difference here makes `holdfast plan` report changes, or a run refuse its own state, after an upgrade of Holdfast.
If it comes from a new version of Polars whose expressions have another normal form, write a new golden file beside the
old one: between two versions of Polars, no run is refused because of such a difference.
"""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import holdfast as hf
from holdfast.runtime.plan import identity, shape
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.plan.shape_changes import changes_of
from holdfast.sinks.memory.sink import MemorySink

GOLDEN = Path(__file__).parent / "plan_shape_v1.json"


@dataclass
class Bid:
    """A row with a column for each kind of use."""

    auction: int
    price: float
    at: datetime
    note: str | None


def golden_plan() -> Plan:
    """Every kind of step in a chain except functions, whose code differs between Python versions."""
    app = hf.App("golden")
    bids = app.source(
        "bids", hf.Generator(Bid, lambda i: Bid(i, 1.0, datetime.now(), None)), event_time="at", out_of_orderness="2s"
    )
    paid = bids.filter(pl.col("price") > 0).with_columns(cents=pl.col("price") * 100, lot=pl.col("auction"))
    hourly = paid.key_by("lot").window(hf.tumbling("1h", offset="15m"), allowed_lateness="5m")
    windows = hourly.agg("hourly", emit="final", bids=hf.count(), total=hf.sum("cents"), notes=hf.count("note"))
    windows.sink("windows", MemorySink())
    windows.late.union(paid).select("auction", "note").sink("late", MemorySink())
    paid.key_by("auction", "note").agg("top", top=hf.max("price")).sink("tops", MemorySink(key=("auction", "note")))
    return app.plan()


def kept(plan: Plan) -> dict[str, Any]:
    """Return the part of a plan that a manifest stores."""
    return {"shape": shape.shape_of(plan), "operators": identity.describe_operators(plan)}


@pytest.fixture
def golden(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The golden file, with this process's versions of Polars and Python."""
    found: dict[str, Any] = json.loads(GOLDEN.read_text())
    monkeypatch.setattr(shape, "POLARS", found["shape"]["polars"])
    monkeypatch.setattr(identity, "POLARS", found["shape"]["polars"])
    monkeypatch.setattr(platform, "python_version", lambda: found["shape"]["python"])
    return found


class TestFormatOneOfThePlan:
    def test_it_is_written_with_the_same_values(self, golden: dict[str, Any]) -> None:
        assert json.loads(json.dumps(kept(golden_plan()))) == golden

    def test_unchanged_code_has_no_differences(self, golden: dict[str, Any]) -> None:
        plan = golden_plan()
        names = [operator.name for operator in plan.operators]
        assert changes_of(golden["shape"], shape.shape_of(plan), names) == []
        assert identity.differences(plan, golden["operators"]) == []
        assert identity.not_known(plan, golden["operators"]) == []
