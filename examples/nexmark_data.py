"""The events of the Nexmark benchmark: persons, auctions and bids of a web site, computed in whole columns.

In every 50 events, the first is a new person, the next three are new auctions, and the others are bids. Half of the
bids are on a hot auction, three quarters by a hot bidder, three quarters of the auctions by a hot seller; which ones
are hot moves on. A bid may name an auction, and an auction a seller, that is yet to come. Prices are spread over six
decades.

Every field is a hash of the number of its event, so a row depends on its number alone. The event times of a stream are
in order; with `group`, the events of a group come in a pseudo-random order. No two events have the same time.

Source: github.com/nexmark/nexmark, which also has the queries. The pseudo-random numbers are others, times are in
microseconds, and every hot bidder is a person that exists.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.errors import ConfigError
from holdfast.runtime.rows.schema import schema_of
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import open_objects

Numbers: TypeAlias = NDArray[np.int64]
Columns: TypeAlias = dict[str, Any]

PERSONS, AUCTIONS, BIDS = 1, 3, 46
ROUND = PERSONS + AUCTIONS + BIDS
FIRST_ID, FIRST_CATEGORY, CATEGORIES = 1_000, 10, 5
BEGIN_US = 1_767_225_600_000_000
"""2026-01-01, midnight UTC."""
HOT_EVERY, LEAD = 100, 10
ACTIVE_PERSONS, OPEN_AUCTIONS = 1_000, 100
CHANNELS, HOT_CHANNELS = 10_000, ("Google", "Facebook", "Baidu", "Apple")
STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES = [
    *("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland"),
    *("Bend", "Redmond", "Seattle", "Kent", "Cheyenne"),
]
FIRST_NAMES = ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"]
LAST_NAMES = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"]
PARTITIONS = 4
ROWS_PER_APPEND = 1 << 20


@dataclass
class Person:
    id: int
    name: str
    email: str
    credit_card: str
    city: str
    state: str
    at: datetime
    extra: str


@dataclass
class Auction:
    id: int
    item: str
    description: str
    initial_bid: int
    reserve: int
    at: datetime
    expires: datetime
    seller: int
    category: int
    extra: str


@dataclass
class Bid:
    auction: int
    bidder: int
    price: int
    channel: str
    url: str
    at: datetime
    extra: str


ROWS = {"persons": Person, "auctions": Auction, "bids": Bid}


@dataclass(frozen=True)
class Events:
    """A sequence of events.

    Args:
        count: Number of events of all three kinds.
        every_us: Time from one event to the next.
        group: The events of a group come in a pseudo-random order. A multiple of 50, not of 953; 0: all in order.
    """

    count: int
    every_us: int = 100
    group: int = 0

    @property
    def out_of_orderness(self) -> str:
        """How far a record's event time may lie behind that of records before it."""
        return _milliseconds(self.group * self.every_us)

    @property
    def longest_auction(self) -> str:
        """The longest time from the start of an auction to its end; a bid is no further from its auction either."""
        return _milliseconds(2 * _horizon(self.every_us) + 1)

    @property
    def longest_activity(self) -> str:
        """The longest time between a person and an auction of this person, whichever comes first."""
        return _milliseconds((ACTIVE_PERSONS + LEAD) * ROUND * self.every_us)

    def rows(self, kind: str) -> int:
        """Return how many events are of a kind: "persons", "auctions" or "bids"."""
        before, share = _SHARES[kind]
        rounds, rest = divmod(self.count, ROUND)
        return rounds * share + min(max(rest - before, 0), share)

    def columns(self, kind: str, indices: Numbers) -> Columns:
        """Return the rows of a kind with these numbers, as columns; a vectorised `hf.Generator` calls it too."""
        before, share = _SHARES[kind]
        size = max(1, self.group // ROUND * share)
        first = indices // size * size
        mixed = first + (indices - first) * 953 % size
        mixed = np.where(first + size <= self.rows(kind), mixed, indices)  # the last group may be smaller
        events = mixed // share * ROUND + before + mixed % share
        return _COLUMNS[kind](events, BEGIN_US + events * self.every_us, self.every_us)

    def batches(self, kind: str, partition: int = 0, partitions: int = 1) -> Iterator[pa.RecordBatch]:
        """Return the rows of a partition: every so-many-th row."""
        schema = schema_of(ROWS[kind])
        for first in range(partition, self.rows(kind), ROWS_PER_APPEND * partitions):
            end = min(self.rows(kind), first + ROWS_PER_APPEND * partitions)
            columns = self.columns(kind, np.arange(first, end, partitions, dtype=np.int64))
            arrays = [pa.array(columns[field.name]).cast(field.type) for field in schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def written(folder: str, events: Events) -> str:
    """Return a folder with the logs of persons, auctions and bids; if it does not exist, write them first, atomically.

    Raises:
        ConfigError: the folder exists and has no such logs.
    """
    place = Path(folder)
    if all((place / kind / "meta.json").exists() for kind in ROWS):
        return folder
    if place.exists():
        raise ConfigError(
            f"{folder} exists and does not hold the logs {', '.join(ROWS)}",
            not_done="no event was written",
            next_step="name another folder, or remove this one",
        )
    place.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=place.parent, prefix=f"{place.name}-unfinished-") as unfinished:
        print(f"Writing {events.count:,} events of Nexmark into {folder}, once", file=sys.stderr)
        for kind in ROWS:
            write_log(f"{unfinished}/logs/{kind}", kind, events)
        os.rename(f"{unfinished}/logs", place)
    return folder


def write_log(path: str, kind: str, events: Events) -> None:
    """Write the rows of a kind into a new, sealed log."""
    schema, store = schema_of(ROWS[kind]), open_objects(path)
    create_log(store, schema, PARTITIONS)
    writer = LogWriter(store)
    parts = [events.batches(kind, partition, PARTITIONS) for partition in range(PARTITIONS)]
    for batches in zip(*parts, strict=False):
        writer.append({partition: pa.Table.from_batches([batch]) for partition, batch in enumerate(batches)})
    writer.seal()


def _persons(events: Numbers, at: Numbers, every_us: int) -> Columns:
    names = pa.array([f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES])
    name = names.take(pa.array(_draw(events, 1, len(names))))
    email = pc.binary_join_element_wise(
        _words(events, 2, 7), pc.binary_join_element_wise(_words(events, 3, 5), "com", "."), "@"
    )
    digits = pa.array([f"{number:04d}" for number in range(10_000)])
    card = pc.binary_join_element_wise(*(digits.take(pa.array(_draw(events, 4 + n, 10_000))) for n in range(4)), " ")
    city = pa.array(CITIES).take(pa.array(_draw(events, 8, len(CITIES))))
    state = pa.array(STATES).take(pa.array(_draw(events, 9, len(STATES))))
    used = 8 + sum(pc.binary_length(each).to_numpy() for each in (name, email, card, city, state))
    ids = FIRST_ID + _last_person(events)
    columns = {"id": ids, "name": name, "email": email, "credit_card": card, "city": city, "state": state}
    return columns | {"at": _times(at), "extra": _extra(events, used, 200)}


def _auctions(events: Numbers, at: Numbers, every_us: int) -> Columns:
    hot = _last_person(events) // HOT_EVERY * HOT_EVERY
    seller = np.where(_draw(events, 1, 4) > 0, hot, _any_person(events))
    initial_bid = _price(events, 3)
    item, description = _words(events, 4, 20), _words(events, 5, 100)
    used = 48 + pc.binary_length(item).to_numpy() + pc.binary_length(description).to_numpy()
    return {
        "id": FIRST_ID + _last_auction(events),
        "item": item,
        "description": description,
        "initial_bid": initial_bid,
        "reserve": initial_bid + _price(events, 6),
        "at": _times(at),
        "expires": _times(at + 1 + _fraction(events, 7, 2 * _horizon(every_us))),
        "seller": FIRST_ID + seller,
        "category": FIRST_CATEGORY + _draw(events, 8, CATEGORIES),
        "extra": _extra(events, used, 500),
    }


def _bids(events: Numbers, at: Numbers, every_us: int) -> Columns:
    last = _last_auction(events)
    oldest = np.maximum(last - OPEN_AUCTIONS, 0)
    auction = oldest + _draw(events, 2, last - oldest + 1 + LEAD)
    auction = np.where(_draw(events, 1, 2) > 0, last // HOT_EVERY * HOT_EVERY, auction)
    hot = _last_person(events) // HOT_EVERY * HOT_EVERY + 1  # so that hot bidders are not hot sellers
    bidder = np.where(_draw(events, 3, 4) > 0, hot, _any_person(events))
    channels, urls = _channels()
    usual = len(HOT_CHANNELS) + _draw(events, 6, CHANNELS)
    channel = pa.array(np.where(_draw(events, 4, 2) > 0, _draw(events, 5, len(HOT_CHANNELS)), usual))
    columns = {"auction": FIRST_ID + auction, "bidder": FIRST_ID + bidder, "price": _price(events, 7)}
    texts = {"channel": channels.take(channel), "url": urls.take(channel)}
    return columns | texts | {"at": _times(at), "extra": _extra(events, np.full(len(events), 32), 100)}


_SHARES = {"persons": (0, PERSONS), "auctions": (PERSONS, AUCTIONS), "bids": (PERSONS + AUCTIONS, BIDS)}
"""Per kind: how many events of a round come before it, and how many are of this kind."""
_COLUMNS: dict[str, Callable[[Numbers, Numbers, int], Columns]] = {
    "persons": _persons,
    "auctions": _auctions,
    "bids": _bids,
}


def _horizon(every_us: int) -> int:
    """Return the time in which as many auctions begin as are open: the mean length of an auction."""
    return OPEN_AUCTIONS * ROUND // AUCTIONS * every_us


def _last_person(events: Numbers) -> Numbers:
    """Return the number of the newest person as of each event."""
    return events // ROUND


def _last_auction(events: Numbers) -> Numbers:
    """Return the number of the newest auction as of each event; -1 before the first one."""
    return events // ROUND * AUCTIONS + np.clip(events % ROUND - PERSONS, -1, AUCTIONS - 1)


def _any_person(events: Numbers) -> Numbers:
    """Return one of the active persons, or one of the next few."""
    count = _last_person(events) + 1
    active = np.minimum(count, ACTIVE_PERSONS)
    return count - active + _draw(events, 10, active + LEAD)


def _hashed(events: Numbers, field: int) -> NDArray[np.uint64]:
    """Return 64 pseudo-random bits for each event and field: splitmix64."""
    state = (events.astype(np.uint64) << np.uint64(5)) + np.uint64(field + 1)
    state = state * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = state ^ (state >> np.uint64(31))
    return mixed


def _draw(events: Numbers, field: int, below: int | Numbers) -> Numbers:
    """Return a number from 0 to `below`, exclusively; at most 2**32."""
    high = _hashed(events, field) >> np.uint64(32)
    return ((high * np.asarray(below, np.uint64)) >> np.uint64(32)).astype(np.int64)


def _unit(events: Numbers, field: int) -> NDArray[np.floating[Any]]:
    """Return a number from 0 to 1, exclusively."""
    return (_hashed(events, field) >> np.uint64(11)) * 2.0**-53


def _fraction(events: Numbers, field: int, below: int) -> Numbers:
    """Return a number from 0 to `below`, exclusively, of any size."""
    return (_unit(events, field) * below).astype(np.int64)


def _price(events: Numbers, field: int) -> Numbers:
    """Return a price in cents, from 1 to a million dollars."""
    prices: Numbers = np.rint(10.0 ** (_unit(events, field) * 6) * 100).astype(np.int64)
    return prices


def _times(at: Numbers) -> pa.Array:
    return pa.array(at).cast(pa.timestamp("us", "UTC"))


def _words(events: Numbers, field: int, longest: int) -> pa.Array:
    """Return a text of 3 to `longest` letters, exclusively, in which every 13th letter is a space."""
    lengths = 3 + _draw(events, field + 11, longest - 3)
    return pc.utf8_trim_whitespace(_cut(_draw(events, field, len(_letters(" ")) - longest), lengths, _letters(" ")))


def _extra(events: Numbers, used: Numbers, size: int) -> pa.Array:
    """Return a text with which a row has, on average, about this size."""
    wanted = np.maximum(size - used, 0)
    delta = np.rint(wanted * 0.2).astype(np.int64)
    lengths = wanted - delta + _draw(events, 30, np.maximum(2 * delta, 1))
    return _cut(_draw(events, 31, len(_letters("")) - 2 * size), lengths, _letters(""))


def _cut(starts: Numbers, lengths: Numbers, text: NDArray[np.uint8]) -> pa.Array:
    """Return a piece of the text for every row."""
    ends = np.concatenate([[0], np.cumsum(lengths)])
    places = np.arange(ends[-1]) + np.repeat(starts - ends[:-1], lengths)
    buffers = pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(text[places])
    return pa.StringArray.from_buffers(len(starts), *buffers)


@cache
def _letters(rare: str) -> NDArray[np.uint8]:
    """Return a mebibyte of letters, every 13th of which is `rare` if given."""
    numbers = np.arange(1 << 20, dtype=np.int64)
    letters = ord("a") + _draw(numbers, 20, 26)
    found = np.where(_draw(numbers, 21, 13) == 0, ord(rare), letters) if rare else letters
    return found.astype(np.uint8)


@cache
def _channels() -> tuple[pa.Array, pa.Array]:
    """Return the channels, the hot ones first, and their addresses; of the others nine in ten have the channel's id."""
    count = len(HOT_CHANNELS) + CHANNELS
    numbers = np.arange(count, dtype=np.int64)
    names = [*HOT_CHANNELS, *(f"channel-{number}" for number in range(CHANNELS))]
    folders = [
        _cut(_draw(numbers, 3 * n, 1 << 19), 3 + _draw(numbers, 3 * n + 1, 2), _letters("_")).to_pylist()
        for n in range(3)
    ]
    urls = [f"https://www.nexmark.com/{'/'.join(parts)}/item.htm?query=1" for parts in zip(*folders, strict=True)]
    named = (_draw(numbers, 10, 10) > 0) & (numbers >= len(HOT_CHANNELS))
    for number in np.flatnonzero(named).tolist():
        urls[number] += f"&channel_id={_reversed(number - len(HOT_CHANNELS))}"
    return pa.array(names), pa.array(urls)


def _reversed(number: int) -> int:
    """Return a number with its 32 bits in the opposite order, without its sign."""
    turned = int(f"{number:032b}"[::-1], 2)
    return min(turned, (1 << 32) - turned)


def _milliseconds(time_us: int) -> str:
    return f"{-(-time_us // 1_000)}ms"
