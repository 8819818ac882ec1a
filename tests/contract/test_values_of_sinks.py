"""docs/guide/values.md: every value of its tables goes through every sink, and is read back by another program.

Readers are those of the targets: Python's sqlite3 and json, psycopg, Arrow, deltalake, pyiceberg. Beside the values at
the edges of each type there are random ones.
"""

from __future__ import annotations

import base64
import json
import math
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from delta_tables import FolderTable
from http_receiver import receiving
from iceberg_tables import FolderCatalog
from kafka_topics import KafkaTopic
from sql_places import place_of

import holdfast as hf
from holdfast.errors import ConfigError
from holdfast.model import Epoch, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract.accepting import accept
from holdfast.sinks.files.sink import FilesSink
from holdfast.sinks.log.sink import LogSink
from holdfast.storage.log.log import LogReader
from holdfast.storage.objects import LocalObjects

PAGE = Path(__file__).parents[2] / "docs/guide/values.md"
JOB, WRITER, TAG = "6f9b0f6e-0000-4000-8000-000000000001", Writer("out", Subtask(0)), Tag(Timeline(1), Epoch(1))
TIME, BERLIN = pa.timestamp("us", "UTC"), pa.timestamp("us", "Europe/Berlin")
TEXTS, BLOBS = (pa.string(), pa.large_string()), (pa.binary(), pa.large_binary())
RANDOM = 40
ONE = pa.struct([("a", pa.int64())])
WITHIN = pa.struct(
    [
        ("text", pa.string()),
        ("at", TIME),
        ("day", pa.date32()),
        ("data", pa.binary()),
        ("price", pa.decimal128(38, 10)),
        ("many", pa.list_(pa.float64())),
    ]
)
PARTS = {
    "text": "x",
    "at": datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
    "day": date(1582, 10, 14),
    "data": b"\0\xff",
    "price": Decimal("-1E-10"),
    "many": [0.1, -0.0, 5e-324],
}
NOON = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)
FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def cells(header: str) -> list[tuple[str, str, str]]:
    """Return (row, column, text) of the table with this header."""
    lines = PAGE.read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith(f"| {header} | hf.Log"))
    names = [cell.strip() for cell in lines[at].strip("|").split("|")]
    found = list[tuple[str, str, str]]()
    for line in lines[at + 2 :]:
        if not line.startswith("|"):
            return found
        row, *texts = [cell.strip() for cell in line.strip("|").split("|")]
        found += [(row, name, text) for name, text in zip(names[1:], texts, strict=True)]
    raise AssertionError("the table has no end")


def integers(bits: int, signed: bool) -> list[int]:
    return [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, 0] if signed else [0, 2**bits - 1]


def given(kind: pa.DataType, edges: list[Any], draw: Callable[[random.Random], Any] | None = None) -> pa.Array:
    """Return values of a type: those at its edges, random ones and a null."""
    rng = random.Random(7)
    return pa.array([*edges, *([draw(rng) for _ in range(RANDOM)] if draw else []), None], kind)


