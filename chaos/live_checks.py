"""Finds and carries out the check of a run: a function, a command, or `holdfast audit`.

A check that fails to run proves nothing, so what it raises ends the run; what it finds is in its findings.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.chaos import check_module
from holdfast.chaos.findings import COUNTS, Check, Context, Finding
from holdfast.chaos.folders import filled
from holdfast.errors import ConfigError, Damaged, HoldfastError

COMMAND_LIMIT_S = 600
SHOWN_MAX = 3


def resolve(check: str | tuple[str, ...], folders: Sequence[Path] = ()) -> Check:
    """Return what a scenario names as its check; a module may lie in one of the folders.

    Raises:
        ConfigError: there is no such function or command.
    """
    if isinstance(check, tuple):
        if shutil.which(check[0]) is None and "{" not in check[0]:
            raise ConfigError(
                f"there is no program {check[0]!r} to check the result",
                not_done="nothing was started",
                next_step="give check as a command that can be run here",
            )
        return lambda context: [_command(check, context)]
    if check == "audit":
        return _audit
    return check_module.function(check, folders)


def _audit(context: Context) -> list[Finding]:
    """Run the audit of the job: every source and target is read again and held against its checkpoints."""
    command = (sys.executable, "-m", "holdfast.runtime.cli.main", "audit", context.job, "--root", context.root)
    done = _done((*command, "--json"), context)
    said = (done.stdout.strip() or done.stderr.strip())[-2_000:]
    if done.returncode not in (0, Damaged.exit_status):
        raise HoldfastError(
            f"holdfast audit did not come to a result: {said[-500:]}",
            not_done="the result was not audited",
            next_step="run it by hand on the root of the run",
        )
    return audited(json.loads(done.stdout), done.returncode)


def audited(shown: dict[str, Any], status: int) -> list[Finding]:
    """Return what the JSON of `holdfast audit` and its exit status amount to.

    Nothing, if it proved nothing of what came out: a line that is proven for each sink, and for one source, is the
    least. That it may end with 0 without any says only that nothing was found to differ.
    """
    if "verdict" not in shown:  # an error instead of a report: what is kept cannot even be read
        return [Finding("audit", False, "I12", detail=str(shown.get("what", shown)))]
    lines = [(kind, line) for kind in ("epochs", "sources", "operators", "sinks") for line in shown[kind]]
    counts = Counter(line["verdict"] for _, line in lines)
    told = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    wrong = [line for _, line in lines if line["verdict"] == "differs"]
    if status or wrong:
        return [Finding("audit", False, "I1, I2", detail=f"{told}; {wrong[:SHOWN_MAX]}")]
    proven = [line for _, line in lines if line["verdict"] == "proven"]
    unproven = {line["sink"] for line in shown["sinks"]} - {line["sink"] for line in proven if "sink" in line}
    if unproven or not shown["sinks"] or not any("source" in line for line in proven):
        return []
    return [Finding("audit", True, "I1, I2", detail=told)]


def _command(words: tuple[str, ...], context: Context) -> Finding:
    """Run a command: 0 held, anything else not. A last line of JSON may count lost, duplicated, reordered."""
    done = _done(tuple(filled(word, context.out) for word in words), context)
    lines = done.stdout.strip().splitlines()
    said = (done.stdout.strip() + "\n" + done.stderr.strip()).strip()[-2_000:]
    passed = done.returncode == 0
    try:
        return Finding(words[0], passed, **_counts(lines[-1] if lines else ""), detail=said)
    except (TypeError, ValueError) as error:
        if not passed:  # what it found counts also where its numbers cannot be read
            return Finding(words[0], passed, detail=said)
        raise HoldfastError(
            f"the last line of {words[0]} cannot be read: {error}",
            not_done="what it counted is unknown, so its check proves nothing",
            next_step='let its last line be JSON such as {"lost": 0, "duplicated": 0, "reordered": 0}, or no JSON',
        ) from error


def _counts(line: str) -> dict[str, Any]:
    told = json.loads(line) if line.startswith("{") else {}
    return {name: told.get(name) for name in COUNTS}


def _done(words: tuple[str, ...], context: Context) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **context.environment}
    try:
        return subprocess.run(
            words, capture_output=True, text=True, env=environment, timeout=COMMAND_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HoldfastError(
            f"{words[0]} did not come to its end: {error}",
            not_done="the result was not checked",
            next_step="run it by hand on the folder of the run",
        ) from error
