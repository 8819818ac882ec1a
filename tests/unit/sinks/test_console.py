"""`hf.Console`: each delivered row is printed, in order, and not lost by a crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import Unavailable
from holdfast.model import Epoch, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract.target import DELETE, OP, PUT, AlreadyDelivered
from holdfast.sinks.program.console import SUFFIX, Console, ConsoleTarget, lines_of

JOB = "6f9b0f6e-0000-4000-8000-000000000001"
SCHEMA = pa.schema([pa.field("shop", pa.string()), pa.field("sales", pa.int64())])


def batch(*rows: tuple[Any, ...], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def opened(folder: Path, subtask: int = 0) -> ConsoleTarget:
    sink = Console().bound(str(folder), SCHEMA, None)
    sink.prepare(SCHEMA, None)
    return sink.open(JOB, Writer("out", Subtask(subtask)))


def waiting(folder: Path) -> list[str]:
    return [line for file in sorted(folder.glob(f"*{SUFFIX}")) for line in file.read_text().splitlines()]


def tag(epoch: int) -> Tag:
    return Tag(Timeline(1), Epoch(epoch))


class TestLines:
    def test_a_row_is_printed_as_its_columns(self) -> None:
        assert list(lines_of(batch(("north", 2), (None, 0)), None)) == ["shop=north sales=2", "shop=null sales=0"]

    def test_ambiguous_text_is_quoted(self) -> None:
        shops = ["two words", "", "line\nbreak", "\u2028"]
        lines = list(lines_of(batch(*((shop, 1) for shop in shops)), None))
        assert lines == [f"shop={shop!r} sales=1" for shop in shops]
        assert [line.splitlines() for line in lines] == [[line] for line in lines]

    def test_a_deleted_row_is_printed_as_its_key(self) -> None:
        schema = pa.schema([*SCHEMA, pa.field(OP, pa.int8())])
        given = batch(("north", 2, PUT), ("south", None, DELETE), schema=schema)
        assert list(lines_of(given, ("shop",))) == ["shop=north sales=2", "deleted shop=south"]


class TestDelivery:
    def test_lines_are_kept_in_the_order_of_epochs_and_writers(self, tmp_path: Path) -> None:
        left, right = opened(tmp_path), opened(tmp_path, 1)
        left.deliver(tag(1), [batch(("a", 1))])
        left.deliver(tag(10), [batch(("d", 1))])
        right.deliver(tag(2), [batch(("c", 1))])
        left.deliver(tag(11), [])
        right.deliver(tag(10), [batch(("e", 1))])
        assert waiting(tmp_path) == [f"shop={shop} sales=1" for shop in ("a", "c", "d", "e")]

    def test_an_epoch_that_was_delivered_is_not_printed_again(self, tmp_path: Path) -> None:
        opened(tmp_path).deliver(tag(1), [batch(("a", 1))])
        for file in tmp_path.glob(f"*{SUFFIX}"):
            file.unlink()
        assert isinstance(opened(tmp_path).deliver(tag(1), [batch(("a", 1))]), AlreadyDelivered)
        assert waiting(tmp_path) == []

    def test_a_crash_before_the_tag_moves_loses_no_line(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        target = opened(tmp_path)

        def crash(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as crashing:
            crashing.setattr(target._tags, "deliver", crash)
            with pytest.raises(KeyboardInterrupt):
                target.deliver(tag(1), [batch(("a", 1))])
        again = opened(tmp_path)
        assert again.delivered() is None
        again.deliver(tag(1), [batch(("a", 1))])
        assert waiting(tmp_path) == ["shop=a sales=1"]

    def test_lines_that_cannot_be_written_do_not_move_the_tag(self, tmp_path: Path) -> None:
        target = opened(tmp_path)
        (tmp_path / "0000000001-0000000000000001-00000.partial").mkdir()
        with pytest.raises(Unavailable, match="not printed yet"):
            target.deliver(tag(1), [batch(("a", 1))])
        assert target.delivered() is None
