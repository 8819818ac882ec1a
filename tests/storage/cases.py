"""Runs cases of the storage fault tier: a life with a fault, a check of the files that it left, a life after it.

A server process imports everything once and never opens a file of a case. Every life runs in a process forked from it
before RocksDB or any other threaded library was used there. Cases come as lines of JSON on its standard input;
results go to its standard output.

    python cases.py < cases > results
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from shutil import rmtree
from typing import Any, Self

FOLDERS = ("root", "input", "output")
"""Below a case's folder: the folders that are Holdfast's own object stores."""


@dataclass(frozen=True)
class Fault:
    """The fault of one life; see tests/storage/disk_faults.py. The kinds that `Steps` does not know:

    `power`: a kill at step `at` that loses unsynced data. `timed`: a kill after `at` tenths of a millisecond.
    `limit`: no file may grow beyond `at` bytes. `disk`: the disk of the case has `at` KiB left.
    """

    what: str = "nothing"
    at: int = 0
    lasting: bool = False
    below: str = ""


@dataclass(frozen=True)
class Case:
    """Lives one after another, each with its fault, followed by a last one without a fault."""

    seed: int
    faults: tuple[Fault, ...]
    mutant: str = ""


@dataclass
class Result:
    """The result of a case."""

    case: Case
    fired: list[str] = field(default_factory=list)
    """Per fault, the step at which it struck."""
    overs: list[str] = field(default_factory=list)
    """Per life, how it ended."""
    findings: list[dict[str, Any]] = field(default_factory=list)
    hows: list[str] = field(default_factory=list)
    problem: str = ""
    able: list[int] = field(default_factory=list)
    """For each life that was not killed, how many of its steps its fault can strike."""
    rocks_opened: list[list[int]] = field(default_factory=list)
    """Per life that was not killed, which of these steps open a RocksDB."""
    lost: int = 0
    took: list[int] = field(default_factory=list)
    """Per life, how many tenths of a millisecond it lasted."""


class Cases:
    """The client of the server."""

    def __init__(self) -> None:
        self.took_s, self.cpu_s, self.done = 0.0, 0.0, 0

    def __enter__(self) -> Self:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command, pipe = [sys.executable, __file__], subprocess.PIPE
        self._server = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1, env=environment)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.close()
        self._server.stdout.close()
        self._server.wait()

    def run(self, case: Case) -> Result:
        """Run one case."""
        found = self.ask({"case": asdict(case)})
        return Result(case, **{name: value for name, value in found.items() if name != "case"})

    def ask(self, what: Mapping[str, Any]) -> dict[str, Any]:
        """Send the server a request; return its answer."""
        assert self._server.stdin is not None and self._server.stdout is not None
        began = time.monotonic()
        self._server.stdin.write(json.dumps(what) + "\n")
        self._server.stdin.flush()
        reply = json.loads(self._server.stdout.readline())
        self.took_s += time.monotonic() - began
        self.cpu_s = reply["cpu_s"]
        self.done += 1
        answer: dict[str, Any] = reply["answer"]
        return answer

    def rate(self) -> str:
        """Return the speed, for human readers."""
        took, cpu = max(self.took_s, 0.001), max(self.cpu_s, 0.001)
        n = self.done
        return f"{n} cases in {took:.0f} s and {cpu:.0f} s of CPU: {n / took:.1f} cases/s, {n / cpu:.1f} per CPU second"


# In the server


def serve() -> None:
    """Answer one line after another."""
    import damage
    import life  # noqa: F401 - once, for all processes that are forked from this one

    import holdfast.runtime.spark.daemon  # noqa: F401 - with all that it loads for its workers

    for line in sys.stdin:
        asked = json.loads(line)
        if "case" in asked:
            reported = asked["case"]
            case = Case(reported["seed"], tuple(Fault(**fault) for fault in reported["faults"]), reported["mutant"])
            answer = asdict(run_case(case))
        else:
            answer = damage.answer(asked)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(json.dumps({"answer": answer, "cpu_s": used.ru_utime + used.ru_stime}), flush=True)


def place() -> str | None:
    """Return where to put the folders of cases: in memory if possible."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def run_case(case: Case) -> Result:
    """Play all lives of a case, and check its files after each."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-case-", dir=place()))
    try:
        return _run_case(case, folder)
    finally:
        rmtree(folder, ignore_errors=True)


def make_folders(folder: Path) -> None:
    """Make the folders that a user makes before a job starts."""
    for name in (*FOLDERS, "target", "local"):
        (folder / name).mkdir(parents=True, mode=0o700)


def _run_case(case: Case, folder: Path) -> Result:
    result, data = Result(case), folder / "data"
    reported: list[dict[str, Any]] = []
    mounted = _mount(data, case)
    make_folders(data)
    try:
        for number, fault in enumerate((*case.faults, Fault())):
            last = number == len(case.faults)
            notes = folder / f"notes-{number}"
            began = time.monotonic()
            lines, killed = _life(data, notes, case, number, fault, last, reported)
            result.took.append(round((time.monotonic() - began) * 10_000))
            reported += lines
            _take(result, lines, killed, fault)
            if fault.what == "power":
                result.lost += _power(data, notes, case.seed + number)
            if not result.problem:
                result.problem = _checked(data, reported, last)
            if result.problem:
                break
    finally:
        if mounted:
            subprocess.run(["umount", str(data)], check=True)
    return result


def _mount(data: Path, case: Case) -> bool:
    if all(fault.what != "disk" for fault in case.faults):
        return False
    data.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(data)], check=True)
    return True


FULL = re.compile("No space left on device|disk is full")
"""The messages of the kernel and of SQLite for a full disk, which a life passes on."""


def _take(result: Result, lines: list[dict[str, Any]], killed: bool, fault: Fault) -> None:
    over = "killed" if killed else "lost"
    fired = ""
    for line in lines:
        if "fired" in line:
            number, name, path = line["fired"]
            fired = f"{number} {name} {path}"
        elif "over" in line:
            over = line["over"]
            result.findings += line.get("findings", [])
            if over == "bug":
                result.problem = line["trace"]
        elif "problem" in line:
            result.findings.append(line["problem"])
        elif "how" in line:
            result.hows.append(line["how"])
        elif "able" in line:
            result.able.append(line["able"])
            result.rocks_opened.append(line["rocks_opened"])
    if fault.what == "timed":
        fired = "killed" if killed else fired
    if fault.what == "disk":
        named = (each["what"] for each in result.findings if FULL.search(each.get("what") or ""))
        fired = next(named, "" if over == "well" else over)  # without a fault, no life may end in any other way
    if fault.what == "nothing" and over != "well" and not result.problem:
        result.problem = f"a life without a fault ended as {over}: {result.findings}"
    if over == "lost" and not result.problem:
        result.problem = "a life ended without a report"
    result.overs.append(over)
    if fault.what != "nothing":
        result.fired.append(fired)


def _power(data: Path, notes: Path, seed: int) -> int:
    from unsynced import cut_power

    lost = cut_power(data, notes, FOLDERS, seed)
    for boot in list((data / "local").iterdir()):
        boot.rename(boot.with_name("of-an-earlier-boot"))
    return lost


def forked(
    what: Callable[[Callable[[Mapping[str, Any]], None]], None], kill_after_s: float | None = None
) -> tuple[list[dict[str, Any]], bool]:
    """Run this in its own process, which reports; return its reports, and whether it was killed."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            what(lambda line: (os.write(writing, json.dumps(line).encode() + b"\n"), None)[1])
        finally:
            os._exit(0)
    os.close(writing)
    timer = None
    if kill_after_s is not None:
        timer = threading.Timer(kill_after_s, os.kill, (pid, signal.SIGKILL))
        timer.start()
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(pid, 0)
    if timer is not None:
        timer.cancel()
        timer.join()
    found = [json.loads(line) for line in data.split(b"\n")[:-1]]
    return found, os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def _life(
    data: Path, notes: Path, case: Case, number: int, fault: Fault, last: bool, reported: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], bool]:
    first = 1 + max((line["append"] for line in reported if "append" in line), default=-1)
    if fault.what == "power":
        import unsynced

        unsynced.begin(data, notes, FOLDERS)

    def child(tell: Callable[[Mapping[str, Any]], None]) -> None:
        import life
        import mutants

        mutants.install(case.mutant)
        steps = _arm(data, notes, fault, tell)
        one = life.Life(data, case.seed + number, tell)
        life.played(tell, lambda: (life.live_to_the_end if last else life.live)(one, first))
        if steps is not None:
            opened = steps.rocks_opened
            tell({"able": steps.able, "rocks_opened": opened, "seen": steps.seen, "read": sorted(steps.read)})

    return forked(child, fault.at / 10_000 if fault.what == "timed" else None)


