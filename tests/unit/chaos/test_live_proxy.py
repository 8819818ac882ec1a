"""Faults of connections, with a real Toxiproxy between two sockets of this process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from patience import WALL_S

from holdfast.chaos.judge.kinds import KINDS
from holdfast.chaos.live.faults.nemesis import Planned
from holdfast.chaos.live.faults.proxy import SLICE, SLOWED_LEAST_MS, ProxyFault, Toxiproxy, find_server, of_connections
from holdfast.chaos.live.faults.sockets import established
from holdfast.chaos.live.faults.strikes import seen
from holdfast.errors import ConfigError, Unavailable
from holdfast.runtime.processes.detour import VARIABLE, around, detour_of


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toxiproxy]:
    assert find_server() is not None, "Toxiproxy's server is missing; build it: tools/bootstrap.sh toxiproxy"
    server = Toxiproxy(tmp_path_factory.mktemp("proxy") / "log")
    yield server
    server.close()


class Pair:
    """A listener of this process, a proxy in front of it, and a connection through the proxy."""

    def __init__(self, server: Toxiproxy, plane: str = "data", listener: socket.socket | None = None) -> None:
        self.server, self.plane = server, plane
        self.listener = listener or socket.create_server(("127.0.0.1", 0))
        detour = detour_of({VARIABLE: server.address})
        self.address = around(self.listener.getsockname()[:2], plane, detour)
        self.near = socket.create_connection(self.address, WALL_S)
        self.far, _ = self.listener.accept()
        self._over = threading.Event()
        self._pump = threading.Thread(target=self._send, daemon=True)

    def _send(self) -> None:
        while not self._over.wait(0.01):
            for end in (self.near, self.far):
                try:
                    end.sendall(b"x" * 64)
                except OSError:
                    return

    def strike(self, kind: str, direction: str | None = "upstream", **attributes: int) -> ProxyFault:
        self._pump.start()
        return self.find(kind, direction, **attributes)

    def find(self, kind: str, direction: str | None, **attributes: int) -> ProxyFault:
        own = psutil.Process(os.getpid())
        fault = Planned(1, 0, kind, 0, 0, direction, tuple(attributes.items()))
        found = of_connections(fault, KINDS[kind], self.server, [own], lambda pid: own if pid == own.pid else None)
        assert found is not None
        return found

    def close(self) -> None:
        self._over.set()
        for each in (self.near, self.far, self.listener):
            each.close()
        if self._pump.ident is not None:
            self._pump.join()


def received(port: int) -> int:
    """Return how many bytes came from this port."""
    return sum(each.received for each in established() if each.remote == port)


@contextmanager
def companion_of(pair: Pair) -> Iterator[None]:
    """Let a separate process connect through the pair's proxy, and send nothing."""
    code = f"import socket, sys; at = socket.create_connection({pair.address!r}); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", code], stdin=subprocess.PIPE):
        far, _ = pair.listener.accept()
        with far:
            yield


class Busy:
    """A proxy that passes bytes while a toxic is applied to it."""

    def __init__(self, proxy: Any, near: socket.socket) -> None:
        self._proxy, self._near = proxy, near

    def add_toxic(self, **toxic: Any) -> None:
        self._near.sendall(b"x" * 64)
        self._proxy.add_toxic(**toxic)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._proxy, name)


@pytest.fixture
def pair(server: Toxiproxy) -> Iterator[Pair]:
    pair = Pair(server)
    yield pair
    pair.close()


@pytest.mark.toxiproxy
class TestToxiproxy:
    def test_the_server_listens_on_loopback_at_its_own_port(self, server: Toxiproxy) -> None:
        host, _, port = server.address.partition(":")
        assert host == "127.0.0.1" and int(port) > 0

    def test_a_proxy_whose_process_has_ended_is_removed(self, server: Toxiproxy, pair: Pair) -> None:
        assert server.ways("data", lambda pid: None) == []
        with pytest.raises(OSError):
            socket.create_connection(pair.address, WALL_S)

    def test_the_server_is_called_directly_and_http_proxy_variables_are_not_changed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        monkeypatch.setenv("no_proxy", "corp")
        before = dict(os.environ)
        server = Toxiproxy(tmp_path / "log")
        pair = Pair(server)
        assert [way.listen for way in server.ways("data", lambda pid: psutil.Process(pid))] == [pair.address[1]]
        assert dict(os.environ) == before
        pair.close()
        server.close()

    def test_a_missing_server_is_refused_with_the_command_that_installs_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOLDFAST_TOXIPROXY", str(tmp_path / "nothing"))
        with pytest.raises(ConfigError, match="bootstrap.sh toxiproxy"):
            Toxiproxy(tmp_path / "log")


