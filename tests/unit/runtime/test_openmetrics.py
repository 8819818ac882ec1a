"""Metrics: the text follows the specification, unknown has no sample, and the dashboard asks for what there is."""

from __future__ import annotations

import json
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from patience import WALL_S
from prometheus_client.openmetrics import parser

import holdfast as hf
from holdfast.runtime.execution.metrics_port import MetricsPort
from holdfast.runtime.job.delays import BOUNDS_MS, DelaysOfRun
from holdfast.runtime.job.live import from_json
from holdfast.runtime.job.openmetrics import CONTENT_TYPE, STATES, check_installed, exposition

ROOT = Path(__file__).resolve().parents[3]
WORKER = {"host": "vm", "pid": 7, "role": "worker", "subtasks": [], "rss_bytes": 9, "lag_epochs": 0}


def measured() -> dict[str, Any]:
    delays = DelaysOfRun(4)
    delays.checkpoints([(7, 400_000), (6, 51), (5, 40), (4, 99_999)])
    delays.recoveries([(2, 600)])
    return msgspec.to_builtins(delays.measured())  # type: ignore[no-any-return]


def running() -> dict[str, Any]:
    return {
        "job": "hot",
        "root": "/data/hot",
        "mode": "continuous",
        "state": "running",
        "reason": None,
        "generation": 2,
        "timeline": 1,
        "checkpoint": {"epoch": 7, "at": 1_700_000_000_500_000, "age_ms": 9, "duration_ms": 9, "bytes": 4096},
        "workers": [
            {**WORKER, "id": "w1", "subtasks": [0], "rss_bytes": 1024},
            {**WORKER, "id": "w2", "role": "standby", "follows": [0], "lag_epochs": 3, "lag_bytes": 5},
        ],
        "sources": [
            {
                "name": "bids",
                "partition": 0,
                "offset": 700,
                "lag": 3,
                "lost": 4,
                "oldest_offset": 2,
                "watermark": 1_700_000_000_000_000,
                "idle_ms": 250,
            },
            {"name": "bids", "partition": 1, "offset": -1, "lag": None, "watermark": None, "idle_ms": None},
        ],
        "sinks": [{"name": 'o"ut', "staged_epoch": 7, "delivered_epoch": 6, "error": "locked"}],
        "operators": [
            {"name": "totals", "rows_in": 700, "rows_out": 70, "late": 1, "dropped": 2, "dlq": 3, "state_bytes": 512}
        ],
        "late": {"since_epoch": 0, "operators": {"totals": 1}},
        "epochs_given_up": 1,
        "restarts": [
            {"at": 1, "cause": "killed", "generation": 2, "rewind": False},
            {"at": 2, "cause": "rewound", "generation": 3, "rewind": True},
        ],
        "problems": [{"code": "sink_refused"}, {"code": "sink_refused"}],
        "delays": measured(),
    }


def unreachable() -> dict[str, Any]:
    return {
        "job": "hot",
        "root": "/data/hot",
        "mode": None,
        "state": "unreachable",
        "reason": None,
        "generation": 1,
        "timeline": 1,
        "checkpoint": None,
        "workers": [],
        "sources": [],
        "sinks": [],
        "operators": [],
        "late": None,
        "restarts": [],
        "problems": [],
    }


