"""Faults that strike a running job one after another, each of which is seen to take effect and to be made up for."""

from __future__ import annotations

import os
import random
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from running import Run, pid_gone


@dataclass(kw_only=True)
class Striking(ABC):
    """Strikes one thing after another."""

    FAULTS: ClassVar[Mapping[str, Callable[[Any], None]]]
    """What strikes, by its kind: it takes effect and ends, unless an assertion says that it did not."""

    run: Run
    workers: int = 2
    """How many have a part of the job."""
    chance: random.Random
    fired: Counter[str] = field(default_factory=Counter)
    """The faults that were seen to take effect."""
    caught_up_s: dict[str, float] = field(default_factory=dict)
    """The longest time from the end of a fault of a kind until all that was given by then had arrived."""

    @abstractmethod
    def catch_up(self) -> float:
        """Wait until what was given by now has arrived; return the seconds that it took."""

    def strike(self, kind: str) -> None:
        """Let a fault of this kind take effect, end it, and wait until the job has made up for it."""
        self.FAULTS[kind](self)
        self.fired[kind] += 1
        self.caught_up_s[kind] = max(self.caught_up_s.get(kind, 0.0), self.catch_up())

    def strike_for(self, seconds: float) -> None:
        """Let faults of all kinds strike, in random order, for so long; at least one of each."""
        until = time.monotonic() + seconds
        while True:
            for kind in self.chance.sample(sorted(self.FAULTS), len(self.FAULTS)):
                if self.fired.keys() == self.FAULTS.keys() and time.monotonic() >= until:
                    return
                self.strike(kind)

    def signal_worker(self, number: int) -> tuple[int, int]:
        """Send a signal to a worker; return the generation and the worker's process id."""
        now = self.run.wait_for(
            lambda p: p["state"] == "running" and len(_pids(p)) == self.workers, f"{self.workers} workers"
        )
        pid = self.chance.choice(_pids(now))
        os.kill(pid, number)
        return now["generation"], pid

    def replaced(self, killed: tuple[int, int]) -> None:
        """Wait until the next generation runs without the worker that was killed."""
        generation, pid = killed
        after = self.next_generation(generation)
        assert pid_gone(pid) and pid not in _pids(after)

    def next_generation(self, generation: int) -> dict[str, Any]:
        """Wait until a later generation runs; return the progress that shows it."""
        return self.run.wait_for(lambda p: p["state"] == "running" and p["generation"] > generation, "a new generation")


def _pids(progress: dict[str, Any]) -> list[int]:
    """Return the process ids of the workers that have a part of the job."""
    return [each["pid"] for each in progress["workers"] if each["subtasks"]]
