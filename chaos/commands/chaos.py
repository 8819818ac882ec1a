"""`holdfast chaos simulate|replay|mutants|run`: the protocol under faults, and real jobs, from a shell.

Results go to stdout (with --json as JSON), advice to stderr. Exit status of the commands here: 0 everything held, 1
something did not, or an armed fault never struck, 2 wrong use, 130 interrupted. live.py defines that of `run`,
evidence.py that of `report`, `soak` and `statement`: they use 4 for something that did not hold.

Source: DESIGN section 10; API.md, command line.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

from holdfast.chaos.commands import evidence as evidence_cli
from holdfast.chaos.commands import live as live_cli
from holdfast.chaos.explore import replays
from holdfast.chaos.explore.playing import SEEDS_MAX, WORKERS_MAX, play_all, saying_if_interrupted
from holdfast.chaos.explore.report import (
    Summary,
    brief_line,
    failure_lines,
    replay_command,
    shrunk_lines,
    summary_lines,
    verdict_line,
)
from holdfast.chaos.explore.shrink import Reduction, Shrunk, parsed
from holdfast.chaos.mutants import mutation
from holdfast.chaos.mutants.mutation import Mutant
from holdfast.chaos.mutants.simulated import SIMULATED
from holdfast.chaos.sim.faults.faults import Fault, Strike
from holdfast.chaos.sim.simulator import Run
from holdfast.errors import ConfigError
from holdfast.runtime.cli.reporting import INTERRUPTED, advise, print_json

FAILURES_SHOWN, FAILURES_NAMED = 3, 50
"""The first failures are shown in full and shrunk, the next ones in a line each; --json names all."""
TELL_EVERY_S = 10.0
REPLAY_LINES = 1_000
Subparsers = Any
"""argparse gives its own type no public name."""


def add_parser(subparsers: Subparsers) -> None:
    """Add `chaos` and its commands to the command line."""
    chaos = subparsers.add_parser(
        "chaos",
        description="Play whole jobs in a failing world and check every answer.",
        epilog="examples:\n  holdfast chaos simulate --seeds 1000\n  holdfast chaos replay --seed 17",
    )
    commands = chaos.add_subparsers(dest="chaos_command", required=True, metavar="COMMAND")
    play = _command(
        commands,
        "simulate",
        run_simulate,
        "play seeds; each decides a job, its faults and the order of events",
        "holdfast chaos simulate --seeds 1000 --workers 2\nholdfast chaos simulate --first 5000 --seeds 200 --json",
    )
    play.add_argument("--seeds", type=int, default=200, metavar="N", help="how many; default 200")
    play.add_argument("--first", type=int, default=0, metavar="S", help="the first seed; default 0")
    play.add_argument("--workers", type=int, default=1, metavar="N", help="processes to play in; default 1")
    again = _command(
        commands,
        "replay",
        run_replay,
        "play one seed again and show its events",
        "holdfast chaos replay --seed 17\nholdfast chaos replay --seed 17 --only 3,worker-killed --lines 200",
    )
    again.add_argument("--seed", type=int, required=True, metavar="S", help="the seed that the failure names")
    again.add_argument("--mutant", metavar="NAME", help="play a wrong version of the protocol")
    left = again.add_mutually_exclusive_group()
    left.add_argument("--only", metavar="STRIKES", help="allow only these faults: 3,7 or worker-killed")
    left.add_argument("--without", metavar="STRIKES", help="allow all faults except these")
    left.add_argument("--schedule", metavar="S", help="the reduction that a shrunk failure prints")
    again.add_argument("--lines", type=int, default=REPLAY_LINES, metavar="N", help="most events to show")
    evidence_cli.add_commands(commands, _command)
    prove = _command(
        commands,
        "mutants",
        run_mutants,
        "play wrong versions of the protocol until each is caught",
        f"holdfast chaos mutants --seeds 200\nholdfast chaos mutants --mutant {SIMULATED[0].name}",
    )
    prove.add_argument(
        "--seeds", type=int, default=500, metavar="N", help="seeds per mutant before giving up; default 500"
    )
    prove.add_argument("--first", type=int, default=0, metavar="S", help="the first seed; default 0")
    prove.add_argument("--mutant", metavar="NAME", help="play only this one")
    live_cli.add_parser(lambda *given: _command(commands, *given))


def run_simulate(args: argparse.Namespace) -> int:
    """Play seeds; show the failures, and how often each fault struck."""
    _require_least(args, seeds=1, workers=1, first=0)
    seeds, began = range(args.first, args.first + args.seeds), time.monotonic()
    summary, cut_short, shrunk = Summary(), False, dict[int, Shrunk]()
    failures: list[str] = []

    def show(run: Run, nth: int) -> None:
        if nth <= FAILURES_SHOWN:
            original, shrunk[run.seed] = replays.smallest(run.seed)
            lines = [*failure_lines(run), *shrunk_lines(original, shrunk[run.seed])]
        else:
            lines = [brief_line(run)] if nth <= FAILURES_NAMED else []
        failures.extend(lines)
        if lines and not args.json:
            advise(brief_line(run))

    try:
        play_all(seeds, args.workers, show, _telling(len(seeds), began), summary)
    except KeyboardInterrupt:
        cut_short = True
    took = time.monotonic() - began
    success = summary.passed and not cut_short
    if args.json:
        smaller = {str(seed): str(each.reduction) for seed, each in shrunk.items()}
        reported = {**summary.as_json(), "passed": success, "interrupted": cut_short}
        print_json({**reported, "shrunk": smaller, "took_s": round(took, 2)})
    else:
        _show_summary(summary, failures, len(seeds), took, cut_short)
    return INTERRUPTED if cut_short else 0 if success else 1


def _show_summary(summary: Summary, failures: list[str], seeds: int, took: float, interrupted: bool) -> None:
    """Show the verdict, then the reasons, then the seeds played."""
    print("\n".join([verdict_line(summary, seeds if interrupted else None), *failures, *summary_lines(summary)]))
    if (unnamed := len(summary.failed) - FAILURES_NAMED) > 0:
        print(f"{unnamed:,} more failed; --json names every one")
    if summary.runs:
        each = f"{1000 * took / summary.runs:.0f} ms per seed, {summary.runs / took:.1f} schedules/s"
        advise(f"{took:.1f} s, {each}")


def _telling(seeds: int, began: float) -> Callable[[int], None]:
    """Return a function that reports progress of a long series every few seconds, to a terminal only."""
    last_report = began

    def tell(played: int) -> None:
        nonlocal last_report
        now = time.monotonic()
        if now - last_report >= TELL_EVERY_S and played < seeds:
            last_report = now
            left = (now - began) / played * (seeds - played)
            advise(f"{played:,} of {seeds:,} seeds played, about {left / 60:.0f} min to go")

    return tell


def run_replay(args: argparse.Namespace) -> int:
    """Play one seed again."""
    _require_least(args, seed=0, lines=1)
    with nullcontext() if args.mutant is None else mutation.applied(_mutant(args.mutant)):
        original = replays.noted(args.seed)
        reduction = _reduction(args, original.run.strikes)
        run = replays.replay(original, reduction, args.lines, keep_journal=True)
    if args.json:
        print_json({**run.as_json(), "journal": list(run.journal)})
    else:
        print("\n".join([f"FAILED  {violation}" for violation in run.violations] or ["everything held"]))
        print("\n".join(run.journal))
        print(f"trace {run.trace}, {run.events} events, {run.virtual_s:.1f} virtual seconds")
    return 0 if run.passed else 1


def run_mutants(args: argparse.Namespace) -> int:
    """Play each mutant until it is caught."""
    _require_least(args, seeds=1, first=0)
    chosen = SIMULATED if args.mutant is None else (_mutant(args.mutant),)
    hunts: list[mutation.Hunt] = []
    for mutant in chosen:
        with saying_if_interrupted(f"{len(hunts)} of {len(chosen)} were played"):
            hunt = mutation.hunt(mutant, args.first, args.seeds)
        hunts.append(hunt)
        if not args.json:
            found = "SURVIVED" if hunt.caught is None else f"{hunt.caught.violations[0]:.90}"
            print(f"{mutant.name:<34} {mutant.rules:<16} {hunt.seeds:>4} seeds  {found}", flush=True)
            if hunt.caught is not None and args.mutant is not None:
                with mutation.applied(mutant):
                    shrunk = shrunk_lines(*replays.smallest(hunt.caught.seed), mutant.name)
                print("\n".join(shrunk))
                advise(f"play it again: {replay_command(hunt.caught.seed, mutant.name)}")
    if args.json:
        print_json(
            [
                {
                    "mutant": hunt.mutant.name,
                    "rules": hunt.mutant.rules,
                    "does": hunt.mutant.does,
                    "seeds": hunt.seeds,
                    "caught": None if hunt.caught is None else hunt.caught.as_json(),
                }
                for hunt in hunts
            ]
        )
    return 0 if all(hunt.caught is not None for hunt in hunts) else 1


def _command(
    commands: Subparsers,
    name: str,
    handler: Callable[[argparse.Namespace], int],
    does: str,
    examples: str,
    ends: str = "0 everything held, 1 something did not, or nothing was proven, 2 wrong use",
) -> argparse.ArgumentParser:
    """Add a command; `examples` are command lines, `ends` explains its exit statuses."""
    lines = "\n".join(f"  {line}" for line in examples.splitlines())
    about = f"{does[0].upper()}{does[1:]}.\n\nexit status: {ends}"
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=does, description=about, epilog=f"examples:\n{lines}"
    )
    parser.add_argument("--json", action="store_true", help="print results, and errors, as JSON on stdout")
    parser.add_argument("--debug", action="store_true", help="with an error, show its traceback")
    parser.set_defaults(handler=handler)
    return parser


def _mutant(name: str) -> Mutant:
    found = [mutant for mutant in SIMULATED if mutant.name == name]
    _require(bool(found), f"there is no mutant {name!r}; choose one of {', '.join(m.name for m in SIMULATED)}")
    return found[0]


def _reduction(args: argparse.Namespace, strikes: Sequence[Strike]) -> Reduction:
    """Read which parts to leave out."""
    try:
        if args.schedule is not None:
            reduction = parsed(args.schedule)
            _require(
                set(reduction.without) <= set(replays.FEATURES),
                f"a schedule can leave out {', '.join(replays.FEATURES)}",
            )
            _require_strikes(reduction.strikes or (), strikes)
            return reduction
        numbers = _numbers(args.only or args.without or "", strikes)
    except ValueError as error:
        raise ConfigError(str(error), not_done="nothing was played", next_step="see holdfast chaos --help") from error
    if args.only is not None:
        return Reduction(strikes=tuple(sorted(numbers)))
    if args.without is not None:
        return Reduction(strikes=tuple(number for number in range(len(strikes)) if number not in numbers))
    return Reduction()


def _numbers(text: str, strikes: Sequence[Strike]) -> set[int]:
    """Return the numbers of the strikes listed by number or by kind."""
    kinds = {fault.name.lower().replace("_", "-"): fault for fault in Fault}
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        if part in kinds:
            of_kind = {number for number, strike in enumerate(strikes) if strike.fault == kinds[part]}
            _require(bool(of_kind), f"this seed has no strike of {part!r}")
            numbers |= of_kind
        else:
            _require(part.isdigit(), f"{part!r} is neither a number nor a kind of strike; kinds are {', '.join(kinds)}")
            numbers.add(int(part))
    _require_strikes(numbers, strikes)
    return numbers


def _require_strikes(numbers: Iterable[int], strikes: Sequence[Strike]) -> None:
    """Refuse numbers of strikes that the seed does not have: leaving those out would prove nothing."""
    for number in numbers:
        _require(0 <= number < len(strikes), f"this seed has no strike {number}; it has {len(strikes)}, counted from 0")


def _require_least(args: argparse.Namespace, **least: int) -> None:
    """Refuse a number outside the range of its flag."""
    for flag, number in least.items():
        given, most = getattr(args, flag), WORKERS_MAX if flag == "workers" else SEEDS_MAX
        if not number <= given <= most:
            raise ConfigError(
                f"--{flag} must be at {f'least {number}' if given < number else f'most {most:,}'}, not {given}",
                not_done="nothing was played",
                next_step=f"see holdfast chaos {args.chaos_command} --help",
            )


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ConfigError(what, not_done="nothing was played", next_step="see holdfast chaos --help")
