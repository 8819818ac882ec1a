from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from msgspec.structs import replace as replace_fields

from holdfast.checkpoint.audit import PartAudit, SinkStaged, SourceTaken
from holdfast.checkpoint.bases import Thresholds, advanced
from holdfast.checkpoint.manifest import SubtaskPart
from holdfast.model import (
    CHANGELOG,
    NO_EPOCH,
    Barrier,
    ChannelId,
    Epoch,
    Generation,
    ObjectRef,
    Pending,
    RowDigest,
    SegmentRef,
    SnapshotHandle,
    SourcePosition,
    Staged,
    Subtask,
    Tag,
    Timeline,
    Uploaded,
    Writer,
)
from holdfast.runtime.wire.messages import Assigned
from holdfast.runtime.worker.protocol import (
    AddPartitions,
    CloseFragment,
    CommitThrough,
    Compact,
    Effect,
    PauseChannel,
    QueueOutput,
    ResumeChannels,
    Seal,
    Sealed,
    SendAck,
    Worker,
    awaits_outcome,
    barrier_arrived,
    committed,
    compacted,
    durable_epochs,
    handle_at,
    holds,
    output_sealed,
    part_of,
    positions_noted,
    start,
    triggered,
)

SOURCE, KEYED = 0, 1
LEFT, RIGHT = (ChannelId(0, Subtask(s), Subtask(1)) for s in (0, 1))
BASE, FIRST = Epoch(5), Epoch(7)

Step = Callable[[Worker], tuple[Worker, list[Effect]]]


def fresh() -> Worker:
    """Subtask 1 of 2: a source fragment and a keyed one, from the state of epoch 5."""
    inputs = {KEYED: frozenset({LEFT, RIGHT})}
    return start(Generation(3), Timeline(1), Subtask(1), BASE, FIRST, inputs, frozenset({SOURCE}))


def barrier(epoch: int, *, through: int = BASE, last: bool = False) -> Barrier:
    return Barrier(Epoch(epoch), Epoch(through), last)


def trigger(epoch: int, *, through: int = BASE, last: bool = False) -> Step:
    return lambda state: triggered(state, barrier(epoch, through=through, last=last))


def arrive(channel: ChannelId, epoch: int, *, through: int = BASE, last: bool = False) -> Step:
    return lambda state: barrier_arrived(state, KEYED, channel, barrier(epoch, through=through, last=last))


def note(epoch: int, offset: int) -> Step:
    return lambda state: (positions_noted(state, Epoch(epoch), (SourcePosition("s", 1, offset),)), [])


def seal(epoch: int, *, output: str | None = None) -> Step:
    return lambda state: output_sealed(state, Epoch(epoch), sealed(epoch, output))


def commit(through: int) -> Step:
    return lambda state: committed(state, Epoch(through))


def closed(epoch: int, *, through: int = BASE) -> list[Step]:
    """Everything up to the moment at which the epoch may be sealed."""
    arrivals = [arrive(channel, epoch, through=through) for channel in (LEFT, RIGHT)]
    return [trigger(epoch, through=through), *arrivals]


def blob(name: str) -> ObjectRef:
    return ObjectRef(name, 1, "0" * 64)


def sealed(epoch: int, output: str | None = None) -> Sealed:
    segment = SegmentRef(Epoch(epoch), BASE, blob(f"segments/{epoch}"))
    return Sealed(segment, {} if output is None else {"out": staged(output)})


def staged(*names: str) -> Staged:
    return Staged(tuple(blob(name) for name in names), len(names))


def play(*steps: Step, state: Worker | None = None) -> tuple[Worker, list[Effect]]:
    """Take the steps; return the worker and the effects of the last one."""
    state, effects = state or fresh(), list[Effect]()
    for step in steps:
        state, effects = step(state)
    return state, effects


