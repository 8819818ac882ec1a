"""Wrong versions of the search for functions that end their process, which random plays of it must catch.

They are applied as those of mutants.py are; tests/unit/runtime/test_killing_functions.py plays them.

Source: docs/decisions/0117-functions-that-kill.md.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.chaos.mutants.mutation import Mutant, Right, Swap
from holdfast.model import SourcePosition
from holdfast.runtime.driver import killing
from holdfast.runtime.driver.state import Kill, Kills


def _remembers_everything(_: Right) -> Right:
    def passed(kills: Kills, positions: Iterable[SourcePosition]) -> Kills:
        return kills

    return passed


def _counts_anywhere(_: Right) -> Right:
    def place(kill: Kill) -> tuple[int, int, int] | None:
        return 0, 0, 1 << 40

    return place


def _believes_one_death(_: Right) -> Right:
    def at_one_row(kill: Kill) -> bool:
        return kill.deaths[-1].at.rows == 1

    return at_one_row


def _believes_two(_: Right) -> Right:
    def is_proved(kill: Kill) -> bool:
        return len(kill.deaths) == 2

    return is_proved


KILLING_MUTANTS = (
    Mutant("deaths-outlive-progress", "decisions/0117", "deaths count although an epoch has got past their place",
           (Swap(killing, "passed", _remembers_everything),)),
    Mutant("deaths-count-anywhere", "decisions/0117", "deaths at different offsets add up",
           (Swap(killing, "place", _counts_anywhere),)),
    Mutant("row-left-out-after-one-death", "decisions/0117", "a row is left out at which the process has died once",
           (Swap(killing, "at_one_row", _believes_one_death),)),
    Mutant("two-deaths-are-proof", "decisions/0117", "two deaths during calls of a function end the run",
           (Swap(killing, "is_proved", _believes_two),)),
)  # fmt: skip
"""Those of the count in the driver."""
