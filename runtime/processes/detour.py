"""A detour for fault tests: streams between processes go through proxies of a Toxiproxy on this machine.

A fault harness sets HOLDFAST_DETOUR to Toxiproxy's address when it starts a driver. Each worker then creates a proxy
for its end of the control stream and one for its data address, and uses and announces those. The streams are
unchanged: both ends still prove that they know the run's secret, and TLS, if enabled, is end to end.

Invariants
    - Without the variable, no code of this module takes effect.
    - Only loopback addresses are allowed: harness and proxies are always on this machine.

Source: docs/decisions/0016-live-chaos.md.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import uuid
from collections.abc import Mapping

from holdfast.errors import ConfigError, Unavailable

VARIABLE = "HOLDFAST_DETOUR"
ANSWER_WITHIN_S = 5.0
_CREATED = 201
Address = tuple[str, int]


def detour_of(environment: Mapping[str, str]) -> Address | None:
    """Return where the harness's Toxiproxy listens, None without a harness.

    Raises:
        ConfigError: it is not a loopback address with a port.
    """
    setting = environment.get(VARIABLE)
    if not setting:
        return None
    host, _, port = setting.rpartition(":")
    if not port.isdigit() or not _loopback(host):
        raise ConfigError(
            f"{VARIABLE} is {setting!r}, which is not a loopback address with a port",
            not_done="the job was not started",
            next_step=f"unset {VARIABLE}: only a fault harness sets it, to an address such as 127.0.0.1:8474",
        )
    return host, int(port)


def around(address: Address, plane: str, detour: Address | None) -> Address:
    """Return the address of a new proxy before this one; without a detour, the address itself.

    Raises:
        ConfigError: the address is on a network.
        Unavailable: Toxiproxy did not create the proxy.
    """
    if detour is None:
        return address
    host, port = address
    if not _loopback(host):
        raise ConfigError(
            f"{VARIABLE} is set, but {host}:{port} is not a loopback address",
            not_done="the worker did not register",
            next_step="inject faults only into a job that runs on one machine, at loopback addresses",
        )
    name = f"{plane}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    wanted = {"name": name, "upstream": f"{host}:{port}", "listen": "127.0.0.1:0", "enabled": True}
    connection = http.client.HTTPConnection(*detour, timeout=ANSWER_WITHIN_S)
    try:
        connection.request("POST", "/proxies", json.dumps(wanted), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        reply = answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise _no_proxy(detour, str(error)) from error
    finally:
        connection.close()
    if answer.status != _CREATED:
        raise _no_proxy(detour, reply)
    listening, _, at = str(json.loads(reply)["listen"]).rpartition(":")
    return listening, int(at)


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _no_proxy(detour: Address, why: str) -> Unavailable:
    return Unavailable(
        f"Toxiproxy at {detour[0]}:{detour[1]} did not create a proxy: {why.strip()}",
        not_done="the worker did not register",
        next_step=f"check whether the fault harness is still running; without one, unset {VARIABLE}",
    )