def _moment(rng: random.Random) -> datetime:
    return FIRST + timedelta(microseconds=rng.randrange((LAST - FIRST) // timedelta(microseconds=1)))


def _local(rng: random.Random) -> datetime:
    return _moment(rng).replace(tzinfo=None)


def _text(rng: random.Random) -> str:
    letters = [chr(rng.choice([rng.randrange(1, 0xD800), rng.randrange(0xE000, 0x110000)])) for _ in range(6)]
    return "".join(letters)


def _float(rng: random.Random) -> float:
    (number,) = struct.unpack("<d", rng.randbytes(8))
    return number if math.isfinite(number) else 0.5


def _float32(rng: random.Random) -> float:
    (number,) = struct.unpack("<f", rng.randbytes(4))
    return number if math.isfinite(number) else 0.5


def _whole(bits: int, signed: bool) -> pa.Array:
    kind = getattr(pa, f"{'' if signed else 'u'}int{bits}")()
    low, *_, high = sorted(integers(bits, signed))
    return given(kind, integers(bits, signed), lambda rng: rng.randint(low, high))


TYPES: dict[str, list[pa.Array]] = {
    "bool": [given(pa.bool_(), [True, False])],
    "int8, int16, int32, int64": [_whole(bits, True) for bits in (8, 16, 32, 64)],
    "uint8, uint16, uint32": [_whole(bits, False) for bits in (8, 16, 32)],
    "uint64": [_whole(64, False)],
    "float32, float64": [
        given(pa.float32(), [1.5, struct.unpack("<f", b"\x01\0\0\0")[0]], _float32),
        given(pa.float64(), [0.1, 5e-324, 1.7976931348623157e308], _float),
    ],
    "string": [
        given(kind, ["", "NaN", "null", "ä\U0001f600", "\ufeff"], _text) for kind in (pa.string(), pa.large_string())
    ],
    "binary": [
        given(kind, [b"", b"\0\xff"], lambda rng: rng.randbytes(5)) for kind in (pa.binary(), pa.large_binary())
    ],
    "date": [given(pa.date32(), [date.min, date(1582, 10, 14), date.max], lambda rng: _moment(rng).date())],
    "timestamp[us, UTC]": [given(TIME, [FIRST, datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), LAST], _moment)],
    "timestamp[s, UTC], timestamp[ms, UTC]": [given(pa.timestamp(unit, "UTC"), [NOON]) for unit in ("s", "ms")],
    "timestamp[ns, UTC]": [pa.array([0, 1_000, None]).view(pa.timestamp("ns", "UTC"))],
    "timestamp[us]": [
        given(pa.timestamp("us"), [datetime.min, datetime.max], lambda rng: _moment(rng).replace(tzinfo=None))
    ],
    "timestamp[us, Europe/Berlin]": [given(BERLIN, [NOON])],
    "time64[us]": [given(pa.time64("us"), [time.min, time.max])],
    "duration[us]": [given(pa.duration("us"), [timedelta(days=-1), timedelta(microseconds=1)])],
    "decimal128": [given(pa.decimal128(38, 10), [Decimal(f"{'9' * 28}.{'9' * 10}"), Decimal("-1e-10")])],
    "decimal256": [given(pa.decimal256(60, 10), [Decimal("1.5")])],
    "list": [
        given(pa.list_(pa.int64()), [[], [1, None, 2]]),
        given(pa.list_(pa.list_(pa.string())), [[["ä", ""], []]]),
        given(pa.list_(TIME), [[FIRST, LAST], [None]]),
        pa.array([[PARTS, None], []], pa.list_(WITHIN)),
    ],
    "struct": [
        given(pa.struct([("a", pa.int64()), ("b", pa.string())]), [{"a": 1, "b": None}]),
        given(WITHIN, [PARTS]),
    ],
    "map<string, T>": [
        given(pa.map_(pa.string(), pa.int64()), [[("a", 1)], [], [("b", None), ('"', 2)]]),
        pa.array([[("a", PARTS)], []], pa.map_(pa.string(), WITHIN)),
    ],
    "map with other keys": [given(pa.map_(pa.int64(), pa.int64()), [[(1, 1)]])],
}
EDGES: dict[str, list[pa.Array]] = {
    "NaN": [pa.array([math.nan, 1.5, None], kind) for kind in (pa.float32(), pa.float64())],
    "infinity": [pa.array([math.inf, -math.inf, None], kind) for kind in (pa.float32(), pa.float64())],
    "-0.0": [pa.array([-0.0, None])],
    "the character NUL in a text": [pa.array(["a\0b", "\0", None])],
    "null instead of a list or map of structs": [
        pa.array([None, [{"a": 1}]], pa.list_(ONE)),
        pa.array([None, [("k", {"a": 1})]], pa.map_(pa.string(), ONE)),
        pa.array([[[{"a": 1}], None]], pa.list_(pa.list_(ONE))),
    ],
    "a year outside 1 to 9999": [
        *(pa.array([number], pa.int64()).view(TIME) for number in (-62_135_596_800_000_001, 253_402_300_800_000_000)),
        *(pa.array([number], pa.int32()).view(pa.date32()) for number in (-719_163, 2_932_897)),
    ],
}


class Place:
    """A sink, and what another program reads there: the number and the value of each row."""

    def __init__(
        self, sink: Any, read: Callable[[], list[tuple[int, Any]]], key: tuple[str, ...] | None = None
    ) -> None:
        self.sink, self._read, self._key = sink, read, key

    def through(self, values: pa.Array) -> list[Any]:
        """Write the values as one delivery does; return what is there."""
        batch = rows_of(values)
        self.sink.check(batch.schema, self._key)
        self.sink.prepare(batch.schema, self._key)
        accept(self.sink, batch)
        with closing(self.sink.open(JOB, WRITER)) as target:
            target.deliver(TAG, [batch])
        return [value for _, value in sorted(self._read(), key=lambda row: row[0])]


def rows_of(values: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(range(len(values)), pa.int64()), values], ["n", "x"])


