"""The delivery of one writer, as transcripts: tests/transcripts/delivery."""

from __future__ import annotations

from pathlib import Path

import pytest
from transcripts import compare, scripts

from holdfast.errors import ConfigError, Damaged, Fenced, Unavailable
from holdfast.model import Epoch, ObjectRef, Pending, Staged, Subtask, Tag, Timeline, Writer
from holdfast.sinks.protocol import delivery as d

WRITER = Writer("out", Subtask(0))
REFUSALS = {"config": ConfigError, "damaged": Damaged, "fenced": Fenced}


class Delivered:
    """One writer. A tag is `EPOCH` or `TIMELINE/EPOCH`, or `none`. Events:

    `start`; `queue TAG [BYTES]`; `opened TAG [manifest=TAG] [completed=TAG]`; `succeeded TAG`; `already TAG`;
    `lost` (no answer came); `refused config|damaged|fenced`; `due` (the timer ran out).
    """

    def __init__(self) -> None:
        self.state, _ = d.start(WRITER)

    def play(self, words: list[str]) -> list[str]:
        """Take one event."""
        if words == ["start"]:
            self.state, effects = d.start(WRITER)
        else:
            self.state, effects = d.step(self.state, _event(words))
        return [*map(_effect, effects), _state(self.state)]


def _event(words: list[str]) -> d.Event:
    match words:
        case ["queue", at, *size]:
            ref = ObjectRef(f"staged/{at}", int(size[0]) if size else 10, "0" * 64)
            return d.Queue(Pending(WRITER, _known(at), Staged((ref,), 1)))
        case ["opened", at, *known]:
            more = dict(each.split("=") for each in known)
            return d.Opened(_tag(at), _tag(more.get("manifest", "none")), _tag(more.get("completed", "none")))
        case ["succeeded", at]:
            return d.Succeeded(_known(at))
        case ["already", at]:
            return d.AlreadyThere(_known(at))
        case ["lost"]:
            return d.AttemptFailed(Unavailable("no answer", next_step="wait").report(), permanent=False)
        case ["refused", kind]:
            return d.AttemptFailed(
                REFUSALS[kind]("the target refused it", next_step="see why").report(), permanent=True
            )
        case ["due"]:
            return d.RetryDue()
        case _:
            pytest.fail(f"no event: {words}")


def _tag(text: str) -> Tag | None:
    return None if text == "none" else _known(text)


def _known(text: str) -> Tag:
    timeline, _, epoch = text.rpartition("/")
    return Tag(Timeline(int(timeline or 1)), Epoch(int(epoch)))


def _shown(tag: Tag | None) -> str:
    if tag is None:
        return "nothing"
    return str(tag.epoch) if tag.timeline == 1 else f"{tag.timeline}/{tag.epoch}"


def _effect(effect: d.Effect) -> str:
    match effect:
        case d.Open():
            return "read the target's tag"
        case d.AttemptDelivery(epochs):
            return f"attempt {' '.join(_shown(pending.tag) for pending in epochs)}"
        case d.Confirm(_, tag):
            return f"confirm {_shown(tag)}"
        case d.RetryAfter(_, delay_ms):
            return f"retry after {delay_ms} ms"
        case d.Fail(_, error):
            return f"fail as {error.kind}"


def _state(state: d.Delivery) -> str:
    name = type(state).__name__.removeprefix("Delivery").lower()
    if isinstance(state, d.Settled):
        return f"{name}, {_shown(state.floor)} is in the target"
    queue = " ".join(_shown(pending.tag) for pending in state.queue) or "nothing"
    return f"{name}, {queue} in the queue"


@pytest.mark.parametrize("path", scripts("delivery"), ids=lambda path: path.stem)
def test_transcript(path: Path, rewrite: bool) -> None:
    compare(path, Delivered().play, rewrite=rewrite)
