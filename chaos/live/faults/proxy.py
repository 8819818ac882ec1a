"""Toxiproxy between the processes of a job: its server as a child, and faults of connections.

Workers make the proxies (runtime/processes/detour.py); this module finds them by their names, and adds and removes
toxics. Whether bytes entered a toxic, or connections ended, it learns from the kernel (sockets.py), not from
Toxiproxy.

Invariants
    - The server listens on loopback only, on a port that the system chose, and ends with this object or its process.
    - Only proxies of processes that the run started are touched.

Source: github.com/Shopify/toxiproxy 2.12; docs/decisions/0016-live-chaos.md.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from holdfast.chaos.judge.kinds import FaultKind
from holdfast.chaos.live.faults.nemesis import Planned
from holdfast.chaos.live.faults.sockets import TcpConnection, established
from holdfast.chaos.live.faults.strikes import seen
from holdfast.errors import ConfigError, Unavailable
from holdfast.extras import install
from holdfast.runtime.wire.processes import is_gone

ANSWER_WITHIN_S = 5.0
SLOWED_LEAST_MS = 100
"""A bandwidth limit has fired when the bytes that entered it take at least this long to pass."""
SLICE = 4
"""Bytes per slice, where only few bytes per second may pass."""
VARIABLE = "HOLDFAST_TOXIPROXY"
CLOSING = frozenset({"reset_peer", "limit_data", "down"})
"""Toxics that have fired when connections have ended; the others fire when bytes enter them."""
_TIES = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
"""The kernel ends the server if the thread that started it ends without doing so, as when its process is killed."""
Ours = Callable[[int], psutil.Process | None]


def find_server() -> Path | None:
    """Return the server's program: at HOLDFAST_TOXIPROXY, on the PATH, or where tools/bootstrap.sh installs it."""
    if given := os.environ.get(VARIABLE):
        return _program(Path(given))
    if found := shutil.which("toxiproxy-server"):
        return Path(found)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return _program(cache / "holdfast" / "bin" / "toxiproxy-server")


def _program(path: Path) -> Path | None:
    return path if path.is_file() and os.access(path, os.X_OK) else None


@dataclass(frozen=True)
class Way:
    """One proxy, and the worker that made it."""

    proxy: Any
    plane: str
    owner: int
    """Process id of that worker."""
    listen: int
    upstream: int


class Toxiproxy:
    """A Toxiproxy server that this object starts and ends.

    Args:
        log: File for the server's output.
        marks: Added to this process's environment for the server.

    Raises:
        ConfigError: the program or the client package is not installed.
        Unavailable: the server did not start.
    """

    def __init__(self, log: Path, marks: Mapping[str, str] = MappingProxyType({})) -> None:
        server = find_server()
        if server is None:
            raise _missing("the server of Toxiproxy was not found", "tools/bootstrap.sh toxiproxy")
        try:
            import toxiproxy.api
        except ImportError as error:
            raise _missing("the package toxiproxy-python is not installed", install("chaos")) from error
        toxiproxy.api.requests = _Direct()
        with log.open("wb") as said:
            self._process = subprocess.Popen(
                [*_TIES, str(server), "-host", "127.0.0.1", "-port", "0"],
                stdout=said,
                stderr=subprocess.STDOUT,
                env={**os.environ, **marks},
                start_new_session=True,
            )
        self._port = 0
        self._client = toxiproxy.Toxiproxy()
        if not seen(self._listens) or not self._port:
            self.close()
            raise Unavailable(
                f"{server} did not listen: {log.read_text(errors='replace')[-500:]}",
                not_done="the job was not started",
                next_step="start it by hand to see why",
            )

    @property
    def address(self) -> str:
        """Return the address of the server's HTTP interface."""
        return f"127.0.0.1:{self._port}"

    def _listens(self) -> bool:
        try:
            own = psutil.Process(self._process.pid).net_connections("tcp4")
        except psutil.NoSuchProcess:
            return True  # the server has ended, so waiting is pointless
        ports = [each.laddr.port for each in own if each.status == psutil.CONN_LISTEN]
        self._port = ports[0] if ports else 0
        return bool(ports) or self._process.poll() is not None

    def ways(self, plane: str, ours: Ours) -> list[Way]:
        """Return the proxies of live processes of this run, and remove those of dead ones."""
        self._client.update_api_consumer("127.0.0.1", self._port)  # the package supports one server per process
        live_ways: list[Way] = []
        proxies: dict[str, Any] = {}
        with suppress(*_gone()):
            proxies = self._client.proxies()
        for name, proxy in proxies.items():
            made_for, owner, _ = name.split("-")
            if ours(int(owner)) is None:
                with suppress(*_gone()):
                    proxy.destroy()
            elif made_for == plane:
                live_ways.append(Way(proxy, plane, int(owner), _port(proxy.listen), _port(proxy.upstream)))
        return live_ways

    def close(self) -> None:
        """End the server."""
        self._process.kill()
        self._process.wait()