def log(folder: Path) -> Place:
    def read() -> list[tuple[int, Any]]:
        reader, found = LogReader(LocalObjects(folder)), list[tuple[int, Any]]()
        for partition, end in reader.end_offsets().items():
            batch, _ = reader.read(partition, 0, 1 << 30) if end else (None, 0)
            found += [] if batch is None else [tuple(row.values()) for row in batch.to_pylist()]
        return found

    return Place(LogSink(str(folder), None), read)


def files(folder: Path) -> Place:
    read = lambda: [tuple(row.values()) for row in ds.dataset(folder, format="parquet").to_table().to_pylist()]
    return Place(FilesSink(str(folder)), read)


def sql(kind: str, folder: Path, request: pytest.FixtureRequest) -> Place:
    place = place_of(kind, folder, request)
    return Place(place.sink("t", None), lambda: [(n, x) for n, x in place.ask("SELECT n, x FROM t")])


def lake(made: type[FolderTable | FolderCatalog], folder: Path) -> Place:
    table = made(folder)
    return Place(table.sink, lambda: [(row[0], row[1]) for row in table.rows()])


@pytest.fixture
def place_named(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Place]]:
    with receiving() as receiver:

        def make(name: str) -> Place:
            folder = tmp_path / f"at-{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            if name == "hf.Http":
                receiver.taken.clear()
                read = lambda: [(row["n"], row["x"]) for row in receiver.rows()]
                return Place(hf.Http(receiver.url, progress=folder / "progress"), read)
            if name == "hf.Redis":
                keys = request.getfixturevalue("redis").keys(("n",))
                return Place(keys.sink, lambda: [(row[0], row[1]) for row in keys.rows()], ("n",))
            if name == "hf.Kafka":
                topic = KafkaTopic(request.getfixturevalue("kafka"))
                return Place(topic.sink, lambda: [(row[0], row[1]) for row in topic.rows()])
            makers: dict[str, Callable[[], Place]] = {
                "hf.Log": lambda: log(folder),
                "hf.Files": lambda: files(folder),
                "hf.SQLite": lambda: sql("sqlite", folder, request),
                "hf.Postgres": lambda: sql("postgres", folder, request),
                "hf.Delta": lambda: lake(FolderTable, folder),
                "hf.Iceberg": lambda: lake(FolderCatalog, folder),
            }
            return makers[name]()

        yield make


def expected(name: str, text: str, values: pa.Array) -> list[Any]:
    """Return what the page says that is there."""
    plain, kind = values.to_pylist(), values.type
    if text == "same" and pa.types.is_nested(kind) and name not in ("hf.Log", "hf.Files", "hf.Delta", "hf.Iceberg"):
        return [_parts(value, kind) for value in plain]
    if pa.types.is_nested(kind) and text.startswith("`"):
        shown = [None if value is None else _parts(value, kind) for value in plain]
        if name in ("hf.Http", "hf.Redis", "hf.Kafka"):
            return shown
        return [None if v is None else json.dumps(v, ensure_ascii=False, separators=(",", ":")) for v in shown]
    if name in ("hf.SQLite", "hf.Http", "hf.Redis", "hf.Kafka"):
        return [None if value is None else _form(name, text, value, kind) for value in plain]
    if text == "in UTC":
        return [None if value is None else value.astimezone(UTC) for value in plain]
    return list(plain)


def _parts(value: Any, kind: pa.DataType) -> Any:
    """Return a nested value as JSON has it; what is within has the forms of flat values."""
    if value is None:
        return None
    if pa.types.is_list(kind):
        return [_parts(each, kind.value_type) for each in value]
    if pa.types.is_map(kind):
        return {key: _parts(each, kind.item_type) for key, each in value}
    if pa.types.is_struct(kind):
        return {field.name: _parts(value[field.name], field.type) for field in kind}
    return _form("JSON", "", value, kind)


