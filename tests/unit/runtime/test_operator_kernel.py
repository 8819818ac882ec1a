"""What the kernel promises: no other module names a concrete operator, and contracts carry more than is used so far."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

import holdfast as hf
from holdfast.runtime import operators
from holdfast.runtime.api.stream import Stream
from holdfast.runtime.operators.contract import (
    OP_FIELD,
    Description,
    KeyedStep,
    Needed,
    Operator,
    OperatorContext,
    TableDraft,
)
from holdfast.runtime.plan.compiler import render
from holdfast.runtime.plan.identity import describe_operators
from holdfast.runtime.plan.shape import chain_of, shape_of
from holdfast.state.keys.batch import KeyType
from holdfast.state.tables.spec import ColumnSpec
from holdfast.testing import TestDriver

IN_BOTH_MODES = True

FOLDER = Path(operators.__file__).parent
FOR_ALL = {
    *("arithmetic", "backlog", "contract", "differences", "direct", "event_clock", "portions", "processing_clock"),
    *("suspicion", "time_slice"),
    *("aggregates.changes", "joins.rows", "tables.lookup", "windows.early", "windows.merging"),
    *("process.cells", "process.changes", "process.events", "process.step"),
    *("patterns.automaton", "patterns.conditions", "patterns.kept", "patterns.results"),
}
"""Modules of the folder that are no operator."""
MAKERS = {
    "holdfast.runtime.api.stream",
    "holdfast.runtime.api.joined",
    "holdfast.runtime.api.matched",
    "holdfast.runtime.api.windowed",
    "holdfast.runtime.api.process",
    "holdfast.runtime.api.tables",
    "holdfast.runtime.testing.shown",  # what a stream shows of itself has a sink of its own
    "holdfast.runtime.api.functions",  # arguments of stream methods are checked there, before a step is made of them
}
BY_THE_COMPILER = {"exchange"}
"""No stream has one; the compiler puts it before every edge."""


def imported(path: Path) -> set[str]:
    """Return the modules that a file imports, and the names out of packages."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return found


class TestSeam:
    def test_only_methods_of_streams_make_operators(self) -> None:
        files = [path for path in FOLDER.rglob("*.py") if path.stem != "__init__"]
        concrete = {".".join(path.relative_to(FOLDER).with_suffix("").parts) for path in files} - FOR_ALL
        assert concrete >= {"aggregates.aggregate", "call", "chain", "check", "exchange", "side", "sink", "union"}
        assert concrete >= {"joins.join", "patterns.match", "process.operator", "windows.session", "windows.window"}
        named: dict[str, set[str]] = {}
        for path in FOLDER.parent.rglob("*.py"):
            module = ".".join(("holdfast.runtime", *path.relative_to(FOLDER.parent).with_suffix("").parts))
            if not path.is_relative_to(FOLDER) and module not in MAKERS:
                imports = imported(path)
                uses = {each for each in concrete if f"{operators.__name__}.{each}" in imports}
                named |= {module: uses} if uses else {}
        assert set().union(*named.values()) == BY_THE_COMPILER and len(named) == 1


