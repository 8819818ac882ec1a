"""Promises of every sink, as tests that a connector of any package runs against itself.

    @pytest.fixture
    def sink_kit(tmp_path):
        return SinkKit(lambda: Numbers(tmp_path / "numbers"), rows=lambda: read(tmp_path / "numbers"))

    @sink_conformance
    def test_numbers(promise, sink_kit):
        promise(sink_kit)

The rows have the columns of `SCHEMA`; `user` is the key of a sink that has one.

Source: sinks/contract/sink.py; PROTOCOL P17, P21, P24; docs/decisions/0032-connectors.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from copy import deepcopy
from typing import TypeVar, cast

import pyarrow as pa
import pytest

from holdfast.errors import ConfigError, Damaged, Fenced, Unavailable
from holdfast.model import Epoch, Generation
from holdfast.runtime.testing.tested_sink import (
    ANN,
    BEA,
    CAT,
    JOB,
    KEY,
    LEFT,
    RIGHT,
    SCHEMA,
    Promise,
    Row,
    SinkKit,
    tag,
)
from holdfast.sinks.contract.audited import AuditQuery
from holdfast.sinks.contract.owners import NEVER, Claim
from holdfast.sinks.contract.sink import TAKES, Rewinding, abilities, not_a_sink
from holdfast.sinks.contract.target import (
    AlreadyDelivered,
    Delivered,
    EpochOutput,
    Fault,
    FaultPoint,
    Upload,
    UploadedOutput,
)

T = TypeVar("T")


class SimulatedCrash(BaseException):
    """The process ends here."""


def _needed(name: str, capability: T | None) -> T:
    if capability is None:
        pytest.skip(f"missing: the capability {name!r}")
    return capability


def states_what_it_can_do(kit: SinkKit) -> None:
    """It has every member of a sink; a capability that it lacks is None."""
    assert not_a_sink(kit.sink()) is None
    assert abilities(kit.sink()) == abilities(kit.prepared()), "what it can do does not depend on the target"
    assert kit.sink().where
    assert kit.sink().key in (KEY, None), "the kit's rows have the key `user`"
    assert kit.sink().key == KEY or not kit.sink().traits.keyed, "what replaces rows has a key"


def travels(kit: SinkKit) -> None:
    """A copy that was taken apart and put together again, as for a worker, writes to the same target."""
    if not kit.travels:
        pytest.skip("missing: a target outside of this process")
    shipped = deepcopy(kit.prepared())
    with closing(shipped.open(JOB, LEFT)) as target:
        target.deliver(tag(1), [kit.batch(ANN)])
    assert kit.shows(ANN)


def refuses_rows_to_replace_without_a_key(kit: SinkKit) -> None:
    """A stream that replaces rows needs a sink with its key."""
    if kit.upsert_key is not None:
        pytest.skip("missing: a sink without a key")
    with pytest.raises(ConfigError):
        kit.sink().check(SCHEMA, KEY)


def prepares_again_without_a_change(kit: SinkKit) -> None:
    """A restarted driver finds the target as it was."""
    kit.deliver(1, ANN)
    kit.prepared()
    assert kit.shows(ANN)


def is_looked_at_without_a_change(kit: SinkKit) -> None:
    """`probe` finds the faults that a start would refuse, and creates and changes nothing."""
    sink = kit.sink()
    missing = sink.probe(SCHEMA, kit.upsert_key)
    if missing == TAKES:
        pytest.skip("missing: a `probe` that looks at the target")
    assert sink.probe(SCHEMA, kit.upsert_key) == missing, "the first probe created the target"
    kit.deliver(1, ANN)
    assert sink.probe(SCHEMA, kit.upsert_key) and kit.shows(ANN)
    assert _refuses_columns(sink.probe, kit) == _refuses_columns(sink.prepare, kit)


def _refuses_columns(look: Callable[[pa.Schema, tuple[str, ...] | None], object], kit: SinkKit) -> bool:
    try:
        look(SCHEMA.append(pa.field("more", pa.int64())), kit.upsert_key)
    except ConfigError:
        return True
    return False


def shows_rows_and_tag_together(kit: SinkKit) -> None:
    """Delivered rows appear together with their tag."""
    with kit.target() as target:
        assert target.delivered() is None
        assert target.deliver(tag(1), [kit.batch(ANN, BEA)]) == Delivered(2)
        assert target.delivered() == tag(1)
    assert kit.shows(ANN, BEA)


def moves_the_tag_for_an_empty_epoch(kit: SinkKit) -> None:
    """An epoch without rows is delivered too."""
    kit.deliver(1, ANN)
    assert kit.deliver(2) == Delivered(0)
    with kit.target() as target:
        assert target.delivered() == tag(2)
    assert kit.shows(ANN)


def replaces_and_deletes_by_key(kit: SinkKit) -> None:
    """The last row of a key wins, also within one delivery."""
    if kit.upsert_key is None:
        pytest.skip("missing: a sink with a key")
    kit.deliver(1, ANN, BEA, (1, "anna"))
    kit.deliver(2, (2, None), (7, None), CAT)
    assert kit.shows((1, "anna"), CAT)


def keeps_equal_rows_without_a_key(kit: SinkKit) -> None:
    """Without a key, the target keeps every row."""
    if kit.upsert_key is not None:
        pytest.skip("missing: a sink without a key")
    kit.deliver(1, ANN, ANN)
    assert kit.shows(ANN, ANN)


def changes_nothing_when_it_is_delivered_again(kit: SinkKit) -> None:
    """A repeated delivery finds its own tag and reads no rows."""
    kit.deliver(1, ANN)
    unread = iter([kit.batch(ANN)])
    with kit.target() as target:
        assert target.deliver(tag(1), unread) == AlreadyDelivered(tag(1))
    assert kit.shows(ANN) and len(list(unread)) == 1


def keeps_writers_and_jobs_apart(kit: SinkKit) -> None:
    """Every writer of every job has its own tag."""
    kit.deliver(3, ANN)
    assert kit.deliver(1, BEA, writer=RIGHT) == Delivered(1)
    with kit.target(job="another") as target:
        assert target.deliver(tag(1), [kit.batch(CAT)]) == Delivered(1)
    assert kit.shows(ANN, BEA, CAT)


def shows_nothing_of_a_delivery_that_cannot_be_read(kit: SinkKit) -> None:
    """If the rows of a delivery cannot all be read, none is delivered."""

    def broken() -> Iterator[pa.RecordBatch]:
        yield kit.batch(ANN)
        raise Unavailable("the store is unreachable", next_step="nothing")

    with kit.target() as target:
        with pytest.raises(Unavailable):
            target.deliver(tag(1), broken())
        assert kit.shows() and target.delivered() is None
        assert target.deliver(tag(1), [kit.batch(BEA)]) == Delivered(1)
    assert kit.shows(BEA)


def refuses_what_is_older(kit: SinkKit) -> None:
    """A zombie's epoch changes nothing, one of an older timeline ends the zombie, and a newer timeline continues."""
    kit.deliver(5, ANN)
    assert kit.deliver(4, BEA) == AlreadyDelivered(tag(5))
    assert kit.deliver(2, BEA, timeline=2) == Delivered(1)
    with pytest.raises(Fenced):
        kit.deliver(9, CAT, timeline=1)
    assert kit.shows(ANN, BEA)


