"""Column types come from annotations, or an error names the annotation without one."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, ClassVar, Optional

import pyarrow as pa
import pytest

from holdfast.errors import ConfigError
from holdfast.runtime.rows.schema import describe_difference, schema_of


@dataclass
class Everything:
    i: int
    f: float
    s: str
    b: bool
    raw: bytes
    at: datetime
    on: date
    amount: Annotated[Decimal, pa.decimal128(18, 2)]
    maybe: int | None
    old_style: Optional[str] = None  # noqa: UP045 (users write it)
    many: int = field(default=7)
    shared: ClassVar[int] = 1


@dataclass
class Nested:
    inner: object


@dataclass
class Many:
    values: set[int]


@dataclass
class Either:
    value: int | str


@dataclass
class Money:
    amount: Decimal


@dataclass
class Empty:
    pass


@dataclass
class Unresolvable:
    value: Nowhere  # type: ignore[name-defined]  # noqa: F821


class NoDataclass:
    value: int


class TestSchemaOf:
    def test_every_supported_annotation_has_its_column(self) -> None:
        assert schema_of(Everything) == pa.schema(
            [
                pa.field("i", pa.int64(), nullable=False),
                pa.field("f", pa.float64(), nullable=False),
                pa.field("s", pa.utf8(), nullable=False),
                pa.field("b", pa.bool_(), nullable=False),
                pa.field("raw", pa.binary(), nullable=False),
                pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
                pa.field("on", pa.date32(), nullable=False),
                pa.field("amount", pa.decimal128(18, 2), nullable=False),
                pa.field("maybe", pa.int64(), nullable=True),
                pa.field("old_style", pa.utf8(), nullable=True),
                pa.field("many", pa.int64(), nullable=False),
            ]
        )

    def test_an_arrow_schema_is_used_without_its_metadata(self) -> None:
        given = pa.schema([pa.field("a", pa.int32(), metadata={"x": "y"})], metadata={"p": "q"})
        assert schema_of(given).equals(pa.schema([("a", pa.int32())]), check_metadata=True)

    @pytest.mark.parametrize(
        ("described", "message"),
        [
            (Nested, "Nested.inner: object has no column type"),
            (Many, r"Many.values: set\[int\] has no column type"),
            (Either, r"Either.value: int \| str has no column type"),
            (Money, "Money.amount is a Decimal of unknown scale"),
            (Empty, "Empty has no column"),
            (Unresolvable, "annotation of Unresolvable cannot be resolved: name 'Nowhere'"),
            (NoDataclass, "neither a dataclass nor"),
            (int, "neither a dataclass nor"),
            (pa.schema([("a", pa.int64()), ("a", pa.int64())]), "'a' twice"),
            (pa.schema([]), "no column"),
        ],
    )
    def test_an_object_without_columns_is_refused_by_name(self, described: type, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            schema_of(described)

    def test_an_instance_is_refused_with_a_hint(self) -> None:
        with pytest.raises(ConfigError, match="give the class"):
            schema_of(Money(Decimal(1)))

    @pytest.mark.parametrize("postponed", ["from __future__ import annotations\n", ""])
    @pytest.mark.parametrize("how", ["script", "runpy"])
    def test_a_dataclass_of_the_main_module_is_supported(self, tmp_path: Path, postponed: str, how: str) -> None:
        job = tmp_path / "job.py"
        job.write_text(
            postponed
            + "from dataclasses import dataclass\nfrom datetime import datetime\n"
            + "from holdfast.runtime.rows.schema import schema_of\n"
            + "@dataclass\nclass Bid:\n    at: datetime\n    price: float | None\n"
            + "if __name__ == '__main__':\n    print(schema_of(Bid).to_string())\n"
        )
        outer = "import runpy, sys; from holdfast.runtime.rows.schema import schema_of;"
        outer += f"print(schema_of(runpy.run_path({str(job)!r}, run_name='job')['Bid']).to_string())"
        command = [sys.executable, str(job)] if how == "script" else [sys.executable, "-c", outer]
        done = subprocess.run(
            command, capture_output=True, text=True, env={"PYTHONPATH": os.pathsep.join(sys.path)}, check=True
        )
        assert done.stdout == "at: timestamp[us, tz=UTC] not null\nprice: double\n"


class TestDescribeDifference:
    A = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.utf8())])

    def test_equal_schemas_have_no_difference(self) -> None:
        assert describe_difference(self.A, schema_of(self.A)) is None

    def test_every_column_that_differs_is_listed(self) -> None:
        found = pa.schema([pa.field("a", pa.int64()), pa.field("c", pa.utf8())])
        assert describe_difference(self.A, found) == (
            "a: expected int64, found int64 or null; "
            "b: expected string or null, but it is missing; "
            "c: not expected, found string or null"
        )

    def test_order_alone_is_a_difference(self) -> None:
        found = pa.schema([self.A.field("b"), self.A.field("a")])
        assert describe_difference(self.A, found) == "order: expected a, b; found b, a"
