"""Coordinator and workers of one job, joined by channels and messages that the test delivers.

No data flows: a source emits barriers only, and every sealed epoch may stage one part per sink. Control
messages are lost, repeated and overtake each other; channels keep their order, as TCP does.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoint import coordinator
from holdfast.checkpoint.manifest import SubtaskPart
from holdfast.model import (
    EPOCHS_GIVEN_UP_MAX,
    Barrier,
    ChannelId,
    Epoch,
    Generation,
    ObjectRef,
    Pending,
    SegmentRef,
    Staged,
    Subtask,
    Timeline,
    Writer,
)
from holdfast.runtime.worker import protocol as worker

SOURCE, KEYED = 0, 1
RAW, OUT = "raw", "out"
"""Sinks of the source fragment and of the keyed one."""


@dataclass(frozen=True)
class Ack:
    """A message of a worker to the driver."""

    generation: int
    epoch: Epoch
    part: SubtaskPart


@dataclass
class Member:
    """One worker: its machine, messages for it, and what waits in its background."""

    machine: worker.Worker
    mail: list[Barrier | Epoch] = field(default_factory=list)
    """Triggers, and epochs announced as committed."""
    sealing: list[tuple[Epoch, worker.Sealed]] = field(default_factory=list)
    """In the background; a write that the store refused is tried again, so any may be the next to be done."""
    committed: list[Epoch] = field(default_factory=list)


class World:
    """All that happens, one thing at a time, in an order that the seed decides."""

    def __init__(self, seed: int, parallelism: int) -> None:
        self.random, self.parallelism = random.Random(seed), parallelism
        self.generation = 0
        self.acks: list[Ack] = []
        self.completed: list[Epoch] = []
        self.sealed: set[tuple[Epoch, Subtask]] = set()
        self.open_parts: dict[Writer, list[ObjectRef]] = defaultdict(list)
        """Staged since the last completed epoch, in order."""
        self.named: dict[tuple[Writer, Epoch], Staged] = {}
        """What the manifest of each completed epoch names."""
        self.delivered: dict[Writer, list[Pending]] = defaultdict(list)
        self.start(Epoch(1))

    def start(self, first: Epoch) -> None:
        """A generation begins: streams are closed, every worker holds the last completed epoch."""
        base = self.completed[-1] if self.completed else Epoch(0)
        self.generation += 1
        self.epochs = coordinator.start(self.parallelism, base, first)
        self.first, self.last, self.trouble = first, False, 0.3
        self.decided: coordinator.Decide | None = None
        subtasks = [Subtask(s) for s in range(self.parallelism)]
        self.channels = {ChannelId(0, s, r): deque[Barrier]() for s in subtasks for r in subtasks}
        self.paused: set[ChannelId] = set()
        self.passed = dict.fromkeys(self.channels, Epoch(first - 1))
        self.open_parts.clear()
        self.members = [
            Member(
                worker.start(
                    Generation(self.generation),
                    Timeline(1),
                    s,
                    base,
                    first,
                    {KEYED: frozenset(c for c in self.channels if c.receiver == s)},
                    frozenset({SOURCE}),
                )
            )
            for s in subtasks
        ]

    # What can happen

    def choices(self) -> list[Callable[[], None]]:
        found: list[Callable[[], None]] = []
        if isinstance(self.epochs, coordinator.Idle):
            found.append(self.trigger)
        if self.decided is not None:
            found.append(self.append_succeeds)
        for member in self.members:
            if member.mail:
                found.append(lambda m=member: self.read_mail(m))  # type: ignore[misc]
            if member.sealing:
                found.append(lambda m=member: self.seal(m))  # type: ignore[misc]
        for channel, waiting in self.channels.items():
            if waiting and channel not in self.paused:
                found.append(lambda c=channel: self.deliver_barrier(c))  # type: ignore[misc]
        if self.acks:
            found.append(self.read_ack)
        return found

    def step(self) -> None:
        """One thing happens; now and then a deadline passes or a worker is lost."""
        chance, choices = self.random.random(), self.choices()
        if chance < 0.03 or not choices:
            self.deadline_passes()
        elif chance < 0.035:
            self.worker_is_lost()
        else:
            self.random.choice(choices)()

    def trigger(self) -> None:
        assert isinstance(self.epochs, coordinator.Idle)
        self.last = self.last or self.random.random() < 0.05
        self.epochs, effects = coordinator.trigger(self.epochs, 0.0, self.last)
        for effect in effects:
            if isinstance(effect, coordinator.MustRecover):
                self.worker_is_lost()
            else:
                assert isinstance(effect, coordinator.SendBarrier)
                self.tell(effect.barrier)

    def tell(self, message: Barrier | Epoch) -> None:
        for member in self.members:
            member.mail += [message] * self.copies()

    def copies(self) -> int:
        """A message is mostly sent once, sometimes lost, sometimes repeated."""
        chance = self.random.random()
        return 1 if chance > self.trouble else 2 if chance < self.trouble / 2 else 0

    def read_mail(self, member: Member) -> None:
        message = member.mail.pop(self.random.randrange(len(member.mail)))
        if isinstance(message, Barrier):
            self.take(member, *worker.triggered(member.machine, message))
        else:
            self.take(member, *worker.committed(member.machine, message))

    def deliver_barrier(self, channel: ChannelId) -> None:
        barrier = self.channels[channel].popleft()
        assert barrier.epoch == self.passed[channel] + 1, "a channel skipped a barrier"
        self.passed[channel] = barrier.epoch
        member = self.members[channel.receiver]
        self.take(member, *worker.barrier_arrived(member.machine, KEYED, channel, barrier))

    def seal(self, member: Member) -> None:
        epoch, sealed = member.sealing.pop(self.random.randrange(len(member.sealing)))
        self.sealed.add((epoch, member.machine.subtask))
        self.take(member, *worker.output_sealed(member.machine, epoch, sealed))

    def read_ack(self) -> None:
        ack = self.acks.pop(self.random.randrange(len(self.acks)))
        if ack.generation != self.generation:
            return  # as the master does (P2)
        self.epochs, effects = coordinator.acked(self.epochs, ack.epoch, ack.part)
        for effect in effects:
            assert isinstance(effect, coordinator.Decide) and self.decided is None
            epoch = effect.barrier.epoch
            assert all((epoch, member.machine.subtask) in self.sealed for member in self.members), "not all sealed it"
            self.decided = effect

    def deadline_passes(self) -> None:
        before = self.epochs
        self.epochs, _ = coordinator.deadline_passed(self.epochs)
        assert self.decided is None or self.epochs == before, "an epoch was given up while its append was in flight"

    def append_succeeds(self) -> None:
        decided, self.decided = self.decided, None
        assert decided is not None and isinstance(self.epochs, coordinator.Deciding)
        epoch = decided.barrier.epoch
        assert not self.completed or epoch > self.completed[-1]
        for part in decided.parts:
            for sink in (RAW, OUT):
                writer = Writer(sink, part.subtask)
                staged = part.staged.get(sink, Staged((), 0))
                mine = [ref for ref in self.open_parts[writer] if epoch_of(ref) <= epoch]
                assert list(staged.parts) == mine, "output is missing, named twice or out of order (P8)"
                assert staged.rows == len(mine)
                self.open_parts[writer] = [ref for ref in self.open_parts[writer] if epoch_of(ref) > epoch]
                self.named[writer, epoch] = staged
        self.completed.append(epoch)
        self.epochs, effects = coordinator.appended(self.epochs)
        assert effects == [coordinator.Announce(epoch)]
        self.tell(epoch)

    def worker_is_lost(self) -> None:
        """The append in flight is settled first (P4), then all start again from the base."""
        if self.decided is not None:
            self.append_succeeds()
        last_usable = max(self.completed[-1] if self.completed else 0, self.first - 1) + EPOCHS_GIVEN_UP_MAX
        self.start(Epoch(last_usable + 1))

    # What a worker does

    def take(self, member: Member, machine: worker.Worker, effects: list[worker.Effect]) -> None:
        member.machine = machine
        subtask = machine.subtask
        for effect in effects:
            match effect:
                case worker.PauseChannel(channel):
                    assert channel not in self.paused
                    self.paused.add(channel)
                case worker.ResumeChannels(channels):
                    assert channels <= self.paused
                    self.paused -= channels
                case worker.CloseFragment(fragment, barrier):
                    if fragment == SOURCE:
                        for channel in self.channels:
                            if channel.sender == subtask:
                                self.channels[channel].append(barrier)
                case worker.Seal(epoch):
                    member.sealing.append((epoch, self.stage(subtask, epoch)))
                case worker.SendAck(epoch):
                    part = worker.part_of(member.machine, effect, ())
                    self.acks += [Ack(self.generation, epoch, part)] * self.copies()
                case worker.CommitThrough(through):
                    assert not member.committed or through > member.committed[-1]
                    assert through in self.completed, "a worker committed what is not completed"
                    member.committed.append(through)
                case worker.QueueOutput(pending):
                    assert pending.staged == self.named[pending.writer, pending.tag.epoch]
                    queue = self.delivered[pending.writer]
                    assert not queue or pending.tag > queue[-1].tag, "output would be overtaken"
                    queue.append(pending)

    def stage(self, subtask: Subtask, epoch: Epoch) -> worker.Sealed:
        staged = {}
        for sink in (RAW, OUT):
            if self.random.random() < 0.7:
                part = ObjectRef(f"staged/{self.generation}/{epoch}/{sink}-{subtask}", 1, "0" * 64)
                self.open_parts[Writer(sink, subtask)].append(part)
                staged[sink] = Staged((part,), 1)
        segment = ObjectRef(f"segments/{self.generation}/{epoch}/{subtask}", 1, "0" * 64)
        return worker.Sealed(SegmentRef(epoch, Epoch(0), segment), staged)

    # The end

    def settle(self) -> None:
        """No more messages are lost: another epoch completes, and every worker is notified (P13)."""
        self.trouble = 0.0
        if isinstance(self.epochs, coordinator.Collecting):
            self.deadline_passes()
        before = len(self.completed)
        for _ in range(10_000):
            if len(self.completed) > before and isinstance(self.epochs, coordinator.Idle):
                break
            self.random.choice(self.choices())()
        else:
            raise AssertionError("no epoch completes although nothing is lost")
        for member in self.members:
            self.take(member, *worker.committed(member.machine, self.completed[-1]))


def epoch_of(ref: ObjectRef) -> int:
    return int(ref.path.split("/")[2])


class TestEpochsOfAJob:
    @settings(max_examples=150, deadline=None)
    @given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 400))
    def test_epochs_complete_fully_and_in_order_whatever_messages_are_lost(
        self, seed: int, parallelism: int, steps: int
    ) -> None:
        """P2, P4, P8, P9; the checks are where things happen, in `World`."""
        world = World(seed, parallelism)
        for _ in range(steps):
            world.step()
        world.settle()
        newest = world.completed[-1]
        assert [member.committed[-1] for member in world.members] == [newest] * parallelism
        assert len({*world.passed.values()}) == 1 or any(world.channels.values())
        for (writer, epoch), staged in world.named.items():
            if epoch >= world.first and staged.parts:  # older ones are handed over by recovery
                assert [p.staged for p in world.delivered[writer] if p.tag.epoch == epoch] == [staged]
