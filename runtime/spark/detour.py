"""A way around, for tests of faults: streams between processes go through proxies of a Toxiproxy on this machine.

A fault harness names Toxiproxy's address in HOLDFAST_DETOUR when it starts a driver. Each worker then makes a proxy for
its own end of the control stream and one for its data address, and uses and announces those. What flows is the same:
both ends still prove that they know the run's secret, and TLS, if it is on, goes from end to end.

Invariants
    - Without the variable nothing of this module is used.
    - Only loopback addresses take part: neither the harness nor a proxy ever is another machine.

Source: docs/design/0016-live-chaos.md.
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
        ConfigError: it is no loopback address with a port.
    """
    given = environment.get(VARIABLE)
    if not given:
        return None
    host, _, port = given.rpartition(":")
    if not port.isdigit() or not _loopback(host):
        raise ConfigError(
            f"{VARIABLE} is {given!r}, which is no address on this machine",
            not_done="the job was not started",
            next_step=f"unset {VARIABLE}: only a fault harness sets it, to an address such as 127.0.0.1:8474",
        )
    return host, int(port)


def around(address: Address, plane: str, detour: Address | None) -> Address:
    """Return the address of a new proxy before this one; without a detour, the address itself.

    Raises:
        ConfigError: the address is on a network.
        Unavailable: Toxiproxy did not make the proxy.
    """
    if detour is None:
        return address
    host, port = address
    if not _loopback(host):
        raise ConfigError(
            f"{host}:{port} is reached over a network, and {VARIABLE} is set",
            not_done="the worker did not register",
            next_step="break a job only where all of it runs on one machine, at loopback addresses",
        )
    name = f"{plane}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    wanted = {"name": name, "upstream": f"{host}:{port}", "listen": "127.0.0.1:0", "enabled": True}
    connection = http.client.HTTPConnection(*detour, timeout=ANSWER_WITHIN_S)
    try:
        connection.request("POST", "/proxies", json.dumps(wanted), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        said = answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise _no_proxy(detour, str(error)) from error
    finally:
        connection.close()
    if answer.status != _CREATED:
        raise _no_proxy(detour, said)
    listening, _, at = str(json.loads(said)["listen"]).rpartition(":")
    return listening, int(at)


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _no_proxy(detour: Address, why: str) -> Unavailable:
    return Unavailable(
        f"Toxiproxy at {detour[0]}:{detour[1]} made no proxy: {why.strip()}",
        not_done="the worker did not register",
        next_step=f"see whether the fault harness still runs; without one, unset {VARIABLE}",
    )
