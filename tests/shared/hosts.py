"""Hosts of a small network on this machine, each with its own address, name, processes, disk and clock.

A host is a set of Linux namespaces: network, host name, mounts and processes. One bridge connects all hosts; no packet
leaves the network. The folder `disk` is another one on every host, under the same path, so nothing written there is
shared. All hosts report the same boot id and machine id, and process ids repeat from host to host: what identifies a
host by those alone confuses them.

Invariants
    - All processes of a host end with it, and all hosts with the network; a network ends with the process that made it.
    - A cut link drops packets silently, in the cut directions only: no end is told.

Source: namespaces(7), unshare(1), nsenter(1), ip-neighbour(8).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil
from patience import WALL_S, wait

ADDRESS = "10.77.0.{}"
_NO_MAC = "02:00:00:00:00:ee"
"""The address of no network card: packets sent to it reach the bridge, and no host."""
_TIES = ("setpriv", "--pdeathsig", "KILL")
_ALONE = ("unshare", "--pid", "--fork", "--kill-child")
_HOST = """
hostname "$1" && mount --bind "$2" "$3" && mount --bind "$4" /etc/hosts && mount -t proc proc /proc || exit 1
trap '' CHLD
exec sleep infinity
"""
_ARRIVES = """
import ctypes, os, socket, sys

def in_host(pid):
    namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    assert ctypes.CDLL(None).setns(namespace, 0) == 0
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

sender, receiver = in_host(sys.argv[1]), in_host(sys.argv[2])
receiver.bind((sys.argv[3], 0))
receiver.settimeout(float(sys.argv[4]))
sender.sendto(b"?", receiver.getsockname())
try:
    receiver.recv(1)
except TimeoutError:
    sys.exit(3)
