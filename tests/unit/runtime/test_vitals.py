"""How a companion classifies its observations of its worker."""

from __future__ import annotations

from holdfast.runtime.wire.vitals import CompanionLimits, Observation, State, VitalsWatch, described, look

LIMITS = CompanionLimits(every=0.5, hung_after=120.0, session_timeout=10.0)


class Looks:
    """A companion that checks every half second."""

    def __init__(self) -> None:
        self.watch, self.now, self.beats = VitalsWatch(100.0), 100.0, 0

    def look(
        self, *, beat: bool = False, alive: bool = True, stopped: bool = False, linked: bool = True, after: float = 0.5
    ) -> State | None:
        self.now += after
        self.beats += beat
        self.watch, said = look(self.watch, Observation(self.now, self.beats, alive, stopped, linked), LIMITS)
        return said


class TestWorker:
    def test_a_worker_that_beats_is_not_reported(self) -> None:
        looks = Looks()
        assert {looks.look(beat=True) for _ in range(1_000)} == {None}

    def test_whose_interpreter_is_held_is_reported_until_it_beats_again(self) -> None:
        looks = Looks()
        looks.look(beat=True)
        assert [looks.look() for _ in range(4)] == [None, "held", "held", "held"]
        assert looks.watch.held == 2.0
        assert [looks.look(beat=True), looks.look(), looks.look()] == [None, None, "held"]

    def test_a_worker_stopped_by_a_signal_is_never_reported(self) -> None:
        looks = Looks()
        looks.look(beat=True)
        assert {looks.look(stopped=True) for _ in range(1_000)} == {None}
        assert {looks.look(stopped=True, linked=False) for _ in range(1_000)} == {None}

    def test_a_worker_that_resumes_after_a_stop_did_not_hold_its_interpreter(self) -> None:
        looks = Looks()
        looks.look(beat=True)
        for _ in range(1_000):
            looks.look(stopped=True)
        looks.look()
        assert looks.watch.held == 0.5

    def test_a_worker_that_has_ended_is_reported_in_any_state(self) -> None:
        for stopped in (False, True):
            looks = Looks()
            assert looks.look(beat=True, alive=False, stopped=stopped) == "ended"

    def test_a_worker_that_holds_its_interpreter_for_the_limit_is_hung(self) -> None:
        looks = Looks()
        looks.look(beat=True)
        said = [looks.look() for _ in range(241)]
        assert said[-2:] == ["held", "hung"] and said.index("hung") == 240

    def test_a_dismissed_worker_has_the_session_timeout_to_exit(self) -> None:
        looks = Looks()
        looks.look(beat=True)
        said = [looks.look(linked=False) for _ in range(21)]
        assert said[-2:] == ["held", "lost"] and said.index("lost") == 20

    def test_a_dismissed_worker_is_not_ended_while_it_beats(self) -> None:
        looks = Looks()
        assert {looks.look(beat=True, linked=False) for _ in range(1_000)} == {None}


class TestCompanionThatDidNotRun:
    def test_does_not_attribute_that_time_to_the_worker(self) -> None:
        """The host was stopped or asleep."""
        looks = Looks()
        looks.look(beat=True)
        assert looks.look(after=10_000.0) == "held"
        assert looks.watch.held == 1.0


class TestMarks:
    def test_are_described_in_words(self) -> None:
        assert described("function: map parse") == "the Python function of step 'map parse'"
        assert described("source: clicks") == "a read of source 'clicks'"
        assert described(None) == described("interpreter") == "code outside Python functions"