class TestBarriersThroughAWorker:
    def test_a_trigger_closes_the_source_fragment(self) -> None:
        assert play(trigger(7))[1] == [CloseFragment(SOURCE, barrier(7))]

    def test_an_early_channel_is_paused(self) -> None:
        assert play(arrive(LEFT, 7))[1] == [PauseChannel(LEFT)]

    def test_the_epoch_is_sealed_after_the_last_fragment_closed_it(self) -> None:
        assert play(*closed(7))[1] == [
            CloseFragment(KEYED, barrier(7)),
            Seal(FIRST),
            ResumeChannels(frozenset({LEFT})),
        ]

    def test_the_source_may_be_the_last_to_close(self) -> None:
        effects = play(arrive(LEFT, 7), arrive(RIGHT, 7), trigger(7))[1]
        assert effects == [CloseFragment(SOURCE, barrier(7)), Seal(FIRST)]

    def test_a_channel_that_skips_a_barrier_stops_the_worker(self) -> None:
        """P9"""
        with pytest.raises(AssertionError, match="skipped"):
            play(arrive(LEFT, 8))


class TestLostOrRepeatedTriggers:
    """P9: every source emits every barrier in order."""

    def test_a_repeated_trigger_closes_nothing_twice(self) -> None:
        assert play(trigger(7), trigger(7))[1] == []

    def test_a_late_trigger_closes_nothing(self) -> None:
        assert play(trigger(8), trigger(7))[1] == []

    def test_the_epochs_of_lost_triggers_are_closed_in_order(self) -> None:
        assert play(trigger(9))[1] == [CloseFragment(SOURCE, barrier(epoch)) for epoch in (7, 8, 9)]

    def test_only_the_newest_of_several_closed_epochs_can_be_the_last(self) -> None:
        assert play(trigger(8, last=True))[1] == [
            CloseFragment(SOURCE, barrier(7)),
            CloseFragment(SOURCE, barrier(8, last=True)),
        ]

    def test_a_peer_for_which_the_older_epoch_was_the_last_does_not_stop_the_worker(self) -> None:
        """Epoch 7 was to be the last and was given up; this worker's trigger of it was lost."""
        effects = play(trigger(8, last=True), arrive(LEFT, 7, last=True), arrive(RIGHT, 7))[1]
        assert effects == [CloseFragment(KEYED, barrier(7)), Seal(FIRST), ResumeChannels(frozenset({LEFT}))]


class TestLastBarrier:
    """P13"""

    def test_sources_halt_at_the_last_barrier(self) -> None:
        assert not play(trigger(7))[0].halted
        assert play(trigger(7, last=True))[0].halted

    def test_sources_stay_halted_when_the_last_epoch_is_given_up(self) -> None:
        assert play(trigger(7, last=True), trigger(8, last=True))[0].halted

    def test_halted_sources_still_pass_barriers(self) -> None:
        assert play(trigger(7, last=True), trigger(8))[1] == [CloseFragment(SOURCE, barrier(8))]


class TestAck:
    def test_an_ack_is_sent_when_everything_is_durable(self) -> None:
        position = SourcePosition("s", 1, 40)
        expected = SendAck(FIRST, sealed(7).segment, {"out": staged("7")}, (position,))
        state, effects = play(note(7, 40), *closed(7), seal(7, output="7"))
        assert effects == [expected]
        assert part_of(state, expected, ()) == SubtaskPart(
            Subtask(1), (position,), sealed(7).segment, {"out": staged("7")}, ()
        )

    def test_an_ack_contains_the_source_positions_at_its_barrier(self) -> None:
        effects = play(note(7, 40), *closed(7), note(8, 50), trigger(8), seal(7))[1]
        assert effects == [SendAck(FIRST, sealed(7).segment, {}, (SourcePosition("s", 1, 40),))]


