"""The record of the order in which a subtask took its input stays readable."""

from __future__ import annotations

from pathlib import Path

from holdfast.model import Epoch, Subtask
from holdfast.runtime.worker.order import FragmentSteps, FromChannel, FromPartition, SubtaskOrder, decode, encode

GOLDEN = Path(__file__).with_name("order_v1.bin")
NOW_US = 1_767_225_600_000_000
ORDER = SubtaskOrder(
    Epoch(7),
    Subtask(1),
    {
        0: FragmentSteps((FromPartition("rows", 3, 100),), (-4, NOW_US, 1, 0, 12, 2, -3, 5, 1)),
        1: FragmentSteps(
            (FromChannel(0, Subtask(0)), FromChannel(0, Subtask(1))),
            (0, 5, 1, -1, NOW_US, 1, 1, 7, 3, -2, NOW_US, 1),
            {"accounts": (4, NOW_US, 9, -1, 1, -2 - NOW_US)},
        ),
    },
)


class TestRecordedOrderFormat:
    def test_is_read_as_the_record_that_was_written(self) -> None:
        assert decode(GOLDEN.read_bytes(), "orders/1") == ORDER

    def test_is_written_so_that_it_is_read(self) -> None:
        assert decode(encode(ORDER), "orders/1") == ORDER
