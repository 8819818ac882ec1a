"""A fault at every disk operation of a job: all reported results exist, complete and once, and the job continues.

Every test takes a sample of the steps; `make soak` takes more, and all with HOURS=8. A failure prints the case as a
line of JSON, from which `python tests/storage/cases.py` replays it.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from cases import Case, Cases, Fault, Result, rows
from soaking import SHARE

SEEDS = 7
FAULTS = ("kill", "power", "torn", "full", "broken")
TOUCHED = ("root/life/log", "root/life/manifests", "root/life", "output", "target", "local", "root/life/base")
"""Where a lasting fault strikes: each has its own disk; the empty one means a disk shared by all."""
ALLOWED = {
    "kill": {"killed"},
    "power": {"killed"},
    "torn": {"killed"},
    "full": {"well", "raised", "stalled"},
    "broken": {"well", "raised", "stalled"},
    "timed": {"killed", "well"},  # on a fast machine the life has ended by then
    "limit": {"well", "raised", "stalled"},
    "disk": {"well", "raised", "stalled"},
    "nothing": {"well"},
}
"""How a life with a fault may end: never with a foreign error. The last life has no fault."""


@pytest.fixture(scope="module")
def server() -> Iterator[Cases]:
    with Cases() as cases:
        yield cases


@pytest.fixture(scope="module")
def able(server: Cases) -> dict[str, int]:
    """Return how many steps of a life can fail, by fault."""
    return {what: server.run(Case(0, (Fault(what, 10**9),))).able[0] for what in FAULTS}


def lasts(server: Cases) -> int:
    """Return how long a life without faults lasts on this machine now, in tenths of a millisecond."""
    return server.run(Case(0, (Fault("timed", 10**8),))).took[0]


def spread(what: str, steps: int, count: int, lasting: bool = False) -> list[Case]:
    """Return cases whose steps are spread over an entire life, each at a different step."""
    rng = random.Random(f"{what}/{steps}/{count}")
    count = min(count, steps)
    places = [steps * i // count + rng.randrange(max(1, steps // count)) for i in range(count)]
    return [Case(at % SEEDS, (Fault(what, 1 + min(at, steps - 1), lasting),)) for at in places]


def settle(server: Cases, cases: list[Case]) -> list[Result]:
    """Run the cases and show their problems."""
    results = [server.run(case) for case in cases]
    print("\n" + "\n".join(rows(results)) + f"\n{server.rate()}")
    problems = [
        f"{json.dumps({'case': asdict(r.case)})}\n{r.fired} {r.overs}\n{r.problem}" for r in results if r.problem
    ]
    assert not problems, f"{len(problems)} of {len(cases)} cases:\n" + "\n\n".join(problems[:5])
    for result in results:
        for fault, over in zip((*result.case.faults, Fault()), result.overs, strict=True):
            assert over in ALLOWED[fault.what], f"{result.case} ended as {over}: {result.findings}"
    return results


def fired(results: list[Result]) -> None:
    """Prove that every fault of every case struck."""
    idle = [result.case for result in results if not all(result.fired)]
    assert not idle, f"faults that never struck: {idle}: {[r.findings for r in results if not all(r.fired)]}"


def said(result: Result) -> bool:
    """Return whether a life reported the problem and the next step."""
    return any(found.get("what") and found.get("next") for found in result.findings)


@pytest.mark.timeout(1_200)
class TestOneFault:
    @pytest.mark.parametrize(("what", "count"), [("kill", 4), ("power", 4), ("torn", 4), ("full", 3), ("broken", 4)])
    def test_at_a_step_loses_no_completed_work_and_the_next_run_continues(
        self, server: Cases, able: dict[str, int], what: str, count: int
    ) -> None:
        results = settle(server, spread(what, able[what], count))
        # Lives with other seeds have slightly more or fewer steps; a case may miss only the last one.
        fired([result for result in results if result.case.faults[0].at < 0.9 * able[what]])
        assert any(result.fired[0] for result in results)

    def test_a_file_size_limit_loses_no_completed_work(self, server: Cases) -> None:
        results = settle(server, [Case(size % SEEDS, (Fault("limit", size),)) for size in (300, 6_000, 30_000, 45_000)])
        fired(results)
        assert all(said(result) for result in results if result.overs[0] != "well")
        assert any(result.overs[0] != "well" for result in results)

    def test_inside_rocksdb_loses_no_completed_work(self, server: Cases) -> None:
        life = lasts(server)
        for seed, share in enumerate((0.15, 0.3, 0.5, 0.8)):
            at, struck = int(life * share), False
            while not struck:  # if a life ended before its kill, kill it earlier, so that every case is struck
                assert at > 0, f"seed {seed} was never killed"
                (result,) = settle(server, [Case(seed, (Fault("timed", at),))])
                at, struck = min(at, result.took[0]) // 2, bool(result.fired[0])

    @pytest.mark.skipif(os.geteuid() != 0, reason="missing: the right to mount a tmpfs, which only root has")
    def test_a_full_disk_loses_no_completed_work(self, server: Cases) -> None:
        if (missing := why_no_tmpfs()) is not None:
            pytest.skip(f"missing: a tmpfs ({missing})")
        results = settle(server, [Case(left % SEEDS, (Fault("disk", left),)) for left in (60, 200, 350)])
        fired(results)
        assert all(said(result) for result in results if result.overs[0] != "well")
        assert any(result.overs[0] != "well" for result in results)


@pytest.mark.timeout(1_200)
class TestLastingFault:
    @pytest.mark.parametrize("what", ["full", "broken"])
    def test_is_reported_with_the_next_step_and_the_job_continues_once_it_heals(
        self, server: Cases, able: dict[str, int], what: str
    ) -> None:
        cases = spread(what, able[what] * 9 // 10, 2, lasting=True)
        places = TOUCHED[what == "broken" :: 2]  # one of the two faults strikes each
        cases += [Case(n, (Fault(what, 3 + n, True, below),)) for n, below in enumerate(places)]
        results = settle(server, cases)
        fired(results)
        for result in results:
            below = result.case.faults[0].below
            assert said(result) or below == "local", f"{result.case} did not report it: {result.findings}"


@pytest.mark.timeout(1_200)
class TestFullRoot:
    def test_is_named_by_the_epoch_that_waits_for_it(self, server: Cases) -> None:
        result = server.run(Case(0, (Fault("full", 9, True, "root/life/segments"),)))
        assert not result.problem, result.problem
        (waits,) = [found for found in result.findings if found.get("code") == "not_acked"]
        assert "No space left on device" in waits["what"]


@pytest.mark.timeout(1_200)
class TestFullLocalDisk:
    def test_is_reported_for_the_worker_that_cannot_start(self, server: Cases) -> None:
        """The other one has nothing to write to its disk: no epoch is completed meanwhile."""
        unhurt = server.run(Case(0, (Fault("full", 10**9, True, "local"),)))
        first, second = unhurt.rocks_opened[0][:2]  # each worker opens one, and the first one before the second begins
        for step in (first, first + 1, second):
            result = server.run(Case(0, (Fault("full", step, True, "local"),)))
            assert not result.problem, result.problem
            (reported,) = [found for found in result.findings if found.get("code") == "backoff"]
            assert "No space left on device" in str(reported), reported


@pytest.mark.timeout(1_200)
class TestFaultInTheRecovery:
    def test_loses_no_work_completed_before_or_between_the_faults(self, server: Cases, able: dict[str, int]) -> None:
        firsts = spread("kill", able["kill"] * 9 // 10, 4)
        cases = [
            Case(case.seed, (*case.faults, Fault(what, 40 + 60 * n)))
            for n, (case, what) in enumerate(zip(firsts, ("kill", "power", "broken", "full"), strict=True))
        ]
        fired(settle(server, cases))


@pytest.mark.timeout(1_200)
class TestWrongVersions:
    @pytest.mark.parametrize(
        ("mutant", "what"),
        [
            ("file_not_synced", "power"),
            ("folder_not_synced", "power"),
            ("written_in_place", "torn"),
            ("tag_before_its_rows", "kill"),
        ],
    )
    def test_are_caught(self, server: Cases, able: dict[str, int], mutant: str, what: str) -> None:
        below = "target" if mutant == "tag_before_its_rows" else ""
        steps = server.run(Case(0, (Fault(what, 10**9, below=below),), mutant)).able[0]
        for at in random.Random(mutant).sample(range(1, steps), min(40, steps - 1)):
            if server.run(Case(at % SEEDS, (Fault(what, at, below=below),), mutant)).problem:
                return
        raise AssertionError(f"{mutant} passes")


@pytest.mark.slow
class TestEveryStep:
    """Every step with HOURS=8, which takes an hour, else a share of them; `make soak`."""

    @pytest.mark.parametrize(
        ("what", "lasting"), [(what, False) for what in FAULTS] + [("full", True), ("broken", True)]
    )
    def test_may_fail(self, server: Cases, able: dict[str, int], what: str, lasting: bool) -> None:
        count = able[what] * SHARE / (5 if lasting else 1)
        fired(settle(server, spread(what, able[what] * 9 // 10, max(1, round(count)), lasting)))

    def test_may_be_followed_by_a_kill_at_any_moment(self, server: Cases) -> None:
        life = lasts(server)
        results = settle(server, [Case(n % SEEDS, (Fault("timed", life * n // 300),)) for n in range(1, 301)])
        assert sum(bool(result.fired[0]) for result in results) > len(results) // 2


def why_no_tmpfs() -> str | None:
    """Return why no tmpfs can be mounted here, None if one can."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "tmpfs"
        place.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)], capture_output=True, text=True, check=False
        )
        if mounted.returncode == 0:
            subprocess.run(["umount", str(place)], check=True)
            return None
        return mounted.stderr.strip()