class _Direct:
    """The package's HTTP client: requests to the server never use an HTTP proxy, and always have a time limit.

    By default the package follows the proxy settings of the environment, which may send requests to another machine.
    """

    def __init__(self) -> None:
        session = import_module("requests").Session()
        session.trust_env = False
        self.get, self.post, self.delete = (
            partial(call, timeout=ANSWER_WITHIN_S) for call in (session.get, session.post, session.delete)
        )


class ProxyFault:
    """A toxic on one proxy, or the proxy taken down."""

    killed: frozenset[int] = frozenset()

    def __init__(
        self, fault: Planned, kind: FaultKind, way: Way, owner: psutil.Process, others: Iterable[Way] = ()
    ) -> None:
        self._fault, self._kind, self._way, self._owner = fault, kind, way, owner
        self._ways = (way, *others)
        self._toxic = f"fault-{fault.id}"
        self._before: dict[bytes, TcpConnection] = {}
        self._workers: frozenset[tuple[int, int]] = frozenset()
        self._direction = fault.direction
        self.target = f"{way.plane} of pid {way.owner}"

    def begin(self) -> bool:
        with suppress(*_gone()):
            self._begin()
            return True
        return False

    def _begin(self) -> None:
        if self._kind.does in CLOSING:
            self._before = self._flows()
        if self._kind.does == "down":
            self._way.proxy.disable()
        else:
            self._way.proxy.add_toxic(
                name=self._toxic,
                type=self._kind.does,
                stream=self._direction,
                attributes=_attributes(self._fault),
            )
        if self._kind.does not in CLOSING:
            self._workers = self._of_workers()
            self._before = self._flows()  # bytes that passed before the toxic was added do not prove its effect
        if self._kind.does == "slow_close":
            self._owner.kill()  # one end has to close
            self.killed = frozenset({self._owner.pid})

    def heal(self) -> str:
        with suppress(*_gone()):
            self._heal()
            return f"{len(self._flows())} connections through it now"
        return "the proxy no longer exists"

    def _heal(self) -> None:
        if self._kind.does == "down":
            self._way.proxy.enable()
        elif is_gone(self._owner):
            self._way.proxy.destroy()
        else:
            self._way.proxy.destroy_toxic(self._toxic)

    def evidence(self) -> str | None:
        workers = self._workers & self._of_workers()  # first: a worker that leaves now is still expected to get bytes
        before, now = self._before, self._flows()
        if self._kind.does in CLOSING:
            ended = len(before.keys() - now.keys())
            return f"{ended} of {len(before)} connections ended" if ended else None
        if self._kind.does == "slow_close":
            held = len(before.keys() & now.keys())
            open_still = is_gone(self._owner) and held == len(before) > 0
            return f"pid {self._way.owner} was killed, {held} connections beyond the proxy stay" if open_still else None
        new = [flow.received - before[key].received for key, flow in now.items() if key in before]
        byte_counts = [each for each in new if each]
        lost = self._own(self._workers) - workers
        if self._kind.does == "timeout" and lost and not is_gone(self._owner):
            return f"{len(lost)} connections of pid {self._way.owner} to the driver ended"
        if not byte_counts or (self._may_be_others() and not (self._own(workers) and len(byte_counts) >= len(workers))):
            return None
        traffic = f"{sum(new)} bytes in {len(new)} connections went into it {self._direction}"
        if self._kind.does not in ("bandwidth", "slicer"):
            return traffic
        # On the control plane some flows may be of other workers: the slowed connection carried at least the minimum.
        slowed_ms = (min if self._way.plane == "control" else max)(byte_counts) * 1000 // _bytes_per_second(self._fault)
        return f"{traffic} and take {slowed_ms} ms to pass" if slowed_ms >= SLOWED_LEAST_MS else None

    def _from_upstream(self) -> bool:
        """Return whether `_flows` returns the connections that proxies opened."""
        downstream = self._direction == "downstream" and self._kind.does not in CLOSING
        return downstream != (self._kind.does == "slow_close")

    def _may_be_others(self) -> bool:
        """Return whether `_flows` may hold connections of other workers' proxies."""
        return self._way.plane == "control" and self._from_upstream()

    def _of_workers(self) -> frozenset[tuple[int, int]]:
        """Return process id and port of each connection from a worker, not from its companion, to the driver."""
        endpoints: set[tuple[int, int]] = set()
        for way in self._ways if self._may_be_others() else ():
            with suppress(psutil.Error):
                own = psutil.Process(way.owner).net_connections("tcp4")
                endpoints |= {
                    (way.owner, each.laddr.port)
                    for each in own
                    if each.status == psutil.CONN_ESTABLISHED and each.raddr.port == way.listen
                }
        return frozenset(endpoints)

    def _own(self, workers: frozenset[tuple[int, int]]) -> frozenset[tuple[int, int]]:
        """Return the connections of the worker that made this proxy."""
        return frozenset(each for each in workers if each[0] == self._way.owner)

    def _flows(self) -> dict[bytes, TcpConnection]:
        """Return the proxy's connections on which the affected direction enters; for a slow close, the other ones.

        Its connections to the driver cannot be distinguished from those of other workers' proxies. So at least as many
        connections as workers have must show the effect: those are all that carry data, because the driver sends
        nothing to a companion.
        """
        if self._from_upstream():
            return {each.cookie: each for each in established() if each.remote == self._way.upstream}
        return {each.cookie: each for each in established() if each.local == self._way.listen}


