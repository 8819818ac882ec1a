"""The part of the simulated world that the ports of a process use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from holdfast.chaos.sim.checks.checkers import Checks
from holdfast.chaos.sim.faults.damage import Damage
from holdfast.chaos.sim.faults.draws import Chance
from holdfast.chaos.sim.faults.faults import Faults
from holdfast.chaos.sim.faults.schedule import Process, Schedule
from holdfast.chaos.sim.jobs.tables import SharedTable
from holdfast.chaos.sim.jobs.workload import Scenario
from holdfast.chaos.sim.ports.objects import WatchedObjects
from holdfast.model import Generation
from holdfast.sinks.memory.immediate import ImmediateTable


class Surroundings(Protocol):
    """The world, as a port sees it."""

    @property
    def scenario(self) -> Scenario: ...
    @property
    def schedule(self) -> Schedule: ...
    @property
    def random(self) -> Chance: ...
    @property
    def faults(self) -> Faults: ...
    @property
    def damage(self) -> Damage: ...
    @property
    def checks(self) -> Checks: ...
    @property
    def objects(self) -> WatchedObjects: ...
    @property
    def tables(self) -> Mapping[str, SharedTable]: ...
    @property
    def lasts(self) -> ImmediateTable: ...

    def generation_of(self, process: Process) -> Generation:
        """Return the generation of a process."""
