"""The two versions of a job that `shadow` and `promote` take: the file that runs, and the changed one."""

from __future__ import annotations

import argparse
import os
from contextlib import ExitStack
from dataclasses import dataclass, replace

from holdfast.checkpoint.joblog import Job
from holdfast.errors import ConfigError, Where
from holdfast.runtime.cli.start.imports import OwnModules
from holdfast.runtime.cli.start.jobfile import load
from holdfast.runtime.config.settings import Settings, resolve
from holdfast.runtime.execution.results import with_places
from holdfast.runtime.inspect.stored import Stored, open_job
from holdfast.runtime.plan.model import Plan
from holdfast.runtime.replay.player import Code, opened


@dataclass(frozen=True)
class JobFile:
    """One version of the code.

    Args:
        file: Its path, as it was given.
    """

    file: str
    plan: Plan
    settings: Settings
    modules: OwnModules

    def opened(self, job: Job, within: ExitStack) -> Code:
        """Open its sources until the stack is closed. Raises ConfigError, Damaged, Unavailable."""
        with self.modules.entered():
            return opened(replace(self.plan, key_groups=job.key_groups), within)


def versions_of(args: argparse.Namespace, not_done: str) -> tuple[Stored, JobFile, JobFile]:
    """Return the job as its root holds it, the version that runs and the changed one.

    Raises:
        ConfigError: an argument is not a job's file, the files build different jobs, or there is no such job.
        Damaged, Unavailable: the job's log cannot be read.
    """
    former, new = (_loaded(args, file, not_done) for file in (args.job, args.new))
    name = former.plan.app
    if new.plan.app != name:
        raise ConfigError(
            f"{args.new} builds the job {new.plan.app!r}, and {args.job} builds {name!r}",
            not_done=not_done,
            next_step=f"give two versions of one job: in {args.new}, name the app {name!r}",
            where=Where(job=name),
        )
    if former.settings.root != new.settings.root:
        raise ConfigError(
            f"{args.new} has the root {new.settings.root}, and {args.job} has {former.settings.root}",
            not_done=not_done,
            next_step="give both the same root, in the code or with --root",
            where=Where(job=name),
        )
    return open_job(former.settings.root, name), former, new


def again(stored: Stored) -> Stored:
    """Return the job as its log is now."""
    job = stored.repository.read_log()
    return stored if job is None else replace(stored, job=job)


def _loaded(args: argparse.Namespace, file: str, not_done: str) -> JobFile:
    if not file.endswith(".py"):
        raise ConfigError(
            f"two versions of a job's code are needed, and {file!r} is not a Python file",
            not_done=not_done,
            next_step="give the files that build the app, such as job.py and new/job.py",
        )
    modules = OwnModules(file)
    with modules.entered():
        app = load(file, args.app)
        settings = resolve(app, {"root": args.root}, os.environ)
        plan = with_places(replace(app.plan(), key_groups=settings.key_groups), settings.root)
    return JobFile(file, plan, settings, modules)