@dataclass(frozen=True)
class Shifts:
    """Every record is in two windows of 10 s, which begin 1 s after every 5 s: the library has none like them."""

    kind: ClassVar[str] = "shifts"
    merging: ClassVar[bool] = False
    per_record: ClassVar[bool] = False
    time_of_results: ClassVar[str] = "window_start"
    size_us: int = 10_000_000
    every_us: int = 5_000_000
    overlap: int = 2

    def slices(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        ends: NDArray[np.int64] = times - np.mod(times - 1_000_000, 5_000_000) + 5_000_000
        return ends

    def starts(self, ends: NDArray[np.int64]) -> NDArray[np.int64]:
        return ends - self.size_us

    def identity(self) -> dict[str, Any]:
        return {"kind": self.kind, "size_us": self.size_us}

    def shown(self) -> str:
        return "shifts"


SCHEMA = pa.schema(
    [pa.field("k", pa.int64(), nullable=False), pa.field("at", pa.timestamp("us", "UTC"), nullable=False)]
)


def at(second: int) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


def shifts_app() -> hf.App:
    app = hf.App("shifts")
    rows = app.source("rows", hf.Generator(SCHEMA, lambda i: (i, at(i)), count=0), event_time="at")
    counts = rows.key_by("k").window(Shifts()).agg("counts", n=hf.count())
    counts.sink("out", hf.SQLite("unused.db", table="out"))
    counts.late.sink("late", hf.SQLite("unused.db", table="late"))
    return app


class TestOverlappingWindows:
    def test_a_record_is_counted_in_each_of_its_windows(self) -> None:
        with TestDriver(shifts_app()) as t:
            t.push("rows", [{"k": 1, "at": at(7)}, {"k": 1, "at": at(12)}])
            t.watermark("rows", at(100))
            t.checkpoint()
            found = sorted((row["window_end"], row["n"]) for row in t.rows("out"))
        assert found == [(at(11), 1), (at(16), 2), (at(21), 1)]

    @pytest.mark.continuous("a record may be late within an epoch only there")
    def test_a_record_is_late_only_when_all_of_its_windows_are_closed(self) -> None:
        with TestDriver(shifts_app()) as t:
            t.push("rows", [{"k": 1, "at": at(30)}])
            t.watermark("rows", at(12))
            t.push("rows", [{"k": 1, "at": at(7)}, {"k": 1, "at": at(1)}])
            t.watermark("rows", at(17))
            t.checkpoint()
            assert [(row["window_end"], row["n"]) for row in t.rows("out")] == [(at(16), 1)]
            assert [row["at"] for row in t.rows("late")] == [at(1)]


@dataclass(frozen=True)
class Beside(KeyedStep):
    """Count the rows of two streams per key: as much of a join as the kernel has to carry."""

    operator: str
    left: str
    right: str

    kind: ClassVar[str] = "beside"
    keeps: ClassVar[str] = "counts of two streams"

    def keyed_by(self, port: int) -> tuple[str, ...]:
        return ((self.left,), (self.right,))[port]

    def reads(self, port: int, given: pa.Schema, needed: Needed) -> tuple[str, ...]:
        return self.keyed_by(port)

    def tables(self, given: Sequence[pa.Schema]) -> tuple[TableDraft, ...]:
        columns = tuple(ColumnSpec(name, np.dtype(np.int64)) for name in ("left", "right"))
        return (TableDraft(KeyType.of([given[0].field(self.left)]), columns),)

    def identity(self, column: Description) -> dict[str, Any]:
        return {"keeps": self.keeps, "keys": [column(self.left), column(self.right, 1)]}

    def text(self) -> str:
        return f"beside {self.operator}"

    def open(self, ctx: OperatorContext) -> Operator:
        return _BesideOperator(self, ctx)


class _BesideOperator(Operator):
    def __init__(self, step: Beside, ctx: OperatorContext) -> None:
        self._step, self._ctx, self._table = step, ctx, ctx.table(step.operator)

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        slots = self._table.slots(self._table.spec.key.encode([batch.column(self._step.keyed_by(port)[0])]))
        np.add.at(self._table.changing(slots)(("left", "right")[port]), slots, 1)

    def on_barrier(self) -> None:
        slots = self._table.changed()
        if slots.size:
            counts = [pa.array(self._table.column(name)[slots]) for name in ("left", "right")]
            op = pa.array(np.zeros(slots.size, np.int8))
            schema = pa.schema([*self._ctx.placed[0].schema, OP_FIELD])
            arrays = [*self._table.key_columns(slots), *counts, op]
            self._ctx.emit(pa.RecordBatch.from_arrays(arrays, schema=schema))


def beside_app() -> hf.App:
    app = hf.App("two")
    left = app.source("left", hf.Generator(SCHEMA, lambda i: (i, at(i)), count=0))
    right = app.source("right", hf.Generator(SCHEMA, lambda i: (i, at(i)), count=0)).select(other="k", at="at")
    counts = [pa.field(name, pa.int64(), nullable=False) for name in ("left", "right")]
    node = app._graph.add(
        Beside("pairs", "k", "other"),
        left._node,
        "pairs",
        pa.schema([SCHEMA.field("k"), *counts]),
        ("k",),
        others=(right._node,),
    )
    app._graph.claim("pairs", "operator")
    Stream(app._graph, node).sink("out", hf.SQLite("unused.db", table="out", key=["k"]))
    return app


class TestTwoKeyedInputs:
    def test_each_input_has_an_edge_with_its_own_key_and_columns(self) -> None:
        plan = beside_app().plan()
        assert [(e.from_fragment, e.to_fragment, e.port, e.key, e.schema.names) for e in plan.edges] == [
            (0, 2, 0, ("k",), ["k"]),
            (1, 2, 1, ("other",), ["other"]),
        ]
        assert (
            "fragment 2: edge 0 from fragment 0, by k (k: int64); edge 1 from fragment 1, by other (other: int64)"
            in render(plan)
        )

    def test_identity_and_chain_contain_both_inputs(self) -> None:
        plan = beside_app().plan()
        keys = describe_operators(plan)["pairs"]["identity"]["keys"]
        assert [(key["column"], key["from"]) for key in keys] == [("k", {"column": "k"}), ("other", {"column": "k"})]
        chain = chain_of(shape_of(plan), "pairs")
        assert chain is not None and chain[0]["step"] == "beside"
        assert [each[0]["name"] for each in chain[0]["of"]] == ["left", "right"]

    def test_equal_keys_of_both_inputs_meet_even_after_a_crash(self) -> None:
        with TestDriver(beside_app(), parallelism=3) as t:
            t.push("left", [{"k": n % 5, "at": at(n)} for n in range(20)])
            t.push("right", [{"k": n % 4, "at": at(n)} for n in range(12)])
            t.checkpoint()
            t.crash(worker=1)
            t.recover()
            t.push("right", [{"k": 4, "at": at(1)}])
            t.checkpoint()
            assert sorted((row["k"], row["left"], row["right"]) for row in t.rows("out")) == [
                (0, 4, 3),
                (1, 4, 3),
                (2, 4, 3),
                (3, 4, 3),
                (4, 4, 1),
            ]
