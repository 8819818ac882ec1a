"""Which partitions a job reads, as the master decides it: docs/decisions/0035-partition-discovery.md."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from master_runs import RULES, A, B, Run, completed, opened, replaced, running

from holdfast.checkpoint import joblog
from holdfast.errors import Unavailable
from holdfast.model import Barrier, Epoch, Generation, SourcePosition, Subtask
from holdfast.runtime.driver import master
from holdfast.runtime.driver.epochs import repeated
from holdfast.runtime.driver.events import (
    CreateRecord,
    Effect,
    End,
    ListPartitions,
    ManifestLoaded,
    Moment,
    Send,
    SourcesListed,
    SourcesUnlisted,
    TargetsRepaired,
)
from holdfast.runtime.driver.requests import RequestAnswer
from holdfast.runtime.driver.state import Interrupted, Rules
from holdfast.runtime.job.explain import findings
from holdfast.runtime.job.status import of_run
from holdfast.runtime.wire import messages as m
from tests.unit.runtime.test_master_requests import ask

EVERY = replace(RULES, discover_every=4.0)
"""Partitions 0 to 2; subtask 0 reads 0 and 2, subtask 1 reads 1. They are listed every 4 s."""


def at(partition: int, offset: int = 0) -> SourcePosition:
    return SourcePosition("s", partition, offset)


THREE, FOUR, FIVE = (m.Assigned(at(p), Subtask(s)) for p, s in ((3, 1), (4, 0), (5, 1)))


def listing(rules: Rules = EVERY) -> tuple[Run, ListPartitions]:
    """A job that runs and has asked for a listing, which is not answered yet."""
    run = running(rules)
    run.lists = False
    return run, asked(run)


def asked(run: Run, after: float = 0.0) -> ListPartitions:
    found = [effect for effect in run.pass_time(after) if isinstance(effect, ListPartitions)]
    assert len(found) == 1
    return found[0]


def grown(*partitions: int, rules: Rules = EVERY) -> Run:
    """Partitions were discovered, and no trigger has carried them yet."""
    run, first = listing(rules)
    run.answer(first, *(at(p) for p in partitions))
    return run


def triggers(effects: list[Effect]) -> list[m.Trigger]:
    return [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, m.Trigger)]


def deployed(run: Run) -> dict[int, SourcePosition]:
    """Return where the newest deployments begin, by partition."""
    sent = [e.message for e in run.effects if isinstance(e, Send) and isinstance(e.message, m.Deploy)]
    return {at.partition: at for message in sent[-2:] for at in message.positions}


def stands(run: Run) -> dict[int, int]:
    return {at.partition: at.offset for at in run.manifests[-1].positions}


def close(run: Run, epoch: int, a: tuple[SourcePosition, ...] = (), b: tuple[SourcePosition, ...] = ()) -> None:
    """Both subtasks ack the open epoch with these positions, and it is completed."""
    run.ack(A, epoch, positions=a)
    run.ack(B, epoch, positions=b)
    run.store()
    run.append()


class TestListings:
    def test_the_first_starts_when_every_subtask_is_ready_and_the_next_later(self) -> None:
        run, first = listing()
        assert first == ListPartitions(1, {"s": (0, 1, 2)}, ())
        run.answer(first)
        assert not [e for e in run.pass_time(3.0) if isinstance(e, ListPartitions)]
        assert asked(run, 1.0).number == 2

    def test_none_starts_while_another_is_in_progress(self) -> None:
        run, _ = listing()
        assert not [e for e in run.pass_time(300.0) if isinstance(e, ListPartitions)]
        found = [finding.what for finding in findings(of_run(run.state, "", "continuous", None))]
        assert any("waiting for the partitions of the sources for 300.0 s" in what for what in found)

    def test_are_repeated_one_second_after_a_failure(self) -> None:
        run, first = listing()
        error = Unavailable("the source is unreachable", next_step="wait")
        run.take(master.step(run.state, SourcesUnlisted(first.number, error), Moment(run.now)))
        assert run.state.list_error == error.report()
        assert asked(run, 1.0).number == 2
        run.answer(ListPartitions(2, first.known, ()))
        assert run.state.list_error is None

    def test_an_answer_to_an_earlier_listing_changes_nothing(self) -> None:
        run, first = listing()
        before = run.state
        assert master.step(before, SourcesListed(first.number + 1, (at(3),)), Moment(run.now)) == (before, [])

    def test_contain_the_positions_read_so_that_another_source_is_detected(self) -> None:
        run, first = listing()
        run.pass_time(10.0)
        close(run, 1, (at(0, 4), at(2, 1)), (at(1, 2),))
        run.answer(first)
        assert [(p.partition, p.offset) for p in asked(run, 4.0).positions] == [(0, 4), (1, 2), (2, 1)]

    def test_none_starts_with_discovery_turned_off(self) -> None:
        run = running(RULES)
        run.lists = False
        assert not [e for e in run.pass_time(300.0) if isinstance(e, ListPartitions)]

    def test_none_starts_in_a_run_to_fixed_ends(self) -> None:
        run = running(replace(EVERY, until={"s": {0: 5, 1: 5, 2: 5}}))
        run.lists = False
        assert not [e for e in run.pass_time(300.0) if isinstance(e, ListPartitions)]

    @pytest.mark.parametrize("every", [4.0, 0.0])
    def test_note_deleted_partitions_also_in_a_run_to_fixed_ends_or_without_discovery(self, every: float) -> None:
        """Only a listing notes them, and a worker waits for that. New partitions are not read there."""
        for until in ({"s": {0: 5, 1: 5, 2: 5}}, None):
            run, first = listing(replace(EVERY, until=until, discover_every=every, loses_partitions=True))
            run.answer(first, at(3))
            again = asked(run, every or 10.0)
            assert (again.number, 3 in again.known["s"]) == (2, until is None and every > 0)

    def test_listings_to_fixed_ends_ignore_a_partition_of_a_source_that_must_not_grow(self) -> None:
        until = {"s": {0: 5, 1: 5, 2: 5}}
        run, first = listing(replace(EVERY, until=until, loses_partitions=True, fixed={"s": "out"}))
        run.answer(first, at(3))
        assert asked(run, 4.0).number == 2

    def test_note_deleted_partitions_while_a_finish_reads_to_the_end(self) -> None:
        run, first = listing(replace(EVERY, loses_partitions=True))
        run.answer(first)
        ask(run, "stop", how="finish")
        run.answer(asked(run))
        run.answer(asked(run, 4.0), at(3))
        again = asked(run, 4.0)
        assert (again.number, again.known["s"]) == (4, (0, 1, 2)), "what appeared since is not read"

    def test_a_missing_partition_fails_the_run(self) -> None:
        run, first = listing()
        effects = run.take(master.step(run.state, SourcesListed(first.number, (at(0), at(2))), Moment(run.now)))
        (end,) = [e for e in effects if isinstance(e, End)]
        assert end.outcome == "failed" and end.error is not None
        assert (end.error.kind, end.error.partition) == ("damaged", 1)
        assert "no longer has partition 1" in end.error.what


class TestAssignment:
    """P12: it rides on a trigger, applies from the next epoch, and is in the manifest."""

    def test_new_partitions_follow_the_known_ones_in_turn(self) -> None:
        run = grown(3, 4, 5)
        for trigger in triggers(run.pass_time(10.0)):
            assert trigger.assignment == (THREE, FOUR, FIVE)

    def test_the_epoch_of_the_trigger_has_them_at_their_first_record(self) -> None:
        run = grown(3)
        run.pass_time(10.0)
        close(run, 1, (at(0, 4), at(2, 1)), (at(1, 2),))
        assert stands(run) == {0: 4, 1: 2, 2: 1, 3: 0}

    def test_the_first_record_need_not_be_at_offset_0(self) -> None:
        run, first = listing()
        run.answer(first, at(3, 700))
        run.pass_time(10.0)
        close(run, 1)
        assert stands(run) == {3: 700}

    def test_later_epochs_keep_their_offsets_and_do_not_assign_them_again(self) -> None:
        run = grown(3)
        run.pass_time(10.0)
        close(run, 1)
        assert [trigger.assignment for trigger in triggers(run.pass_time(10.0))] == [(), ()]
        close(run, 2, (), (at(1, 2), at(3, 9)))
        assert stands(run)[3] == 9

    def test_the_assignment_of_an_abandoned_epoch_is_repeated_with_the_next_trigger(self) -> None:
        run = grown(3)
        run.pass_time(10.0)
        effects = run.pass_time(RULES.epoch_deadline + 2.0)
        (one, _) = triggers(effects)
        assert one.barrier == Barrier(Epoch(2), Epoch(0), False) and one.assignment == (THREE,)
        close(run, 2, (), (at(3, 5),))
        assert stands(run) == {3: 5}

    def test_partitions_discovered_after_the_trigger_are_assigned_with_the_next_one(self) -> None:
        run, first = listing()
        run.pass_time(10.0)
        run.answer(first, at(3))
        close(run, 1)
        assert stands(run) == {}
        assert triggers(run.pass_time(10.0))[0].assignment == (THREE,)

    def test_an_idle_job_closes_one_epoch_for_it(self) -> None:
        run, first = listing()
        completed(run)
        for worker in (A, B):
            run.hear(run.heartbeat(worker, quiet=Epoch(1)))
        run.answer(first)
        effects = run.pass_time(30.0)
        assert triggers(effects) == []
        (asked_again,) = [effect for effect in effects if isinstance(effect, ListPartitions)]
        run.answer(asked_again, at(3))
        assert triggers(run.pass_time(1.0))[0].assignment == (THREE,)
        close(run, 2)
        for worker in (A, B):
            run.hear(run.heartbeat(worker, quiet=Epoch(2)))
        assert triggers(run.pass_time(30.0)) == []

    def test_the_record_of_the_epoch_names_the_partition(self) -> None:
        run, first = listing()
        run.pass_time(10.0)
        close(run, 1, (at(0, 4), at(2, 1)), (at(1, 2),))
        run.answer(first, at(3), at(4))
        run.pass_time(10.0)
        close(run, 2)
        bodies = [r.body for r in run.log if isinstance(r.body, joblog.CheckpointCompleted)]
        assert [body.added for body in bodies] == [{}, {"s": (3, 4)}]


class TestRecoveries:
    def test_before_the_trigger_deploy_the_partition_from_its_first_record(self) -> None:
        run = grown(3)
        run.lose(B)
        replaced(run)
        assert deployed(run)[3] == at(3)
        assert triggers(run.pass_time(10.0))[0].assignment == ()

    def test_after_its_epoch_deploy_the_partition_from_the_manifest(self) -> None:
        run = grown(3)
        run.pass_time(10.0)
        close(run, 1)
        run.pass_time(10.0)
        close(run, 2, (), (at(3, 9),))
        run.lose(B)
        replaced(run)
        assert deployed(run)[3] == at(3, 9)

    def test_while_its_record_is_in_flight_wait_for_the_record(self) -> None:
        run = grown(3)
        run.pass_time(10.0)
        run.ack(A, 1)
        run.ack(B, 1)
        run.store()
        run.lose(B)
        assert isinstance(run.state.phase, Interrupted)
        run.append()
        replaced(run)
        assert deployed(run)[3] == at(3) and stands(run) == {3: 0}

    def test_do_not_invalidate_a_listing_in_progress(self) -> None:
        run, first = listing()
        run.lose(B)
        replaced(run)
        run.answer(first, at(3))
        assert triggers(run.pass_time(10.0))[0].assignment == (THREE,)

    def test_recovery_by_another_driver_keeps_partitions_of_the_base_that_it_did_not_list(self) -> None:
        """It listed the sources, then the partition was added, discovered, and read by the driver before it."""
        run = grown(3)
        run.pass_time(10.0)
        close(run, 1)
        run.pass_time(10.0)
        close(run, 2, (), (at(3, 9),))
        run.begin("another")
        run.append()
        run.load()
        run.register(A, B)
        assert deployed(run)[3] == at(3, 9)

    def test_recovery_by_a_driver_with_another_order_keeps_the_subtask_of_a_partition(self) -> None:
        """P20: otherwise the new writer's output could overtake output that the old one has not delivered yet."""
        run = grown(4)
        assert triggers(run.pass_time(10.0))[0].assignment == (m.Assigned(at(4), Subtask(1)),)
        close(run, 1, (at(0), at(2)), (at(1),))
        run.rules = replace(EVERY, partitions={"s": (0, 1, 2, 3, 4)})
        run.begin("another")
        run.append()
        run.load()
        run.register(A, B)
        sent = [e.message for e in run.effects if isinstance(e, Send) and isinstance(e.message, m.Deploy)][-2:]
        assert {d.subtask: [p.partition for p in d.positions] for d in sent} == {0: [0, 2, 3], 1: [1, 4]}

    def test_to_a_checkpoint_before_it_begin_at_its_first_record_again(self) -> None:
        run, first = listing()
        completed(run)
        run.answer(first, at(3))
        run.pass_time(10.0)
        close(run, 2)
        run.pass_time(10.0)
        close(run, 3, (), (at(3, 9),))
        assert ask(run, "rewind", epoch=1, timeline=1) == RequestAnswer(True, Generation(1))
        run.pass_time(0.0)
        run.append()
        run.take(master.step(run.state, ManifestLoaded(run.manifests[0]), Moment(run.now)))
        run.take(master.step(run.state, TargetsRepaired(run.generation, frozenset()), Moment(run.now)))
        assert deployed(run)[3] == at(3)


