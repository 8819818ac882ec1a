"""`holdfast doctor`: checks the requirements of a job on this machine, and reports how to meet those that are not met.

Each check tries the real thing: it starts Spark's launcher with Java, imports the packages, and creates one object in
the root twice. The checks remove the objects that they create. doctor_cluster.py checks the protection of a cluster,
doctor_job.py the requirements of a job.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.runtime.cli import text
from holdfast.runtime.cli.arguments import add_app, add_command, root_of
from holdfast.runtime.cli.reporting import advise, print_json, settled
from holdfast.runtime.cli.start.doctor_cluster import Check, cluster, spark_defaults
from holdfast.runtime.config.settings import wants_local

JAVA_OLDEST = 17
SPARK_LIMIT_S = 60
PACKAGES = ("pyspark", "pyarrow", "polars", "rocksdict", "msgspec", "xxhash")
PYTHON_OLDEST, PYTHON_NEWEST = (3, 11), (3, 13)
DISK_LEAST, DISK_GOOD = 512 * 1024**2, 5 * 1024**3
SHARED_MEMORY_GOOD = 64 * 1024**2
CLOCK_OFF_MAX_S = 2.0
_JAVA_ADVICE = (
    f"install Java {JAVA_OLDEST} or newer (Debian: apt-get install openjdk-17-jre-headless), set JAVA_HOME; "
    "holdfast run --local needs no Java"
)


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    description = (
        "Check Python, Java, Spark, packages, the root, disk space, clock, and protection of a cluster; with JOB.py "
        "also its secrets, and each source and sink as a start would find it. Nothing is created or changed there."
    )
    examples = "holdfast doctor\nholdfast doctor job.py --local\nholdfast doctor --root s3://bucket/streams --master spark://host:7077"
    parser = add_command(subparsers, "doctor", description, examples)
    parser.add_argument("file", metavar="JOB.py", nargs="?", help="check the sources and sinks of this job as well")
    add_app(parser)
    parser.add_argument("--master", metavar="M", help="Spark master URL to check; default: the one a run would use")
    parser.add_argument(
        "--local", action="store_const", const="true", help="check a run without Spark, as holdfast run --local"
    )
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Check everything.

    Exit status: 0 no check fails; else that of the first that does: 5 for the machine and unreachable systems, 2 for a
    root that cannot be used, 2 or 4 for faults of the job.
    """
    root = root_of(args)
    checks: list[Check] = []
    reported = spark_defaults(os.environ)
    protection = partial(cluster, args.master, os.environ, reported)
    local = wants_local({"local": args.local, "master": args.master}, os.environ)
    first, last = ((workers,), ()) if local else ((java,), (protection,))
    for group in (python, *first, packages, lambda: storage(root), machine, *last, partial(_job, args)):
        for check in group():
            checks.append(check)
            if not args.json:
                print(f"{check.state:<5} {check.name:<15} {check.found}", flush=True)
                if check.next:
                    print(f"{'':<21} next: {check.next}", flush=True)
    failures = [check for check in checks if check.state == "fail"]
    if args.json:
        print_json({"ok": not failures, "checks": [asdict(check) for check in checks]})
    elif failures:
        advise(f"\n{text.plural(len(failures), 'check')} failed; jobs will not run until this is fixed")
    return failures[0].exit_status if failures else 0


def _job(args: argparse.Namespace) -> Iterator[Check]:
    if args.file is not None:
        from holdfast.runtime.cli.start.doctor_job import job  # after the packages that it needs are checked

        yield from job(args.file, args.app, args.root, args.master, args.local)


def python() -> Iterator[Check]:
    """Check the interpreter; executors need the same minor version."""
    interpreter = f"{platform.python_version()} at {sys.executable}"
    if PYTHON_OLDEST <= sys.version_info[:2] <= PYTHON_NEWEST:
        yield Check("python", "ok", interpreter)
    else:
        yield Check(
            "python", "warn", f"{interpreter}, which Holdfast is not tested with", "use Python 3.11, 3.12 or 3.13"
        )


