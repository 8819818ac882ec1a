"""What a check of a run says, and what it is given to look at.

A check is a function `check(context)` that yields one Finding per thing that it compared, whether it held or not. One
that yields nothing compared nothing, and proves nothing.

Invariant
    - A finding that counts anything lost, duplicated or reordered has not held, whatever else it says.
    - Whether it passed is true or false: what Python merely takes for either is refused.

Pure: values only.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

COUNTS = ("lost", "duplicated", "reordered")


class Finding(msgspec.Struct, frozen=True):
    """One thing that was compared."""

    name: str
    passed: bool
    invariant: str | None = None
    """Such as I1 (nothing lost) or I2 (nothing twice)."""
    lost: int | None = None
    """Records or rows; None: the check cannot tell."""
    duplicated: int | None = None
    reordered: int | None = None
    detail: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"a finding's name is a text, not {self.name!r}")
        set_field = msgspec.structs.force_setattr  # to what a journal can hold: NumPy has truth values of its own
        set_field(self, "passed", _truth(self.passed))
        for name in COUNTS:
            set_field(self, name, _number(name, getattr(self, name)))

    @property
    def held(self) -> bool:
        """Return whether nothing was wrong: whoever counts something lost cannot say that it passed."""
        return self.passed and not any(getattr(self, name) for name in COUNTS)


def _truth(given: Any) -> bool:
    """Return the bool that is meant; that of an array library, of one element, gives it by `item`."""
    meant = given.item() if hasattr(given, "item") and not getattr(given, "shape", ()) else given
    if not isinstance(meant, bool):
        raise TypeError(f"a finding's passed is True or False, not {given!r}")
    return meant


def _number(name: str, given: Any) -> int | None:
    """Return the count that is meant; None is unknown."""
    whole = not isinstance(given, bool) and hasattr(given, "__index__")
    counted = operator.index(given) if whole else None
    if given is not None and (counted is None or counted < 0):
        raise TypeError(f"a finding's {name} is a number of records, or None if unknown, not {given!r}")
    return counted


@dataclass(frozen=True)
class Context:
    """What a check may look at."""

    out: str
    """The folder of the run."""
    root: str
    """The root of the job."""
    job: str
    """The job's file."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What the scenario sets for the job, with `{out}` filled in."""


Check = Callable[[Context], Iterable[Finding]]
