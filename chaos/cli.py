"""`holdfast chaos simulate|replay|mutants|run`: the protocol under faults, and real jobs, from a shell.

Results go to stdout (with --json as JSON), advice to stderr. Exit status: 0 everything held, 1 something did not, or an
armed fault never struck, 2 wrong use.

Source: DESIGN section 10; API.md, command line.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any

from holdfast.chaos import live_cli, mutants
from holdfast.chaos.mutants import MUTANTS, Mutant
from holdfast.chaos.report import Summary, failure_lines, replay_command, summary_lines
from holdfast.chaos.simulator import Run, simulate
from holdfast.errors import ConfigError
from holdfast.runtime.cli.reporting import advise, print_json

BATCH_SEEDS = 20
FAILURES_SHOWN = 3
REPLAY_LINES = 1_000
Subparsers = Any
"""argparse gives its own type no public name."""


def add_parser(subparsers: Subparsers) -> None:
    """Add `chaos` and its commands to the command line."""
    chaos = subparsers.add_parser(
        "chaos",
        description="Play whole jobs in a world that fails, and check every answer.",
        epilog="examples:\n  holdfast chaos simulate --seeds 1000\n  holdfast chaos replay --seed 17",
    )
    commands = chaos.add_subparsers(dest="chaos_command", required=True, metavar="COMMAND")
    play = _command(commands, "simulate", run_simulate, "play seeds: each a job, its faults and an order of events")
    play.add_argument("--seeds", type=int, default=200, metavar="N", help="how many; default 200")
    play.add_argument("--first", type=int, default=0, metavar="S", help="the first seed; default 0")
    play.add_argument("--workers", type=int, default=1, metavar="N", help="processes to play in; default 1")
    again = _command(commands, "replay", run_replay, "play one seed again and show its events")
    again.add_argument("--seed", type=int, required=True, metavar="S")
    again.add_argument("--mutant", metavar="NAME", help="play a wrong version of the protocol")
    again.add_argument("--lines", type=int, default=REPLAY_LINES, metavar="N", help="events to show at most")
    prove = _command(commands, "mutants", run_mutants, "play wrong versions of the protocol until each is caught")
    prove.add_argument("--seeds", type=int, default=500, metavar="N", help="give up after so many; default 500")
    prove.add_argument("--first", type=int, default=0, metavar="S", help="the first seed; default 0")
    prove.add_argument("--mutant", metavar="NAME", help="only this one")
    live_cli.add_parser(lambda name, handler, does: _command(commands, name, handler, does))


def run_simulate(args: argparse.Namespace) -> int:
    """Play seeds; show what failed, and how often each fault struck."""
    _require(args.seeds >= 1 and args.workers >= 1 and args.first >= 0, "--seeds and --workers are at least 1")
    seeds, began = range(args.first, args.first + args.seeds), time.monotonic()

    def show(run: Run, nth: int) -> None:
        if nth <= FAILURES_SHOWN and not args.json:
            print("\n".join(failure_lines(run)), flush=True)

    summary = play_all(seeds, args.workers, show)
    took = time.monotonic() - began
    if args.json:
        print_json({**summary.as_json(), "took_s": round(took, 2)})
    else:
        print("\n".join(summary_lines(summary)))
        advise(f"{took:.1f} s, {1000 * took / len(seeds):.0f} ms per seed")
    return 0 if summary.passed else 1


def run_replay(args: argparse.Namespace) -> int:
    """Play one seed again."""
    with nullcontext() if args.mutant is None else mutants.applied(_mutant(args.mutant)):
        run = simulate(args.seed, journal_lines=args.lines, keep_journal=True)
    if args.json:
        print_json({**run.as_json(), "journal": list(run.journal)})
    else:
        print("\n".join(run.journal))
        print("\n".join([f"FAILED  {violation}" for violation in run.violations] or ["everything held"]))
        print(f"trace {run.trace}, {run.events} events, {run.virtual_s:.1f} virtual seconds")
    return 0 if run.passed else 1


def run_mutants(args: argparse.Namespace) -> int:
    """Play every mutant until it is caught."""
    chosen = MUTANTS if args.mutant is None else (_mutant(args.mutant),)
    hunts = []
    for mutant in chosen:
        hunt = mutants.hunt(mutant, args.first, args.seeds)
        hunts.append(hunt)
        if not args.json:
            found = "SURVIVED" if hunt.caught is None else f"{hunt.caught.violations[0]:.90}"
            print(f"{mutant.name:<34} {mutant.rules:<16} {hunt.seeds:>4} seeds  {found}", flush=True)
            if hunt.caught is not None and args.mutant is not None:
                advise(f"play it again: {replay_command(hunt.caught.seed, mutant.name)}")
    if args.json:
        print_json([
            {"mutant": hunt.mutant.name, "rules": hunt.mutant.rules, "does": hunt.mutant.does, "seeds": hunt.seeds,
             "caught": None if hunt.caught is None else hunt.caught.as_json()}
            for hunt in hunts
        ])  # fmt: skip
    return 0 if all(hunt.caught is not None for hunt in hunts) else 1


def play_all(seeds: range, workers: int, failed: Callable[[Run, int], None] = lambda run, nth: None) -> Summary:
    """Play seeds in so many processes; `failed` is told of each run that failed, and the how-many-th it is."""
    summary = Summary()
    batches = [seeds[i : i + BATCH_SEEDS] for i in range(0, len(seeds), BATCH_SEEDS)]
    with _mapper(workers) as mapped:
        for run in itertools.chain.from_iterable(mapped(_play, batches)):
            summary.add(run)
            if not run.passed:
                failed(run, len(summary.failed))
    return summary


def _play(seeds: range) -> list[Run]:
    return [simulate(seed) for seed in seeds]


@contextmanager
def _mapper(workers: int) -> Iterator[Callable[..., Any]]:
    """Return a map over this process alone, or over several that are spawned: libraries with threads do not fork."""
    if workers == 1:
        yield map
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        yield pool.map


def _command(
    commands: Subparsers, name: str, handler: Callable[[argparse.Namespace], int], does: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=does, description=does)
    parser.add_argument("--json", action="store_true", help="print results, and errors, as JSON on stdout")
    parser.add_argument("--debug", action="store_true", help="with an error, show where in the code it arose")
    parser.set_defaults(handler=handler)
    return parser


def _mutant(name: str) -> Mutant:
    found = [mutant for mutant in MUTANTS if mutant.name == name]
    _require(bool(found), f"there is no mutant {name!r}; there are {', '.join(m.name for m in MUTANTS)}")
    return found[0]


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ConfigError(what, not_done="nothing was played", next_step="see holdfast chaos --help")
