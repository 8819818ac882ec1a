"""Lanes hand over whatever their work comes to."""

from __future__ import annotations

import polars as pl
import pytest

from holdfast.runtime.cluster import InlineLane
from holdfast.runtime.mailbox import Mailbox, ThreadLanes

PATIENCE_S = 30.0


class TestALane:
    def test_goes_on_behind_a_panic_of_native_code_which_is_no_exception(self) -> None:
        def panics() -> object:
            raise pl.exceptions.PanicException("index out of bounds")

        mailbox, results = Mailbox(), list[object]()
        lanes = ThreadLanes(mailbox)
        lanes.lane("upload").submit(panics, results.append)
        lanes.lane("upload").submit(lambda: "done", results.append)
        while len(results) < 2:
            mailbox.wait(PATIENCE_S)
            assert mailbox.drain(), "the lane's thread is gone"
        lanes.close()
        assert isinstance(results[0], pl.exceptions.PanicException)
        assert results[1] == "done"


class TestALaneInTheThreadOfATest:
    def test_hands_over_a_panic_as_a_real_one_does(self) -> None:
        def panics() -> object:
            raise pl.exceptions.PanicException("index out of bounds")

        lane, results = InlineLane(), list[object]()
        lane.submit(panics, results.append)
        lane.step()
        assert isinstance(results[0], pl.exceptions.PanicException)

    def test_does_not_hold_up_what_is_meant_for_the_test(self) -> None:
        def is_over() -> object:
            raise pytest.fail.Exception("Timeout")

        lane, results = InlineLane(), list[object]()
        lane.submit(is_over, results.append)
        with pytest.raises(pytest.fail.Exception):
            lane.step()
