"""Timers of the wall clock and `now()` against an oracle: any input, failure, outage, rescaling, rewind and clock."""

from __future__ import annotations

from typing import Any

import pytest
import reminder_jobs
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.testing import TestDriver


def interrupt(t: TestDriver, steps: int) -> None:
    """Let an epoch be due, and stop somewhere on the way to its end."""
    t.cluster.clock.now += 1.1
    for _ in range(steps):
        t.cluster.step()


class TestProcessingTime:
    @pytest.mark.parametrize("mode", ["continuous", "microbatch"])
    @settings(max_examples=25, deadline=None)
    @given(
        st.lists(reminder_jobs.STEPS, min_size=4, max_size=10),
        st.integers(1, 3),
        st.integers(0, 2**16),
        st.sampled_from([2, 16_384]),
    )
    def test_does_what_plain_python_does(
        self, mode: str, steps: list[Any], parallelism: int, seed: int, round_timers: int
    ) -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("holdfast.runtime.operators.process.operator.ROUND_TIMERS", round_timers)
            with TestDriver(reminder_jobs.app_of(), parallelism, seed, mode) as t:
                # Between rounds a worker takes records: only one round is over before those that a rewind repeats.
                back_max = 0 if round_timers == 2 else 2
                player = reminder_jobs.Player(t, lambda t: interrupt(t, seed % 40), back_max)
                player.play(steps)
                player.finish()
