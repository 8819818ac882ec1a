"""What a wrong version of the protocol is, how it is put in place, and how it is hunted.

Nothing but the simulator puts one in place.

Invariants
    - A mutant changes what it names and nothing else, and leaves no trace when its context closes.

Source: research section 2b, checker validation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from holdfast.chaos import simulator
from holdfast.chaos.workload import scenario

Right = Callable[..., Any]
"""The function that a mutant replaces."""


@dataclass(frozen=True)
class Swap:
    """One function of one module or class, and what makes its wrong version from the right one."""

    owner: Any
    name: str
    wrong: Callable[[Right], Right]


@dataclass(frozen=True)
class Mutant:
    """One wrong version."""

    name: str
    rules: str
    """The rules of PROTOCOL that it negates."""
    does: str
    swaps: tuple[Swap, ...]
    first: int = 0
    """Where a test run begins to play; who begins at 0 catches it later."""
    needs: str = ""
    """What only some scenarios have, by its name there; others cannot catch it and are not played."""


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """Run with the mutant in place."""
    rights = [getattr(swap.owner, swap.name) for swap in mutant.swaps]
    for swap, right in zip(mutant.swaps, rights, strict=True):
        setattr(swap.owner, swap.name, swap.wrong(right))
    try:
        yield
    finally:
        for swap, right in zip(mutant.swaps, rights, strict=True):
            setattr(swap.owner, swap.name, right)


@dataclass(frozen=True)
class Hunt:
    """How many seeds were played until a mutant was caught, and by what; None if it survived."""

    mutant: Mutant
    seeds: int
    caught: simulator.Run | None


def hunt(mutant: Mutant, first: int, seeds: int) -> Hunt:
    """Play seeds until one catches the mutant."""
    fit = (seed for seed in itertools.count(first) if not mutant.needs or getattr(scenario(seed), mutant.needs))
    with applied(mutant):
        for played, seed in enumerate(itertools.islice(fit, seeds)):
            run = simulator.simulate(seed)
            if not run.passed:
                return Hunt(mutant, played + 1, run)
    return Hunt(mutant, seeds, None)
