"""How long a loop sleeps that finds nothing to do."""

from __future__ import annotations

from holdfast.runtime.wire.mailbox import QUIET_AFTER_S, Rest


class TestRest:
    def test_is_short_at_the_start_and_long_after_a_quiet_time(self) -> None:
        now = [100.0]
        rest = Rest(0.02, 0.1, lambda: now[0])
        assert rest.sleep_s() == 0.02
        now[0] += QUIET_AFTER_S - 0.01
        assert rest.sleep_s() == 0.02
        now[0] += 0.02
        assert rest.sleep_s() == 0.1

    def test_is_short_again_after_work(self) -> None:
        now = [0.0]
        rest = Rest(0.02, 0.1, lambda: now[0])
        rest.worked()
        now[0] = 2 * QUIET_AFTER_S
        assert rest.sleep_s() == 0.1
        rest.worked()
        assert rest.sleep_s() == 0.02
