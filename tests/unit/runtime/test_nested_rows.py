"""Rows with lists, dicts, nested dataclasses, Enums, UUIDs, times of day and Literals, from sources to sinks."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from datetime import UTC, datetime, time
from enum import Enum, IntEnum
from typing import Any, Literal
from uuid import UUID

import polars as pl
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.runtime.rows.dead_letters import decode_row
from holdfast.runtime.rows.rows import WrongRow, batch_of_rows
from holdfast.runtime.rows.schema import defaults_of, schema_of
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import TestDriver

ID = UUID("6f9b0f6e-0000-4000-8000-00000000000a")
NINE = time(9, 30, 0, 1)
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1
    LARGE = 2


@dataclass
class Address:
    city: str
    zip: int | None = None
    kind: Color = Color.BLUE


@dataclass
class Order:
    id: UUID = hf.field(alias="_id")
    tags: list[str] = field(default_factory=list)
    prices: dict[str, float | None] = field(default_factory=dict)
    to: Address | None = None
    past: list[Address] = field(default_factory=list)
    color: Color = Color.BLUE
    size: Size | None = None
    at: time = time(1)
    level: Literal["high", "low"] = "low"
    odd: int = hf.field(alias="odd name", default=3)


FULL = Order(
    ID,
    ["a", ""],
    {"net": 1.5, "tax": None},
    Address("Bonn", 53111, Color.RED),
    [Address("Ulm")],
    Color.RED,
    Size.LARGE,
    NINE,
    "high",
    7,
)


class TestSchema:
    def test_has_a_column_type_for_each_field(self) -> None:
        assert dict(zip(schema_of(Order).names, map(str, schema_of(Order).types), strict=True)) == {
            "id": "string",
            "tags": "list<item: string>",
            "prices": "map<string, double>",
            "to": "struct<city: string, zip: int64, kind: string>",
            "past": "list<item: struct<city: string, zip: int64, kind: string>>",
            "color": "string",
            "size": "int64",
            "at": "time64[us]",
            "level": "string",
            "odd": "int64",
        }
        assert [each.name for each in schema_of(Order) if each.nullable] == ["to", "size"]

    def test_refuses_what_no_column_can_hold_with_its_place(self) -> None:
        @dataclass
        class Mixed:
            x: Literal[1, "a"]

        @dataclass
        class Keyed:
            x: dict[int, str]

        @dataclass
        class Bare:
            x: list  # type: ignore[type-arg]

        @dataclass
        class Tree:
            x: list[Tree]

        for kind, why in ((Mixed, "no common column type"), (Keyed, "keys that are not str"), (Bare, "element type")):
            with pytest.raises(hf.ConfigError, match=rf"{kind.__name__}\.x: .*{why}"):
                schema_of(kind)
        Tree.__annotations__["x"] = list[Tree]
        with pytest.raises(hf.ConfigError, match="Tree is a field of itself"):
            schema_of(Tree)

    def test_knows_defaults_of_a_class_that_a_worker_got_by_value(self) -> None:
        @dataclass
        class Sent:
            n: int
            tags: list[str] = field(default_factory=list)

        copied = object.__new__(type(MISSING))  # as in a worker: cloudpickle copies what stands for no default
        for each in fields(Sent):
            each.default = copied
        fields(Sent)[0].default_factory = copied
        assert defaults_of(Sent) == {"tags": []}

    def test_an_alias_must_be_the_name_of_a_column(self) -> None:
        for alias in ("", "_op", "_holdfast_tag", 3):
            with pytest.raises(hf.ConfigError, match="cannot be the name of a field"):
                hf.field(alias=alias)  # type: ignore[arg-type]


class Job:
    """Orders into a function, an expression, a keyed function and sinks."""

    def __init__(self) -> None:
        self.seen: list[Order] = []
        self.app = hf.App("orders", dlq=MemorySink())
        self.orders = self.app.source("orders", hf.Log("data/orders", Order))

    def note(self, order: Order) -> Order:
        self.seen.append(order)
        return order


class TestFunctions:
    def test_get_and_return_instances_members_and_objects(self) -> None:
        job = Job()
        job.orders.map(job.note, to=Order).sink("out", MemorySink())
        with TestDriver(job.app) as t:
            t.push("orders", [FULL, Order(ID)])
            t.checkpoint()
            assert job.seen == [FULL, Order(ID)]
            assert [type(each.size) for each in job.seen] == [Size, type(None)]
            assert t.rows("out")[0] == {
                "_id": str(ID),
                "tags": ["a", ""],
                "prices": {"net": 1.5, "tax": None},
                "to": {"city": "Bonn", "zip": 53111, "kind": "red"},
                "past": [{"city": "Ulm", "zip": None, "kind": "blue"}],
                "color": "red",
                "size": 2,
                "at": NINE,
                "level": "high",
                "odd name": 7,
            }

    @pytest.mark.parametrize(
        ("changed", "why"),
        [
            ({"level": "mid"}, "column 'level' is 'mid', which is none of the values: 'high', 'low'"),
            ({"color": "pink"}, "column 'color' is 'pink', which is none of the values of Color: 'red', 'blue'"),
            ({"tags": ["a", 1]}, r"column 'tags' at \[1\] takes str, not int 1"),
            ({"tags": [None]}, r"column 'tags' at \[0\] is null"),
            ({"prices": {"net": "1"}}, r"column 'prices' at \['net'\] takes float, not str '1'"),
            ({"to": {"city": None}}, r"column 'to' at .city is null"),
            ({"id": "6f9b"}, "column 'id' is '6f9b', which is no UUID"),
            ({"at": "09:30"}, "column 'at' takes time64"),
            (
                {"at": time(9, tzinfo=UTC)},
                "column 'at' is a time of day with a time zone",
            ),
        ],
    )
    def test_a_value_that_does_not_fit_its_field_is_a_dead_letter(self, changed: dict[str, Any], why: str) -> None:
        job = Job()
        job.orders.map(lambda order: {**vars(order), **changed}, to=Order, on_error="dlq").sink("out", MemorySink())
        with TestDriver(job.app) as t:
            t.push("orders", [Order(ID)])
            t.checkpoint()
            [letter] = t.rows("dlq")
            assert t.rows("out") == []
            with pytest.raises(AssertionError, match=why):
                raise AssertionError(letter["error"])

    def test_keep_such_values_in_state_and_get_the_key_as_the_dataclass_has_it(self) -> None:
        keys = list[Any]()

        @dataclass
        class Seen:
            color: Color
            last: Address | None
            times: list[time]

        class Remember(hf.KeyedProcess[Order, Seen]):
            last = hf.Value(Address)
            times = hf.List(time)
            ids = hf.Map(str, UUID)

            def on_record(self, ctx: hf.Context, r: Order) -> None:
                keys.append(ctx.key)
                if r.to is not None:
                    self.last.set(r.to)
                self.times.append(r.at)
                self.ids.set("id", r.id)
                assert isinstance(self.ids.get("id"), UUID)
                ctx.emit(Seen(r.color, self.last.get(), self.times.get()))

        job = Job()
        job.orders.key_by("color").process("seen", Remember(), to=Seen).sink("out", MemorySink())
        with TestDriver(job.app) as t:
            t.push("orders", [FULL])
            t.checkpoint()
            t.crash()
            t.recover()
            t.push("orders", [Order(ID, color=Color.RED)])
            t.checkpoint()
            assert keys == [Color.RED, Color.RED]
            last = {"city": "Bonn", "zip": 53111, "kind": "red"}
            assert t.rows("out")[-1] == {"color": "red", "last": last, "times": [NINE, time(1)]}

    def test_a_row_without_a_dataclass_has_dicts_for_structs_and_maps(self) -> None:
        job, seen = Job(), list[Any]()
        job.orders.select("to", "prices").filter(lambda r: not seen.append((r.to, r.prices))).sink("out", MemorySink())  # type: ignore[func-returns-value]
        with TestDriver(job.app) as t:
            t.push("orders", [FULL])
            t.checkpoint()
        assert seen == [({"city": "Bonn", "zip": 53111, "kind": "red"}, {"net": 1.5, "tax": None})]

    def test_a_list_of_times_takes_none_with_the_other_kind_of_zone(self) -> None:
        """Also without a dataclass: its values would be other points in time, or lose their zone."""
        kinds = [
            (pa.timestamp("us", "UTC"), datetime(2026, 1, 1), "is a datetime without a time zone"),
            (pa.time64("us"), time(9, tzinfo=UTC), "is a time of day with a time zone"),
        ]
        for kind, value, why in kinds:
            with pytest.raises(WrongRow, match=why):
                batch_of_rows(pa.schema([pa.field("v", pa.list_(kind))]), [{"v": [value]}])


class TestSources:
    @pytest.mark.parametrize(
        ("changed", "why"),
        [
            ({"_id": "nobody"}, "column 'id' is 'nobody', which is no UUID of the form 8-4-4-4-12"),
            ({"color": "pink"}, "column 'color' is 'pink', which is none of the values of Color: 'red', 'blue'"),
            ({"size": 3}, "column 'size' is 3, which is none of the values of Size: 1, 2"),
            ({"level": "mid"}, "column 'level' is 'mid', which is none of the values: 'high', 'low'"),
            ({"tags": ["a", None]}, "column 'tags' at [1] is null"),
            (
                {"past": [{"city": "Ulm", "zip": 1, "kind": "pink"}]},
                "column 'past' at [0].kind is 'pink', which is none",
            ),
            ({"to": {"city": None, "zip": 1, "kind": "red"}}, "column 'to' at .city is null"),
        ],
    )
    def test_a_value_that_its_field_does_not_allow_is_undecodable(self, changed: dict[str, Any], why: str) -> None:
        job = Job()
        job.orders.sink("out", MemorySink())
        row = {"_id": str(ID), "tags": [], "prices": {}, "past": [], "color": "red", "at": NINE, "level": "low"}
        with TestDriver(job.app) as t:
            t.push("orders", [{**row, "odd": 1}, {**row, "odd": 2, **changed}])
            t.checkpoint()
            [letter] = t.rows("dlq")
            assert [each["odd name"] for each in t.rows("out")] == [1]
            assert letter["error"].startswith(why)
            raw = decode_row(letter["raw"])
            assert (raw.column("odd name").to_pylist(), "_id" in raw.schema.names) == ([2], True)

    def test_one_uuid_has_one_form(self) -> None:
        job = Job()
        job.orders.key_by("id").agg("n", n=hf.count()).sink("out", MemorySink(key=["id"]))
        row = {"tags": [], "prices": {}, "past": [], "color": "red", "at": NINE, "level": "low", "odd": 1}
        with TestDriver(job.app) as t:
            t.push("orders", [{**row, "id": str(ID)}, {**row, "id": str(ID).upper()}])
            t.checkpoint()
            assert t.rows("out") == [{"id": str(ID), "n": 2}]

    def test_a_field_of_a_nested_dataclass_that_is_missing_takes_its_default(self) -> None:
        job = Job()
        job.orders.map(job.note, to=Order).sink("out", MemorySink())
        row = {"tags": [], "prices": {}, "past": [], "color": "red", "at": NINE, "level": "low", "odd": 1}
        with TestDriver(job.app) as t:
            t.push("orders", [{**row, "id": str(ID), "to": {"city": "Ulm"}}])
            t.checkpoint()
        assert job.seen[0].to == Address("Ulm", None, Color.BLUE)


class TestSteps:
    def test_expressions_see_structs_lists_and_maps(self) -> None:
        job = Job()
        stream = job.orders.filter(pl.col("to").struct.field("city") == "Bonn")
        stream.select("prices", n=pl.col("tags").list.len(), hour=pl.col("at").dt.hour()).sink("out", MemorySink())
        with TestDriver(job.app) as t:
            t.push("orders", [FULL, Order(ID)])
            t.checkpoint()
            assert t.rows("out") == [{"prices": {"net": 1.5, "tax": None}, "n": 2, "hour": 9}]

    def test_a_check_finds_a_value_outside_of_an_enum(self) -> None:
        @dataclass
        class Colored:
            color: Color

        job = Job()
        job.orders.select(color="level").as_(Colored).sink("out", MemorySink())
        with TestDriver(job.app) as t, pytest.raises(hf.JobFailed, match="column 'color' is 'low', which is none of"):
            t.push("orders", [Order(ID)])
            t.checkpoint()

    def test_a_table_and_a_join_keep_nested_values(self) -> None:
        @dataclass
        class Change:
            n: int
            when: datetime
            to: Address | None
            past: dict[str, list[time]]

        app = hf.App("kept")
        table = app.table("table", hf.Log("data/table", Change), key="n")
        changes = app.source("changes", hf.Log("data/changes", Change), event_time="when")
        changes.lookup("found", table, on="n", as_of="latest").sink("out", MemorySink())
        row = Change(1, NEW_YEAR, Address("Ulm"), {"x": [NINE], "": []})
        with TestDriver(app) as t:
            t.push("table", [row])
            t.checkpoint()
            t.crash()
            t.recover()
            t.push("changes", [row])
            t.checkpoint()
            [found] = t.rows("out")
            assert found["to_right"] == found["to"] == {"city": "Ulm", "zip": None, "kind": "blue"}
            assert found["past_right"] == {"x": [NINE], "": []}

    @pytest.mark.parametrize("column", ["tags", "prices", "to", "at"])
    def test_lists_dicts_dataclasses_and_times_of_day_are_refused_as_keys(self, column: str) -> None:
        with pytest.raises(hf.ConfigError, match=f"column '{column}' of type .* cannot be part of a key"):
            Job().orders.key_by(column)

    def test_a_computed_time_of_day_fits_a_field(self) -> None:
        @dataclass
        class Timed:
            at: time

        app = hf.App("times")
        source = app.source("s", hf.Log("data/s", pa.schema([pa.field("when", pa.timestamp("us", "UTC"), False)])))
        source.select(at=pl.col("when").dt.time().fill_null(NINE)).as_(Timed).sink("out", MemorySink())
        with TestDriver(app) as t:
            t.push("s", [{"when": NEW_YEAR}])
            t.checkpoint()
            assert t.rows("out") == [{"at": time(0)}]


class TestAggregates:
    def test_user_defined_aggregates_keep_enum_members_and_uuids(self) -> None:
        @dataclass
        class Newest:
            color: Color = Color.BLUE
            id: UUID | None = None

        def add(state: Newest, row: Any) -> Newest:
            assert isinstance(state.color, Color) and (state.id is None or isinstance(state.id, UUID))
            return Newest(Color(row.color), UUID(row.id))

        def result(state: Newest) -> str:
            return f"{state.color.name} {state.id}"

        job = Job()
        newest = hf.Aggregate(Newest, add, lambda left, right: right, result, to=str)
        job.orders.key_by("level").agg("newest", newest=newest).sink("out", MemorySink(key=["level"]))
        with TestDriver(job.app) as t:
            t.push("orders", [Order(ID)])
            t.checkpoint()
            t.crash()
            t.recover()
            t.push("orders", [FULL])
            t.checkpoint()
            assert sorted(row["newest"] for row in t.rows("out")) == [f"BLUE {ID}", f"RED {ID}"]


class TestGenerator:
    def test_makes_rows_of_a_dataclass_with_aliases(self) -> None:
        source = hf.Generator(Order, lambda i: FULL, count=1)
        batch, _ = source.open().read(0, 0, 1 << 20)
        assert batch is not None
        assert batch.schema.names[0] == "_id"
        assert batch.column("odd name").to_pylist() == [7]
