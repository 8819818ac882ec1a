"""What the seed decides in a run, noted so that a changed run can be given the same answers.

A run that goes differently in one place asks in another order from there on; from one stream of numbers it would get
other answers everywhere, and be another run. So the answers of a run are noted by who asks what, and whoever asks the
same in the changed run gets the same, first to last; what was never asked before is answered from the seed and the
question alone.

Invariants
    - Noting changes no answer: a noted run is event by event the run of its seed.
    - The same notes give the same answers.

Source: Hypothesis' choice sequences; docs/design/0019-coverage.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Question = tuple[str, str, Any]
"""Who asks, for what kind of number, and the constant that tells one use from another."""
Notes = Mapping[Question, Sequence[float]]


class Chance(Protocol):
    """What of random.Random the simulated world uses."""

    def random(self) -> float: ...
    def uniform(self, a: float, b: float, /) -> float: ...
    def choice(self, seq: Sequence[T], /) -> T: ...
    def randint(self, a: int, b: int, /) -> int: ...
    def getrandbits(self, k: int, /) -> int: ...


class Noting:
    """The numbers of a seed, noted by who asks.

    Args:
        who: Returns who asks just now.
    """

    def __init__(self, source: Random, who: Callable[[], str]) -> None:
        self._source, self._who = source, who
        self.notes: defaultdict[Question, list[float]] = defaultdict(list)

    def random(self) -> float:
        """See random.Random.random."""
        return self._noted("random", None, self._source.random())

    def uniform(self, a: float, b: float, /) -> float:
        """See random.Random.uniform."""
        return a + (b - a) * self._noted("uniform", a, self._source.random())

    def choice(self, seq: Sequence[T], /) -> T:
        """See random.Random.choice."""
        return seq[int(self._noted("choice", _constant(seq), self._source.choice(range(len(seq)))))]

    def randint(self, a: int, b: int, /) -> int:
        """See random.Random.randint."""
        return a + int(self._noted("randint", a, self._source.randint(a, b) - a))

    def getrandbits(self, k: int, /) -> int:
        """See random.Random.getrandbits."""
        found = self._source.getrandbits(k)
        self._noted("getrandbits", k, found)
        return found

    def _noted(self, kind: str, constant: Any, number: float) -> float:
        self.notes[self._who(), kind, constant].append(number)
        return number


class Noted:
    """The noted numbers again, by who asks; beyond them numbers of the seed and the question."""

    def __init__(self, seed: int, notes: Notes, who: Callable[[], str]) -> None:
        self._seed, self._notes, self._who = seed, notes, who
        self._given: defaultdict[Question, int] = defaultdict(int)
        self._beyond: dict[Question, Random] = {}

    def random(self) -> float:
        """See random.Random.random."""
        return self._next("random", None, Random.random)

    def uniform(self, a: float, b: float, /) -> float:
        """See random.Random.uniform."""
        return a + (b - a) * self._next("uniform", a, Random.random)

    def choice(self, seq: Sequence[T], /) -> T:
        """See random.Random.choice; from another number of things another one."""
        return seq[int(self._next("choice", _constant(seq), lambda more: more.getrandbits(16))) % len(seq)]

    def randint(self, a: int, b: int, /) -> int:
        """See random.Random.randint."""
        return a + int(self._next("randint", a, lambda more: more.getrandbits(16))) % (b - a + 1)

    def getrandbits(self, k: int, /) -> int:
        """See random.Random.getrandbits."""
        return int(self._next("getrandbits", k, lambda more: more.getrandbits(k)))

    def _next(self, kind: str, constant: Any, draw: Callable[[Random], float]) -> float:
        question = self._who(), kind, constant
        at, noted = self._given[question], self._notes.get(question, ())
        self._given[question] = at + 1
        if at < len(noted):
            return noted[at]
        if question not in self._beyond:
            self._beyond[question] = Random(f"{self._seed}/{question}")
        return draw(self._beyond[question])


def _constant(seq: Sequence[object]) -> tuple[str, ...] | None:
    """Return what tells a choice by its constants; None where processes or other objects are chosen from."""
    plain = isinstance(seq, tuple) and all(isinstance(each, int | float | str) for each in seq)
    return tuple(map(str, seq)) if plain else None
