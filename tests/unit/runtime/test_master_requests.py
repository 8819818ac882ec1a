"""Which requests the master refuses, and which it leaves to another driver.

Transcripts show how it carries them out: tests/transcripts/master.
"""

from __future__ import annotations

from typing import Any

import pytest
from master_runs import B, Run, replaced, running

from holdfast.model import Generation
from holdfast.runtime.driver.requests import RequestAnswer, carry_out
from holdfast.runtime.driver.state import SAVEPOINTS_WAITING_MAX, Stopping

FIRST = Generation(1)
ACCEPTED = RequestAnswer(True, Generation(1))


def ask(run: Run, kind: str, generation: int = 1, first: Generation = FIRST, **args: Any) -> RequestAnswer | None:
    state, effects, answer = carry_out(run.state, kind, args, generation, first)
    run.take((state, effects))
    return answer


def refused(answer: RequestAnswer | None) -> str:
    assert answer is not None and not answer.accepted and answer.reason is not None
    return answer.reason


class TestGenerationOfARequest:
    def test_a_request_for_an_earlier_run_is_answered_and_not_carried_out(self) -> None:
        run = running()
        before = run.state
        assert "earlier run" in refused(ask(run, "stop", generation=1, first=Generation(2)))
        assert run.state == before

    def test_a_request_for_an_unknown_generation_is_left_to_its_driver(self) -> None:
        run = running()
        before = run.state
        assert ask(run, "stop", generation=2) is None
        assert run.state == before

    def test_a_request_for_an_earlier_generation_of_this_run_is_carried_out(self) -> None:
        run = running()
        run.lose(B)
        replaced(run)
        assert ask(run, "stop", generation=1) == RequestAnswer(True, Generation(2))
        assert run.state.ending == Stopping()

    @pytest.mark.parametrize(
        ("kind", "args"),
        [
            ("dance", {}),
            ("stop", {"how": "slowly"}),
            ("savepoint", {}),
            ("savepoint", {"name": 7}),
            ("stop", {"how": "finish", "unread": "keep"}),
        ],
    )
    def test_an_invalid_request_is_refused(self, kind: str, args: dict[str, Any]) -> None:
        run = running()
        before = run.state
        assert refused(ask(run, kind, **args))
        assert run.state == before

    def test_no_request_is_carried_out_after_the_end(self) -> None:
        run = running()
        ask(run, "stop", how="now")
        assert refused(ask(run, "savepoint", name="v1")) == "the run is over"

    def test_the_number_of_waiting_savepoints_is_limited(self) -> None:
        run = running()
        for number in range(SAVEPOINTS_WAITING_MAX):
            assert ask(run, "savepoint", name=f"v{number}") == ACCEPTED
        assert "waiting" in refused(ask(run, "savepoint", name="one-more"))
