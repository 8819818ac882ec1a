"""The object store as one process sees it: calls that fail before or after they took effect, or land late.

The store itself is strongly consistent: reads and lists show exactly the writes that have landed. A
write with an unknown outcome may still be in flight, and land after a successor's.

Invariants
    - A conditional create is decided when it lands, not when it is sent.
    - After `Unavailable` the outcome of a write is unknown, and a read returned nothing.

Source: PROTOCOL P4, P16; research F7 to F9, F11.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from holdfast.chaos.sim.faults import points
from holdfast.chaos.sim.faults.faults import Fault
from holdfast.chaos.sim.faults.points import Point
from holdfast.chaos.sim.faults.schedule import Process
from holdfast.chaos.sim.ports.surroundings import Surroundings
from holdfast.errors import AlreadyExists, Unavailable

T = TypeVar("T")
At = Callable[[], Iterable[Point]]
STAGING = ("segments/", "base/", "merged/", "staged/")
"""Objects that workers write; if the root is a folder, to a disk that may be full."""
LATE_S = (0.05, 0.4, 2.0, 6.0)


class ProcessStore:
    """The ObjectStore port of one process."""

    def __init__(self, world: Surroundings, process: Process) -> None:
        self._world, self._process = world, process
        self._unreachable_until = 0.0

    def create(self, path: str, data: bytes) -> None:
        """See ObjectStore.create."""
        self._write("create", path, data, lambda: self._world.objects.create(path, data))

    def put(self, path: str, data: bytes) -> None:
        """See ObjectStore.put."""
        self._write("put", path, data, lambda: self._world.objects.put(path, data))

    def put_later(self, path: str, data: bytes) -> None:
        """Put later, in an event of the process's own, without waiting for it; correct code never does this."""
        self._world.schedule.after(0.3, self._process, f"puts {path} at last", lambda: self.put(path, data))

    def get(self, path: str) -> bytes:
        """See ObjectStore.get."""
        effect = partial(self._world.objects.get, path)
        at = partial(points.of_read, path, self._process.on_lane)
        return self._read("get", path, lambda: self._world.damage.read(path, effect, at))

    def list(self, prefix: str) -> list[str]:
        """See ObjectStore.list."""
        return self._read("list", prefix, lambda: self._world.objects.list(prefix))

    def delete(self, path: str) -> None:
        """See ObjectStore.delete."""
        self._write("delete", path, b"", lambda: self._world.objects.delete(path))

    def _read(self, what: str, path: str, effect: Callable[[], T]) -> T:
        at = partial(points.of_read, path, self._process.on_lane)
        return self._process.call(lambda: self._answer(what, path, effect, at), at)

    def _answer(self, what: str, path: str, effect: Callable[[], T], at: At) -> T:
        if self._out_of_reach(at) or self._world.faults.strikes(Fault.READ_REFUSED, at):
            raise self._unavailable(f"{what} {path}: refused")
        answer = effect()
        if self._world.faults.strikes(Fault.READ_REPLY_LOST, at):
            raise self._unavailable(f"{what} {path}: served, but the reply is lost")
        return answer

    def _write(self, what: str, path: str, data: bytes, effect: Callable[[], None]) -> None:
        at = partial(points.of_write, path, data, self._process.on_lane)
        self._process.call(lambda: self._carry_out(what, path, effect, at), at)

    def _carry_out(self, what: str, path: str, effect: Callable[[], None], at: At) -> None:
        faults, say = self._world.faults, self._world.schedule.journal.say
        if self._out_of_reach(at) or faults.strikes(Fault.WRITE_REFUSED, at):
            raise self._unavailable(f"{what} {path}: refused, nothing was written")
        self._answer_oddly(what, path, effect, at)
        in_doubt = path.startswith("log/") and faults.strikes(Fault.APPEND_IN_DOUBT, at)
        if in_doubt:
            self._unreachable_until = self._world.schedule.now + self._world.random.choice((0.15, 0.5, 1.0))
        late = in_doubt and self._world.random.random() < 0.5
        if late or faults.strikes(Fault.WRITE_LATE, at):
            delay = self._world.random.choice(LATE_S)
            land = self._late(what, path, effect, at)
            self._world.schedule.land(delay, f"{what} {path} of {self._process.name} lands late", land)
            raise self._unavailable(f"{what} {path}: no reply, it lands in {delay} s")
        if in_doubt or faults.strikes(Fault.WRITE_REPLY_LOST, at):
            _quiet(effect)()
            raise self._unavailable(f"{what} {path}: done, but the reply is lost")
        say(self._process.name, f"{what} {path}")
        effect()
        if faults.strikes(Fault.WRITE_THEN_DARK, at):
            self._unreachable_until = self._world.schedule.now + self._world.random.choice((0.05, 0.2, 0.8))

    def _answer_oddly(self, what: str, path: str, effect: Callable[[], None], at: At) -> None:
        """Answer as S3 does under load or after its client's own retry, or as a full disk does."""
        faults = self._world.faults
        on_that_disk = self._world.scenario.seed % 2 == 0  # in other worlds only local state is on it
        if on_that_disk and path.startswith(STAGING) and faults.down(Fault.DISK_FULL):
            faults.hit(Fault.DISK_FULL, at())
            raise self._unavailable(f"{what} {path}: no space left")
        if faults.strikes(Fault.STORE_BUSY, at):
            self._unreachable_until = self._world.schedule.now + self._world.random.choice((0.1, 0.3, 1.0))
            raise self._unavailable(f"{what} {path}: 503, slow down")
        if what == "create" and faults.strikes(Fault.CREATE_CONFLICT, at):
            raise self._unavailable(f"{what} {path}: 409, another one is under way; nothing was written")
        if what == "create" and faults.strikes(Fault.CREATE_TAKEN, at):
            effect()
            self._world.schedule.journal.say(self._process.name, f"{what} {path}: done, but said to be taken")
            raise AlreadyExists(path)

    def _late(self, what: str, path: str, effect: Callable[[], None], at: At) -> Callable[[], None]:
        """Return a function that lands a write; it counts the fault if a later attempt landed first (F9)."""
        generation = self._world.checks.history.generation

        def land() -> None:
            world = self._world
            repeated = world.objects.holds(path) != (what == "delete")
            if repeated or world.checks.history.generation > generation:
                world.faults.hits.update(("F9", point) for point in at())
            _quiet(effect)()

        return land

    def _out_of_reach(self, at: At) -> bool:
        """Return whether the store is down, or unreachable for this process."""
        faults = self._world.faults
        cut_off = self._world.schedule.now < self._unreachable_until and not faults.healed
        if not cut_off and not faults.down(Fault.STORE_DOWN):
            return False
        faults.hit(Fault.STORE_DOWN, at())
        return True

    def _unavailable(self, what: str) -> Unavailable:
        self._world.schedule.journal.say(self._process.name, what)
        return Unavailable(what, next_step="try again")


def _quiet(effect: Callable[[], None]) -> Callable[[], None]:
    def land() -> None:
        try:
            effect()
        except AlreadyExists:
            return  # the answer goes nowhere

    return land
