"""`holdfast chaos run SCENARIO.toml --job JOB.py`: a real job under real faults, from a shell.

Exit status: 0 held, 4 a violation was found, 7 the job failed, 1 nothing was proven, 2 wrong use.
"""

from __future__ import annotations

import argparse
import json
import signal
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from holdfast.runtime.cli.reporting import advise, print_json

HELD, NOT_PROVEN, VIOLATED, JOB_FAILED = 0, 1, 4, 7
REPORT = "holdfast.chaos.live_report"


def add_parser(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command; `command` makes parsers beside the others of `holdfast chaos`."""
    parser = command("run", handle, "break a real job by a scenario, and check what comes out of it")
    parser.add_argument("scenario", type=Path, metavar="SCENARIO.toml", help="a file, or a built-in name")
    parser.add_argument("--job", type=Path, required=True, metavar="JOB.py", help="the job's file")
    parser.add_argument("--out", type=Path, default=Path("chaos-run"), help="folder of the run; default: chaos-run")
    parser.add_argument("--seed", type=int, metavar="S", help="instead of the scenario's")


def handle(args: argparse.Namespace) -> int:
    """Run a scenario."""
    from holdfast.chaos import live  # loads Spark, which simulations do not need

    # Whoever ends this process ends the job with it, as with Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    scenario = live.load(args.scenario, seed=args.seed)
    path = live.run(scenario, args.job, args.out, progress=advise)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if find_spec(REPORT) is not None:
        import_module(REPORT).write(path)
    if args.json:
        print_json(summary(lines))
    else:
        print("\n".join(shown(summary(lines), path)))
    return exit_status(lines)


def exit_status(lines: list[dict[str, Any]]) -> int:
    """Return what the journal means to a shell."""
    verdict = lines[-1]["verdict"] if lines[-1]["kind"] == "end" else "not_proven"
    if verdict != "not_proven":
        return HELD if verdict == "held" else VIOLATED
    ends = [line["exit"] for line in lines if line["kind"] == "driver" and line["phase"] == "ended"]
    return JOB_FAILED if ends and ends[-1] > 0 else NOT_PROVEN


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of a journal."""
    checks = [line for line in lines if line["kind"] == "check"]
    times = sorted(line["recovery_ms"] for line in lines if line["kind"] == "recovery")
    fired = Counter(line["fault"] for line in lines if line["kind"] == "fault" and line["phase"] == "fired")
    end = lines[-1] if lines[-1]["kind"] == "end" else {"verdict": "not_proven", "reason": "the run was cut short"}
    return {
        "verdict": end["verdict"],
        "reason": end["reason"],
        **{name: _sum(check[name] for check in checks) for name in ("lost", "duplicated", "reordered")},
        "fired": dict(sorted(fired.items())),
        "missed": sum(line["kind"] == "fault" and line["phase"] == "missed" for line in lines),
        "recoveries": len(times),
        "recovery_p50_ms": _quantile(times, 0.5),
        "recovery_p99_ms": _quantile(times, 0.99),
        "epochs": sum(line["kind"] == "epoch" for line in lines),
        "checks": [{"name": check["name"], "passed": check["passed"], "detail": check["detail"]} for check in checks],
    }


def shown(figures: dict[str, Any], path: Path) -> list[str]:
    """Return the figures as lines of text."""
    counts = ", ".join(f"{'?' if figures[n] is None else figures[n]} {n}" for n in ("lost", "duplicated", "reordered"))
    fired = ", ".join(f"{count} {name}" for name, count in figures["fired"].items())
    spans = [figures["recovery_p50_ms"], figures["recovery_p99_ms"]]
    p50, p99 = ("?" if ms is None else f"{ms / 1000:.2f} s" for ms in spans)
    return [
        f"records      {counts}",
        f"faults       {sum(figures['fired'].values())} fired, {figures['missed']} missed: {fired or 'none'}",
        f"recoveries   {figures['recoveries']}, p50 {p50}, p99 {p99}; {figures['epochs']} epochs",
        *(f"check        {_ok(check)} {check['name']} {check['detail']:.200}" for check in figures["checks"]),
        f"journal      {path}",
        f"result       {figures['verdict']}: {figures['reason']:.400}",
    ]


def _sum(counts: Any) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _quantile(ordered: list[int], share: float) -> int | None:
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))] if ordered else None


def _ok(check: dict[str, Any]) -> str:
    return "ok" if check["passed"] else "WRONG"