def continues_only_what_its_writer_knows(kit: SinkKit) -> None:
    """The sink detects a target that was restored from a backup, or that a copy of the job wrote to (P24)."""
    with kit.target() as target:
        assert target.deliver(tag(1), [kit.batch(ANN)], NEVER) == Delivered(1)
        with pytest.raises(Damaged):
            target.deliver(tag(3), [kit.batch(BEA)], tag(2))
        with pytest.raises(Unavailable):
            target.deliver(tag(3), [kit.batch(BEA)], NEVER)
        assert target.deliver(tag(3), [kit.batch(CAT)], tag(1)) == Delivered(1)
    assert kit.shows(ANN, CAT)


def survives_a_crash_at_every_point(kit: SinkKit) -> None:
    """A crash before the commit leaves no row; a crash after it leaves all rows, and none appears twice."""
    if kit.open is None:
        pytest.skip("missing: a target that calls a fault at the points of a delivery")
    kit.deliver(1, ANN)
    points: tuple[FaultPoint, ...] = ("before_begin", "after_tag", "before_commit", "after_commit")
    for number, point in enumerate(points, 2):
        row, before = (10 + number, point), kit.rows()
        target = kit.open(kit.prepared(), LEFT, _crash_at(point))
        with pytest.raises(SimulatedCrash):
            target.deliver(tag(number), [kit.batch(row)])
        target.close()
        assert kit.shows(*before, *([row] if point == "after_commit" else []))
        kit.deliver(number, row)
        assert kit.shows(*before, row)


