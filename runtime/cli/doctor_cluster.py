"""What `holdfast doctor` says of a cluster: whether Spark's traffic and our streams are protected.

Spark brings the secret of a run to its workers with the task. If Spark's own traffic can be read or made up by others,
so can ours. Nothing is started here: the settings are read where a run would read them, and a connection to
the master is opened and closed.

Source: docs/guarantees.md (who is trusted).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from holdfast.errors import ConfigError
from holdfast.runtime.spark.reach import addresses, unreached

_PROTECTS = ("spark.authenticate", "spark.network.crypto.enabled")
_LINE = re.compile(r"\s*([\w.]+)(?:\s*=\s*|\s+)(\S.*?)\s*")


@dataclass(frozen=True)
class Check:
    """One line of the result."""

    name: str
    state: Literal["ok", "warn", "fail"]
    found: str
    next: str | None = None


def cluster(master: str | None, environment: Mapping[str, str], told: Mapping[str, str]) -> Iterator[Check]:
    """What protects the traffic of jobs on this master.

    Args:
        master: As given on the command line.
        environment: The whole environment.
        told: From `spark_defaults`.
    """
    keys = environment.get("HOLDFAST_MASTER"), told.get("spark.holdfast.master"), told.get("spark.master")
    chosen = master or next((key for key in keys if key), None) or "local"
    tls = environment.get("HOLDFAST_TLS") or told.get("spark.holdfast.tls") or "auto"
    if chosen == "local" or chosen.startswith(("local[", "local-cluster[")):
        yield Check("spark traffic", "ok", f"master {chosen}: everything stays on this machine")
        return
    yield from _reached(chosen)
    missing = [key for key in _PROTECTS if told.get(key, "false").lower() != "true"]
    if missing:
        yield Check(
            "spark traffic", "warn", f"master {chosen}: {' and '.join(missing)} not set in spark-defaults.conf, so who "
            "reads Spark's traffic learns the secret of a run, and who can connect can run code",
            f"set {' and '.join(f'{key}=true' for key in missing)} there, and Spark's secret on every machine",
        )  # fmt: skip
    else:
        yield Check("spark traffic", "ok", f"master {chosen}: authenticated and encrypted")
    if tls == "off":
        yield Check("streams", "warn", "tls=off: records cross the network in the clear", "unset HOLDFAST_TLS: auto")
    elif find_spec("cryptography") is None:
        found = f"tls={tls}, and the package cryptography is not installed: no certificate can be made"
        yield Check("streams", "fail", found, "pip install cryptography")
    else:
        yield Check("streams", "ok", f"tls={tls}: encrypted if they leave this machine")


def _reached(master: str) -> Iterator[Check]:
    """Connect to the master, where its URL says where it listens."""
    try:
        known, why = addresses(master) is not None, unreached(master)
    except ConfigError as error:
        yield Check("spark master", "fail", error.what, error.next_step)
        return
    if why is not None:
        yield Check("spark master", "fail", f"{master} takes no connection ({why})", "start it, or correct the URL")
    elif known:
        yield Check("spark master", "ok", f"{master} takes connections")


def spark_defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what spark-defaults.conf says, from where Spark looks for it."""
    folder = environment.get("SPARK_CONF_DIR")
    if folder is None:
        spec = find_spec("pyspark")
        home = environment.get("SPARK_HOME") or (str(Path(spec.origin).parent) if spec and spec.origin else "")
        folder = str(Path(home) / "conf")
    file = Path(folder) / "spark-defaults.conf"
    if not file.is_file():
        return {}
    matches = (_LINE.fullmatch(line) for line in file.read_text(encoding="utf-8").splitlines())
    return {match[1]: match[2] for match in matches if match}
