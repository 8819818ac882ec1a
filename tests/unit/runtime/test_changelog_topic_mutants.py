"""Wrong versions of the changelog as a topic: the plays of test_changelog_topic.py notice each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint import manifest
from holdfast.errors import HoldfastError
from holdfast.frozen import replace
from holdfast.model import CHANGELOG, Pending, Tag, Writer
from holdfast.runtime.config.settings import CONTINUOUS
from holdfast.runtime.driver.background import compactions
from holdfast.runtime.worker import protocol, topic
from tests.unit.runtime.test_changelog_topic import Job, unconfirmed, watched

Right = Callable[..., Any]


def before_the_commit(right: Right) -> Right:
    """Records of an epoch are delivered once they are durable, before the epoch is committed."""

    def output_sealed(state: protocol.Worker, epoch: int, sealed: protocol.Sealed) -> Any:
        state, effects = right(state, epoch, sealed)
        early = [
            protocol.QueueOutput(Pending(Writer(CHANGELOG, state.subtask), Tag(state.timeline, each.epoch), staged))
            for each in effects
            if isinstance(each, protocol.SendAck)
            for sink, staged in each.staged.items()
            if sink == CHANGELOG
        ]
        return state, [*effects, *early]

    return output_sealed


def below_the_horizon(right: Right) -> Right:
    """The topic is compacted through the last checkpoint, whichever others are retained."""

    def request(self: compactions.Compactions, job: Any) -> None:
        right(self, replace(job, completed=job.completed[-1:], abandoned=()))

    return request


def before_the_confirmation(right: Right) -> Right:
    """A segment leaves the handle once its delivery is decided, before it is confirmed."""
    return lambda handle, delivered: replace(handle, segments=tuple(s for s in handle.segments if s.writer is None))


def without_the_segments(right: Right) -> Right:
    """A restore reads the topic alone, also if it lacks the last epochs."""
    return lambda handle, delivered: replace(handle, segments=())


VERSIONS: dict[str, tuple[Any, str, Callable[[Right], Right], Callable[[Job], None]]] = {
    "record-before-commit": (protocol, "output_sealed", before_the_commit, watched),
    "compaction-below-horizon": (compactions.Compactions, "request", below_the_horizon, watched),
    "handle-without-unconfirmed": (manifest, "undelivered", before_the_confirmation, unconfirmed),
    "segments-ignored": (topic, "undelivered", without_the_segments, unconfirmed),
}


@pytest.mark.parametrize("name", VERSIONS)
def test_a_wrong_version_is_noticed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where, attribute, wrong, play = VERSIONS[name]
    monkeypatch.setattr(where, attribute, wrong(getattr(where, attribute)))
    with pytest.raises((AssertionError, HoldfastError)) as noticed:
        play(Job(tmp_path, CONTINUOUS, retained=3))
    print(name, repr(noticed.value)[:400])