class TestEndOfTheInput:
    """P13: records that a finished job has not read are never read."""

    def ended(self, run: Run, **more: Any) -> None:
        for worker in (A, B):
            run.hear(run.heartbeat(worker, ended=True, caught_up=True, **more))

    def test_is_accepted_only_after_a_listing_without_new_partitions(self) -> None:
        run = running(RULES)
        run.lists = False
        self.ended(run)
        last = asked(run)
        assert triggers(run.pass_time(9.0)) == []
        run.answer(last)
        (trigger, _) = triggers(run.pass_time(0.0))
        assert trigger.finishing and trigger.barrier.last

    def test_is_accepted_only_after_a_listing_that_began_after_the_last_end(self) -> None:
        run, first = listing()
        self.ended(run)
        assert triggers(run.pass_time(9.0)) == []
        run.answer(first)
        assert asked(run).number == 2

    def test_waits_until_a_partition_in_that_listing_is_read(self) -> None:
        run = running(RULES)
        run.lists = False
        self.ended(run)
        run.answer(asked(run), at(3))
        (trigger, _) = triggers(run.pass_time(0.0))
        assert not trigger.barrier.last and trigger.assignment == (THREE,)
        close(run, 1)
        self.ended(run, partitions=1)  # sent before the assignment arrived
        assert run.pass_time(1.0) == []
        self.ended(run)
        run.answer(asked(run))
        assert triggers(run.pass_time(0.0))[0].finishing

    def test_a_finish_lists_after_the_request_and_then_ends_the_input(self) -> None:
        run, first = listing()
        ask(run, "stop", how="finish")
        run.answer(first, at(3))
        assert not [e for e in repeated(run.state) if isinstance(e, Send) and isinstance(e.message, m.EndInput)]
        effects = run.answer(asked(run), at(4))
        assert effects == [Send(worker, m.EndInput(Generation(1))) for worker in (A, B)]
        close(run, 1)
        (trigger, _) = triggers(run.pass_time(0.0))
        assert trigger.assignment == (FOUR,) and not trigger.barrier.last
        close(run, 2)
        self.ended(run)
        assert triggers(run.pass_time(0.0))[0].finishing

    def test_a_finish_after_the_last_barrier_needs_no_other_listing_if_the_epoch_is_given_up(self) -> None:
        run = running(RULES)
        self.ended(run)
        assert triggers(run.pass_time(10.0))[0].barrier.last
        ask(run, "stop", how="finish")
        again = triggers(run.pass_time(RULES.epoch_deadline + 2.0)) + triggers(run.pass_time(0.0))
        assert again and all(trigger.finishing and trigger.barrier.last for trigger in again)

    def test_a_finish_of_a_run_to_fixed_ends_reads_partitions_added_since(self) -> None:
        run = running(replace(EVERY, until={"s": {0: 5, 1: 5, 2: 5}}))
        run.lists = False
        ask(run, "stop", how="finish")
        run.answer(asked(run), at(3))
        assert triggers(run.pass_time(0.0))[0].assignment == (THREE,)
        close(run, 1)
        self.ended(run)
        assert triggers(run.pass_time(0.0))[0].finishing

    def test_partitions_that_appear_after_that_listing_are_not_read(self) -> None:
        run, first = listing()
        run.answer(first)
        ask(run, "stop", how="finish")
        run.answer(asked(run))
        assert not [e for e in run.pass_time(300.0) if isinstance(e, ListPartitions)]

    def test_a_finish_that_drops_unread_records_needs_no_listing(self) -> None:
        run, first = listing()
        run.answer(first)
        ask(run, "stop", how="finish", unread="drop")
        self.ended(run)
        assert triggers(run.pass_time(0.0))[0].finishing

    def test_a_run_to_fixed_ends_stops_if_there_are_further_partitions(self) -> None:
        run = running(replace(EVERY, until={"s": {0: 5, 1: 5, 2: 5}}))
        run.lists = False
        self.ended(run)
        run.answer(asked(run), at(3))
        (trigger, _) = triggers(run.pass_time(0.0))
        assert trigger.barrier.last and not trigger.finishing and trigger.assignment == ()
        close(run, 1)
        run.pass_time(0.0)
        assert isinstance(run.effects[-1], CreateRecord)
        assert run.effects[-1].record.body == joblog.Stopped(Epoch(1))


