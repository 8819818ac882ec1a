"""A type checker follows the rows of a stream: a field that they do not have is found before the job runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
JOB = """
from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

import holdfast as hf

@dataclass
class Order:
    shop: str
    price: float

@dataclass
class Taxed:
    shop: str
    gross: float

def taxed(order: Order) -> Taxed:
    return Taxed(order.shop, order.price * 1.19)

def twice(order: Order) -> Iterator[Order]:
    yield order
    yield order

app = hf.App("orders")
orders = app.source("orders", hf.Log("data/orders", Order))
"""
RIGHT = {
    "a filter on a field": "orders.filter(lambda o: o.price > 0)",
    "an expression": 'orders.filter(pl.col("price") > 0)',
    "a function of the dataclass": "orders.map(taxed, to=Taxed).filter(lambda t: t.gross > 1)",
    "several rows for one": "orders.flat_map(twice, to=Order).filter(lambda o: o.shop == 'north')",
    "rows of a select": "orders.select('shop').map(lambda row: {'s': row.shop}, to=pa.schema({'s': pa.string()}))",
    "rows of an aggregate": "orders.key_by('shop').agg('n', n=hf.count()).filter(lambda row: row.n > 1)",
    "a checked stream": "orders.select('shop', gross=pl.col('price')).as_(Taxed).filter(lambda t: t.gross > 1)",
    "a union": "orders.union(orders).filter(lambda o: o.price > 0)",
    "a generator": "app.source('g', hf.Generator(Order, lambda i: Order('north', i))).filter(lambda o: o.price > 0)",
    "a log without a dataclass": "app.source('l', hf.Log('data/l')).filter(lambda row: row.anything)",
}
WRONG = {
    "a misspelt field in a filter": ("orders.filter(lambda o: o.prise > 0)", '"Order" has no attribute "prise"'),
    "one in a map": ("orders.map(lambda o: Taxed(o.shop, o.prise), to=Taxed)", '"Order" has no attribute "prise"'),
    "one in a flat_map": ("orders.flat_map(lambda o: [o.prise], to=Order)", '"Order" has no attribute "prise"'),
    "a field that the map left out": (
        "orders.map(taxed, to=Taxed).filter(lambda t: t.price > 1)",
        '"Taxed" has no attribute "price"',
    ),
    "a function of other rows": (
        "orders.map(taxed, to=Taxed).map(taxed, to=Taxed)",
        'expected "Callable[[Taxed], Any]"',
    ),
    "one behind as_": (
        "orders.select('shop', gross=pl.col('price')).as_(Taxed).filter(lambda t: t.price > 1)",
        '"Taxed" has no attribute "price"',
    ),
    "one behind a union": ("orders.union(orders).filter(lambda o: o.prise)", '"Order" has no attribute "prise"'),
    "one of a generator": (
        "app.source('g', hf.Generator(Order, lambda i: Order('north', i))).filter(lambda o: o.prise > 0)",
        '"Order" has no attribute "prise"',
    ),
}
LINES = [*RIGHT.values(), *(line for line, _ in WRONG.values())]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What mypy reports, by line of code."""
    file = tmp_path_factory.mktemp("job") / "orders.py"
    file.write_text("\n".join([JOB.rstrip("\n"), *LINES, ""]))
    command = [sys.executable, "-m", "mypy", "--no-error-summary", str(file)]  # with the project's settings and cache
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode in (0, 1), ended.stdout + ended.stderr
    reports: dict[str, str] = {}
    for line in ended.stdout.splitlines():
        place = re.match(r"(\S+?):(\d+): error: (.*)", line)
        if place and Path(place[1]).name == file.name:
            code = file.read_text().splitlines()[int(place[2]) - 1]
            reports[code] = reports.get(code, "") + place[3]
        else:
            assert ": note: " in line, line
    return reports


@pytest.mark.thorough
class TestStreamsInAJob:
    @pytest.mark.parametrize("case", RIGHT)
    def test_access_to_existing_columns_is_accepted(self, case: str, found: dict[str, str]) -> None:
        assert RIGHT[case] not in found, found[RIGHT[case]]

    @pytest.mark.parametrize("case", WRONG)
    def test_access_to_missing_columns_is_reported(self, case: str, found: dict[str, str]) -> None:
        line, report = WRONG[case]
        assert report in found.get(line, "nothing")

    def test_nothing_else_is_reported(self, found: dict[str, str]) -> None:
        assert set(found) == {line for line, _ in WRONG.values()}
