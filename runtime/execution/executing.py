"""The seam between a job that may run and the ways to carry out its plan.

An execution takes a prepared job to its end. The steps before it are the same for all executions: admission, plan, log
and base (runtime/execution/prepare.py). So are the steps after it: a driver's loop that delivers, sweeps and ends the
run, whose report is published here. `runtime/execution/resident.py` has the execution with resident workers.

Source: DESIGN sections 2 to 4, 13; API.md (exit statuses).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec
from msgspec.structs import replace

from holdfast.errors import ErrorReport, Unavailable
from holdfast.model import NO_EPOCH
from holdfast.ports import Lane, ObjectStore
from holdfast.runtime.driver.loop import DriverLoop
from holdfast.runtime.execution.prepare import Prepared
from holdfast.runtime.job import status
from holdfast.runtime.job.delays import DelaysOfRun
from holdfast.runtime.job.live import Measured, RepairingSink, Status
from holdfast.runtime.job.requests import Inbox
from holdfast.runtime.wire.presence import myself


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended, and its last status."""

    kind: str
    """finished, stopped, ended (`stop --now`), fenced, refused, failed, or `already finished`."""
    error: ErrorReport | None
    status: Status


class Ports(Protocol):
    """The receiver of an execution's reports while it runs."""

    def update(self, status: Status) -> None:
        """Take the status, about twice a second."""

    def note(self, words: str) -> None:
        """Report a line to the user, at each step of startup."""


class Execution(Protocol):
    """One way to carry out a plan."""

    def run(self, prepared: Prepared, ports: Ports) -> RunOutcome:
        """Run the job until it finishes, stops, fails or is fenced."""


def execute(prepared: Prepared, execution: Execution, ports: Ports) -> RunOutcome:
    """Run a prepared job; one that has finished is not run again."""
    job = prepared.folder.job
    if job is not None and job.finished:
        return RunOutcome("already finished", None, status.of_log(job, prepared.plan.app, prepared.folder.root))
    return execution.run(prepared, ports)


class Publisher:
    """Makes the status of one run and writes it to `live.json`, on a separate lane.

    Args:
        mode: Which execution runs.
        owner: The token of the run in the job log.
    """

    def __init__(self, mode: str, owner: str, prepared: Prepared, lane: Callable[[str], Lane], inbox: Inbox) -> None:
        folder = prepared.folder
        self._mode, self._owner, self._root, self._inbox = mode, owner, folder.root, inbox
        self._store: ObjectStore = folder.store
        self._lane = lane
        self._delays = DelaysOfRun(NO_EPOCH if folder.job is None else folder.job.base_epoch)
        self._refused: Unavailable | None = None

    def publish(self, loop: DriverLoop, now_us: int) -> Status:
        """Return the status of the run, and write it unless another run owns the file."""
        run_status = status.of_run(loop.state, self._root, self._mode, myself(self._owner, now_us))
        problems = list(run_status.problems)
        in_background = loop.sweep.problem, loop.compactions.problem, loop.publications.problem
        problems += [status.refused(problem) for problem in in_background if problem is not None]
        if (refused := loop.refused or self._refused) is not None:
            problems.append(status.root_refused(refused))
        problems += status.records_at_risk(loop.loss_alarm.risks, loop.loss_alarm.within_s)
        problems += status.unreadable_requests(self._root, self._inbox.unreadable)
        repairing = tuple(RepairingSink(sink, error) for sink, error in loop.repairs.left().items())
        run_status = status.with_oldest(
            replace(run_status, problems=tuple(problems), repairing=repairing), loop.loss_alarm.kept
        )
        run_status = replace(run_status, delays=self._measured(loop, run_status))
        data = msgspec.json.encode(run_status.as_json())
        if loop.outcome is None or loop.outcome[0] != "fenced":
            self._lane("live").submit(lambda: self._store.put("live.json", data), self._written)
        return run_status

    def _measured(self, loop: DriverLoop, shown: Status) -> Measured:
        """Return the delays of this run, with those since the last call."""
        job = loop.state.log.job
        if job is not None:
            self._delays.checkpoints((each.body.epoch, each.body.duration_ms) for each in reversed(job.completed))
        self._delays.recoveries((restart.generation, restart.recovery_ms) for restart in shown.restarts)
        return self._delays.measured()

    def _written(self, result: object) -> None:
        self._refused = result if isinstance(result, Unavailable) else None