class TestEpochThatDoesNotComplete:
    """P8: its staged output is delivered, in order, under the epoch that completes."""

    GIVEN_UP = (*closed(7), seal(7, output="7"), *closed(8))

    def test_the_next_ack_names_its_output_first(self) -> None:
        effects = play(*self.GIVEN_UP, seal(8, output="8"))[1]
        assert effects == [SendAck(Epoch(8), sealed(8).segment, {"out": staged("7", "8")}, ())]

    def test_the_next_ack_names_its_output_even_without_output_of_its_own(self) -> None:
        effects = play(*self.GIVEN_UP, seal(8))[1]
        assert effects == [SendAck(Epoch(8), sealed(8).segment, {"out": staged("7")}, ())]

    def test_all_output_is_delivered_under_the_tag_of_the_epoch_that_completes(self) -> None:
        state, effects = play(*self.GIVEN_UP, seal(8, output="8"), commit(8))
        pending = Pending(Writer("out", Subtask(1)), Tag(Timeline(1), Epoch(8)), staged("7", "8"))
        assert effects == [CommitThrough(Epoch(8)), QueueOutput(pending)]
        assert durable_epochs(state) == 0

    def test_a_completed_epoch_is_not_named_again(self) -> None:
        steps = (*closed(7), seal(7, output="7"), commit(7), *closed(8, through=7))
        assert play(*steps, seal(8, output="8"))[1] == [SendAck(Epoch(8), sealed(8).segment, {"out": staged("8")}, ())]

    def test_an_ack_waits_until_the_output_of_older_epochs_is_durable_too(self) -> None:
        """The store failed while 7 was sealed; 8, frozen after 7 was given up, overtakes it in the background."""
        assert play(*closed(7), *closed(8), seal(8, output="8"))[1] == []
        effects = play(*closed(7), *closed(8), seal(8, output="8"), seal(7, output="7"))[1]
        assert effects == [SendAck(Epoch(8), sealed(8).segment, {"out": staged("7", "8")}, ())]

    def test_an_ack_does_not_wait_for_epochs_after_its_own(self) -> None:
        effects = play(*closed(7), *closed(8), seal(7, output="7"))[1]
        assert effects == [SendAck(FIRST, sealed(7).segment, {"out": staged("7")}, ())]


class TestOutputOfASinkWithOneCommitter:
    UPLOADED = replace_fields(staged("7"), uploads=(Uploaded("7", "named"),))

    def once(self) -> Worker:
        return replace(fresh(), committed_once=frozenset({"out"}))

    def test_is_not_delivered_by_its_writer(self) -> None:
        steps = (*closed(7), seal(7, output="7"), commit(7))
        assert play(*steps, state=self.once())[1] == [CommitThrough(FIRST)]

    def test_is_acked_with_its_uploads(self) -> None:
        effects = play(*closed(7), self.seal(7), state=self.once())[1]
        assert effects == [SendAck(FIRST, sealed(7).segment, {"out": self.UPLOADED}, ())]

    def test_loses_its_uploads_if_its_epoch_does_not_complete(self) -> None:
        """P8: a committer reads the parts of both epochs, as rows of the later one may replace earlier ones."""
        effects = play(*closed(7), self.seal(7), *closed(8), seal(8, output="8"), state=self.once())[1]
        assert effects == [SendAck(Epoch(8), sealed(8).segment, {"out": staged("7", "8")}, ())]

    def seal(self, epoch: int) -> Step:
        whole = Sealed(sealed(epoch).segment, {"out": self.UPLOADED})
        return lambda state: output_sealed(state, Epoch(epoch), whole)


