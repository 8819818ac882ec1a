"""The worker process: a resident Spark task, or a process of this machine, that runs a worker's loop until the driver
dismisses it.

Invariants
    - The process dies with the Python daemon or zygote that started it, and exits when the driver is silent
      for longer than the session timeout.
    - Only the thread that runs the loop touches state; all others post to its mailbox.

Source: DESIGN section 3.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import traceback
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast import children
from holdfast.errors import ErrorReport
from holdfast.model import WorkerId
from holdfast.ports import Clock, Lane
from holdfast.runtime.config.settings import Settings
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.plan.memory import Budget
from holdfast.runtime.processes.companion import Board, CompanionHandle, ForkedCompanion
from holdfast.runtime.processes.control import ControlClient
from holdfast.runtime.processes.detour import Address, around
from holdfast.runtime.processes.exchange import TcpNetwork
from holdfast.runtime.processes.memory import budget_of
from holdfast.runtime.processes.tls import Credentials
from holdfast.runtime.wire import messages as m
from holdfast.runtime.wire import vitals
from holdfast.runtime.wire.clock import SystemClock
from holdfast.runtime.wire.mailbox import Mailbox, Rest, ThreadLanes
from holdfast.runtime.wire.presence import boot_id
from holdfast.runtime.wire.processes import die_with_parent
from holdfast.runtime.worker.local.opened import LocalFolders
from holdfast.runtime.worker.loop import Limits, WorkerLoop
from holdfast.storage.objects import open_objects

EXIT_SESSION_LOST = 75
SWITCH_S = 0.0005
"""How long a thread keeps the interpreter while others wait for it. Native code gives it back some hundred times a
batch, and takes it again once per confirmed record: with Python's own 5 ms, the threads of a batch wait for each other.
"""
IDLE_S, QUIET_IDLE_S = 0.05, 0.1
"""How often a worker without work looks at sources that ring no bell; more rarely once it has had none for long."""
BUSY_AFTER_S = 2.0
"""How long a Python function may run before heartbeats name it."""
_log = logging.getLogger("holdfast.worker")


@dataclass(frozen=True)
class WorkerTask:
    """The parameters of a worker process; Spark sends them to the executor, a local driver to its zygote."""

    plan: Plan
    root: str
    """URL or path of the job's folder."""
    driver: tuple[str, int]
    credentials: Credentials
    settings: Settings
    detour: Address | None = None
    """Address of a fault harness's Toxiproxy."""
    container: int | None = None
    """See memory.budget_of."""

    def __repr__(self) -> str:
        return f"WorkerTask({self.plan.app!r}, driver={self.driver})"  # never the secret


class _Ports:
    def __init__(self, task: WorkerTask, mailbox: Mailbox, network: TcpNetwork, budget: Budget) -> None:
        self.clock = SystemClock()
        self.store = open_objects(task.root)
        self.network = network
        self.local = LocalFolders(budget=budget)
        self.client: ControlClient | None = None
        self.lanes = ThreadLanes(mailbox)

    def send(self, message: m.FromWorker) -> None:
        assert self.client is not None
        self.client.send(message)

    def lane(self, name: str) -> Lane:
        return self.lanes.lane(name)


def host_worker(task: WorkerTask, launch: int, forked: ForkedCompanion | None = None) -> str:
    """Run one worker in this process; return why it exited.

    Args:
        forked: Its companion, if that was forked from this process already.
    """
    die_with_parent()
    children.guard()
    sys.setswitchinterval(SWITCH_S)
    mailbox = Mailbox()
    host = _own_host(task.driver)
    settings = task.settings
    silent_after_s = settings.silent_after_ms / 1000
    network = TcpNetwork(host, task.credentials, mailbox, settings.channel_bytes_max, silent_after_s)
    worker = WorkerId(uuid.uuid4().hex[:12])
    announced, driver = around(network.address, "data", task.detour), around(task.driver, "control", task.detour)
    register = m.Register(worker, launch, socket.gethostname(), os.getpid(), boot_id(), announced)
    limits = limits_of(task)
    assert limits.budget is not None
    ports = _Ports(task, mailbox, network, limits.budget)
    board, companion = Board(marks_of(task.plan), None if forked is None else forked.board), None
    loop = WorkerLoop(worker, task.plan, ports, limits, board.mark, reads_ahead=True)
    session = WorkerSession(task, loop, mailbox, beat=board.beat)
    try:
        ports.client = ControlClient(driver, task.credentials, register, session.received, session.closed)
        # The driver now knows the worker, which takes no record yet; the companion connects while the worker starts.
        watched = watched_by(settings)
        hello = msgspec.msgpack.encode(m.Companion(worker))
        companion = CompanionHandle(board, driver, task.credentials, hello, watched, forked)
        ports.client.start()
        threading.Thread(target=session.watch, args=(ports,), name="session", daemon=True).start()
        rest = Rest(IDLE_S, QUIET_IDLE_S)
        while loop.exited is None:
            mailbox.drain()
            if loop.exited is None and not loop.turn():
                mailbox.wait(loop.idle_s(rest.sleep_s()))
            else:
                rest.worked()
    except BaseException as error:
        # A broken invariant, or a panic of native code, ends this process; report the reason to the driver.
        if ports.client is not None:  # else there is no stream yet, and Spark reports it
            if (noted := board.noted()) is not None:
                ports.send(m.Vitals(worker, "ended", noted[0], 0, at=noted[1], how=f"it raised {type(error).__name__}"))
            ports.send(m.Failed(worker, loop.heartbeat().generation, unexpected(error), permanent=False))
        raise
    finally:
        session.over.set()
        board.close() if companion is None else companion.close()
        loop.close()
        ports.lanes.close()
        if loop.exited == "finished":
            ports.local.discard()
        if ports.client is not None:
            ports.client.close()
        network.close()
    return loop.exited


