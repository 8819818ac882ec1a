"""A server behind Toxiproxy: faults of all connections to it."""

from __future__ import annotations

import json
import socket
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from patience import WALL_S

from holdfast.chaos.live.faults.proxy import Toxiproxy


def free_address() -> str:
    """Return an address on loopback at which nothing listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


@dataclass(frozen=True)
class Proxied:
    """The connections to one server.

    Args:
        name: The name of the proxy.
        upstream: Where the server listens.
        proxies: A running Toxiproxy.
        address: Where the proxy listens.
    """

    name: str
    upstream: str
    proxies: Toxiproxy
    address: str = field(default_factory=free_address)

    def create(self) -> None:
        """Let the proxy listen."""
        self._ask("POST", "/proxies", name=self.name, listen=self.address, upstream=self.upstream)

    def toxic(self, kind: str, stream: str = "downstream", **attributes: int) -> None:
        """Add a fault to all connections; see Toxiproxy's documentation for the kinds."""
        path = f"/proxies/{self.name}/toxics"
        self._ask("POST", path, type=kind, name=kind, stream=stream, attributes=attributes)

    def untoxic(self, kind: str) -> None:
        """Remove a fault."""
        self._ask("DELETE", f"/proxies/{self.name}/toxics/{kind}")

    def reachable(self, reachable: bool) -> None:
        """Let clients connect, or end their connections and refuse new ones."""
        self._ask("POST", f"/proxies/{self.name}", enabled=reachable)

    def _ask(self, method: str, path: str, **body: Any) -> None:
        address = f"http://{self.proxies.address}{path}"
        request = urllib.request.Request(address, json.dumps(body).encode(), method=method)
        request.add_header("Content-Type", "application/json")
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=WALL_S).close()
