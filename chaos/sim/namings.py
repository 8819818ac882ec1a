"""A user who names checkpoints of a simulated job from outside, as `holdfast savepoint` does.

The user reads the log and appends a while later. By then drivers have continued, the checkpoint may no longer be the
last one, and the record's number may be taken or pruned.

Source: PROTOCOL P6, P7, P16.
"""

from __future__ import annotations

from holdfast.chaos.sim.faults.schedule import Process
from holdfast.chaos.sim.ports.stores import ProcessStore
from holdfast.chaos.sim.ports.surroundings import Surroundings
from holdfast.checkpoint.repository import Repository
from holdfast.errors import ConfigError, Damaged, Unavailable
from holdfast.runtime.job.naming import Naming

RETRY_S = 0.1
WAITS_S, LOOKS_MAX = 0.3, 10
"""Seconds between two looks at a job that has no checkpoint yet."""


class NamingProcess(Process):
    """One name that a user wants to give."""

    def __init__(self, world: Surroundings, savepoint: str, delay: float) -> None:
        super().__init__(f"naming {savepoint}", world.schedule.journal)
        self._world, self._delay, self._patience = world, delay, LOOKS_MAX
        self._naming = Naming(Repository(ProcessStore(world, self)), savepoint, f"somebody-{savepoint}", 0)

    def look(self) -> None:
        """Read the log; append later."""
        try:
            has_name = self._naming.look() is not None
        except Unavailable:
            self._world.schedule.after(RETRY_S, self, "looks again", self.look)
        except ConfigError as error:
            self._patience -= 1
            if self._patience:
                self._world.schedule.after(WAITS_S, self, f"waits: {error.what}", self.look)
            else:
                self.end(error.what)
        except Damaged as error:
            self._refused(error)
        else:
            if has_name:
                self.end("the name is in the log")
            else:
                self._world.schedule.after(self._delay, self, "names a checkpoint", self._append)

    def _append(self) -> None:
        try:
            success = self._naming.append()
        except Damaged as error:
            self._refused(error)
            return
        if success:
            self.end("done")
        else:
            self._world.schedule.after(RETRY_S, self, "looks again", self.look)

    def _refused(self, error: Damaged) -> None:
        """The user is shown the damaged record and gives up without knowing whether the name is in the log."""
        if not self._world.damage.named_in(error.report()):
            self._world.checks.raised(error)
        self.end(error.what)
