"""The table of costs in tests/costs.txt: CPU seconds of every dear test, and of the rest of each file.

A test is dear from DEAR_S on. Numbers have two digits, and a new measurement replaces an old one only if they differ
by more than a quarter, so that a run on another day does not rewrite the table. The rest of a file are its other tests
with the fixtures of the file; it is measured again only by a run that had all of them.

Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

DEAR_S = 2.0
STAYS_DEAR_S = 1.5
"""A test that is dear stays so until it needs less than this, or each measurement would change its tier."""
_SAME = 1.25
_LISTED_S = 0.2
"""Files whose rest needs less are left out."""
SESSION = "session"
ABOUT = """\
# CPU seconds of tests, with all processes that they start. Written by `make costs`; see docs/how-it-is-tested.md.
# A line with a path is the rest of the file: tests below 2 s, and fixtures of the file. Below it are its dear tests.
"""


class Measured(NamedTuple):
    """What a run has measured of one test: its own CPU seconds, and those of fixtures that it was the first to use."""

    test: str
    cpu_s: float
    shared: Mapping[str, float]


@dataclass(frozen=True)
class CostTable:
    """Seconds.

    Args:
        dear: Of each dear test, by its node id.
        rest: Of each file's other tests; and of each fixture of the session, as "session <name>".
    """

    dear: Mapping[str, float] = field(default_factory=dict)
    rest: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> CostTable:
        """Read what `text` returned."""
        dear: dict[str, float] = {}
        rest: dict[str, float] = {}
        file = ""
        for line in text.splitlines():
            if not line or line.startswith("#"):
                continue
            seconds, name = line.split(maxsplit=1)
            if line.startswith(" "):
                dear[f"{file}::{name}"] = float(seconds)
            else:
                file, rest[name] = name, float(seconds)
        return cls(dear, rest)

    def text(self) -> str:
        """Return the content of the file."""
        tests = defaultdict(list)
        for test in sorted(self.dear):
            tests[file_of(test)].append(test)
        lines = []
        for file in sorted({*self.rest, *tests}):
            lines.append(f"{_digits(self.rest.get(file, 0.0)):<7} {file}")
            lines += [f"  {_digits(self.dear[test]):<7} {test.partition('::')[2]}" for test in tests[file]]
        return ABOUT + "".join(f"{line}\n" for line in lines)

    def of_file(self, file: str) -> float:
        """Return what all tests of a file need."""
        return self.rest.get(file, 0.0) + sum(cpu_s for test, cpu_s in self.dear.items() if file_of(test) == file)

    def merged(self, measured: Iterable[Measured], whole: Iterable[str], removed: Iterable[str] = ()) -> CostTable:
        """Return the table after a run, which may have measured some tests only.

        Args:
            measured: What the run has measured.
            whole: Files of which it had every test, but dear ones.
            removed: Files, or dear tests, that no longer exist.
        """
        gone = set(removed)
        dear = {test: cpu_s for test, cpu_s in self.dear.items() if not {test, file_of(test)} & gone}
        rest = {file: cpu_s for file, cpu_s in self.rest.items() if file not in gone}
        sums: dict[str, float] = dict.fromkeys(whole, 0.0)
        sessions: dict[str, float] = {}
        for test, cpu_s, shared in measured:
            if cpu_s > (STAYS_DEAR_S if test in dear else DEAR_S):
                dear[test] = _settled(dear.get(test), cpu_s)
            else:
                dear.pop(test, None)
                sums[file_of(test)] = sums.get(file_of(test), 0.0) + cpu_s
            for name, shared_s in shared.items():
                if name.startswith(f"{SESSION} "):
                    sessions[name] = max(sessions.get(name, 0.0), shared_s)
                else:
                    sums[file_of(test)] = sums.get(file_of(test), 0.0) + shared_s
        for file in whole:
            rest[file] = _settled(rest.get(file), sums[file])
        for name, shared_s in sessions.items():
            rest[name] = _settled(rest.get(name), shared_s)
        return CostTable(dear, {file: cpu_s for file, cpu_s in rest.items() if cpu_s >= _LISTED_S})


def file_of(test: str) -> str:
    """Return the path in a node id."""
    return test.partition("::")[0]


def _settled(before: float | None, now: float) -> float:
    if before is not None and max(now, 0.1) / _SAME <= before <= max(now, 0.1) * _SAME:
        return before
    return float(f"{now:.2g}")


def _digits(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds < 10 else f"{seconds:.0f}"
