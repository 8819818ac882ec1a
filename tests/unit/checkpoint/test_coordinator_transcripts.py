"""The coordinator, as transcripts: tests/transcripts/coordinator."""

from __future__ import annotations

from pathlib import Path

import pytest
from transcripts import compare, scripts

from holdfast.checkpoint import coordinator as c
from holdfast.checkpoint.manifest import SubtaskPart
from holdfast.model import Epoch, Subtask


class Coordinated:
    """One generation.

    Events: `start WIDTH BASE FIRST`, `trigger [last]`, `ack SUBTASK EPOCH`, `deadline`, `appended`.
    """

    def __init__(self) -> None:
        self.state: c.Coordinator = c.start(1, Epoch(0), Epoch(1))

    def play(self, words: list[str]) -> list[str]:
        """Take one event."""
        effects: list[c.Effect] = []
        match words:
            case ["start", width, base, first]:
                self.state = c.start(int(width), Epoch(int(base)), Epoch(int(first)))
            case ["trigger", *last]:
                assert isinstance(self.state, c.Idle)
                self.state, effects = c.trigger(self.state, 0.0, bool(last))
            case ["ack", subtask, epoch]:
                part = SubtaskPart(Subtask(int(subtask)), (), None, {}, ())
                self.state, effects = c.acked(self.state, Epoch(int(epoch)), part)
            case ["deadline"]:
                self.state, effects = c.deadline_passed(self.state)
            case ["appended"]:
                assert isinstance(self.state, c.Deciding)
                self.state, effects = c.appended(self.state)
            case _:
                pytest.fail(f"no event: {words}")
        return [*map(_effect, effects), _state(self.state)]


def _effect(effect: c.Effect) -> str:
    match effect:
        case c.SendBarrier(barrier):
            last = ", the last" if barrier.last else ""
            return f"barrier of epoch {barrier.epoch}, committed through {barrier.committed_through}{last}"
        case c.Decide(barrier, _, parts):
            return f"decide epoch {barrier.epoch} of {len(parts)} parts"
        case c.Announce(epoch):
            return f"announce epoch {epoch}"
        case c.EpochGivenUp(epoch, missing):
            return f"epoch {epoch} is given up, missing {', '.join(map(str, missing))}"
        case c.MustRecover(given_up):
            return f"a recovery is due: {given_up} epochs given up"


def _state(state: c.Coordinator) -> str:
    match state:
        case c.Idle():
            return f"idle, committed through {state.committed_through}, next epoch {state.next_epoch}"
        case c.Collecting():
            return f"collecting epoch {state.barrier.epoch}, acked by {sorted(state.parts)}"
        case c.Deciding():
            return f"deciding epoch {state.barrier.epoch}"


@pytest.mark.parametrize("path", scripts("coordinator"), ids=lambda path: path.stem)
def test_transcript(path: Path, rewrite: bool) -> None:
    compare(path, Coordinated().play, rewrite=rewrite)
