"""Checks of a cluster for `holdfast doctor`: whether Spark's traffic and our streams are protected.

Spark sends the secret of a run to its workers with the task. So a program that can read or forge Spark's traffic can
read or forge ours. Nothing is started here: the check reads settings where a run would read them, and opens and closes
a connection to the master.

Source: docs/guarantees.md (who is trusted).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from holdfast.errors import ConfigError, Unavailable
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
    exit_status: int = Unavailable.exit_status
    """Exit status of the command if the check fails."""


def cluster(master: str | None, environment: Mapping[str, str], reported: Mapping[str, str]) -> Iterator[Check]:
    """Check the protection of jobs' traffic on this master.

    Args:
        master: As given on the command line.
        environment: The whole environment.
        told: From `spark_defaults`.
    """
    keys = environment.get("HOLDFAST_MASTER"), reported.get("spark.holdfast.master"), reported.get("spark.master")
    spark_master = master or next((key for key in keys if key), None) or "local"
    tls = environment.get("HOLDFAST_TLS") or reported.get("spark.holdfast.tls") or "auto"
    if spark_master == "local" or spark_master.startswith(("local[", "local-cluster[")):
        yield Check("spark traffic", "ok", f"master {spark_master}: everything stays on this machine")
        return
    yield from _reached(spark_master)
    missing = [key for key in _PROTECTS if reported.get(key, "false").lower() != "true"]
    if missing:
        yield Check(
            "spark traffic",
            "warn",
            f"master {spark_master}: {' and '.join(missing)} not set in spark-defaults.conf, so "
            "anyone who can read Spark's traffic learns the secret of a run, and anyone who can connect can run code",
            f"set {' and '.join(f'{key}=true' for key in missing)} there, and Spark's secret on every machine",
        )
    else:
        yield Check("spark traffic", "ok", f"master {spark_master}: authenticated and encrypted")
    if tls == "off":
        yield Check("streams", "warn", "tls=off: records cross the network in the clear", "unset HOLDFAST_TLS: auto")
    elif find_spec("cryptography") is None:
        found = f"tls={tls}, and the package cryptography is not installed: no certificate can be made"
        yield Check("streams", "fail", found, "pip install cryptography")
    else:
        yield Check("streams", "ok", f"tls={tls}: encrypted if they leave this machine")


def _reached(master: str) -> Iterator[Check]:
    """Connect to the master if its URL contains an address."""
    try:
        has_address, why = addresses(master) is not None, unreached(master)
    except ConfigError as error:
        yield Check("spark master", "fail", error.what, error.next_step)
        return
    if why is not None:
        yield Check("spark master", "fail", f"{master} accepts no connection ({why})", "start it, or correct the URL")
    elif has_address:
        yield Check("spark master", "ok", f"{master} accepts connections")


def spark_defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings in spark-defaults.conf, read from where Spark looks for it."""
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
