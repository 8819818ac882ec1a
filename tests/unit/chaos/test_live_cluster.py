"""A standalone cluster that does not start."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.chaos.live.cluster import LiveCluster
from holdfast.errors import Unavailable


class TestStart:
    def test_a_daemon_that_ends_immediately_is_reported_without_waiting(self, tmp_path: Path) -> None:
        cluster = LiveCluster(tmp_path / "cluster", 1, 1, {"JAVA_HOME": str(tmp_path / "nothing")})
        with pytest.raises(Unavailable, match="master, ended with status 1: .*nothing/bin/java"):
            cluster.start()
        cluster.close()
