"""The catalogue of one source: which partition of which topic has which number.

Layout below the source's folder in the job's root:

    catalogue.json              names the folder of the catalogue that the job reads (`TopicCatalogueHead`)
    topics-<random>/00000000    what one listing found (`TopicListing`), numbered without gaps

Invariants
    - The catalogue only grows, by conditional creates; all readers see the same numbers.
    - The n-th partition in it, from 0, has the number n. A topic, by name and id, and partition is in it once.
    - The partitions of a topic are in it in order, and all under one id of the topic.
    - A topic that has ended never comes back: another one of its name has another id, and further numbers.

May be used by several threads. Source: docs/decisions/0095-topics-by-pattern.md, 0092-topics-that-end.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from threading import Lock
from typing import NamedTuple

import msgspec

from holdfast.errors import AlreadyExists, NotFound
from holdfast.ports import ObjectStore
from holdfast.runtime.sources import objects
from holdfast.runtime.sources.objects import decoded, encoded

FORMAT_VERSION = 2
_WITHOUT_ENDS = 1
"""The version of what says of no topic that it has ended, as older releases wrote it."""


class TopicCatalogueHead(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of `catalogue.json`: what a catalogue is of. It never changes."""

    folder: str
    cluster: str
    v: int = _WITHOUT_ENDS


class Added(msgspec.Struct, frozen=True, array_like=True):
    """Further partitions of a topic; the first ones, if the catalogue does not have the topic.

    Args:
        id: The topic's id; None: the brokers have no ids of topics.
    """

    topic: str
    id: str | None
    partitions: int


class TopicListing(msgspec.Struct, frozen=True):
    """Contents of an object: what follows the objects before it.

    Args:
        ended: Topics that no longer exist. One that is in `added` too was recreated.
    """

    added: tuple[Added, ...]
    v: int = _WITHOUT_ENDS
    ended: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


class Place(NamedTuple):
    """The topic and partition behind a number."""

    topic: str
    partition: int


class Listed(NamedTuple):
    """A topic in the catalogue: the numbers of its partitions."""

    id: str | None
    numbers: tuple[int, ...]


_HEAD, _LISTING = msgspec.json.Decoder(TopicCatalogueHead), msgspec.json.Decoder(TopicListing)


def read_head(store: ObjectStore) -> TopicCatalogueHead | None:
    """Return what `catalogue.json` says; None before there is one. Raises Damaged, ConfigError."""
    return objects.read_head(store, _HEAD, FORMAT_VERSION)


class Catalogue:
    """A catalogue as one process knows it.

    Args:
        store: The source's folder.
    """

    def __init__(self, store: ObjectStore, head: TopicCatalogueHead) -> None:
        self._store, self.head = store, head
        self._lock, self._objects = Lock(), 0
        self._places: list[Place] = []
        self._ids: list[str | None] = []
        """By number: the id of the topic."""
        self._topics: dict[str, Listed] = {}
        self._ended: dict[tuple[str, str | None], Listed] = {}
        self._over = set[int]()
        """The numbers of topics that have ended."""

    def __len__(self) -> int:
        return len(self._places)

    @property
    def topics(self) -> Mapping[str, Listed]:
        """The topics that are known here and have not ended."""
        with self._lock:
            return dict(self._topics)

    @property
    def all_ended(self) -> bool:
        """Whether every topic that is known here has ended."""
        return not self._topics

    def place(self, number: int) -> Place | None:
        """Return what a number names; None if the catalogue does not have it."""
        if number >= len(self):
            self.refresh()
        return self._places[number] if number < len(self) else None

    def id(self, number: int) -> str | None:
        """Return the id of the topic of a number that the catalogue has."""
        return self._ids[number]

    def is_over(self, number: int) -> bool:
        """Return whether the topic of a number has ended, as far as it is known here."""
        return number in self._over

    def has_ended(self, topic: str, id: str | None) -> bool:
        """Return whether the topic with this name and id has ended, as far as it is known here."""
        return (topic, id) in self._ended

    def listed(self, topic: str, id: str | None) -> Listed:
        """Return a topic that the catalogue has, by its name and id; it may have ended."""
        ended = self._ended.get((topic, id))
        return self._topics[topic] if ended is None else ended

    def refresh(self) -> None:
        """Read what was appended. Raises Damaged, Unavailable."""
        with self._lock:
            for number in count(self._objects):
                path = self._path(number)
                try:
                    data = self._store.get(path)
                except NotFound:
                    return
                self._take(decoded(_LISTING, data, path, FORMAT_VERSION))

    def append(self, added: Sequence[Added], ended: Sequence[str] = ()) -> bool:
        """Append partitions; false if another process has appended some: nothing was written then. Raises Unavailable.

        They must be chosen by what is known here.

        Args:
            ended: Topics that no longer exist.
        """
        listing = TopicListing(tuple(added), FORMAT_VERSION, tuple(ended)) if ended else TopicListing(tuple(added))
        with self._lock:
            try:
                self._store.create(self._path(self._objects), encoded(listing))
            except AlreadyExists:
                return False
            self._take(listing)
        return True

    def _take(self, listing: TopicListing) -> None:
        for topic in listing.ended or ():
            ended = self._topics.pop(topic)
            self._ended[topic, ended.id] = ended
            self._over.update(ended.numbers)
        for each in listing.added:
            before = self._topics.get(each.topic, Listed(each.id, ()))
            first, start = len(before.numbers), len(self._places)
            self._ids += [before.id] * each.partitions
            self._places += [Place(each.topic, first + further) for further in range(each.partitions)]
            numbers = (*before.numbers, *range(start, len(self._places)))
            self._topics[each.topic] = Listed(before.id, numbers)
        self._objects += 1

    def _path(self, number: int) -> str:
        return f"{self.head.folder}/{number:08d}"