def of_connections(
    fault: Planned, kind: FaultKind, server: Toxiproxy, owners: list[psutil.Process], ours: Ours
) -> ProxyFault | None:
    """Return the fault, bound to a connection that exists now; None if there is none.

    Args:
        owners: Workers, in an order that does not depend on process ids.
    """
    assert kind.plane is not None
    in_use = {each.local for each in established()}
    # Spark reuses Python processes: a process may have made other proxies before, which are no longer in use.
    ways = {way.owner: way for way in server.ways(kind.plane, ours) if way.listen in in_use}
    there = [(owner, ways[owner.pid]) for owner in owners if owner.pid in ways]
    if not there:
        return None
    owner, way = there[fault.rank % len(there)]
    return ProxyFault(fault, kind, way, owner, (each for each in ways.values() if each is not way))


def _gone() -> tuple[type[Exception], ...]:
    """Return the errors which mean that a proxy, its process or the server no longer exists."""
    from toxiproxy.exceptions import NotFound

    return NotFound, OSError, psutil.NoSuchProcess  # for lost connections the client raises OSErrors


def _bytes_per_second(fault: Planned) -> int:
    given = dict(fault.attributes)
    return given["bytes_per_second"] if "bytes_per_second" in given else given["rate"] * 1000


def _attributes(fault: Planned) -> dict[str, int]:
    """Return a toxic's attributes under Toxiproxy's names."""
    given = dict(fault.attributes)
    if "bytes_per_second" not in given:
        return given
    return {"average_size": SLICE, "size_variation": 1, "delay": SLICE * 1_000_000 // given["bytes_per_second"]}


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _missing(what: str, command: str) -> ConfigError:
    return ConfigError(what, not_done="nothing was started", next_step=f"install it: {command}; or use other faults")