"""
_CLOCK = """
import time
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + {skew_s}
time.time_ns = lambda: _time_ns() + {skew_s} * 1_000_000_000
"""


def missing() -> str | None:
    """Return what this machine lacks for hosts in namespaces; None if it lacks nothing."""
    tried = subprocess.run(
        [*_private(), "--net", "--uts", "--mount", *_ALONE[1:], "sh", "-c", "ip link add name bridge type bridge"],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode == 0:
        return None
    return f"no network namespace with a bridge can be made here ({tried.stderr.strip()}); root or user namespaces can"


class Host:
    """One host, up or down."""

    def __init__(self, network: Network, name: str, number: int, skew_s: int) -> None:
        self.name, self.address = name, ADDRESS.format(number)
        self._network, self._number = network, number
        self._disk = network.folder / "disks" / name
        """Its own folder, which the host finds at `Network.disk`."""
        self._init: psutil.Process | None = None
        self._starts = 0
        python = self._disk / "python"
        python.mkdir(parents=True)
        (python / "sitecustomize.py").write_text(_CLOCK.format(skew_s=skew_s))

    @property
    def disk(self) -> Path:
        """Return where this machine finds the disk of the host."""
        return self._disk

    def start(self) -> None:
        """Start the host, with an empty set of processes and the disk as it was."""
        network = self._network
        own = ["sh", "-c", _HOST, "host", self.name, str(self._disk), str(network.disk), str(network.names)]
        isolated = ["unshare", "--net", "--uts", "--mount", "--propagation", "private", *_ALONE[1:]]
        started = network.popen([*_TIES, *isolated, *own])
        self._init = _sleeper(started)
        self._starts += 1
        pid, card = self._init.pid, self._card
        network.ip("link", "add", card, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        network.ip("link", "set", card, "master", "bridge", "up")
        for how in (f"addr add {self.address}/24 dev eth0", "link set eth0 up", "link set lo up"):
            self._ip(*how.split())
        for other in network.hosts.values():
            other.forget(self)

    def stop(self) -> None:
        """Kill every process of the host together, as a power cut would, and unplug it: no peer is told."""
        assert self._init is not None
        self._network.ip("link", "set", self._card, "down")
        self._init.kill()
        self._init.wait(WALL_S)
        self._init = None

    def is_up(self) -> bool:
        """Return whether the host runs."""
        return self._init is not None

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command that runs this one on the host."""
        return [*self._network.entered(self._pid), "--uts", "--mount", "--pid", "--wd=.", "--", *command]

    def popen(self, command: Sequence[str], said: IO[bytes], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a process on the host."""
        return subprocess.Popen(
            self.command(command), stdout=said, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )

    def process(self, pid: int) -> psutil.Process:
        """Return the process with this id on the host, under the id that it has here."""
        for each in self.processes():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                status = Path(f"/proc/{each.pid}/status").read_text(encoding="utf-8")
                if next(line for line in status.splitlines() if line.startswith("NSpid")).split()[-1] == str(pid):
                    return each
        raise ProcessLookupError(f"no process {pid} on {self.name}")

    def processes(self) -> list[psutil.Process]:
        """Return all processes of the host."""
        wanted = _namespace(self._pid)
        return [each for each in psutil.process_iter() if _namespace(each.pid) == wanted]

    def cut(self, to: Host) -> None:
        """Drop what this host sends to the other one. What the other one sends still arrives."""
        self._ip("neigh", "replace", to.address, "lladdr", _NO_MAC, "dev", "eth0", "nud", "permanent")
        assert not self.reaches(to)

    def heal(self, to: Host) -> None:
        """Let what this host sends arrive again."""
        self.forget(to)
        wait(lambda: self.reaches(to), f"{self.name} to reach {to.name} again")

    def forget(self, other: Host) -> None:
        """Forget the other host's network card, and with it a cut."""
        if self._init is not None and other is not self:
            shown = self._ip("neigh", "show", other.address)
            if shown.strip():
                self._ip("neigh", "del", other.address, "dev", "eth0")

    def reaches(self, other: Host, within_s: float = 0.3) -> bool:
        """Return whether a packet from this host arrives at the other one."""
        command = [sys.executable, "-I", "-S", "-c", _ARRIVES, str(self._pid), str(other._pid)]
        within = [*self._network.entered(self._network.pid), "--", *command, other.address, str(within_s)]
        status = subprocess.run(within, check=False, timeout=WALL_S).returncode
        assert status in (0, 3), f"a packet from {self.name} to {other.name} could not be sent"
        return status == 0

    @property
    def _pid(self) -> int:
        assert self._init is not None, f"{self.name} is down"
        return self._init.pid

    @property
    def _card(self) -> str:
        """Return the name of the bridge's end of the cable; that of an ended host may remain for a moment."""
        return f"card-{self._number}-{self._starts}"

    def _ip(self, *words: str) -> str:
        return self._network.ip(*words, pid=self._pid)


class Network:
    """A bridge, and the hosts on it.

    Args:
        folder: For the disks of the hosts.
        clocks: The hosts by name, with how many seconds the clock of each is ahead.
    """

    def __init__(self, folder: Path, clocks: Mapping[str, int]) -> None:
        self.folder, self.disk = folder, folder / "disk"
        """The second is the path of every host's own disk, on that host."""
        self.disk.mkdir(parents=True)
        self._said = (folder / "namespaces.log").open("wb")
        alone = [*_TIES, *_private(), "--net", *_ALONE[1:], "sleep", "infinity"]
        self._outer = subprocess.Popen(alone, stderr=self._said)
        self.pid = _sleeper(self._outer).pid
        self.ip("link", "add", "bridge", "type", "bridge")
        self.ip("link", "set", "bridge", "up")
        self.hosts: dict[str, Host] = {}
        for number, (name, skew_s) in enumerate(clocks.items(), 1):
            self.hosts[name] = Host(self, name, number, skew_s)
        self.names = folder / "hosts"
        lines = ["127.0.0.1 localhost", *(f"{host.address} {name}" for name, host in self.hosts.items())]
        self.names.write_text("\n".join([*lines, ""]))

    def entered(self, pid: int) -> list[str]:
        """Return the command that enters the network of the namespace that this process is in."""
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        return ["nsenter", "--target", str(pid), *user, "--net"]

    def popen(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a process in the network, but on no host."""
        return subprocess.Popen([*self.entered(self.pid), "--", *command], stderr=self._said)

    def ip(self, *words: str, pid: int | None = None) -> str:
        """Run `ip`, in the network of this process's host or, without one, of the bridge; return its output."""
        command = [*self.entered(pid or self.pid), "--", "ip", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WALL_S)
        assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
        return done.stdout

    def close(self) -> None:
        """End every host and the network."""
        for host in self.hosts.values():
            if host.is_up():
                host.stop()
        self._outer.send_signal(signal.SIGKILL)
        self._outer.wait(WALL_S)
        self._said.close()


@contextlib.contextmanager
def network(folder: Path, clocks: Mapping[str, int]) -> Iterator[Network]:
    """Start these hosts, each with its clock so many seconds ahead; all of it ends with the block."""
    made = Network(folder, clocks)
    try:
        for host in made.hosts.values():
            host.start()
        yield made
    finally:
        made.close()


def _private() -> list[str]:
    return ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]


def _namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""


def _sleeper(started: subprocess.Popen[bytes]) -> psutil.Process:
    """Return the first process of the namespaces, once it has prepared them."""

    def found() -> psutil.Process | None:
        assert started.poll() is None, f"the namespaces ended with status {started.returncode}"
        below = psutil.Process(started.pid).children(recursive=True)
        return next((each for each in below if _is_sleeping(each)), None)

    wait(lambda: found() is not None, "the namespaces of a host")
    process = found()
    assert process is not None
    return process


def _is_sleeping(process: psutil.Process) -> bool:
    try:
        return process.cmdline() == ["sleep", "infinity"]
    except psutil.NoSuchProcess:
        return False
