"""The execution in microbatches: every epoch is one Spark job, and Spark's slots are free between two of them.

Source: DESIGN section 8; HOUSE 4; docs/decisions/0047-microbatch.md.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from pyspark import SparkContext

from holdfast.errors import HoldfastError
from holdfast.model import WorkerId
from holdfast.ports import Clock, Lane, ObjectStore
from holdfast.runtime.driver.gathering import local_paths
from holdfast.runtime.driver.state import Site
from holdfast.runtime.execution.executing import Ports, RunOutcome
from holdfast.runtime.execution.on_spark import IMPORTING
from holdfast.runtime.execution.prepare import Prepared
from holdfast.runtime.execution.running import DriverRun
from holdfast.runtime.job.live import Status
from holdfast.runtime.microbatch.host import Host
from holdfast.runtime.processes.memory import container_of
from holdfast.runtime.spark.batch_jobs import CONF, SparkJobs
from holdfast.runtime.spark.launch import check_java, driver_host, start_context
from holdfast.runtime.wire import messages as m
from holdfast.runtime.wire.channels import Network
from holdfast.runtime.wire.presence import boot_id
from holdfast.runtime.worker.local.opened import LocalState, MemoryState

EPOCH_DEADLINE_S = 24 * 3_600.0
"""Spark watches the tasks of a job; the driver itself abandons none."""


class Microbatch:
    """Carries out the plan with one Spark job per epoch; see runtime/execution/executing.py."""

    def run(self, prepared: Prepared, ports: Ports) -> RunOutcome:
        """See Execution.run."""
        settings = prepared.settings
        check_java(os.environ)
        context = start_context(prepared.plan.app, settings.master, settings.parallelism, CONF, ports.note)
        ports.note(f"starting the first Spark job: {IMPORTING}")
        container = container_of(prepared.plan, settings, dict(context.getConf().getAll()))
        host = driver_host(context)
        return DriverRun(
            prepared, ports, "microbatch", host, lambda run: _Batches(run, context, container), EPOCH_DEADLINE_S
        ).run()


class _RunHostPorts:
    """The ports of the host: those of the driver, where it runs."""

    network: Network  # tasks exchange blocks in Spark's shuffle

    def __init__(self, run: DriverRun) -> None:
        self._run = run
        self.clock: Clock = run.clock
        self.store: ObjectStore = run.prepared.folder.store
        self.local: LocalState = MemoryState()

    def send(self, message: m.FromWorker) -> None:
        self._run.loop.received(message)

    def lane(self, name: str) -> Lane:
        return self._run.lane(name)


class _Batches:
    """The epochs of one run as Spark jobs; see running.Hosting."""

    def __init__(self, run: DriverRun, context: SparkContext, container: int | None) -> None:
        self._run, settings = run, run.prepared.settings
        prepared, shared = run.prepared, settings.shared_paths == "true"
        paths = () if shared else local_paths(prepared.plan, prepared.folder.root)
        self._jobs = SparkJobs(context, prepared.folder.root, paths, settings, container, ended=self._ended)
        ports = _RunHostPorts(run)
        name, boot = socket.gethostname(), boot_id()

        def register(worker: WorkerId, launch: int) -> m.Register:
            return m.Register(worker, launch, name, os.getpid(), boot, (name, 0))

        self._host = Host(
            run.prepared.plan,
            ports,
            self._jobs,
            run.mailbox.post,
            ports.send,
            register,
            settings.checkpoint_every_ms / 1000,
            settings.max_records_per_second,
            settings.staged_bytes_max,
        )

    def send(self, worker: WorkerId, message: m.FromDriver) -> None:
        self._host.send(worker, message)

    def launch(self, number: int, avoid: Sequence[Site]) -> None:
        self._host.launch(number)

    def dismiss(self, worker: WorkerId, launch: int) -> None:
        self._host.dismiss(worker)

    def cancel(self, launch: int) -> None:
        """There is no launch that has not registered."""

    def turn(self) -> None:
        self._host.turn()

    def published(self, status: Status) -> None:
        """Nothing here depends on it."""

    def close(self, *, hurry: bool) -> None:
        self._host.close()

    def _ended(self, job: int, sent: Sequence[bytes] | HoldfastError) -> None:
        self._run.mailbox.post(lambda: self._host.ended(job, sent))