def _crash_at(point: FaultPoint) -> Fault:
    def fault(reached: FaultPoint) -> None:
        if reached == point:
            raise SimulatedCrash

    return fault


def goes_on_after_a_lost_reply(kit: SinkKit) -> None:
    """The same target takes the next epoch, or the same one again; no row is duplicated or missing.

    It raises Unavailable, or finds out itself whether the commit was made.
    """
    if kit.open is None:
        pytest.skip("missing: a target that calls a fault at the points of a delivery")
    lost_points: list[FaultPoint] = []

    def fault(reached: FaultPoint) -> None:
        if reached in lost_points:
            lost_points.remove(reached)
            raise Unavailable(f"the connection broke at {reached}", next_step="nothing")

    with closing(kit.open(kit.prepared(), LEFT, fault)) as target:

        def breaks(point: FaultPoint, epoch: int, *rows: Row) -> bool:
            """Deliver while the connection breaks; return whether the outcome is unknown to the writer."""
            lost_points.append(point)
            try:
                assert target.deliver(tag(epoch), [kit.batch(*rows)]) == Delivered(len(rows))
            except Unavailable:
                return True
            return False

        assert target.deliver(tag(1), [kit.batch(ANN)]) == Delivered(1)
        breaks("after_commit", 2, BEA, CAT)
        assert kit.shows(ANN, BEA, CAT), "only the reply was lost"
        assert target.deliver(tag(3), [kit.batch((4, "dan"))]) == Delivered(1), "the next epoch has rows of its own"
        for epoch, point in ((4, "after_commit"), (5, "before_commit")):
            rows = (10 + epoch, "eve"), (20 + epoch, "fay")
            unknown = breaks(cast(FaultPoint, point), epoch, *rows)
            new = unknown and point == "before_commit"
            again = target.deliver(tag(epoch), [kit.batch(*rows)])
            assert again == (Delivered(2) if new else AlreadyDelivered(tag(epoch)))
    assert kit.shows(ANN, BEA, CAT, (4, "dan"), (14, "eve"), (24, "fay"), (15, "eve"), (25, "fay"))


def takes_several_epochs_together(kit: SinkKit) -> None:
    """With `merges`: all rows appear with the last tag; a call whose first epoch was delivered adds nothing."""
    with kit.target() as opened:
        target = _needed("merges", opened.merges)
        epochs = [EpochOutput(tag(1), [kit.batch(ANN)]), EpochOutput(tag(2), [kit.batch(BEA)])]
        assert target.deliver_together(epochs) == Delivered(2)
        again = [EpochOutput(tag(2), [kit.batch(BEA)]), EpochOutput(tag(3), [kit.batch(CAT)])]
        assert target.deliver_together(again) == AlreadyDelivered(tag(2))
    assert kit.shows(ANN, BEA)


def names_what_was_uploaded(kit: SinkKit) -> None:
    """With `uploads`: uploaded rows appear with the commit that names them, also the rows of a lost upload (P23)."""
    uploader = _needed("uploads", kit.prepared().uploads)
    parts = [[kit.batch(ANN)], [kit.batch(BEA)], [kit.batch(CAT)]]
    first = uploader.upload(Upload(JOB, "out", 1, 5, 2, "w0", 0), parts[0])
    lost = uploader.upload(Upload(JOB, "out", 1, 4, 1, "w1", 1), parts[1])
    assert kit.shows(), "an upload shows nothing"
    uploader.sweep(JOB, "out", 1, 3, 5)
    output = UploadedOutput(tag(5), (first, lost, None), lambda places: [b for place in places for b in parts[place]])
    for expected in (Delivered(3), AlreadyDelivered(tag(5))):
        with kit.target() as target:
            assert target.deliver_uploaded(output) == expected
        assert kit.shows(ANN, BEA, CAT)


