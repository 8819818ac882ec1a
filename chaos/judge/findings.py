"""The findings of a run's check, and the context that the check receives.

A check is a function `check(context)` that yields one Finding per comparison, whether it held or not. A check that
yields nothing compared nothing and proves nothing.

Invariants
    - A finding that counts anything lost, duplicated or reordered has not held, whatever its `passed` is.
    - `passed` is True or False: merely truthy or falsy values are refused.

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
    """One comparison."""

    name: str
    passed: bool
    invariant: str | None = None
    """Such as I1 (nothing lost) or I2 (nothing twice)."""
    lost: int | None = None
    """Records or rows; None: the check does not know."""
    duplicated: int | None = None
    reordered: int | None = None
    detail: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"a finding's name must be a text, not {self.name!r}")
        set_field = msgspec.structs.force_setattr  # to types that a journal can hold: NumPy has its own booleans
        set_field(self, "passed", _truth(self.passed))
        for name in COUNTS:
            set_field(self, name, _number(name, getattr(self, name)))

    @property
    def held(self) -> bool:
        """Return whether nothing was wrong: a finding with losses cannot have passed."""
        return self.passed and not any(getattr(self, name) for name in COUNTS)


def _truth(given: Any) -> bool:
    """Return the value as a bool; a one-element boolean of an array library is converted by `item`."""
    meant = given.item() if hasattr(given, "item") and not getattr(given, "shape", ()) else given
    if not isinstance(meant, bool):
        raise TypeError(f"a finding's passed must be True or False, not {given!r}")
    return meant


def _number(name: str, given: Any) -> int | None:
    """Return the value as a count; None is unknown."""
    whole = not isinstance(given, bool) and hasattr(given, "__index__")
    counted = operator.index(given) if whole else None
    if given is not None and (counted is None or counted < 0):
        raise TypeError(f"a finding's {name} must be a number of records, or None if unknown, not {given!r}")
    return counted


@dataclass(frozen=True)
class Context:
    """Files and settings that a check may inspect."""

    out: str
    """The folder of the run."""
    root: str
    """The root of the job."""
    job: str
    """The job's file."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The environment that the scenario sets for the job, with `{out}` filled in."""


Check = Callable[[Context], Iterable[Finding]]
