"""The table of the master: no pair of phase and event is forgotten, and transcripts show every change of phase."""

from __future__ import annotations

from typing import get_args

import pytest
from transcripts import played, scripts

from holdfast.runtime.driver import master
from holdfast.runtime.driver.events import Event, Moment, Step
from holdfast.runtime.driver.master import IGNORED, ON, PHASES
from holdfast.runtime.driver.state import Deployed, Master, Over, Phase
from tests.unit.runtime.test_master_transcripts import Played

EVENTS: tuple[type, ...] = get_args(Event)


class TestTable:
    @pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
    def test_names_a_handler_for_each_phase_or_says_why_there_is_none(self, event: type) -> None:
        without = [phase for phase in PHASES if (phase, event) not in ON and phase is not Over]
        assert bool(without) == (event in IGNORED)

    def test_holds_only_phases_and_events_that_exist(self) -> None:
        subclasses = {phase for kind in get_args(Phase) for phase in (kind.__subclasses__() or [kind])}
        assert set(PHASES) == subclasses and Deployed not in PHASES
        assert {phase for phase, _ in ON} == set(PHASES) and {event for _, event in ON} == set(EVENTS)

    def test_leads_only_to_other_phases(self) -> None:
        assert all(set(on.to) <= set(PHASES) - {phase} for (phase, _), on in ON.items())


class TestChangesOfPhase:
    def test_are_those_that_transcripts_show(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen, right = set[tuple[str, str]](), master.step

        def step(state: Master, event: Event, at: Moment) -> Step:
            after, effects = right(state, event, at)
            seen.add((type(state.phase).__name__, type(after.phase).__name__))
            return after, effects

        monkeypatch.setattr(master, "step", step)
        for path in scripts("master"):
            text = path.read_text(encoding="utf-8")
            assert played(text, Played().play) == text
        declared = {(phase.__name__, to.__name__) for (phase, _), on in ON.items() for to in on.to}
        assert declared == {(here, to) for here, to in seen if here != to}