def java() -> Iterator[Check]:
    """Check the Java that Spark would use, and whether Spark starts with it."""
    home = os.environ.get("JAVA_HOME")
    program = shutil.which(str(Path(home) / "bin" / "java")) if home else shutil.which("java")
    where = f"JAVA_HOME={home}" if home else "JAVA_HOME is not set, java comes from PATH"
    if program is None:
        yield Check("java", "fail", f"no java was found ({where})", _JAVA_ADVICE)
        return
    said = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(\d+)[^"]*"', said.stderr)
    if match is None:
        yield Check("java", "fail", f"{program} does not report its version ({where})", _JAVA_ADVICE)
    elif int(match[1]) < JAVA_OLDEST:
        yield Check("java", "fail", f"{match[0]} at {program} ({where}) is too old for Spark", _JAVA_ADVICE)
    else:
        yield Check("java", "ok", f"{match[0]} at {program} ({where})")
        yield _spark_starts()


def _spark_starts() -> Check:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        return Check("spark", "fail", "pyspark is not installed", "pip install pyspark")
    launcher = Path(os.environ.get("SPARK_HOME") or Path(spec.origin).parent) / "bin" / "spark-submit"
    try:
        outcome = subprocess.run(
            [str(launcher), "--version"], capture_output=True, text=True, check=False, timeout=SPARK_LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("spark", "fail", f"{launcher} does not start: {error}", "check SPARK_HOME, or unset it")
    version = re.search(r"version (\S+)", outcome.stderr)
    if outcome.returncode != 0 or version is None:
        last = (outcome.stderr.strip().splitlines() or ["no output"])[-1]
        return Check("spark", "fail", f"{launcher} --version failed: {last}", _JAVA_ADVICE)
    return Check("spark", "ok", f"version {version[1]} starts with this Java ({launcher})")


def workers() -> Iterator[Check]:
    """Start the process that forks the workers of a local run."""
    from holdfast.runtime.execution.local import STARTING
    from holdfast.runtime.processes.local import Zygote

    began, zygote = time.monotonic(), Zygote.start()
    try:
        zygote.wait_until_ready(lambda: advise(STARTING))
        yield Check("workers", "ok", f"can be forked {time.monotonic() - began:.1f} s after a start")
    except HoldfastError as error:
        yield Check("workers", "fail", error.what, "see the messages above")
    finally:
        zygote.close()


def packages() -> Iterator[Check]:
    """Import the packages with native code, because one may be installed and still not load."""
    oldest = _oldest_versions()
    for name in PACKAGES:
        try:
            import_module(name)
            version = metadata.version(name)
        except (ImportError, OSError) as error:
            needed = f"{name}>={oldest[name]}" if name in oldest else name
            yield Check(name, "fail", f"cannot be imported: {error}", f"pip install '{needed}'")
            continue
        if name in oldest and _numbers(version) < _numbers(oldest[name]):
            yield Check(name, "fail", f"{version}, which is too old", f"pip install '{name}>={oldest[name]}'")
        else:
            yield Check(name, "ok", version)


def _oldest_versions() -> dict[str, str]:
    """Return the oldest version of each package that this installation of Holdfast accepts."""
    try:
        required = metadata.requires("holdfast") or []
    except metadata.PackageNotFoundError:
        return {}
    found = (re.match(r"([A-Za-z0-9_.-]+)\s*>=\s*([0-9.]+)", line) for line in required)
    return {match[1]: match[2] for match in found if match}


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def storage(root: str) -> Iterator[Check]:
    """Check that the root can be written, and that only one of two creators of an object wins."""
    from holdfast.storage.objects import LocalObjects, open_objects
    from holdfast.storage.probe import prove

    local = None if "://" in root else Path(root).absolute()
    had_folder = local is None or local.exists()
    try:
        store = open_objects(root)
        prove(store, repr(store), not_done="nothing was changed")
        yield Check("root", "ok", f"{store!r} can be written, listed and deleted from, and conditional create works")
        if isinstance(store, LocalObjects):
            yield _only_ours(store.root)
            yield _free_space("root disk", store.root)
            yield _clock_of(store.root)
    except HoldfastError as error:
        yield Check("root", "fail", error.what, error.next_step, settled(error).exit_status)
    finally:
        if local is not None and not had_folder and local.is_dir() and not any(local.iterdir()):
            local.rmdir()


def _only_ours(folder: Path) -> Check:
    """Check who can write to the root: those users can command its jobs and change their state."""
    mode = folder.stat().st_mode
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        who = "everyone" if mode & stat.S_IWOTH else "its group"
        found = f"{folder} can be written by {who} ({stat.filemode(mode)})"
        return Check("root access", "warn", found, f"chmod go-w {folder}, unless all of them may command its jobs")
    return Check("root access", "ok", f"only its owner can write to {folder}")


def _clock_of(folder: Path) -> Check:
    """Compare this clock with the one that stamps files; a network file system has its own."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"?")
        file.flush()
        off_s = time.time() - os.fstat(file.fileno()).st_mtime
    if abs(off_s) > CLOCK_OFF_MAX_S:
        found = f"{off_s:+.1f} s against the file system of {folder}"
        return Check("clock", "warn", found, "synchronise the clocks; times shown will be off, results will not")
    return Check("clock", "ok", f"agrees with the file system of {folder}")


def machine() -> Iterator[Check]:
    """Check the space for local state and shared memory, and count processors."""
    yield _free_space("temporary disk", Path(tempfile.gettempdir()))
    shared = Path("/dev/shm")
    if not shared.is_dir():
        yield Check("shared memory", "warn", "there is no /dev/shm", "mount a tmpfs there")
    elif (free := shutil.disk_usage(shared).free) < SHARED_MEMORY_GOOD:
        yield Check("shared memory", "warn", f"{text.size(free)} free in /dev/shm", "in a container: --shm-size=256m")
    else:
        yield Check("shared memory", "ok", f"{text.size(free)} free in /dev/shm")
    cores = len(os.sched_getaffinity(0))
    found = f"{text.plural(cores, 'core')}; {text.plural(max(1, cores), 'worker')} can be busy at the same time"
    yield Check("processors", "ok", found)


def _free_space(name: str, folder: Path) -> Check:
    free = shutil.disk_usage(folder).free
    free_space = f"{text.size(free)} free at {folder}"
    if free < DISK_LEAST:
        return Check(name, "fail", free_space, "free some space")
    if free < DISK_GOOD:
        return Check(name, "warn", free_space, "free some space before state grows")
    return Check(name, "ok", free_space)
