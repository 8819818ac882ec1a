"""The catalogue of one source: which partition of which topic has which number.

Layout below the source's folder in the job's root:

    catalogue.json              names the folder of the catalogue that the job reads (`Head`)
    topics-<random>/00000000    what one listing found (`Listing`), numbered without gaps

Invariants
    - The catalogue only grows, by conditional creates; all readers see the same numbers.
    - The n-th partition in it, from 0, has the number n. A topic and partition is in it once.
    - The partitions of a topic are in it in order, and all under one id of the topic.

May be used by several threads. Source: docs/design/0095-topics-by-pattern.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from threading import Lock
from typing import NamedTuple

import msgspec

from holdfast.errors import AlreadyExists, NotFound
from holdfast.ports import ObjectStore
from holdfast.runtime.sources.objects import decoded, encoded

HEAD_PATH = "catalogue.json"
FORMAT_VERSION = 1


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of `catalogue.json`: what a catalogue is of. It never changes."""

    folder: str
    cluster: str
    v: int = FORMAT_VERSION


class Added(msgspec.Struct, frozen=True, array_like=True):
    """Further partitions of a topic; the first ones, if the catalogue does not have the topic.

    Args:
        id: Of the topic; None: the brokers have no ids of topics.
    """

    topic: str
    id: str | None
    partitions: int


class Listing(msgspec.Struct, frozen=True):
    """Contents of an object: what follows the objects before it."""

    added: tuple[Added, ...]
    v: int = FORMAT_VERSION


class Place(NamedTuple):
    """What a number names."""

    topic: str
    partition: int


class Listed(NamedTuple):
    """A topic in the catalogue: the numbers of its partitions."""

    id: str | None
    numbers: tuple[int, ...]


_HEAD, _LISTING = msgspec.json.Decoder(Head), msgspec.json.Decoder(Listing)


def read_head(store: ObjectStore) -> Head | None:
    """Return what `catalogue.json` says; None before there is one. Raises Damaged, ConfigError."""
    try:
        data = store.get(HEAD_PATH)
    except NotFound:
        return None
    head: Head = decoded(_HEAD, data, HEAD_PATH, FORMAT_VERSION)
    return head


def write_head(store: ObjectStore, head: Head) -> None:
    """Name the catalogue that the job reads."""
    store.put(HEAD_PATH, encoded(head))


class Catalogue:
    """A catalogue as one process knows it.

    Args:
        store: The source's folder.
    """

    def __init__(self, store: ObjectStore, head: Head) -> None:
        self._store, self.head = store, head
        self._lock, self._objects = Lock(), 0
        self._places: list[Place] = []
        self._topics: dict[str, Listed] = {}

    def __len__(self) -> int:
        return len(self._places)

    @property
    def topics(self) -> Mapping[str, Listed]:
        """The topics that are known here."""
        with self._lock:
            return dict(self._topics)

    def place(self, number: int) -> Place | None:
        """Return what a number names; None if the catalogue does not have it."""
        if number >= len(self):
            self.refresh()
        return self._places[number] if number < len(self) else None

    def listed(self, topic: str) -> Listed:
        """Return a topic that the catalogue has."""
        return self._topics[topic]

    def refresh(self) -> None:
        """Read what was appended. Raises Damaged, Unavailable."""
        with self._lock:
            for number in count(self._objects):
                path = self._path(number)
                try:
                    data = self._store.get(path)
                except NotFound:
                    return
                self._take(decoded(_LISTING, data, path, FORMAT_VERSION).added)

    def append(self, added: Sequence[Added]) -> bool:
        """Append partitions; false if another process has appended some: nothing was written then. Raises Unavailable.

        They must be chosen by what is known here.
        """
        listing = Listing(tuple(added))
        with self._lock:
            try:
                self._store.create(self._path(self._objects), encoded(listing))
            except AlreadyExists:
                return False
            self._take(listing.added)
        return True

    def _take(self, added: Sequence[Added]) -> None:
        for each in added:
            before = self._topics.get(each.topic, Listed(each.id, ()))
            first, start = len(before.numbers), len(self._places)
            self._places += [Place(each.topic, first + further) for further in range(each.partitions)]
            numbers = (*before.numbers, *range(start, len(self._places)))
            self._topics[each.topic] = Listed(before.id, numbers)
        self._objects += 1

    def _path(self, number: int) -> str:
        return f"{self.head.folder}/{number:08d}"
