"""What a check of a run says, and what it is given to look at.

A check is a function `check(context)` that yields one Finding per thing that it compared, whether it held or not. One
that yields nothing compared nothing, and proves nothing.

Invariant
    - A finding that counts anything lost, duplicated or reordered has not held, whatever else it says.

Pure: values only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

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
        for name in COUNTS:
            counted = getattr(self, name)
            if counted is not None and (isinstance(counted, bool) or not isinstance(counted, int) or counted < 0):
                raise TypeError(f"a finding's {name} is a number of records, or None if unknown, not {counted!r}")

    @property
    def held(self) -> bool:
        """Return whether nothing was wrong: whoever counts something lost cannot say that it passed."""
        return self.passed and not any(getattr(self, name) for name in COUNTS)


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
