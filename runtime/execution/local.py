"""The place of workers that run as processes of this machine, without Spark and Java.

Source: docs/decisions/0113-local-processes.md.
"""

from __future__ import annotations

from functools import partial

from holdfast.runtime.execution.executing import Ports
from holdfast.runtime.execution.places import LaunchEnded, Processes, Started
from holdfast.runtime.execution.prepare import Prepared
from holdfast.runtime.processes.host import WorkerTask, host_worker
from holdfast.runtime.processes.local import LocalHost, Zygote

LOOPBACK = "127.0.0.1"
STARTING = "importing the modules of workers; the first start of an installation also compiles the kernels of the state"


class OnThisMachine:
    """See places.Place.

    Args:
        zygote: One that was forked before the job's file was loaded; None: one is started.
    """

    def __init__(self, zygote: Zygote | None = None) -> None:
        self._zygote = zygote

    def start(self, prepared: Prepared, ports: Ports) -> Started:
        """See WorkerPlace.start."""
        ports.note("starting workers")
        zygote = self._zygote or Zygote.start()
        try:
            zygote.wait_until_ready(lambda: ports.note(STARTING))
        except BaseException:  # also an interrupt of a program that continues
            zygote.close()
            raise

        def processes(task: WorkerTask, ended: LaunchEnded) -> Processes:
            return LocalHost(partial(host_worker, task), ended, zygote)

        return Started(LOOPBACK, prepared.settings, None, processes)