class TestCommit:
    def test_the_next_barrier_announces_it_before_the_fragment_closes(self) -> None:
        """P9"""
        effects = play(*closed(7), seal(7, output="7"), trigger(8, through=7))[1]
        pending = Pending(Writer("out", Subtask(1)), Tag(Timeline(1), FIRST), staged("7"))
        assert effects == [CommitThrough(FIRST), QueueOutput(pending), CloseFragment(SOURCE, barrier(8, through=7))]

    def test_a_barrier_of_a_peer_announces_it_as_well(self) -> None:
        steps = (*closed(7), seal(7), arrive(LEFT, 8, through=7), arrive(RIGHT, 8, through=7))
        closes = CloseFragment(KEYED, barrier(8, through=7))
        assert play(*steps)[1] == [CommitThrough(FIRST), closes, ResumeChannels(frozenset({LEFT}))]

    def test_an_announcement_has_the_same_effect_earlier(self) -> None:
        reported = (*closed(7), seal(7, output="7"), commit(7))
        assert [type(effect) for effect in play(*reported)[1]] == [CommitThrough, QueueOutput]
        assert play(*reported, trigger(8, through=7))[1] == [CloseFragment(SOURCE, barrier(8, through=7))]

    def test_older_commits_and_the_base_change_nothing(self) -> None:
        assert play(commit(BASE))[1] == []
        assert play(*closed(7), seal(7, output="7"), commit(7), commit(7))[1] == []

    def test_an_epoch_without_output_is_not_delivered(self) -> None:
        assert play(*closed(7), seal(7), commit(7))[1] == [CommitThrough(FIRST)]

    def test_an_epoch_that_this_worker_never_acked_cannot_be_committed(self) -> None:
        with pytest.raises(AssertionError, match="without this worker's part"):
            play(*closed(7), commit(7))


class TestOutcome:
    """Whether a worker without room may leave its channels alone: never while a barrier is awaited in them."""

    @pytest.mark.parametrize(
        ("steps", "awaited"),
        [
            ([], False),
            ([trigger(7)], False),
            ([trigger(7), arrive(LEFT, 7)], False),
            ([arrive(LEFT, 7), arrive(RIGHT, 7)], False),
            (closed(7), True),
            ([*closed(7), seal(7)], True),
            ([*closed(7), seal(7), commit(7)], False),
            ([*closed(7), trigger(8)], False),
            ([*closed(7), seal(7), *closed(8)], True),
            ([*closed(7), seal(7), *closed(8), seal(8), commit(7)], True),
            ([*closed(7), seal(7), *closed(8), seal(8), commit(8)], False),
        ],
    )
    def test_is_awaited_once_every_fragment_has_closed_the_epoch(self, steps: list[Step], awaited: bool) -> None:
        assert awaits_outcome(play(*steps)[0]) is awaited


class TestLag:
    def test_the_lag_counts_durable_epochs_without_a_known_commit(self) -> None:
        steps = (*closed(7), seal(7), *closed(8), seal(8))
        assert durable_epochs(play(*steps)[0]) == 2
        assert durable_epochs(play(*steps, commit(7))[0]) == 1


class TestMerge:
    """Two segments exceed the limit: the merge is stored in the background and named in the next acks."""

    @staticmethod
    def merging(epoch: int) -> Worker:
        """Commit this epoch as the second one; its commit begins a merge."""
        handle = SnapshotHandle(Subtask(1), (4, 8), (), Epoch(0), (SegmentRef(BASE, Epoch(0), blob("segments/5")),))
        state = replace(fresh(), handle=handle, limits=Thresholds(segments_max=2))
        for step in (*closed(epoch), seal(epoch)):
            state, _ = step(state)
        state, effects = committed(state, Epoch(epoch))
        assert [type(each) for each in effects] == [CommitThrough, Compact]
        return state

    def test_is_in_every_ack_until_one_of_them_completes(self) -> None:
        merged = SegmentRef(Epoch(7), Epoch(0), blob("base/7"))
        state, acks = compacted(self.merging(7), merged), list[Effect]()
        for epoch in (8, 9):
            for step in (*closed(epoch, through=7), seal(epoch)):
                state, acks = step(state)
            (ack,) = acks
            assert isinstance(ack, SendAck) and ack.compacted == merged
            assert state.handle is not None
            assert handle_at(state, Epoch(epoch)) == advanced(state.handle, sealed(epoch).segment, merged)
        state, _ = committed(state, Epoch(9))
        assert (state.merging, state.merged, dict(state.acked)) == (False, None, {})
        assert state.handle is not None and state.handle.base == (merged.object,)
        assert [each.epoch for each in state.handle.segments] == [9]

    def test_a_merge_stored_later_does_not_change_acks_already_sent(self) -> None:
        state = self.merging(7)
        for step in (*closed(8, through=7), seal(8), *closed(9, through=7)):
            state, _ = step(state)
        state = compacted(state, SegmentRef(Epoch(7), Epoch(0), blob("base/7")))
        assert handle_at(state, Epoch(8)) == advanced(state.handle, sealed(8).segment, None)  # type: ignore[arg-type]
        state, _ = seal(9)(state)
        state, _ = committed(state, Epoch(8))
        assert state.merging and state.merged is not None


