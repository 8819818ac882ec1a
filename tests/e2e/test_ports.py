"""The cluster of live chaos runs beside other processes: it takes no port that another may rely on."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from standalone import standalone

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1_200)]

MASTER, HOST = 2, 2
"""Ports on which each daemon listens: one for its cluster, one for its page."""


def test_a_cluster_listens_on_loopback_and_only_on_ports_chosen_by_the_system(tmp_path: Path) -> None:
    with standalone(tmp_path) as cluster:
        listening = {
            pid: [each.laddr for each in psutil.Process(pid).net_connections() if each.status == psutil.CONN_LISTEN]
            for pid in cluster.daemons()
        }
    print(listening)
    assert sorted(map(len, listening.values())) == sorted([MASTER, *[HOST] * 2])
    assert {address.ip.removeprefix("::ffff:") for found in listening.values() for address in found} == {"127.0.0.1"}