def _arm(data: Path, notes: Path, fault: Fault, tell: Callable[[Mapping[str, Any]], None]) -> Any:
    """Arm the fault in this process."""
    from disk_faults import DiskFault, Steps
    from unsynced import Unsynced

    if fault.what == "timed":
        return None
    if fault.what == "limit":

        def struck(*_: object) -> None:  # once; the refused write fails with EFBIG in any case
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            tell({"fired": [0, "SIGXFSZ", f"a file of more than {fault.at} bytes"]})

        signal.signal(signal.SIGXFSZ, struck)
        resource.setrlimit(resource.RLIMIT_FSIZE, (fault.at, resource.RLIM_INFINITY))
        return None
    if fault.what == "disk":
        free = os.statvfs(data)
        with open(data / "ballast", "wb") as ballast:
            os.posix_fallocate(ballast.fileno(), 0, free.f_bavail * free.f_bsize - fault.at * 1024)
        return None
    unsynced = Unsynced(data, notes, FOLDERS) if fault.what == "power" else None
    what: Any = fault.what
    armed = DiskFault(what, fault.at, fault.lasting, fault.below)
    steps = Steps(str(data), armed, lambda n, name, path: tell({"fired": [n, name, path]}), unsynced)
    steps.install()
    return steps


def _checked(data: Path, reported: list[dict[str, Any]], last: bool) -> str:
    """Check the files in a separate process; return the problem, or an empty string."""

    def child(tell: Callable[[Mapping[str, Any]], None]) -> None:
        import traceback

        try:
            check(data, reported, last)
            tell({"problem": ""})
        except BaseException:  # noqa: BLE001 - reported; the caller judges it
            tell({"problem": traceback.format_exc()})

    (data / "ballast").unlink(missing_ok=True)
    found, _ = forked(child)
    return str(found[0]["problem"]) if found else "the checker died"


def check(data: Path, reported: list[dict[str, Any]], last: bool) -> None:
    """Raise if anything in the folder is wrong."""
    import checker
    import life

    known = checker.Reported()
    for line in reported:
        known.take(line)
    looking = checker.Checker(data, known)
    looking.check({number: life.batch(number) for number in known.appends})
    if last:
        looking.finished()


def rows(results: list[Result]) -> Iterator[str]:
    """Return a table of results: per kind of fault, the cases and how the struck lives ended."""
    kinds: dict[str, dict[str, int]] = {}
    for result in results:
        for fault, over in zip(result.case.faults, result.overs, strict=False):  # a problem ends its case early
            kind = fault.what + (" for good" if fault.lasting else "")
            row = kinds.setdefault(kind, {})
            row[over] = row.get(over, 0) + 1
    overs = sorted({over for row in kinds.values() for over in row})
    yield f"{'fault':16}" + "".join(f"{over:>10}" for over in overs)
    for kind, row in sorted(kinds.items()):
        yield f"{kind:16}" + "".join(f"{row.get(over, 0):10}" for over in overs)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    serve()
