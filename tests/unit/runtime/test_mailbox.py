"""Lanes hand over whatever their work comes to."""

from __future__ import annotations

import polars as pl

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