class TestChangelogOfATopic:
    """Segments that a topic takes are delivered as they are, and leave the worker's handle."""

    def sealed(self, epoch: int) -> Sealed:
        segment = SegmentRef(Epoch(epoch), BASE, blob(f"segments/{epoch}"), writer=Subtask(1))
        return Sealed(segment, {"out": staged(f"part {epoch}")}, records=epoch)

    def after(self, *epochs: int) -> tuple[Worker, list[Effect]]:
        """These epochs are sealed, one after another; return the worker and the last effects."""
        handle = SnapshotHandle(Subtask(1), (4, 8), (), NO_EPOCH, ())
        state, effects = replace(fresh(), handle=handle), list[Effect]()
        for epoch in epochs:
            for step in closed(epoch):
                state, _ = step(state)
            state, effects = output_sealed(state, Epoch(epoch), self.sealed(epoch))
        return state, effects

    def test_is_staged_as_the_last_segment_alone_if_epochs_did_not_complete(self) -> None:
        (ack,) = self.after(7, 8)[1]
        assert isinstance(ack, SendAck)
        assert ack.staged == {"out": staged("part 7", "part 8"), CHANGELOG: Staged((blob("segments/8"),), 8)}

    def test_is_delivered_at_the_commit(self) -> None:
        state, _ = self.after(7, 8)
        _, effects = committed(state, Epoch(8))
        assert [each for each in effects if isinstance(each, QueueOutput)] == [
            QueueOutput(
                Pending(Writer(CHANGELOG, Subtask(1)), Tag(Timeline(1), Epoch(8)), Staged((blob("segments/8"),), 8))
            ),
            QueueOutput(Pending(Writer("out", Subtask(1)), Tag(Timeline(1), Epoch(8)), staged("part 7", "part 8"))),
        ]

    def test_leaves_the_handle_and_is_never_merged(self) -> None:
        state = replace(self.after(7)[0], limits=Thresholds(bytes_max=0, segments_max=2))
        for epoch in (7, 8, 9):
            if epoch > 7:
                for step in closed(epoch, through=epoch - 1):
                    state, _ = step(state)
                state, _ = output_sealed(state, Epoch(epoch), self.sealed(epoch))
            state, effects = committed(state, Epoch(epoch))
            assert not any(isinstance(each, Compact) for each in effects)
            assert state.handle is not None and [each.epoch for each in state.handle.segments] == [epoch]

    def test_decides_whether_the_worker_holds_an_epoch_by_the_segment_of_it(self) -> None:
        state, _ = self.after(7)
        older = SegmentRef(Epoch(5), NO_EPOCH, blob("segments/5"), writer=Subtask(1))
        handle = SnapshotHandle(Subtask(1), (4, 8), (), NO_EPOCH, (self.sealed(7).segment,))  # type: ignore[arg-type]
        assert holds(state, Epoch(7), handle)
        assert holds(state, Epoch(7), replace(handle, segments=(older, *handle.segments)))
        other = SegmentRef(Epoch(7), BASE, blob("segments/another worker's"), writer=Subtask(1))
        assert not holds(state, Epoch(7), replace(handle, segments=(other,)))
        assert not holds(state, Epoch(8), handle)
        state, _ = committed(state, Epoch(7))
        assert holds(state, Epoch(7), handle) and not holds(state, Epoch(7), replace(handle, segments=(other,)))