def _form(name: str, text: str, value: Any, kind: pa.DataType) -> Any:
    if name == "hf.SQLite" and isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0 if text == "`0.0`" else value
    if isinstance(value, bytes) and name != "hf.SQLite":
        return base64.b64encode(value).decode()
    if pa.types.is_timestamp(kind):
        plain = value.replace(tzinfo=None, microsecond=value.microsecond)
        return f"{plain.isoformat(timespec='microseconds')}Z"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, time):
        return value.isoformat(timespec="microseconds")
    if isinstance(value, Decimal):
        return f"{value:.10f}"
    return value


def same(found: list[Any], wanted: list[Any]) -> bool:
    """Return whether values are equal: NaN to itself, -0.0 not to 0.0, times as moments."""
    left, right = ([repr(v) if isinstance(v, float) else v for v in values] for values in (found, wanted))
    return bool(left == right)


def cases(table: list[tuple[str, str, str]]) -> list[Any]:
    found = []
    for row, column, text in table:
        for name in ["hf.Http", "hf.Redis", "hf.Kafka"] if column == "JSON" else [column]:
            marks = [pytest.mark.kafka] if name == "hf.Kafka" else []
            found.append(pytest.param(row, name, text, id=f"{row}-{name}", marks=marks))
    return found


class TestTypes:
    def test_all_are_on_the_page(self) -> None:
        assert list(dict.fromkeys(row for row, _, _ in cells("type"))) == list(TYPES)
        assert list(dict.fromkeys(row for row, _, _ in cells("value"))) == list(EDGES)

    @pytest.mark.parametrize(("row", "name", "text"), cases(cells("type")))
    def test_each_reads_back_as_the_page_says(
        self, row: str, name: str, text: str, place_named: Callable[[str], Place]
    ) -> None:
        for values in TYPES[row]:
            place = place_named(name)
            if text == "refused":
                with pytest.raises(ConfigError, match="'?x'?"):
                    place.sink.check(rows_of(values).schema, place._key)
                continue
            found, wanted = place.through(values), expected(name, text, values)
            if values.type == pa.float32():  # JSON has the shortest text that reads back as the same 32 bits
                found = pa.array(found, pa.float32(), from_pandas=False).to_pylist()
            assert same(found, wanted), (found, wanted)

    @pytest.mark.parametrize(("row", "name", "text"), cases(cells("value")))
    def test_values_with_limits_read_back_as_the_page_says(
        self, row: str, name: str, text: str, place_named: Callable[[str], Place]
    ) -> None:
        for values in EDGES[row]:
            place = place_named(name)
            if text == "refused":
                with pytest.raises(ConfigError, match=r"column 'x' (.|\n)*; the (first such )?row is n=0, x="):
                    place.through(values)
                continue
            found, wanted = place.through(values), expected(name, text, values)
            if pa.types.is_nested(values.type) and name in ("hf.SQLite", "hf.Postgres"):
                found = [None if value is None else json.loads(value) for value in found]
            assert same(found, wanted), (found, wanted)

    @pytest.mark.parametrize("text", ["", "__HIVE_DEFAULT_PARTITION__"])
    def test_delta_refuses_a_text_to_partition_by_that_would_come_back_as_null(self, tmp_path: Path, text: str) -> None:
        sink = hf.Delta(tmp_path / "t", partition_by=["x"])
        with pytest.raises(ConfigError, match=r"a value of the partition column 'x' .* which Delta reads as null"):
            accept(sink, rows_of(pa.array([text])))

    @pytest.mark.parametrize("made", [FolderTable, FolderCatalog], ids=["hf.Delta", "hf.Iceberg"])
    def test_texts_to_partition_by_read_back(self, tmp_path: Path, made: Any) -> None:
        texts = ["a", "NULL", "null", "a/b=c", "%2F", " ", "ä", "0", "__HIVE_DEFAULT_PARTITION__ "]
        texts += ["", "__HIVE_DEFAULT_PARTITION__"] if made is FolderCatalog else []
        table = made(tmp_path, partition_by=["x"])
        place = Place(table.sink, lambda: [(row[0], row[1]) for row in table.rows()])
        assert place.through(pa.array([*texts, None])) == [*texts, None]
