"""Check whether the Spark master of a URL is reachable, before Spark tries for minutes.

Spark's client of a standalone master retries for a minute and then stops its own context from another thread; the
driver sees only a connection refused by its own JVM. A connection attempt of one second gives a better reason.

Source: Spark's manual, "Submitting Applications" (master URLs) and "Spark Standalone Mode" (several masters).
"""

from __future__ import annotations

import re
import socket

from holdfast.errors import ConfigError, Unavailable

CONNECT_WITHIN_S = 5.0
_PORTS = {"http": 80, "https": 443}
_AT = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^:/\[\]]+))(?::(?P<port>\d{1,5}))?")


def addresses(master: str) -> list[tuple[str, int]] | None:
    """Return where the masters of this URL listen; None if the URL does not name addresses, as with local or yarn.

    Raises:
        ConfigError: it is not the URL of a Spark master.
    """
    kind, separator, rest = master.partition("://")
    if not separator or kind not in ("spark", "k8s"):
        return None
    default = None
    if kind == "k8s":
        scheme, separator, behind = rest.partition("://")
        scheme, rest = (scheme, behind) if separator else ("https", rest)
        default, rest = _PORTS.get(scheme), rest.partition("/")[0]
    master_addresses = [_address(each, default) for each in rest.split(",")]
    if None in master_addresses:
        raise ConfigError(
            f"{master!r} does not name the host and port of a Spark master",
            not_done="no record was read; missing targets were created and are empty",
            next_step="give it as spark://HOST:PORT, such as spark://master:7077",
        )
    return [each for each in master_addresses if each is not None]


def unreached(master: str, within_s: float = CONNECT_WITHIN_S) -> str | None:
    """Return why no master accepts a connection; None if one does, or if the URL does not name their addresses.

    Raises:
        ConfigError: it is not the URL of a Spark master.
    """
    why: list[str] = []
    for host, port in addresses(master) or ():
        try:
            socket.create_connection((host, port), timeout=within_s).close()
            return None
        except OSError as error:
            why.append(f"{host}:{port}: {error.strerror or error}")
    return "; ".join(why) or None


def check(master: str) -> None:
    """Refuse an unreachable standalone master. Kubernetes is not checked: Spark may reach it through a proxy.

    Raises:
        ConfigError: it is not the URL of a Spark master.
        Unavailable: no connection can be made.
    """
    if master.startswith("spark://") and (why := unreached(master)) is not None:
        raise Unavailable(
            f"the Spark master {master} accepts no connection ({why})",
            not_done="no record was read; missing targets were created and are empty",
            next_step="start it, or correct --master, HOLDFAST_MASTER or spark.master; "
            f"to check again: holdfast doctor --master {master}",
        )


def _address(text: str, default: int | None) -> tuple[str, int] | None:
    match = _AT.fullmatch(text.strip())
    if match is None or (match["port"] is None and default is None):
        return None
    return match["v6"] or match["host"], int(match["port"] or default or 0)