def samples(status: dict[str, Any]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Parse the text as a scraper would; every sample has the job's label, which is left out here."""
    found = {}
    for family in parser.text_string_to_metric_families(exposition(status).decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("job") == "hot"
            found[sample.name, tuple(sorted(labels.items()))] = sample.value
    return found


class TestExposition:
    def test_numbers_carry_units_and_labels(self) -> None:
        found = samples(running())
        assert found["holdfast_records_total", (("partition", "0"), ("source", "bids"))] == 700
        assert found["holdfast_source_silent_seconds", (("partition", "0"), ("source", "bids"))] == 0.25
        assert found["holdfast_checkpoint_timestamp_seconds", ()] == 1_700_000_000.5
        assert found["holdfast_worker_memory_bytes", (("subtask", "0"),)] == 1024
        assert found["holdfast_workers", ()] == 2
        assert found["holdfast_standby_lag_epochs", (("worker", "w2"),)] == 3
        assert found["holdfast_standby_lag_bytes", (("worker", "w2"),)] == 5
        assert found["holdfast_sink_failing", (("sink", 'o"ut'),)] == 1
        assert found["holdfast_restarts_total", (("kind", "rewind"),)] == 1
        assert found["holdfast_restarts_total", (("kind", "failure"),)] == 1, "a rewind is no failure"
        assert found["holdfast_problems", (("code", "sink_refused"),)] == 2

    def test_an_unknown_value_has_no_sample(self) -> None:
        assert not [labels for _, labels in samples(running()) if ("partition", "1") in labels]
        names = {name for name, _ in samples(unreachable())}
        assert names == {
            "holdfast_job_info",
            "holdfast_job_state",
            "holdfast_generation",
            "holdfast_timeline",
            "holdfast_restarts_total",
            "holdfast_workers",
        }

    @pytest.mark.parametrize("state", STATES)
    def test_exactly_one_state_is_set(self, state: str) -> None:
        found = samples({**unreachable(), "state": state})
        states = {labels[0][1]: value for (name, labels), value in found.items() if name == "holdfast_job_state"}
        assert states == {each: float(each == state) for each in STATES}

    def test_delays_are_histograms_in_seconds(self) -> None:
        found = samples(running())
        buckets = {
            labels[0][1]: n
            for (name, labels), n in found.items()
            if name.endswith("checkpoint_duration_seconds_bucket")
        }
        assert (buckets["0.025"], buckets["0.05"], buckets["0.1"], buckets["300.0"], buckets["+Inf"]) == (0, 1, 2, 2, 3)
        assert found["holdfast_checkpoint_duration_seconds_count", ()] == 3
        assert found["holdfast_checkpoint_duration_seconds_sum", ()] == pytest.approx(400.091)
        assert found["holdfast_recovery_duration_seconds_count", ()] == 1

    def test_a_missing_package_is_refused_by_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "prometheus_client", None)
        with pytest.raises(hf.ConfigError, match="prometheus-client") as refusal:
            check_installed()
        assert "pip install 'prometheus-client>=" in refusal.value.next_step


class TestDelays:
    def test_each_checkpoint_and_recovery_is_counted_once(self) -> None:
        delays = DelaysOfRun(0)
        for _ in range(3):
            delays.checkpoints([(2, 11), (1, 10)])
            delays.recoveries([(2, 600), (3, None)])
        delays.recoveries([(2, 600), (3, 700)])
        shown = delays.measured()
        assert (shown.checkpoint.counts[:2], shown.checkpoint.sum_ms) == ((1, 1), 21)
        assert (sum(shown.recovery.counts), shown.recovery.sum_ms) == (2, 1300)

    def test_there_is_a_bucket_above_the_last_bound(self) -> None:
        delays = DelaysOfRun(0)
        delays.checkpoints([(2, BOUNDS_MS[-1] + 1), (1, BOUNDS_MS[-1])])
        assert delays.measured().checkpoint.counts[-2:] == (1, 1)


class TestDashboard:
    TEXT = (ROOT / "docs/grafana-dashboard.json").read_text()

    def test_every_metric_of_the_dashboard_is_exposed(self) -> None:
        asked = {name for target in self._targets() for name in re.findall(r"\bholdfast_\w+(?=\{)", target["expr"])}
        assert len(asked) >= 15
        assert asked <= {name for name, _ in samples(running())}

    def test_every_label_of_the_dashboard_belongs_to_its_metrics(self) -> None:
        known: dict[str, set[str]] = {}
        for name, labels in samples(running()):
            known.setdefault(name, {"job"}).update(label for label, _ in labels)
        for target in self._targets():
            of_all = set.union(*(known[name] for name in re.findall(r"\bholdfast_\w+(?=\{)", target["expr"])))
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= of_all, target

    def test_the_documentation_lists_every_metric(self) -> None:
        families = parser.text_string_to_metric_families(exposition(running()).decode())
        listed = set(re.findall(r"^\| `(holdfast_\w+)` \|", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE))
        suffix = {"counter": "_total", "info": "_info"}
        assert listed == {family.name + suffix.get(family.type, "") for family in families}

    def _targets(self) -> Iterator[dict[str, str]]:
        return (target for panel in json.loads(self.TEXT)["panels"] for target in panel["targets"])


class TestPort:
    @pytest.fixture
    def port(self) -> Iterator[MetricsPort]:
        port = MetricsPort("127.0.0.1", 0)
        yield port
        port.close()

    def get(self, port: MetricsPort, path: str) -> Any:
        host, number = port.address
        return urllib.request.urlopen(f"http://{host}:{number}{path}", timeout=WALL_S)

    def test_the_port_serves_the_newest_status(self, port: MetricsPort) -> None:
        port.take(from_json(unreachable()))
        port.take(from_json(running()))
        with self.get(port, "/metrics?name=all") as reply:
            assert reply.headers["Content-Type"] == CONTENT_TYPE
            assert reply.read() == exposition(from_json(running()).as_json())

    def test_the_port_is_unavailable_before_the_first_status(self, port: MetricsPort) -> None:
        with pytest.raises(urllib.error.HTTPError, match="503"):
            self.get(port, "/metrics")

    def test_the_port_serves_nothing_else(self, port: MetricsPort) -> None:
        port.take(from_json(running()))
        with pytest.raises(urllib.error.HTTPError, match="404"):
            self.get(port, "/")

    def test_a_port_in_use_is_refused(self, port: MetricsPort) -> None:
        with pytest.raises(hf.ConfigError, match="cannot be served"):
            MetricsPort(*port.address)
