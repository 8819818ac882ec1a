"""Find, for each wrong version of the protocol, a seed that catches it quickly, and write the table of these seeds.

Run it after a change of the simulator's draws: with a seed that no longer catches its mutant `make test` is slow, as
the test then plays on until another one does.

    .venv/bin/python tools/first_seeds.py [MUTANT ...]
"""

from __future__ import annotations

import itertools
import re
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from holdfast.chaos.mutants import mutation
from holdfast.chaos.mutants.first_seeds import FIRST_SEEDS
from holdfast.chaos.mutants.mutants import MUTANTS
from holdfast.chaos.mutants.simulated import OF_BRANCHES, SIMULATED
from holdfast.chaos.sim.jobs.workload import scenario

ROOT = Path(__file__).resolve().parent.parent
TABLE, PAGE = ROOT / "chaos/mutants/first_seeds.py", ROOT / "docs/guarantees.md"
QUICK_S, PATIENCE_S, SEEDS = 1.2, 20.0, 2_000
"""A seed that takes less processor time is taken immediately; after so much time, the quickest one so far."""


def quick_seed(name: str) -> tuple[str, int | None, float]:
    """Return a seed that catches the mutant, and its processor time in seconds; None if no seed does."""
    [mutant] = [each for each in SIMULATED if each.name == name]
    fit = (seed for seed in itertools.count() if not mutant.needs or scenario(seed).offers(mutant.needs))
    caught: list[tuple[float, int]] = []
    spent = 0.0
    for seed in itertools.chain([FIRST_SEEDS.get(name, 0)], itertools.islice(fit, SEEDS)):
        began = time.process_time()
        found = mutation.hunt(mutant, seed, 1).caught
        spent += (took := time.process_time() - began)
        if found is not None:
            caught.append((took, found.seed))
        if caught and (took <= QUICK_S or spent > PATIENCE_S) and (found is not None or spent > PATIENCE_S):
            break
    took, seed = min(caught, default=(spent, None))
    return name, seed, took


def write(seeds: dict[str, int]) -> None:
    """Write the seeds into the table and into the page about guarantees."""
    before = TABLE.read_text(encoding="utf-8").split("FIRST_SEEDS")[0]
    lines = "".join(f'    "{mutant.name}": {seeds[mutant.name]:_},\n' for mutant in SIMULATED if mutant.name in seeds)
    TABLE.write_text(f"{before}FIRST_SEEDS: Mapping[str, int] = {{\n{lines}}}\n", encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    for name in (mutant.name for mutant in MUTANTS):
        seed = seeds[name]
        page = re.sub(rf"(?m)^(\| `{name}` \|.*\|)[^|]*\|$", rf"\1 1 seed{f' from {seed}' if seed else ''} |", page)
    for name in (mutant.name for mutant in OF_BRANCHES if mutant.name in seeds):
        row = re.compile(rf"(?m)^(\| `{name}` \|.*\|)([^|;]*?)(; simulator seed \d+)? \|$")
        page = row.sub(rf"\1\2; simulator seed {seeds[name]} |", page)
    PAGE.write_text(page, encoding="utf-8")


def main() -> int:
    """Search with two processes; report each seed, and every mutant that survived."""
    names = sys.argv[1:] or [mutant.name for mutant in SIMULATED]
    seeds, survived = dict(FIRST_SEEDS), 0
    with ProcessPoolExecutor(2) as pool:
        for name, seed, took in pool.map(quick_seed, names):
            print(f"{name:<40} {'SURVIVED' if seed is None else seed:>9} {took:6.2f} s", flush=True)
            survived += seed is None
            if seed is not None:
                seeds[name] = seed
                write(seeds)
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
