"""The seed's decisions in a run, recorded so that a changed run can be given the same ones.

A run that differs in one place draws in another order from there on; from a single stream of numbers it would get
different numbers everywhere and become an unrelated run. So the draws of a run are recorded by drawer and question.
In the changed run the same drawer gets the same answers to the same question, in order; a question that was never
asked before is answered from the seed and the question alone.

Invariants
    - Recording changes no draw: a recorded run is, event by event, the run of its seed.
    - The same record gives the same draws.

Source: Hypothesis' choice sequences; docs/decisions/0019-coverage.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Question = tuple[str, str, Any]
"""The process that draws, the kind of number, and the constant that distinguishes one use from another."""
Notes = Mapping[Question, Sequence[float]]


class Chance(Protocol):
    """The part of random.Random that the simulated world uses."""

    def random(self) -> float: ...
    def uniform(self, a: float, b: float, /) -> float: ...
    def choice(self, seq: Sequence[T], /) -> T: ...
    def randint(self, a: int, b: int, /) -> int: ...
    def getrandbits(self, k: int, /) -> int: ...


class Noting:
    """The numbers of a seed, recorded by the process that draws them.

    Args:
        who: Returns the process that draws.
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
    """The recorded numbers, by the process that draws; after those, numbers from the seed and the question."""

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
        """See random.Random.choice; a sequence of another length may give another element."""
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
    """Return the constants that identify a choice; None if it is among processes or other objects."""
    plain = isinstance(seq, tuple) and all(isinstance(each, int | float | str) for each in seq)
    return tuple(map(str, seq)) if plain else None
