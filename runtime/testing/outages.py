"""Promises of a sink or a source about a server that fails, as tests that run against a real one.

    @sink_outages
    def test_outages(promise, sink_kit, outages):
        promise(sink_kit, outages)

The kits beside this module test deliveries and reads. Here the server itself is unreachable, ends, answers no more, or
does not let the user in. Afterwards, the same open target or source is used again: no row is lost or duplicated.

Source: docs/decisions/0101-outages.md; PROTOCOL P17.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import pytest

from holdfast.errors import ConfigError, HoldfastError, Unavailable
from holdfast.runtime.plan.source import OpenSource
from holdfast.runtime.testing.source_kit import ANY_BYTES, SourceKit
from holdfast.runtime.testing.tested_sink import ANN, BEA, LEFT, Row, SinkKit, tag
from holdfast.sinks.contract.owners import NEVER
from holdfast.sinks.contract.target import FaultPoint, Target

BACK_WITHIN_S = 60.0
"""How long a client may take to find out that its server answers again."""
LOOK_EVERY_S = 0.05
ATTEMPTS = 2
"""At least: the first one finds a broken connection, the second one none."""
PASSWORD = "a-password-that-no-message-shows"
"""The password that `Outages.refused` has to use, if there are passwords; no message may repeat it."""

Block = Callable[[], AbstractContextManager[object]]
T = TypeVar("T")


@dataclass(frozen=True)
class Outages:
    """How a test makes the server of a sink or a source fail. None: it cannot, and the promise is not tested.

    Args:
        away: Within the block, the server is unreachable, and open connections end.
        restart: Ends the server as a crash does, and starts it again with all that it has confirmed.
        refused: Within the block, the server refuses the user, also on connections that are open.
        unanswered: Within the block, the server carries out requests, but its answers are lost.
        lasts_s: How long `away` lasts at least.
    """

    away: Block | None = None
    restart: Callable[[], None] | None = None
    refused: Block | None = None
    unanswered: Block | None = None
    lasts_s: float = 0.0


SinkPromise = Callable[[SinkKit, Outages], None]
SourcePromise = Callable[[SourceKit, Outages], None]


def waits_while_its_server_is_away(kit: SinkKit, outages: Outages) -> None:
    """Every attempt is Unavailable, and so is a start; then the same target delivers."""
    away, until = _given(outages.away, "away"), 0.0
    with kit.target() as target:
        _delivered_at_last(kit, target, 1, ANN)
        with away():
            until, attempts = time.monotonic() + outages.lasts_s, 0
            while attempts < ATTEMPTS or time.monotonic() < until:
                with pytest.raises(Unavailable):
                    target.deliver(tag(2), [kit.batch(BEA)], tag(1))
                attempts += 1
            with pytest.raises(Unavailable):
                kit.prepared()
        _delivered_at_last(kit, target, 2, BEA)
    assert kit.shows(ANN, BEA)


def keeps_what_was_delivered_over_a_restart(kit: SinkKit, outages: Outages) -> None:
    """Rows that were confirmed before a crash of the server still exist, and the same target delivers again."""
    restart = _given(outages.restart, "restart")
    with kit.target() as target:
        _delivered_at_last(kit, target, 1, ANN)
        restart()
        _delivered_at_last(kit, target, 2, BEA)
    assert kit.shows(ANN, BEA)


def delivers_once_if_the_answer_is_lost(kit: SinkKit, outages: Outages) -> None:
    """A commit whose answer is lost has an unknown outcome: the tag in the target settles it."""
    lose_answers = _given(outages.unanswered, "unanswered")
    assert kit.open is not None, "the answers are lost from a point of a delivery on"
    with kit.target() as first:
        _delivered_at_last(kit, first, 1, ANN)
    lost_points = list[FaultPoint]()
    with ExitStack() as block:

        def lose(point: FaultPoint) -> None:
            if point == "before_commit" and not lost_points:  # A target that tries again passes the point again.
                lost_points.append(point)
                block.enter_context(lose_answers())

        with closing(kit.open(kit.prepared(), LEFT, lose)) as target, pytest.raises(Unavailable):
            target.deliver(tag(2), [kit.batch(BEA)], tag(1))
    with kit.target() as target:
        _delivered_at_last(kit, target, 2, BEA)
    assert kit.shows(ANN, BEA)


def waits_while_its_user_is_refused(kit: SinkKit, outages: Outages) -> None:
    """An attempt is Unavailable, such as NotAdmitted, so the job waits; no message shows a password."""
    refused = _given(outages.refused, "refused")
    with kit.target() as target:
        _delivered_at_last(kit, target, 1, ANN)
        with refused():
            for _ in range(ATTEMPTS):
                with pytest.raises(Unavailable) as caught:
                    target.deliver(tag(2), [kit.batch(BEA)], tag(1))
                _explains(caught.value)
        _delivered_at_last(kit, target, 2, BEA)
    assert kit.shows(ANN, BEA)


def reads_on_when_its_server_is_back(kit: SourceKit, outages: Outages) -> None:
    """While it is away no position moves and no partition ends; then the same source reads on."""
    away = _given(outages.away, "away")
    with closing(_opened(kit)) as open_source:
        before = _read(open_source)
        with away():
            until, attempts = time.monotonic() + outages.lasts_s, 0
            while attempts < ATTEMPTS or time.monotonic() < until:
                assert isinstance(_eventually(lambda: _failure(open_source.end_offsets)), Unavailable)
                _stands_still(open_source, before)
                attempts += 1
        _reads_on(kit, open_source, before)


def reads_on_after_a_restart(kit: SourceKit, outages: Outages) -> None:
    """The server has kept its records, and the same source continues to read."""
    restart = _given(outages.restart, "restart")
    with closing(_opened(kit)) as opened:
        before = _read(opened)
        restart()
        _reads_on(kit, opened, before)


def reads_on_when_its_user_is_let_in_again(kit: SourceKit, outages: Outages) -> None:
    """While the user is refused, no position moves, and the message has a next step; then the same source reads on."""
    refused = _given(outages.refused, "refused")
    with closing(_opened(kit)) as open_source:
        before = _read(open_source)
        with refused():
            error = _eventually(lambda: _failure(open_source.end_offsets))
            assert isinstance(error, HoldfastError)
            _explains(error)
            _stands_still(open_source, before)
        _reads_on(kit, open_source, before)


SINK_PROMISES: tuple[SinkPromise, ...] = (
    waits_while_its_server_is_away,
    keeps_what_was_delivered_over_a_restart,
    delivers_once_if_the_answer_is_lost,
    waits_while_its_user_is_refused,
)
SOURCE_PROMISES: tuple[SourcePromise, ...] = (
    reads_on_when_its_server_is_back,
    reads_on_after_a_restart,
    reads_on_when_its_user_is_let_in_again,
)
sink_outages = pytest.mark.parametrize("promise", SINK_PROMISES, ids=lambda promise: promise.__name__)
"""Makes of a test with the arguments `promise`, `sink_kit` and `outages` one test per promise."""
source_outages = pytest.mark.parametrize("promise", SOURCE_PROMISES, ids=lambda promise: promise.__name__)
"""Makes of a test with the arguments `promise`, `source_kit` and `outages` one test per promise."""


def _given(how: T | None, name: str) -> T:
    if how is None:
        pytest.skip(f"missing: outages with {name!r}")
    return how


def _eventually(look: Callable[[], T | None]) -> T:
    """Return the first answer. A client may know for seconds only that its server was away, or was there."""
    until, last = time.monotonic() + BACK_WITHIN_S, None
    while True:
        try:
            if (found := look()) is not None:
                return found
        except (ConfigError, Unavailable) as error:
            last = error
        assert time.monotonic() < until, f"nothing has changed within {BACK_WITHIN_S:.0f} s: {last}"
        time.sleep(LOOK_EVERY_S)


def _delivered_at_last(kit: SinkKit, target: Target, epoch: int, row: Row) -> None:
    """Deliver as a worker does: after every failure, read the tag, then deliver the epochs that it does not cover."""
    before = tag(epoch - 1) if epoch > 1 else None

    def delivered() -> bool:
        known = target.delivered()
        assert known in (before, tag(epoch)), "what was confirmed is there"
        if known == before:
            target.deliver(tag(epoch), [kit.batch(row)], before or NEVER)
        return target.delivered() == tag(epoch)

    assert _eventually(delivered)


def _explains(error: HoldfastError) -> None:
    assert error.what and error.not_done and error.next_step, "a message says what happened, and what to do"
    assert PASSWORD not in f"{error} {error.__cause__} {error.__context__}"


def _opened(kit: SourceKit) -> OpenSource:
    source = kit.source()
    source.check()
    return source.open()


def _failure(ask: Callable[[], object]) -> HoldfastError | None:
    try:
        ask()
    except HoldfastError as error:
        return error
    return None


def _read(opened: OpenSource) -> dict[int, int]:
    """Read everything; return where each partition was left."""
    return {each: _end(opened, each, opened.retention_start(each))[0] for each in opened.partitions()}


def _end(opened: OpenSource, partition: int, offset: int) -> tuple[int, int]:
    """Read from an offset on; return the position that was reached, and the number of records."""
    records = 0
    while (read := opened.read(partition, offset, ANY_BYTES))[1] > offset:
        records, offset = records + (0 if read[0] is None else read[0].num_rows), read[1]
    return offset, records


def _stands_still(opened: OpenSource, positions: dict[int, int]) -> None:
    """Check that a read after the last record finds none, or fails."""
    for partition, offset in positions.items():
        try:
            assert opened.read(partition, offset, ANY_BYTES) == (None, offset)
        except HoldfastError:
            continue


def _reads_on(kit: SourceKit, opened: OpenSource, positions: dict[int, int]) -> None:
    """Check that the source has kept its records, and reads added ones from its position on."""
    for partition, offset in positions.items():
        identity = _patient(partial(opened.identity, partition, offset))
        assert _patient(partial(opened.changed, identity)) is None
        start = _patient(partial(opened.retention_start, partition))
        assert _patient(partial(_end, opened, partition, start))[0] == offset
    assert kit.append is not None, "a source is read on if records are added"
    kit.append()
    assert _eventually(partial(_added, opened, positions))


def _patient(ask: Callable[[], T]) -> T:
    """Ask until there is an answer."""

    def answer() -> tuple[T]:
        return (ask(),)

    return _eventually(answer)[0]


def _added(opened: OpenSource, positions: dict[int, int]) -> bool | None:
    """Return whether there are records after the positions, None if there are none yet."""
    assert sorted(opened.partitions()) == sorted(positions)  # a source of files lists them here
    return any(_end(opened, partition, offset)[1] for partition, offset in positions.items()) or None
