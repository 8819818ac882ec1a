"""The order in which a subtask took its input in an epoch: what else than records and state decides the result.

Between two barriers each fragment takes batches of source partitions, frames of channels, watermarks and times of the
clock, one after the other. Which comes first depends on how fast everything is. So a recorder notes each step where the
fragment takes it, and how its operators divided their work into portions. A replay that takes the same steps computes
the same, since everything else is a function of records and state.

Steps are triples of numbers (place, amount, repeats). A place is a source partition, of which the amount is a number of
offsets, or a channel, of which it is a number of rows. `TIME` and `CLOCK` stand for event time and processing time as
the fragment is told them, `SENT` and the places below it for a watermark that a source sends; their amount is the
difference from the time before. A source's steps begin with the watermark that it had sent last.

Invariants
    - The steps of a fragment for an epoch are those between its barriers, each once and in order.
    - An epoch that is given up keeps its own record: the next one names it again, before its own (P8).
    - A rollback begins a new recorder: nothing of what was undone is recorded (P2).

Pure.
Source: docs/decisions/0131-recorded-order.md; PROTOCOL P8, P16.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec
import pyarrow as pa

from holdfast.errors import ConfigError, Damaged
from holdfast.model import ChannelId, Epoch, Subtask, Watermark
from holdfast.runtime.operators.portions import Portions, RecordedPortions

FORMAT_VERSION = 1
TIME, CLOCK, SENT = -1, -2, -3
"""Places of steps that take no rows. From `SENT` down, a place also says how a watermark is: quiet, idle or over."""
_WRAP, _HALF = 1 << 64, 1 << 63
_ZSTD = pa.Codec("zstd", compression_level=1)
_SIZE_MAX = 1 << 30


class FromPartition(msgspec.Struct, frozen=True, array_like=True, tag="source"):
    """A source partition, and the offset from which it was read."""

    source: str
    partition: int
    first: int


class FromChannel(msgspec.Struct, frozen=True, array_like=True, tag="channel"):
    """A channel of the subtask."""

    edge: int
    sender: Subtask


class FragmentSteps(msgspec.Struct, frozen=True):
    """The steps of one fragment in an epoch.

    Args:
        places: By number.
        steps: Triples (place, amount, repeats), one after the other.
        portions: By operator, pairs as in runtime/operators/portions.py; operators without any are absent.
    """

    places: tuple[FromPartition | FromChannel, ...]
    steps: tuple[int, ...]
    portions: dict[str, tuple[int, ...]] = {}

    def taken(self) -> Iterator[tuple[int, int]]:
        """Yield every step as its place and amount, times in full."""
        at_us = {TIME: 0, CLOCK: 0, SENT: 0}
        for place, amount, repeats in zip(self.steps[::3], self.steps[1::3], self.steps[2::3], strict=True):
            for _ in range(repeats):
                if place < 0:
                    clock = max(place, SENT)
                    at_us[clock] = _wrapped(at_us[clock] + amount)
                    yield place, at_us[clock]
                else:
                    yield place, amount


def sent_at(place: int, at_us: int) -> Watermark:
    """Return the watermark of a step whose place is `SENT` or below."""
    how = SENT - place
    return Watermark(at_us, idle=bool(how & 2), quiet=bool(how & 1), over=bool(how & 4))


class SubtaskOrder(msgspec.Struct, frozen=True):
    """The record of one subtask for one epoch; in microbatch mode, of one of its tasks."""

    epoch: Epoch
    subtask: Subtask
    fragments: dict[int, FragmentSteps]
    v: int = FORMAT_VERSION


class _StoredOrder(msgspec.Struct):
    """The record as it is stored."""

    size: Annotated[int, msgspec.Meta(ge=1, le=_SIZE_MAX)]
    zstd: bytes
    v: int = FORMAT_VERSION


class _OrderVersion(msgspec.Struct):
    v: int


_VERSION, _STORED, _ORDER = (
    msgspec.msgpack.Decoder(_OrderVersion),
    msgspec.msgpack.Decoder(_StoredOrder),
    msgspec.msgpack.Decoder(SubtaskOrder),
)


class Ordering:
    """Is told each step of a subtask's fragments; this one records nothing."""

    def read(self, fragment: int, source: str, partition: int, first: int, following: int) -> None:
        """The fragment takes the records of a partition from `first` to before `following`."""

    def took(self, fragment: int, channel: ChannelId, rows: int) -> None:
        """The fragment takes rows of a channel as one batch."""

    def time(self, fragment: int, at_us: int) -> None:
        """Event time of the fragment advances to this point."""

    def sent(self, fragment: int, at: Watermark) -> None:
        """The source of the fragment sends a watermark."""

    def clock(self, fragment: int, now_us: int) -> None:
        """The fragment begins with something that is due at this processing time."""

    def portions(self, operator: str) -> Portions:
        """Return the portions of an operator, which are those of the fragment that has it."""
        return Portions()

    def closed(self, fragment: int, epoch: Epoch) -> None:
        """The fragment closes its epoch: later steps belong to the next one."""

    def take(self, epoch: Epoch) -> SubtaskOrder | None:
        """Return the record of an epoch that every fragment has closed; None if there is none."""
        return None


