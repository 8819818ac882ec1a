"""Defines a wrong version of the protocol, applies it, and plays seeds until it is caught.

Only the simulator applies one.

Invariants
    - A mutant changes only the code that it names and the check of invariants, and leaves no trace when its context
      closes.

Source: research section 2b, checker validation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from holdfast.chaos.mutants.first_seeds import FIRST_SEEDS
from holdfast.chaos.sim import driver_process, simulator
from holdfast.chaos.sim.jobs.workload import scenario
from holdfast.runtime.driver import loop

Right = Callable[..., Any]
"""The function that a mutant replaces."""


@dataclass(frozen=True)
class Swap:
    """One function of a module or class, and the function that makes its wrong version from the right one."""

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
    needs: str = ""
    """A feature of some scenarios (Scenario.offers); scenarios without it cannot catch the mutant and are skipped."""

    @property
    def first(self) -> int:
        """The seed from which tests hunt it."""
        return FIRST_SEEDS[self.name]


UNWATCHED = (
    Swap(driver_process, "validate", lambda _: lambda state: None),
    Swap(loop, "refusal", lambda _: lambda state: None),
)
"""The checkers must catch a mutant from outside, so the master does not check its own invariants meanwhile."""


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """Run with the mutant in place, and without the master's invariants."""
    swaps = (*mutant.swaps, *UNWATCHED)
    rights = [getattr(swap.owner, swap.name) for swap in swaps]
    for swap, right in zip(swaps, rights, strict=True):
        setattr(swap.owner, swap.name, swap.wrong(right))
    try:
        yield
    finally:
        for swap, right in zip(swaps, rights, strict=True):
            setattr(swap.owner, swap.name, right)


@dataclass(frozen=True)
class Hunt:
    """How many seeds were played until a mutant was caught, and by which run; None if it survived."""

    mutant: Mutant
    seeds: int
    caught: simulator.Run | None


def hunt(mutant: Mutant, first: int, seeds: int) -> Hunt:
    """Play seeds until one catches the mutant."""
    fit = (seed for seed in itertools.count(first) if not mutant.needs or scenario(seed).offers(mutant.needs))
    with applied(mutant):
        for played, seed in enumerate(itertools.islice(fit, seeds)):
            run = simulator.simulate(seed)
            if not run.passed:
                return Hunt(mutant, played + 1, run)
    return Hunt(mutant, seeds, None)
