"""The points of the protocol at which a simulated process is, from its ports and state alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holdfast.chaos.sim.batch_process import BatchDriver, TaskProcess
from holdfast.chaos.sim.driver_process import SimulatedDriver
from holdfast.chaos.sim.faults.points import RECORDS, Point, of_lane
from holdfast.chaos.sim.worker_process import WorkerProcess
from holdfast.checkpoint import append, coordinator
from holdfast.runtime.driver.partitions import unassigned
from holdfast.runtime.driver.state import Deployed, Gathering, Loading, Opening, Repaired, Repairing


def of_worker(worker: WorkerProcess) -> frozenset[Point]:
    """Return all points at which a worker is."""
    return _or_between(_worker_points(worker))


def of_task(task: TaskProcess) -> frozenset[Point]:
    """Return all points at which an attempt of a task is: it is there to run, and runs in one event."""
    return frozenset({Point.BATCH})


def of_driver(driver: SimulatedDriver) -> frozenset[Point]:
    """Return all points at which a driver is."""
    return _or_between(_driver_points(driver))


def _worker_points(worker: WorkerProcess) -> Iterator[Point]:
    for lane in worker.lanes:
        if lane.busy:
            [point] = of_lane(lane.name)
            yield Point.CONFIRM if point is Point.DELIVER and lane.worked else point
    if worker.stream.ack_unheard:
        yield Point.ACK
    if worker.stream.deploying:
        yield Point.RECOVER
    if worker.loop._following.stock():
        yield Point.STANDBY
    if worker.endpoint.links is not None and worker.endpoint.links.aligning:
        yield Point.ALIGN
    if worker.writes_unflushed():
        yield Point.APPLY
    if isinstance(worker.driver, SimulatedDriver) and worker.driver.decides and has_new_partitions(worker.driver):
        yield Point.PARTITIONS


def has_new_partitions(driver: SimulatedDriver) -> bool:
    """Return whether the driver knows of a partition that no completed checkpoint has."""
    state = driver.loop.state
    deployed = state.deployed
    return deployed is not None and bool(unassigned(state, deployed))


def _driver_points(driver: SimulatedDriver) -> Iterator[Point]:
    if not driver.decides:
        yield Point.RECOVER
        return
    state = driver.loop.state
    for lane in driver.lanes:
        if lane.busy and lane.name != "log":
            yield from of_lane(lane.name)
    if isinstance(state.log, append.InFlight):
        yield RECORDS[type(state.log.record.body).__name__]
    if has_new_partitions(driver):
        yield Point.PARTITIONS
    if isinstance(driver, BatchDriver) and driver.spark.busy:
        yield Point.BATCH
    match state.deployed or state.phase:
        case Opening():
            yield Point.START
        case Loading() | Repairing() | Repaired() | Gathering():
            yield Point.RECOVER
        case Deployed(epochs=epochs):
            if not state.all_ready:
                yield Point.RECOVER
            if isinstance(epochs, coordinator.Collecting):
                yield Point.ACK
            if isinstance(epochs, coordinator.Deciding):
                yield Point.COMMIT
            if state.job.completed:
                for worker in driver.alive_workers():
                    yield from {Point.DELIVER, Point.CONFIRM} & of_worker(worker)
        case _:
            return


def _or_between(points: Iterable[Point]) -> frozenset[Point]:
    return frozenset(points) or frozenset({Point.BETWEEN})