class TestSourceWithAnImmediateSink:
    """P22: every key of its target comes from one partition."""

    FIXED = replace(EVERY, fixed={"s": "out"})

    def test_must_not_get_additional_partitions(self) -> None:
        run, first = listing(self.FIXED)
        (end,) = [e for e in run.answer(first, at(3)) if isinstance(e, End)]
        assert end.error is not None and end.error.kind == "config"
        assert "sink 'out' is written immediately" in end.error.what

    def test_may_be_listed_with_the_same_partitions(self) -> None:
        run, first = listing(self.FIXED)
        assert run.answer(first) == []


@pytest.mark.parametrize("partitions", [(3,), (3, 4, 5, 6)])
def test_no_partition_is_assigned_to_two_subtasks_in_a_generation(partitions: tuple[int, ...]) -> None:
    run = grown(*partitions)
    run.lose(B)
    replaced(run)
    run.answer(asked(run, 4.0), at(7))
    assigned = [each.position.partition for each in triggers(run.pass_time(10.0))[0].assignment]
    assert sorted([*deployed(run), *assigned]) == [0, 1, 2, *partitions, 7]


def test_no_listing_starts_while_workers_are_missing() -> None:
    run = opened(EVERY)
    run.lists = False
    assert not [e for e in run.pass_time(10.0) if isinstance(e, ListPartitions)]