class TestDigests:
    """Input and output of an epoch are reported once, in the ack of the epoch that completes (P8)."""

    def took(self, epoch: int, first: int, end: int) -> Step:
        taken = PartAudit((SourceTaken("s", 1, first, end, RowDigest(end - first)),))
        return lambda state: (positions_noted(state, Epoch(epoch), (), taken), [])

    def sealed(self, epoch: int, rows: int) -> Step:
        made = Sealed(None, {"out": staged(f"part {epoch}")}, {"out": RowDigest(rows)})
        return lambda state: output_sealed(state, Epoch(epoch), made)

    def reported(self, effects: list[Effect]) -> list[PartAudit | None]:
        return [effect.audit for effect in effects if isinstance(effect, SendAck)]

    def part(self, first: int, end: int, *rows: int) -> PartAudit:
        out = SinkStaged(Writer("out", Subtask(1)), tuple(RowDigest(count) for count in rows))
        return PartAudit((SourceTaken("s", 1, first, end, RowDigest(end - first)),), (out,))

    def test_digests_of_an_epoch_that_was_given_up_are_in_the_next_ack(self) -> None:
        steps = [*closed(7), self.took(7, 0, 4), self.sealed(7, 2)]
        assert self.reported(play(*steps)[1]) == [self.part(0, 4, 2)]
        more = [*closed(8), self.took(8, 4, 9), self.sealed(8, 3)]
        assert self.reported(play(*steps, *more)[1]) == [self.part(0, 9, 2, 3)]

    def test_digests_of_a_committed_epoch_are_not_sent_again(self) -> None:
        steps = [*closed(7), self.took(7, 0, 4), self.sealed(7, 2), commit(7)]
        more = [*closed(8, through=7), self.took(8, 4, 9), self.sealed(8, 3)]
        assert self.reported(play(*steps, *more)[1]) == [self.part(4, 9, 3)]

    def test_an_ack_has_no_digests_if_none_are_computed(self) -> None:
        assert self.reported(play(*closed(7), seal(7))[1]) == [None]


def given(partition: int, subtask: int = 1) -> Assigned:
    return Assigned(SourcePosition("s", partition, 0), Subtask(subtask))


class TestAssignment:
    """P12: it rides on a trigger and applies from the next epoch."""

    def test_applies_after_the_barrier_of_its_trigger(self) -> None:
        barrier = Barrier(FIRST, BASE, False)
        _, effects = triggered(fresh(), barrier, (given(4),))
        assert effects == [CloseFragment(SOURCE, barrier), AddPartitions((given(4).position,))]

    def test_an_assignment_to_another_subtask_changes_nothing(self) -> None:
        barrier = Barrier(FIRST, BASE, False)
        assert triggered(fresh(), barrier, (given(4, subtask=0),)) == triggered(fresh(), barrier)

    def test_is_applied_once_however_often_triggers_repeat_it(self) -> None:
        machine, _ = triggered(fresh(), Barrier(FIRST, BASE, False), (given(4),))
        following = Barrier(Epoch(FIRST + 1), BASE, False)
        for barrier in (Barrier(FIRST, BASE, False), following, following):
            machine, effects = triggered(machine, barrier, (given(4),))
            assert not [effect for effect in effects if isinstance(effect, AddPartitions)]

    def test_whose_trigger_was_lost_applies_after_the_barrier_of_the_next(self) -> None:
        following = Barrier(Epoch(FIRST + 1), BASE, False)
        _, effects = triggered(fresh(), following, (given(4), given(5)))
        closed = [effect for effect in effects if isinstance(effect, CloseFragment)]
        assert [each.barrier.epoch for each in closed] == [FIRST, FIRST + 1]
        assert effects[-1] == AddPartitions((given(4).position, given(5).position))
