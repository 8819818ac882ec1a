"""Finds and runs the check of a run: a function, a command, or `holdfast audit`.

A check that fails to run proves nothing, so its exceptions end the run; its results are in its findings.
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

from holdfast.chaos.judge.findings import COUNTS, Check, Context, Finding
from holdfast.chaos.live import check_module
from holdfast.chaos.live.folders import filled
from holdfast.errors import ConfigError, Damaged, HoldfastError
from holdfast.model import NO_EPOCH

COMMAND_LIMIT_S = 600
SHOWN_MAX = 3


def resolve(check: str | tuple[str, ...], folders: Sequence[Path] = ()) -> Check:
    """Return the check that a scenario names; its module may be in one of the folders.

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
        return audit
    return check_module.function(check, folders)


def left(leaving: SystemExit) -> str:
    """Describe a SystemExit that a check raised; unhandled, it would end the whole run, even with status 0."""
    return f"left by sys.exit({'' if leaving.code is None else repr(leaving.code)})"


def audit(context: Context) -> list[Finding]:
    """Run the audit of the job: every source and target is read again and compared with its checkpoints."""
    command = (sys.executable, "-m", "holdfast.runtime.cli.main", "audit", context.job, "--root", context.root)
    process = _done((*command, "--json"), context)
    said = (process.stdout.strip() or process.stderr.strip())[-2_000:]
    if process.returncode not in (0, Damaged.exit_status):
        raise HoldfastError(
            f"holdfast audit gave no result: {said[-500:]}",
            not_done="the result was not audited",
            next_step="run it by hand on the root of the run",
        )
    return audited(json.loads(process.stdout), process.returncode)


def audited(shown: dict[str, Any], status: int) -> list[Finding]:
    """Return the findings that follow from the JSON and the exit status of `holdfast audit`.

    Exit status 0 means only that no difference was found. Here sources, sinks and chain of every kept checkpoint must
    be proven, and at least some with rows. The records that preceded a checkpoint whose predecessor is no longer kept,
    and rows that no kept checkpoint wrote, cannot be proven: the finding reports that.

    Raises:
        HoldfastError: it proved too little.
    """
    if "verdict" not in shown:  # an error instead of a report: the kept checkpoints cannot even be read
        return [Finding("audit", False, "I12", detail=str(shown.get("what", shown)))]
    lines = [line for kind in ("epochs", "sources", "operators", "sinks") for line in shown[kind]]
    counts = Counter(line["verdict"] for line in lines)
    summary = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    wrong = [line for line in lines if line["verdict"] == "differs"]
    if status or wrong:
        return [Finding("audit", False, "I1, I2", detail=f"{summary}; {wrong[:SHOWN_MAX]}")]
    kept = {line["epoch"] for line in shown["epochs"]}
    orphan_epochs = {
        line["epoch"] for line in shown["epochs"] if line["verdict"] != "proven" and _begins_anew(line, kept)
    }
    judged = [*shown["epochs"], *shown["sources"], *shown["sinks"]]  # the right output of a filter is unknown
    open_ = [line for line in judged if line["verdict"] != "proven"]
    past = [line for line in open_ if _is_past(line, orphan_epochs)]
    if missing := [_said(line) for line in open_ if line not in past] or _unshown(shown):
        raise HoldfastError(
            f"the audit proved too little ({summary}): {'; '.join(missing[:SHOWN_MAX])}",
            not_done="whether the results are right is unknown",
            next_step="add a check of your own for what an audit cannot prove",
        )
    if orphan_epochs:
        summary += f"; proven only after epoch {min(orphan_epochs)}, earlier checkpoints are not kept"
    remarks = dict.fromkeys(_said(line) for line in past if line["epoch"] is None)
    return [Finding("audit", True, "I1, I2", detail="; ".join([summary, *remarks]))]


def _begins_anew(line: dict[str, Any], kept: set[int]) -> bool:
    """Return whether an epoch had a predecessor that is no longer kept."""
    return line["follows"] not in kept and line["follows"] != NO_EPOCH


def _is_past(line: dict[str, Any], cut: set[int]) -> bool:
    """Return whether a line describes an event before the first checkpoint after which everything is kept."""
    return line["epoch"] in cut and "source" not in line or line["epoch"] is None and "sink" in line


def _unshown(shown: dict[str, Any]) -> list[str]:
    """Return the items of which no line is proven, although at least one must be."""
    proven = {kind: [line for line in shown[kind] if line["verdict"] == "proven"] for kind in ("sources", "sinks")}
    lacking = {line["sink"] for line in shown["sinks"]} - {
        line["sink"] for line in proven["sinks"] if line["epoch"] is not None
    }
    gaps = [f"sink {name!r}: no epoch of it is proven" for name in sorted(lacking)]
    for kind, what in (("sources", "no record of a source"), ("sinks", "no row of a sink")):
        if not any(line["rows"] for line in proven[kind]):
            gaps.append(f"{what} was read back")
    return gaps


def _said(line: dict[str, Any]) -> str:
    """Return the subject of a line, and why it is not proven."""
    names = [f"{kind} {line[kind]!r}" for kind in ("source", "sink") if kind in line]
    epoch = [] if line["epoch"] is None else [f"epoch {line['epoch']}"]
    return ", ".join([*names, *epoch]) + f": {line['reason'] or line['verdict']}"


def _command(words: tuple[str, ...], context: Context) -> Finding:
    """Run a command: exit status 0 means it held. A last line of JSON may count lost, duplicated, reordered."""
    done = _done(tuple(filled(word, context.out) for word in words), context)
    lines = done.stdout.strip().splitlines()
    output = (done.stdout.strip() + "\n" + done.stderr.strip()).strip()[-2_000:]
    success = done.returncode == 0
    try:
        return Finding(words[0], success, **_counts(lines[-1] if lines else ""), detail=output)
    except (TypeError, ValueError) as error:
        if not success:  # its exit status counts even if its numbers cannot be read
            return Finding(words[0], success, detail=output)
        raise HoldfastError(
            f"the last line of {words[0]} cannot be read: {error}",
            not_done="its counts are unknown, so its check proves nothing",
            next_step='let its last line be JSON such as {"lost": 0, "duplicated": 0, "reordered": 0}, or no JSON',
        ) from error


def _counts(line: str) -> dict[str, Any]:
    reported = json.loads(line) if line.startswith("{") else {}
    return {name: reported.get(name) for name in COUNTS}


def _done(words: tuple[str, ...], context: Context) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **context.environment}
    try:
        return subprocess.run(
            words, capture_output=True, text=True, env=environment, timeout=COMMAND_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HoldfastError(
            f"{words[0]} did not run to its end: {error}",
            not_done="the result was not checked",
            next_step="run it by hand on the folder of the run",
        ) from error
