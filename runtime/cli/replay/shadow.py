"""`holdfast shadow JOB.py NEW.py`: what changed code would give, replayed beside the present code.

Source: API.md; docs/decisions/0132-shadow.md.
"""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from holdfast.errors import Damaged
from holdfast.runtime.cli import text
from holdfast.runtime.cli.arguments import add_app, add_command, add_job
from holdfast.runtime.cli.operate.history import RUNNING, status_of
from holdfast.runtime.cli.replay.explaining import columns_typed, typed, why
from holdfast.runtime.cli.replay.given import announce, plain, positive, shown
from holdfast.runtime.cli.replay.versions import JobFile, again, versions_of
from holdfast.runtime.cli.reporting import advise, print_json
from holdfast.runtime.cli.start.run import add_drop_state
from holdfast.runtime.inspect.stored import LATEST, Stored
from holdfast.runtime.replay.contrast import Contrast, Unlike
from holdfast.runtime.replay.following import ChainedEpoch, EpochChain, chain_from, nothing_behind
from holdfast.runtime.replay.shadow import Shadow
from holdfast.runtime.replay.sources import NOT_REPLAYED
from holdfast.runtime.wire.clock import SystemClock

EPOCHS, LIMIT = 10, 10
LOOK_EVERY_S = 1.0
EXPIRED_MEANWHILE_MAX = 5
"""How often a look begins again because the running job expired a checkpoint that it was reading."""
ESTIMATED_FROM_S = 10.0
"""From there on, the time that is left is shown."""


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "shadow",
        "Replay epochs with two versions of a job's code, from the same checkpoint and the same records, in this\n"
        "process, and show which rows of sinks and keys of operators differ. Targets are not touched, and the job may\n"
        "run meanwhile.\n\n"
        "exit status: 0 equal, 2 wrong use, or the new code cannot read the state; 4 something differs, or a\n"
        "checkpoint is damaged; 5 a source or store is unreachable; 7 one of the two fails",
        "holdfast shadow job.py new.py\n"
        "holdfast shadow job.py new.py --from before-deploy --json\n"
        "holdfast shadow job.py new.py --live",
    )
    add_job(parser, "the job's Python file, as it runs")
    parser.add_argument("new", metavar="NEW.py", help="the file with the changed code")
    parser.add_argument(
        "--from",
        metavar="EPOCH",
        dest="start",
        help="the checkpoint to begin with: its epoch, a savepoint's name, or latest; "
        f"default: the one before the newest {EPOCHS} epochs, with --live the latest",
    )
    parser.add_argument(
        "--epochs", metavar="N", type=int, help="how many epochs; default with --from and with --live: all"
    )
    parser.add_argument(
        "--limit", metavar="N", type=int, default=LIMIT, help=f"differences shown of each sink; default: {LIMIT}"
    )
    parser.add_argument(
        "--live", action="store_true", help="follow the running job, until Ctrl-C or --epochs; JSON is a line per look"
    )
    add_drop_state(parser)
    add_app(parser)
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Replay and compare. Exit status: 0 equal, 4 something differs."""
    positive(args.epochs, "--epochs")
    positive(args.limit, "--limit")
    with ExitStack() as within:
        job, before, after = versions_of(args, NOT_REPLAYED)
        wanted = LATEST if args.live and args.start is None else args.start
        chain = chain_from(job, wanted, args.epochs or EPOCHS)
        codes = before.opened(job.job, within), after.opened(job.job, within)
        modules = before.modules.entered, after.modules.entered
        shadow = within.enter_context(Shadow(*codes, chain, args.drop_state, modules))
        view = _View(args, job, before, after, shadow)
        if args.live:
            return _followed(view, chain)
        links = chain.more(job, args.epochs)
        if not links:
            raise nothing_behind(job, args.start)
        announce([link.epoch for link in links])
        for link in _estimated(links):
            shadow.play(link, prove_state=link is links[-1])
        return view.show(shadow.compared(args.limit))


def _estimated(links: Sequence[ChainedEpoch]) -> Iterator[ChainedEpoch]:
    """Yield the epochs; after the first one, show how long the others take, if that is long."""
    began, records = time.monotonic(), 0
    for number, link in enumerate(links, 1):
        yield link
        records += link.epoch.records
        left = sum(each.epoch.records for each in links[number:])
        seconds = (time.monotonic() - began) * left / max(1, records)
        if number == 1 and seconds >= ESTIMATED_FROM_S:
            advise(
                f"{left:,} records of {text.plural(len(links) - 1, 'epoch')} left: about {text.span(seconds * 1000)}"
            )


def _followed(view: _View, chain: EpochChain) -> int:
    """Replay each new epoch as it comes; return the exit status."""
    contrasts, args = list[Contrast](), view.args
    advise(f"following {view.stored.name} from epoch {chain.epoch}; Ctrl-C ends this")
    try:
        while True:
            is_running = status_of(view.stored, SystemClock().wall_us()).state in RUNNING
            left = None if args.epochs is None else args.epochs - len(view.shadow.totals.epochs)
            links = _come(chain, view.stored, left)
            for link in links:
                view.shadow.play(link, prove_state=link is links[-1])
            if links:
                contrasts = view.shadow.compared(args.limit)
                view.follow(contrasts)
            if args.epochs is not None and len(view.shadow.totals.epochs) >= args.epochs:
                break
            if not is_running:
                advise(f"{view.stored.name} does not run any more")
                break
            if not links:
                time.sleep(LOOK_EVERY_S)
    except KeyboardInterrupt:
        advise("")
    return view.status(contrasts) if args.json else view.show(contrasts)


def _come(chain: EpochChain, stored: Stored, count: int | None) -> list[ChainedEpoch]:
    """Return the epochs that have come; if a checkpoint expires meanwhile, those that are left."""
    for _ in range(EXPIRED_MEANWHILE_MAX):
        try:
            return chain.more(again(stored), count)
        except Damaged:
            continue
    return chain.more(again(stored), count)


class _View:
    """Shows what was found, in the form that the user asked for."""

    def __init__(
        self, args: argparse.Namespace, stored: Stored, before: JobFile, after: JobFile, shadow: Shadow
    ) -> None:
        self.args, self.stored, self.shadow = args, stored, shadow
        self._before, self._after = before, after
        self._flags = [word for flag in ("root", "app") if (at := getattr(args, flag)) for word in (f"--{flag}", at)]

    def status(self, contrasts: Sequence[Contrast]) -> int:
        """Return the exit status."""
        return 0 if all(each.is_equal for each in contrasts) else Damaged.exit_status

    def show(self, contrasts: Sequence[Contrast]) -> int:
        """Show all; return the exit status."""
        if self.args.json:
            print_json(self._as_json(contrasts))
            return self.status(contrasts)
        print(self._head())
        rows = [_line(each) for each in contrasts]
        heads = ("", "name", "before", "after", "differ", "note")
        width = len(heads) if any(row[-1] for row in rows) else len(heads) - 1
        if rows:
            print(text.table(heads[:width], [row[:width] for row in rows], indent=2))
        for each in contrasts:
            if each.first:
                print(f"\n{self._side_by_side(each)}")
        for epoch, other in self.shadow.totals.differences[: self.args.limit]:
            advise(f"\nepoch {epoch}, {other.kind} {other.name!r}, present code: {other.what}")
        if self.shadow.totals.differences:
            advise(
                f"\n{self._before.file} does not give what the checkpoints have, so some differences may come from "
                f"the replay, not from {self._after.file}: see holdfast check {self._before.file}"
            )
        command = shlex.join(["holdfast", "promote", self._before.file, self._after.file, *self._flags])
        advise(f"\nNext, to replace the code: {command}; with --from EPOCH also what it has written since then")
        return self.status(contrasts)

    def follow(self, contrasts: Sequence[Contrast]) -> None:
        """Show one look at a running job."""
        if self.args.json:
            print_json(self._as_json(contrasts))
            return
        unlike = [each for each in contrasts if not each.is_equal]
        named = ", ".join(f"{each.differ:,} in {each.name}" for each in unlike)
        totals, verdict = self.shadow.totals, f"differ: {named}" if named else "equal"
        print(f"epoch {totals.epochs[-1]}: {text.plural(totals.records, 'record')} so far, {verdict}")

    def _head(self) -> str:
        totals = self.shadow.totals
        first, last = (totals.epochs[0], totals.epochs[-1]) if totals.epochs else (None, None)
        span = f"epoch {first}" if first == last else f"epochs {first} to {last}"
        verdict = "equals the checkpoints"
        if totals.differences:
            verdict = "differs from the checkpoints"
        elif totals.unknown is not None:
            verdict = f"is not provable: {totals.unknown}"
        head = f"{self.stored.name}, {span}, {text.plural(totals.records, 'record')}"
        return f"{head}: before is {self._before.file}, which {verdict}; after is {self._after.file}"

    def _side_by_side(self, contrast: Contrast) -> str:
        what = "key" if contrast.kind == "operator" else "row"
        rows, commands = list[tuple[str, ...]](), list[str | None]()
        for each in contrast.first:
            key = shown(each.key) if each.key is not None else ""
            rows.append((each.change, key, shown(_values(each, each.before)), shown(_values(each, each.after))))
            commands.append(None if (command := self._why(contrast, each)) is None else f"    {command}")
        head = f"{contrast.kind} {contrast.name}: {text.plural(contrast.differ, what)} differ"
        head = head if contrast.differ != 1 else f"{head}s"
        heads: tuple[str, ...] = ("change", "key", "before", "after")
        if contrast.first[0].key is None:
            heads, rows = (heads[0], *heads[2:]), [(row[0], *row[2:]) for row in rows]
        title, *lines = text.table(heads, rows, indent=2).splitlines()
        said = (each for line, command in zip(lines, commands, strict=True) for each in (line, command))
        more = contrast.differ - len(contrast.first)
        rest = [f"  and {more:,} more: --limit {2 * self.args.limit}"] if more > 0 else []
        return "\n".join([head, title, *(line for line in said if line is not None), *rest])

    def _why(self, contrast: Contrast, unlike: Unlike) -> str | None:
        """Return the command that explains a difference: of the new code, or if that gives nothing, of the former."""
        epoch, is_by_new = unlike.epoch, unlike.is_by_new
        if contrast.kind == "operator":
            if contrast.is_in == "after" or unlike.key is None:
                return None
            key = typed([unlike.key[name] for name in contrast.routed])
            begins = None if key is None else self.shadow.since(contrast, key, unlike.key)
            epoch, is_by_new = (None, unlike.after is not None) if begins is None else begins
        elif unlike.key is not None:
            key = typed(list(unlike.key.values()))
        else:
            key = columns_typed((unlike.after if is_by_new else unlike.before) or {})
        if key is None or (is_by_new and self.args.drop_state):
            return None  # what the new version dropped, a replay of it alone would refuse
        file = self._after.file if is_by_new else self._before.file
        return why(file, contrast.name, key, epoch, self._flags)

    def _as_json(self, contrasts: Sequence[Contrast]) -> dict[str, Any]:
        totals = self.shadow.totals
        return {
            "job": self.stored.name,
            "from": self.shadow.begins_with,
            "epochs": totals.epochs,
            "records": totals.records,
            "equal": all(each.is_equal for each in contrasts),
            "replay": {
                "exact": not totals.differences and totals.unknown is None,
                "unknown": totals.unknown,
                "differences": [
                    {"epoch": epoch, "kind": each.kind, "name": each.name, "what": each.what}
                    for epoch, each in totals.differences
                ],
            },
            "sinks": [self._contrast_as_json(each) for each in contrasts if each.kind == "sink"],
            "operators": [self._contrast_as_json(each) for each in contrasts if each.kind == "operator"],
        }

    def _contrast_as_json(self, contrast: Contrast) -> dict[str, Any]:
        return {
            "name": contrast.name,
            "in": contrast.is_in,
            "columns": {"added": list(contrast.columns.added), "removed": list(contrast.columns.removed)},
            "before": contrast.before,
            "after": contrast.after,
            "differ": contrast.differ,
            "rounded": contrast.rounded,
            "first": [
                {
                    "change": each.change,
                    "key": plain(each.key),
                    "before": plain(each.before),
                    "after": plain(each.after),
                    "why": self._why(contrast, each),
                }
                for each in contrast.first
            ],
        }


def _line(each: Contrast) -> tuple[object, ...]:
    notes = [] if each.is_in == "both" else ["new" if each.is_in == "after" else "removed"]
    notes += [f"columns added: {', '.join(each.columns.added)}"] if each.columns.added and not notes else []
    notes += [f"columns removed: {', '.join(each.columns.removed)}"] if each.columns.removed and not notes else []
    notes += [f"{each.rounded:,} by rounding alone"] if each.rounded else []
    return (each.kind, each.name, f"{each.before:,}", f"{each.after:,}", f"{each.differ:,}", "; ".join(notes))


def _values(unlike: Unlike, row: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the columns of a row that are not its key."""
    return None if row is None else {name: value for name, value in row.items() if name not in (unlike.key or {})}
