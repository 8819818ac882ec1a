"""What a check of a run says, and what it is given to look at.

A check is a function `check(context)` that yields one Finding per thing that it compared, whether it held or not. One
that yields nothing compared nothing, and proves nothing.

Pure: values only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec


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