def takes_output_back(kit: SinkKit) -> None:
    """With `repairs`: the target is as it was after the base epoch, and nothing older is delivered any longer (P21)."""
    repairs = _needed("repairs", kit.prepared().repairs)
    kit.deliver(1, ANN)
    kit.deliver(2, BEA)
    kit.deliver(2, CAT, writer=RIGHT)
    back = Rewinding(JOB, "out", tag(1, 2), (LEFT, RIGHT))
    planned = repairs.plan_repair(back, SCHEMA, kit.upsert_key)
    assert planned.delete == 2 and kit.shows(ANN, BEA, CAT), "planning changes nothing"
    assert repairs.repair(back, SCHEMA, kit.upsert_key).delete == 2
    assert kit.shows(ANN)
    assert repairs.repair(back, SCHEMA, kit.upsert_key).delete == 0, "done again, it changes nothing"
    with pytest.raises(Fenced):
        kit.deliver(9, BEA)
    assert kit.deliver(2, CAT, timeline=2) == Delivered(1) and kit.shows(ANN, CAT)


def can_be_read_back(kit: SinkKit) -> None:
    """With `audits`: the sink reports which rows each delivery wrote."""
    audits = _needed("audits", kit.prepared().audits)
    kit.deliver(1, ANN, BEA)
    kit.deliver(2, CAT)
    contents = audits.contents(AuditQuery(JOB, "out", SCHEMA, kit.upsert_key, Epoch(0)))
    assert contents.standing == {LEFT.subtask: tag(2)} and not contents.wrong
    assert {at: rows.rows for at, rows in contents.rows.items()} == {
        (LEFT.subtask, tag(1)): 2,
        (LEFT.subtask, tag(2)): 1,
    }


def remembers_who_took_it_over(kit: SinkKit) -> None:
    """With `ownership`: a driver that its job's log does not know changes nothing."""
    holds = _needed("ownership", kit.prepared().ownership)
    first = Claim("first", Generation(1))
    second = Claim("second", Generation(2), {"first": tag(1)})
    copy = Claim("copy", Generation(3), {"first": tag(1), "second": tag(1)})
    with kit.target(claim=first) as target:
        target.deliver(tag(1), [kit.batch(ANN)])
    with kit.target(claim=second) as target:
        target.deliver(tag(2), [kit.batch(BEA)])
    holding = holds.holding(JOB, "out")
    assert holding.held is not None and (holding.held.owner, holding.newest) == ("second", tag(2))
    with kit.target(claim=first) as target, pytest.raises(Fenced):
        target.deliver(tag(3), [kit.batch(CAT)])
    with kit.target(claim=copy) as target, pytest.raises(Damaged):  # its log has less of the second driver
        target.deliver(tag(3), [kit.batch(CAT)])
    assert kit.shows(ANN, BEA)


PROMISES: tuple[Promise, ...] = (
    states_what_it_can_do,
    travels,
    refuses_rows_to_replace_without_a_key,
    prepares_again_without_a_change,
    is_looked_at_without_a_change,
    shows_rows_and_tag_together,
    moves_the_tag_for_an_empty_epoch,
    replaces_and_deletes_by_key,
    keeps_equal_rows_without_a_key,
    changes_nothing_when_it_is_delivered_again,
    keeps_writers_and_jobs_apart,
    shows_nothing_of_a_delivery_that_cannot_be_read,
    refuses_what_is_older,
    continues_only_what_its_writer_knows,
    survives_a_crash_at_every_point,
    goes_on_after_a_lost_reply,
    takes_several_epochs_together,
    names_what_was_uploaded,
    takes_output_back,
    can_be_read_back,
    remembers_who_took_it_over,
)
sink_conformance = pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
"""Makes of a test with the arguments `promise` and `sink_kit` one test per promise."""