def limits_of(task: WorkerTask) -> Limits:
    """Return the limits that the settings give a worker's loop."""
    settings = task.settings
    return Limits(
        settings.max_records_per_second,
        staged_bytes_max=settings.staged_bytes_max,
        budget=budget_of(task.plan, settings, task.container),
    )


def watched_by(settings: Settings) -> vitals.CompanionLimits:
    """Return after how long a worker is taken for silent or hung. Each part of a restore is one operation."""
    return vitals.CompanionLimits(
        every=settings.heartbeat_ms / 1000,
        hung_after=settings.hung_after_ms / 1000,
        session_timeout=settings.session_timeout_ms / 1000,
    )


def unexpected(error: BaseException) -> ErrorReport:
    """Return the report of an unexpected error, with the place where it happened."""
    places = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(places[-1].filename).name}:{places[-1].lineno}" if places else ""
    return ErrorReport(
        kind=m.ENDED,
        what=f"{type(error).__name__}: {str(error) or 'no message'}{place}",
        not_done="the worker process ended; state and output stay as of the last checkpoint",
        next="the worker is restarted; if this repeats, report it with the message above",
    )


def hung(busy_s: float, doing: str | None) -> ErrorReport:
    """Return the report of a hung loop."""
    what = "one operation" if doing is None else f"the Python function of step {doing!r}, for one row or batch,"
    return ErrorReport(
        kind="unavailable",
        what=f"a worker was busy with {what} for {busy_s:.0f} s, and counts as hung",
        not_done="the epoch in progress was not completed; state and output stay as of the last checkpoint",
        next="check the load of the worker and its log"
        if doing is None
        else "make the function return in time, for example by a timeout on its calls; the worker is replaced",
    )


class WorkerSession:
    """The work of the worker's other threads: receive the driver's messages, send heartbeats.

    Args:
        beat: Signals to the companion that threads of this process run.
    """

    def __init__(
        self,
        task: WorkerTask,
        loop: WorkerLoop,
        mailbox: Mailbox,
        clock: Clock | None = None,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._limits, self._loop, self._mailbox = watched_by(task.settings), loop, mailbox
        self._clock = clock or SystemClock()
        self._beat = beat
        self._heard = self._turned = self._looked = self._clock.monotonic()
        self._hangs = False
        self._refused: m.LocalRefusal | None = None
        self.over = threading.Event()

    def received(self, message: m.FromDriver) -> None:
        """Take a message from the driver."""
        self._heard = self._clock.monotonic()
        if not isinstance(message, m.Pulse):
            self._loop.notice(message)
            self._mailbox.post(lambda: self._loop.received(message))

    def closed(self, why: str) -> None:
        """Leave: the stream to the driver ended."""
        self._mailbox.post(lambda: self._loop.leave(f"the driver closed the stream: {why}"))

    def watch(self, ports: _Ports) -> None:
        """Send heartbeats until the worker exits; exit if the driver is silent for too long."""
        while not self.over.wait(self._limits.every):
            self._beat()
            if (silent := self.silent_s()) > self._limits.session_timeout:
                _log.error("no message from the driver for %.1f s: the worker exits", silent)
                os._exit(EXIT_SESSION_LOST)
            self.show_life(ports.send)

    def silent_s(self) -> float:
        """Return how long the driver has been silent, without the time in which this process could not receive."""
        now = self._clock.monotonic()
        pause = now - self._looked - self._limits.every
        self._looked = now
        if pause > self._limits.session_timeout / 2:  # a function held the interpreter: messages are not read yet
            self._heard += pause
        return now - self._heard

    def show_life(self, send: Callable[[m.FromWorker], None]) -> None:
        """Send a heartbeat; if the loop hangs, report that once and then nothing, so that this worker is replaced."""
        advanced_at = max(self._turned, self._loop.advanced_at)
        busy_s, doing = self._clock.monotonic() - advanced_at, self._loop.at_work()
        heartbeat = self._loop.heartbeat()
        if busy_s > self._limits.hung_after:
            if not self._hangs:
                self._hangs = True
                send(m.Failed(heartbeat.worker, heartbeat.generation, hung(busy_s, doing), permanent=False))
            return
        if busy_s > BUSY_AFTER_S and doing is not None:
            held = msgspec.structs.replace(
                heartbeat.progress, held_by=(*heartbeat.progress.held_by, vitals.FUNCTION + doing)
            )
            heartbeat = msgspec.structs.replace(heartbeat, progress=held)
        send(heartbeat)
        self._mailbox.post(self.take_stock)

    def take_stock(self) -> None:
        """Update the facts for heartbeats; runs in the thread of the loop."""
        self._turned, self._hangs = self._clock.monotonic(), False
        self._loop.take_stock()
        self._log_refusal(self._loop.heartbeat().progress.local_refused)

    def _log_refusal(self, reported: m.LocalRefusal | None) -> None:
        """Log once that the local state refuses writes, and once that it accepts them again."""
        if reported is not None and self._refused is None:
            _log.warning(
                "no local state written for %.0f s; continuing without: %s", reported.for_ms / 1000, reported.what
            )
        if reported is None and self._refused is not None:
            _log.warning("local state is written again, or was recreated")
        self._refused = reported


def marks_of(plan: Plan) -> list[str]:
    """Return all marks that a worker of this job may set."""
    functions = dict.fromkeys(vitals.FUNCTION + name for fragment in plan.fragments for name in fragment.calls())
    return [*(vitals.SOURCE + spec.name for spec in plan.sources), *functions]


def _own_host(driver: tuple[str, int]) -> str:
    """Return this machine's address on the route to the driver."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(driver)  # sends nothing: consults the routing table
        return str(probe.getsockname()[0])
