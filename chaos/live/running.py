"""Runs a real job under faults: starts and feeds it, strikes it by a schedule, restarts it, and checks its results.

Decisions are made in pure modules (scenario, nemesis); this one acts, and records its actions and observations.

Invariants
    - The verdict is "held" only if every armed fault fired, each kind of the scenario at least once, and an epoch was
      completed after the last fault. There must be at least one comparison, and every comparison must hold.
    - When `run` returns or raises, no process of the run is left.

Source: docs/decisions/0016-live-chaos.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from holdfast.chaos.judge import driver_ends, verdict
from holdfast.chaos.judge.driver_ends import Ended
from holdfast.chaos.judge.findings import Check, Context, Finding
from holdfast.chaos.judge.kinds import KINDS
from holdfast.chaos.judge.refusals import Refusals
from holdfast.chaos.live import checks as live_checks
from holdfast.chaos.live.checkout import commit
from holdfast.chaos.live.ending import let_end, was_done
from holdfast.chaos.live.faults.nemesis import Planned
from holdfast.chaos.live.faults.scenario import LiveScenario
from holdfast.chaos.live.faults.strikes import SEEN_WITHIN_S, LiveStrike, seen
from holdfast.chaos.live.folders import make_folder
from holdfast.chaos.live.job import LiveJob
from holdfast.chaos.live.journal import JournalWriter
from holdfast.chaos.live.loading import load, prepared
from holdfast.chaos.live.owned import sigterm_interrupts
from holdfast.chaos.live.testbed import Testbed
from holdfast.chaos.live.watch import Watch
from holdfast.errors import ConfigError, HoldfastError

TICK_S = 0.05
STARTS_IN_A_ROW_MAX = 5
"""Drivers in a row that may end without a completed epoch, unless a fault ended them."""
DAMAGE = "newest-object-corrupt"
"""While this fault lasts a driver must refuse the object or do without it."""
JOURNAL = "journal.jsonl"


def run(
    scenario: LiveScenario | Path,
    job: Path,
    out: Path,
    *,
    check: Check | None = None,
    progress: Callable[[str], None] | None = None,
) -> Path:
    """Break a job by a scenario; return the path of the journal, which ends with the verdict.

    Args:
        scenario: A loaded scenario, or its file or name.
        job: The job's file, as for `holdfast run`. Its root is put below `out`; its code and the scenario's environment
            decide its sources and targets.
        out: Folder of the run; it must be empty or not exist.
        check: In addition to the scenario's own.
        progress: Receives a line of text for each thing that happens.

    Raises:
        ConfigError: nothing was started.
    """
    if isinstance(scenario, Path):
        scenario = load(scenario, checked_elsewhere=check is not None)
    plan, own = prepared(scenario, job)
    checks = [*own, *([check] if check else [])]
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        others = (out.parent / f"{out.name.strip('.') or 'chaos-run'}-{n}" for n in range(2, 1_000))
        raise ConfigError(
            f"{out} exists and is not an empty folder",
            not_done="nothing was started, nothing was removed",
            next_step=f"name another folder: --out {next((each for each in others if not each.exists()), 'FOLDER')}",
        )
    make_folder(out)
    journal = JournalWriter(out / JOURNAL)
    try:
        with sigterm_interrupts():
            _Run(scenario, plan, job.absolute(), out.absolute(), journal, progress or (lambda _: None)).run(checks)
    finally:
        journal.close()
    return journal.path


class _Run:
    def __init__(
        self,
        scenario: LiveScenario,
        plan: tuple[Planned, ...],
        job: Path,
        out: Path,
        journal: JournalWriter,
        progress: Callable[[str], None],
    ) -> None:
        self._scenario, self._file, self._out = scenario, job, out
        self._journal, self._progress = journal, progress
        self._testbed = Testbed(scenario, out)
        self._job: LiveJob
        self._watch: Watch
        self._waiting = list(plan)
        self._armed: tuple[Planned, float] | None = None
        self._begun: tuple[Planned, LiveStrike, float] | None = None
        self._active: tuple[Planned, LiveStrike, float] | None = None
        self._recover_s = scenario.wait.recover / 1000
        """How long an armed fault waits for a victim, and how long the job may take to its next epoch."""
        self._killed: set[int] = set()
        self._refusals = Refusals()
        self._started = 0.0
        self._starts, self._epochs_at_start = 0, 0
        self._ends: list[Ended] = []
        self._began = self._calm_since = time.monotonic()
        self._late_ms = 0.0
        """How much later than planned faults strike, because they waited for a victim."""
        self._stuck: str | None = None
        self._failed: str | None = None
        self._who_failed: Literal["job", "harness"] | None = None

    def run(self, checks: Sequence[Check]) -> None:
        scenario, journal = self._scenario, self._journal
        journal.write(
            "begin",
            job=str(self._file),
            seed=scenario.seed,
            scenario=scenario.path or {"called": scenario.name},
            platform=scenario.platform.name,
            git=commit(),
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            faults=sorted(scenario.rates),
            planned=len(self._waiting),
        )
        try:
            self._testbed.open()
            self._job = self._testbed.job(self._file)
            self._watch = Watch(self._job, journal)
            self._start_driver()
            if self._wait_until(lambda: self._watch.running and self._watch.epochs > 0, scenario.wait.start / 1000):
                self._break()
                self._finish(whole=any(check is not live_checks.audit for check in checks))
            elif self._failed is None:
                self._fail("job", f"the job did not start running within {scenario.wait.start / 1000:.0f} s")
            self._watch.end()
            self._check_ends()
            if self._failed is None:
                self._check(checks)
        finally:
            self._testbed.close()
        end = verdict.of(journal.lines, self._failed)
        journal.write("end", verdict=end.verdict, reason=end.reason, failed=self._who_failed)
        self._progress(f"{end.verdict}: {end.reason}")

    # Phases

    def _break(self) -> None:
        """Strike by the schedule until all its faults and its duration are over."""
        self._began = time.monotonic()
        self._testbed.feed()
        while not self._over():
            now_ms = (time.monotonic() - self._began) * 1000 - self._late_ms
            if self._active is not None:
                if time.monotonic() >= self._active[2] and self._has_shown():
                    self._heal()
            elif self._begun is not None:
                self._see_fired()
            elif self._armed is not None:
                self._strike()
            elif self._waiting and now_ms >= self._waiting[0].at_ms:
                self._arm(self._waiting.pop(0))
            elif not self._waiting and now_ms >= self._scenario.duration_ms:
                return
            self._tick()

    def _finish(self, whole: bool) -> None:
        """Let the job end, after it has read all of its sources if a check needs that."""
        if self._over():
            return
        before = self._watch.epochs
        limit = self._scenario.wait.end / 1000
        seals_source = self._testbed.release()
        if not self._wait_until(lambda: self._watch.epochs > before + 1, limit):
            self._set_stuck("no epoch was completed after the faults")
            return
        behind = let_end(
            self._job, self._testbed, self._wait_until, limit, sealed=seals_source, whole=whole and not seals_source
        )
        if behind is not None:
            self._fail("harness", behind)
        if not self._wait_until(lambda: False, limit):
            self._set_stuck(f"the job did not end within {limit:.0f} s after the faults")

    def _wait_until(self, true: Callable[[], bool], limit_s: float) -> bool:
        """Continue until the condition holds or the job is over; False if that takes too long."""
        deadline = time.monotonic() + limit_s
        while not true():
            if self._over():
                return self._failed is None
            if time.monotonic() > deadline:
                return False
            self._tick()
        return True

    def _over(self) -> bool:
        return self._failed is not None or self._stuck is not None or self._ended() == 0

    def _ended(self) -> int | None:
        """Return the driver's exit status; also 0 if it had finished its work when it was asked to end."""
        status = self._job.ended()
        return 0 if was_done(status, self._job) else status

    def _tick(self) -> None:
        time.sleep(TICK_S)
        self._watch.look()
        self._testbed.look()
        if (status := self._ended()) not in (None, 0):
            self._driver_ended(int(status or 0))
        if self._testbed.error is not None:
            self._fail("harness", self._testbed.error)
        calm_s = time.monotonic() - max(self._watch.epoch_seen, self._calm_since)
        calm = self._active is None and self._begun is None and self._watch.epochs > 0
        if calm and calm_s > self._recover_s:
            self._set_stuck(f"no epoch was completed for {calm_s:.0f} s, and no fault was active")

    def _fail(self, who: Literal["job", "harness"], why: str) -> None:
        """Record why the run proves nothing; the first reason counts."""
        if self._failed is None:
            self._failed, self._who_failed = why, who

    def _set_stuck(self, why: str) -> None:
        self._stuck = why
        self._progress(why)

    # The driver

    def _start_driver(self) -> None:
        self._starts += 1
        self._epochs_at_start = 0 if self._starts == 1 else self._watch.epochs
        self._journal.write("driver", phase="started", pid=self._job.start(), exit=None)
        self._calm_since = self._started = time.monotonic()

    def _driver_ended(self, status: int) -> None:
        """Start another driver, as `spark-submit --supervise` does, unless that would be useless."""
        assert self._job.driver is not None
        pid = self._job.driver.pid
        self._journal.write("driver", phase="ended", pid=pid, exit=status)
        log_lines = self._job.log_path.read_text(errors="replace").strip().splitlines()
        why = next(
            (line for line in log_lines if line.startswith("holdfast: ")),
            log_lines[-1] if log_lines else "it wrote no message",
        )
        refused = self._refusals.excuses(status, "\n".join(log_lines), self._started, time.monotonic())
        by_fault = pid in self._killed or refused
        self._ends.append(Ended(status, why, by_fault, self._watch.epochs))
        end_message = f"the driver ended with status {status}: {why}"
        self._watch.driver_lost("the driver was killed" if pid in self._killed else end_message)
        if self._watch.epochs > self._epochs_at_start or by_fault:
            self._starts = 1
        in_vain = status in (ConfigError.exit_status, *driver_ends.GAVE_UP) or self._starts >= STARTS_IN_A_ROW_MAX
        if in_vain and not by_fault:
            self._fail("job", f"the job failed: {end_message}")
            return
        self._progress(f"driver {pid} ended with status {status}; starting another one")
        self._start_driver()

    # Faults

    def _arm(self, fault: Planned) -> None:
        self._armed = (fault, time.monotonic() + self._recover_s)
        extra = {"lasts_ms": fault.lasts_ms, "rank": fault.rank, "direction": fault.direction, **dict(fault.attributes)}
        detail = ", ".join(f"{name} {value}" for name, value in extra.items() if value is not None)
        self._write_fault(fault, "armed", None, detail)

    def _strike(self) -> None:
        """Strike the victim as soon as there is one."""
        assert self._armed is not None
        fault, deadline = self._armed
        if time.monotonic() > deadline:  # perhaps after several strikes without a visible effect
            self._armed = None
            self._keep_pauses(fault)
            self._write_fault(fault, "missed", None, f"no victim, or no visible effect, for {self._recover_s:.0f} s")
            return
        strike, driver = self._testbed.strike(fault), self._job.driver
        began = strike is not None and strike.begin()
        if strike is not None and driver is not None and driver.pid in strike.killed:
            self._killed.add(driver.pid)
        if strike is not None and began:
            self._begun = (fault, strike, time.monotonic() + SEEN_WITHIN_S)
            self._see_fired()

    def _see_fired(self) -> None:
        """Look for evidence; if there is none for too long, undo the fault and let it strike again."""
        assert self._begun is not None
        fault, strike, deadline = self._begun
        if (evidence := strike.evidence()) is not None:
            self._armed = self._begun = None
            self._keep_pauses(fault)
            self._active = (fault, strike, time.monotonic() + fault.lasts_ms / 1000)
            if fault.kind == DAMAGE:
                self._watch.look()  # earlier epochs, which prove nothing about the damage
                self._refusals.damaged(strike.target, time.monotonic())
            self._write_fault(fault, "fired", strike.target, evidence)
            self._progress(f"{fault.kind}: {evidence}")
        elif time.monotonic() > deadline:
            self._begun = None
            strike.heal()
            self._calm_since = time.monotonic()  # it may have struck anyway

    def _keep_pauses(self, fault: Planned) -> None:
        """Delay everything that follows by as much as this fault was late, so that the pauses keep their length."""
        self._late_ms = max(self._late_ms, (time.monotonic() - self._began) * 1000 - fault.at_ms)

    def _has_shown(self) -> bool:
        """Return whether the active fault may end: damage stays until a driver refused it or the job did without."""
        assert self._active is not None
        fault, _, until = self._active
        if fault.kind != DAMAGE or self._refusals.shown(self._watch.epoch_seen):
            return True
        if time.monotonic() < until + self._recover_s:
            return False
        if (wrong := self._refusals.finding(self._watch.epoch_seen)) is not None:
            self._found(wrong)
        return True

    def _heal(self) -> None:
        assert self._active is not None
        fault, strike, _ = self._active
        self._active = None
        detail = strike.heal()
        self._calm_since = time.monotonic()
        if fault.kind == DAMAGE:
            self._refusals.healed(time.monotonic())
            detail = f"{self._refusals.drivers} drivers refused it; {detail}"
        self._write_fault(fault, "healed", strike.target, detail)

    def _write_fault(self, fault: Planned, phase: str, target: str | None, detail: str) -> None:
        plane = {"plane": KINDS[fault.kind].plane} if KINDS[fault.kind].plane is not None else {}
        target = target or KINDS[fault.kind].victim
        self._journal.write("fault", id=fault.id, fault=fault.kind, target=target, **plane, phase=phase, detail=detail)

    # The end

    def _check_ends(self) -> None:
        """Heal the active fault, wait for the driver to end, and make the findings that need no oracle."""
        self._testbed.end_command()
        if self._begun is not None:
            self._begun[1].heal()
        if self._active is not None:
            self._heal()
        if self._armed is not None:
            fault = self._armed[0]
            self._write_fault(fault, "missed", None, "the run was over before it could strike")
        driver = self._job.driver
        assert driver is not None
        if (status := self._ended()) == 0:
            self._journal.write("driver", phase="ended", pid=driver.pid, exit=0)
            left = [] if seen(lambda: not self._testbed.left()) else self._testbed.left()
            self._found(Finding("processes", not left, "I10", detail=f"processes left behind: {left}" if left else ""))
        elif self._stuck is not None:
            self._found(Finding("progress", False, "I11", detail=self._stuck))
            self._fail("job", self._stuck)
        elif status is None:
            self._fail("job", "the job did not end")
        self._found(driver_ends.raised(self._watch.causes, self._ends))
        if (in_vain := driver_ends.gave_up(self._ends)) is not None:
            self._found(in_vain)
        disorder = self._watch.disorder
        self._found(Finding("epochs", not disorder, "I6", detail="; ".join(disorder) or f"{self._watch.epochs} epochs"))
        for finding in self._testbed.observed():
            self._found(finding)

    def _check(self, checks: Iterable[Check]) -> None:
        context = Context(str(self._out), str(self._job.root), str(self._file), self._testbed.environment)
        for check in checks:
            try:
                for finding in check(context):
                    self._found(finding)
            except SystemExit as leaving:
                self._fail("harness", f"the check {live_checks.left(leaving)} before it was complete")
            except Exception as error:  # noqa: BLE001 - a user's code; the verdict reports it
                said = error.what if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
                self._fail("harness", f"the check could not be run: {said}")
        if unseen := self._testbed.unseen():
            self._fail("harness", f"never seen, although to be observed: {', '.join(unseen)}")

    def _found(self, finding: Finding) -> None:
        self._journal.write("check", **msgspec.structs.asdict(finding) | {"passed": finding.held})
        if not finding.held:
            self._progress(f"violated: {finding.name} {finding.detail}")