class _Fragment:
    """The record of the epoch that a fragment is in."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str | int, int], int] = {}
        self._places: list[FromPartition | FromChannel] = []
        self._steps: list[int] = []
        self._read_to: dict[int, int] = {}
        self._at_us = {TIME: 0, CLOCK: 0, SENT: 0}

    def read(self, source: str, partition: int, first: int, following: int) -> None:
        place = self._numbers.get((source, partition))
        if place is None:
            place = self._added((source, partition), FromPartition(source, partition, first))
            self._read_to[place] = first
        self._add(place, following - self._read_to[place])
        self._read_to[place] = following

    def took(self, channel: ChannelId, rows: int) -> None:
        place = self._numbers.get((channel.edge, channel.sender))
        if place is None:
            place = self._added((channel.edge, channel.sender), FromChannel(channel.edge, channel.sender))
        self._add(place, rows)

    def advanced(self, place: int, at_us: int) -> None:
        self._add(place, _wrapped(at_us - self._at_us[place]))
        self._at_us[place] = at_us

    def sent(self, at: Watermark) -> None:
        self._add(SENT - (at.quiet + 2 * at.idle + 4 * at.over), _wrapped(at.at_us - self._at_us[SENT]))
        self._at_us[SENT] = at.at_us

    def take(self, portions: Mapping[str, RecordedPortions]) -> FragmentSteps:
        runs = {name: tuple(pairs) for name, each in portions.items() if (pairs := each.take())}
        return FragmentSteps(tuple(self._places), tuple(self._steps), runs)

    def _added(self, key: tuple[str | int, int], place: FromPartition | FromChannel) -> int:
        number = self._numbers[key] = len(self._places)
        self._places.append(place)
        return number

    def _add(self, place: int, amount: int) -> None:
        steps = self._steps
        if steps and steps[-3] == place and steps[-2] == amount:
            steps[-1] += 1
        else:
            steps += (place, amount, 1)


class Recorder(Ordering):
    """Records the steps of one subtask in one generation.

    Args:
        operators: The fragment of each operator.
        at_end: Whether watermarks count only at the end of an epoch, as in microbatches.
    """

    def __init__(self, subtask: Subtask, operators: Mapping[str, int], at_end: bool = False) -> None:
        self._subtask, self._operators, self._at_end = subtask, operators, at_end
        self._sent: dict[int, Watermark] = {}
        """The last watermark of each source."""
        self._fragments: dict[int, _Fragment] = {}
        self._portions: dict[int, dict[str, RecordedPortions]] = {}
        self._closed: dict[Epoch, dict[int, FragmentSteps]] = {}

    def read(self, fragment: int, source: str, partition: int, first: int, following: int) -> None:
        self._of(fragment).read(source, partition, first, following)

    def took(self, fragment: int, channel: ChannelId, rows: int) -> None:
        self._of(fragment).took(channel, rows)

    def time(self, fragment: int, at_us: int) -> None:
        self._of(fragment).advanced(TIME, at_us)

    def sent(self, fragment: int, at: Watermark) -> None:
        if not self._at_end:
            self._of(fragment).sent(at)
        self._sent[fragment] = at

    def clock(self, fragment: int, now_us: int) -> None:
        self._of(fragment).advanced(CLOCK, now_us)

    def portions(self, operator: str) -> Portions:
        mine = self._portions.setdefault(self._operators[operator], {})
        return mine.setdefault(operator, RecordedPortions())

    def closed(self, fragment: int, epoch: Epoch) -> None:
        if fragment in self._sent and self._at_end:
            self._of(fragment).sent(self._sent[fragment])
        steps = self._of(fragment).take(self._portions.get(fragment, {}))
        del self._fragments[fragment]
        if steps.steps or steps.portions:
            self._closed.setdefault(epoch, {})[fragment] = steps

    def take(self, epoch: Epoch) -> SubtaskOrder | None:
        fragments = self._closed.pop(epoch, {})
        return SubtaskOrder(epoch, self._subtask, fragments) if fragments else None

    def _of(self, fragment: int) -> _Fragment:
        steps = self._fragments.get(fragment)
        if steps is None:
            steps = self._fragments[fragment] = _Fragment()
            if fragment in self._sent and not self._at_end:
                steps.sent(self._sent[fragment])
        return steps


def _wrapped(number: int) -> int:
    """Return a number of 64 bits: the first time of all and the last are farther apart."""
    return (number + _HALF) % _WRAP - _HALF


def encode(order: SubtaskOrder) -> bytes:
    """Return the record as it is stored."""
    plain = msgspec.msgpack.encode(order)
    return msgspec.msgpack.encode(_StoredOrder(len(plain), _ZSTD.compress(plain, asbytes=True)))


def decode(data: bytes, path: str) -> SubtaskOrder:
    """Read a record back; the reader of the bytes has verified their hash.

    Raises:
        Damaged: it is not a record.
        ConfigError: a later version wrote it.
    """
    try:
        version = _VERSION.decode(data).v
        if version == FORMAT_VERSION:
            frame = _STORED.decode(data)
            return _ORDER.decode(_ZSTD.decompress(frame.zstd, decompressed_size=frame.size, asbytes=True))
    except (msgspec.DecodeError, pa.ArrowException, OSError, ValueError) as error:
        raise Damaged(
            f"the recorded order {path} cannot be read: {error}",
            not_done="nothing was replayed",
            next_step="check the storage: holdfast checkpoints verify JOB; another epoch may still be replayed",
        ) from error
    raise ConfigError(
        f"the recorded order {path} has format {version}; this version of Holdfast reads format {FORMAT_VERSION}",
        not_done="nothing was replayed",
        next_step="replay with the version that wrote it, or with a newer one",
    )