@pytest.mark.toxiproxy
class TestCut:
    @pytest.mark.parametrize(
        ("kind", "attributes"),
        [
            ("data-latency", {"latency": 20, "jitter": 0}),
            ("data-bandwidth", {"rate": 64}),
            ("data-blackhole", {"timeout": 0}),
        ],
    )
    def test_a_delay_has_fired_when_bytes_have_entered_it(
        self, pair: Pair, kind: str, attributes: dict[str, int]
    ) -> None:
        cut = pair.strike(kind, "upstream", **attributes)
        assert cut.begin()
        assert seen(lambda: cut.evidence() is not None)
        assert "connections went into it upstream" in (cut.evidence() or "")
        cut.heal()

    @pytest.mark.parametrize(
        ("kind", "attributes"),
        [("control-bandwidth", {"bytes_per_second": 64}), ("data-bandwidth", {"rate": 16})],
    )
    def test_a_bandwidth_limit_has_fired_when_the_bytes_take_long(
        self, server: Toxiproxy, kind: str, attributes: dict[str, int]
    ) -> None:
        pair = Pair(server, kind.partition("-")[0])
        cut = pair.strike(kind, "upstream", **attributes)
        assert cut.begin()
        assert seen(lambda: cut.evidence() is not None)
        said = cut.evidence() or ""
        assert int(said.partition("and take ")[2].split()[0]) >= SLOWED_LEAST_MS
        cut.heal()
        pair.close()

    def test_a_trickle_passes_few_bytes_per_second_and_loses_none(self, server: Toxiproxy) -> None:
        pair = Pair(server, "control")
        cut = pair.find("control-bandwidth", "upstream", bytes_per_second=16)
        assert cut.begin()
        began = time.monotonic()
        pair.near.sendall(bytes(range(20)))
        assert pair.far.recv(20, socket.MSG_WAITALL) == bytes(range(20))
        assert time.monotonic() - began >= 3 * SLICE / 16
        cut.heal()
        pair.near.sendall(b"x" * 1_000)
        assert pair.far.recv(1_000, socket.MSG_WAITALL) == b"x" * 1_000
        pair.close()

    def test_bytes_that_passed_before_a_toxic_are_not_evidence_of_it(self, server: Toxiproxy, pair: Pair) -> None:
        own = psutil.Process(os.getpid())
        ways = server.ways("data", lambda pid: own if pid == own.pid else None)
        [way] = [way for way in ways if way.listen == pair.address[1]]
        fault = Planned(1, 0, "data-blackhole", 0, 0, "upstream", (("timeout", 0),))
        cut = ProxyFault(fault, KINDS["data-blackhole"], replace(way, proxy=Busy(way.proxy, pair.near)), own)
        assert cut.begin() and cut.evidence() is None
        pair.near.sendall(b"x" * 64)
        assert seen(lambda: cut.evidence() is not None)
        cut.heal()

    @pytest.mark.parametrize(
        ("kind", "direction", "attributes"),
        [
            ("data-reset", "upstream", {"timeout": 0}),
            ("data-limit", "upstream", {"bytes": 100}),
            ("control-limit", "downstream", {"bytes": 100}),
            ("data-down", None, {}),
        ],
    )
    def test_a_closing_fault_has_fired_when_a_connection_ended(
        self, server: Toxiproxy, kind: str, direction: str | None, attributes: dict[str, int]
    ) -> None:
        pair = Pair(server, kind.partition("-")[0])
        cut = pair.strike(kind, direction, **attributes)
        assert cut.evidence() is None
        assert cut.begin()
        assert seen(lambda: cut.evidence() == "1 of 1 connections ended")
        cut.heal()
        pair.close()

    def test_a_fault_on_an_idle_connection_has_not_fired(self, server: Toxiproxy, pair: Pair) -> None:
        own = psutil.Process(os.getpid())
        fault = Planned(1, 0, "data-blackhole", 0, 0, "upstream", (("timeout", 0),))
        cut = of_connections(fault, KINDS["data-blackhole"], server, [own], lambda pid: own)
        assert cut is not None and cut.begin()
        assert cut.evidence() is None
        cut.heal()

    @pytest.mark.parametrize("companions", [0, 1, 3])
    def test_a_control_fault_has_fired_when_bytes_came_for_every_worker(
        self, server: Toxiproxy, companions: int
    ) -> None:
        struck = Pair(server, "control")
        other = Pair(server, "control", struck.listener)
        with ExitStack() as stack:
            for _ in range(companions):
                stack.enter_context(companion_of(struck))
            own = psutil.Process(os.getpid())
            ways = {way.listen: way for way in server.ways("control", lambda pid: own if pid == own.pid else None)}
            fault = Planned(1, 0, "control-blackhole", 0, 0, "downstream", (("timeout", 0),))
            way, beside = ways[struck.address[1]], ways[other.address[1]]
            cut = ProxyFault(fault, KINDS["control-blackhole"], way, own, [beside])
            assert cut.begin()
            before = received(way.upstream)
            other.far.sendall(b"x" * 64)
            assert seen(lambda: received(way.upstream) == before + 64) and cut.evidence() is None
            struck.far.sendall(b"x" * 64)
            assert seen(lambda: cut.evidence() == f"128 bytes in {2 + companions} connections went into it downstream")
            cut.heal()
        other.close()
        struck.close()

    def test_a_cut_of_a_silent_control_stream_has_fired_when_it_ended(self, server: Toxiproxy) -> None:
        pair = Pair(server, "control")
        cut = pair.find("control-cut", "downstream", timeout=50)
        assert cut.begin()
        assert seen(lambda: cut.evidence() == f"1 connections of pid {os.getpid()} to the driver ended")
        cut.heal()
        pair.close()

    def test_a_healed_proxy_forwards_new_connections(self, pair: Pair) -> None:
        cut = pair.strike("data-down", None)
        assert cut.begin()
        with pytest.raises(OSError):
            socket.create_connection(pair.address, WALL_S)
        cut.heal()
        socket.create_connection(pair.address, WALL_S).close()

    def test_nothing_is_struck_without_a_connection(self, server: Toxiproxy) -> None:
        own = psutil.Process(os.getpid())
        fault = Planned(1, 0, "control-down", 0, 0)
        assert of_connections(fault, KINDS["control-down"], server, [own], lambda pid: own) is None

    def test_a_removed_proxy_is_neither_struck_nor_healed(self, server: Toxiproxy) -> None:
        pair = Pair(server)
        cut = pair.find("data-blackhole", "upstream", timeout=0)
        assert server.ways("data", lambda pid: None) == []
        assert not cut.begin()
        assert cut.heal() == "the proxy no longer exists"
        pair.close()

    def test_a_slow_close_of_an_ended_process_does_not_begin(self, server: Toxiproxy) -> None:
        pair = Pair(server)
        worker = psutil.Popen([sys.executable, "-c", ""])
        worker.wait()
        ways = server.ways("data", lambda pid: psutil.Process(pid))
        [way] = [way for way in ways if way.listen == pair.address[1]]
        fault = Planned(1, 0, "data-slow-close", 0, 0, "downstream", (("delay", 200),))
        cut = ProxyFault(fault, KINDS["data-slow-close"], way, worker)
        assert not cut.begin() and not cut.killed
        pair.close()

    def test_an_ended_server_has_nothing_to_strike(self, tmp_path: Path) -> None:
        other = Toxiproxy(tmp_path / "log")
        other.close()
        assert other.ways("data", lambda pid: psutil.Process(pid)) == []


