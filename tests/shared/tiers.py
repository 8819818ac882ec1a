"""Which tests a run has: cheap ones always, dear ones in turn or when the change touches them.

    A  cheap tests: in every run
    B  dear tests, by the table of costs: in every sixth run, in the turn of their name; besides, those that the change
       touches, the cheapest first, until TOUCHED_S are used
    C  tests marked slow: in a soak

Pure.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from changes import TURNS
from cost_table import CostTable, file_of

TOUCHED_S = 200.0
"""CPU seconds of dear tests that a change may add to a run."""
QUICK_S = 90.0
"""CPU seconds of tests in `make quick`."""
FILE_S = 0.1
"""What a file needs besides its tests, to be collected by both workers."""
LIMIT_S = 6.0
"""What a test may need that is not in the table: three times the limit of a cheap test. Machines differ, and a
test takes twice as much beside other programs, which share its caches."""


@dataclass(frozen=True)
class Choice:
    """What a run has of the dear tests.

    Args:
        rotating: Those in their turn.
        touched: Those, besides, that the change touches.
        left_out: Those that the change touches, and for which no time was left.
        resting: All others.
    """

    rotating: frozenset[str]
    touched: frozenset[str]
    left_out: frozenset[str]
    resting: frozenset[str]

    @property
    def not_now(self) -> frozenset[str]:
        """Those that do not run."""
        return self.left_out | self.resting


def in_turn(test: str, turn: int) -> bool:
    """Return whether a dear test has its turn."""
    return zlib.crc32(test.encode()) % TURNS == turn % TURNS


def choose(tests: Iterable[str], table: CostTable, turn: int, touches: Callable[[str], bool]) -> Choice:
    """Choose among the dear tests of a run.

    Args:
        tests: Node ids of all tests.
        turn: The number of the run.
        touches: Whether the change touches a test file.
    """
    dear = [test for test in tests if test in table.dear]
    rotating = {test for test in dear if in_turn(test, turn)}
    affected = sorted(
        (test for test in dear if test not in rotating and touches(file_of(test))), key=table.dear.__getitem__
    )
    touched = _as_many(affected, table, TOUCHED_S)
    return Choice(
        frozenset(rotating),
        frozenset(touched),
        frozenset(affected) - touched,
        frozenset(dear) - rotating - set(affected),
    )


def _as_many(tests: Sequence[str], table: CostTable, limit_s: float) -> frozenset[str]:
    taken, used_s = [], 0.0
    for test in tests:
        used_s += table.dear[test]
        if used_s > limit_s:
            break
        taken.append(test)
    return frozenset(taken)


def choose_files(files: Iterable[str], table: CostTable, touches: Callable[[str], bool]) -> tuple[set[str], set[str]]:
    """Choose files for `make quick` by the rest of each: touched ones first, then others, the cheapest first.

    Returns:
        Those chosen; and those that the change touches, for which no time was left.
    """
    needs = {file: FILE_S + table.rest.get(file, 0.0) for file in files}
    by_cost = sorted(needs, key=lambda file: (needs[file], file))
    touched = [file for file in by_cost if touches(file)]
    chosen: set[str] = set()
    used_s = 0.0
    for file in dict.fromkeys((*touched, *by_cost)):
        if used_s + needs[file] <= QUICK_S:
            used_s += needs[file]
            chosen.add(file)
    return chosen, set(touched) - chosen