class TestDetour:
    def test_there_is_no_detour_without_a_harness(self) -> None:
        assert detour_of({}) is None
        assert around(("10.1.2.3", 7), "data", None) == ("10.1.2.3", 7)

    @pytest.mark.parametrize("given", ["10.0.0.1:8474", "localhost", "127.0.0.1", "example.org:80", "127.0.0.1:http"])
    def test_the_address_of_a_harness_is_loopback_with_a_port(self, given: str) -> None:
        with pytest.raises(ConfigError, match="not a loopback address with a port"):
            detour_of({VARIABLE: given})

    def test_an_address_on_a_network_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="not a loopback address"):
            around(("10.1.2.3", 7), "data", ("127.0.0.1", 1))

    def test_an_unreachable_harness_is_named(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        with pytest.raises(Unavailable, match="did not create a proxy"):
            around(("127.0.0.1", 7), "data", ("127.0.0.1", port))


class TestSockets:
    def test_a_connection_reports_its_ports_and_bytes_received(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port)) as near:
                far, _ = listener.accept()
                with far:
                    near.sendall(b"x" * 1_000)
                    assert far.recv(1_000, socket.MSG_WAITALL)
                    [end] = [each for each in established() if each.local == port]
                    assert (end.remote, end.received) == (near.getsockname()[1], 1_000)
