"""The status of a job as OpenMetrics text, with the conventions of Prometheus for names and units.

Made from the JSON status alone, so that a driver's port and `holdfast status --format openmetrics` report the same. An
unknown value has no sample: it is never zero.

Source: openmetrics.io, specification 1.0; prometheus.io, Metric and label naming; docs/decisions/0033-metrics.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

import holdfast
from holdfast.errors import ConfigError
from holdfast.extras import install

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
STATES = ("starting", "running", "recovering", "stopped", "finished", "failed", "unreachable")
Status = Mapping[str, Any]
Samples = Iterable[tuple[Mapping[str, object], float | int | None]]


def exposition(status: Status) -> bytes:
    """Return the metrics of one job.

    Raises:
        ConfigError: the package prometheus-client is not installed.
    """
    from prometheus_client.openmetrics import exposition as openmetrics

    generate: Any = openmetrics.generate_latest  # it has no types
    text: bytes = generate(_Registry(status))
    return text


def check_installed() -> None:
    """Refuse to continue without the package that writes the text.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "the package prometheus-client, which writes metrics, is not installed",
            not_done="no metrics were written",
            next_step=f"install it: {install('metrics')}",
        ) from error


class _Registry:
    """The object from which prometheus_client collects metrics."""

    def __init__(self, status: Status) -> None:
        self._families = [*_job(status), *_sources(status), *_operators(status), *_sinks(status), *_workers(status)]

    def collect(self) -> Iterable[Any]:
        return self._families


class _Families:
    """Makes metrics that all have the label `job`; those without a sample are left out."""

    def __init__(self, status: Status) -> None:
        from prometheus_client import core

        self._core, self._job = core, str(status["job"])

    def counter(self, name: str, help: str, samples: Samples) -> Iterator[Any]:
        return self._filled(self._core.CounterMetricFamily, name, help, samples)

    def gauge(self, name: str, help: str, samples: Samples) -> Iterator[Any]:
        return self._filled(self._core.GaugeMetricFamily, name, help, samples)

    def histogram(self, name: str, help: str, delays: Mapping[str, Any] | None) -> Iterator[Any]:
        """Return a histogram in seconds, from one of delays.Histogram."""
        if delays is not None and len(delays["counts"]) == len(delays["bounds_ms"]) + 1:
            bounds = [*(str(bound / 1000) for bound in delays["bounds_ms"]), "+Inf"]
            buckets = list(zip(bounds, accumulate(delays["counts"]), strict=True))
            family = self._core.HistogramMetricFamily(name, help, labels=["job"])
            family.add_metric([self._job], buckets, delays["sum_ms"] / 1000)
            yield family

    def states(self, name: str, help: str, now: str) -> Iterator[Any]:
        family = self._core.StateSetMetricFamily(name, help, labels=["job"])
        family.add_metric([self._job], {state: state == now for state in STATES})
        yield family

    def info(self, name: str, help: str, values: Mapping[str, str]) -> Iterator[Any]:
        family = self._core.InfoMetricFamily(name, help, labels=["job"])
        family.add_metric([self._job], dict(values))
        yield family

    def _filled(self, kind: Any, name: str, help: str, samples: Samples) -> Iterator[Any]:
        family = None
        for labels, value in samples:
            if value is not None:
                family = family or kind(name, help, labels=["job", *labels])
                family.add_metric([self._job, *map(str, labels.values())], value)
        if family is not None:
            yield family


def _job(status: Status) -> Iterator[Any]:
    make, checkpoint, delays = _Families(status), status["checkpoint"] or {}, status.get("delays") or {}
    about = {"version": holdfast.__version__, "root": str(status["root"]), "mode": str(status["mode"] or "")}
    yield from make.info("holdfast_job", "Where the job keeps its history, and the version that reports it.", about)
    yield from make.states("holdfast_job_state", "State of the job.", status["state"])
    numbers = (
        ("holdfast_generation", "Newest run or recovery of the job.", status["generation"]),
        ("holdfast_timeline", "Rewinds of the job, plus one.", status["timeline"]),
        ("holdfast_checkpoint_epoch", "Epoch of the last checkpoint.", checkpoint.get("epoch")),
        ("holdfast_checkpoint_timestamp_seconds", "When the last checkpoint was completed.", _s(checkpoint.get("at"))),
        ("holdfast_checkpoint_size_bytes", "State that the last checkpoint refers to.", checkpoint.get("bytes")),
    )
    for name, help, value in numbers:
        yield from make.gauge(name, help, [({}, value)])
    taken = delays.get("checkpoint"), delays.get("recovery")
    yield from make.histogram("holdfast_checkpoint_duration_seconds", "From barrier to commit, in this run.", taken[0])
    yield from make.histogram("holdfast_recovery_duration_seconds", "From failure to ready, in this run.", taken[1])
    rewinds = sum(bool(restart.get("rewind")) for restart in status["restarts"])
    kinds = {"failure": len(status["restarts"]) - rewinds, "rewind": rewinds}
    yield from make.counter("holdfast_restarts", "Recoveries, by cause.", [({"kind": k}, n) for k, n in kinds.items()])
    given_up = status.get("epochs_given_up")
    missed = "Epochs that missed their deadline, in this run."
    yield from make.counter("holdfast_epochs_given_up", missed, [({}, given_up)])
    problems = Counter(str(problem["code"]) for problem in status["problems"])
    yield from make.gauge(
        "holdfast_problems", "Problems now, by code.", [({"code": c}, n) for c, n in problems.items()]
    )


def _sources(status: Status) -> Iterator[Any]:
    make, rows = _Families(status), status["sources"]

    def each(value: Any) -> Samples:
        return [({"source": row["name"], "partition": row["partition"]}, value(row)) for row in rows]

    read = "Records read: the next offset. Files of text: bytes."
    yield from make.counter("holdfast_records", read, each(lambda row: _known(row["offset"])))
    waiting = "Records that wait to be read. Files of text: bytes."
    yield from make.gauge("holdfast_source_lag_records", waiting, each(lambda row: row["lag"]))
    yield from make.gauge(
        "holdfast_source_oldest_offset",
        "Lowest offset that can still be read.",
        each(lambda row: row.get("oldest_offset")),
    )
    yield from make.counter(
        "holdfast_source_lost_offsets",
        "Offsets that the source had removed before they were read, in the whole history of the job.",
        each(lambda row: row.get("lost")),
    )
    yield from make.gauge(
        "holdfast_source_watermark_timestamp_seconds",
        "Event time up to which records have been read.",
        each(lambda row: _s(_known(row.get("watermark")))),
    )
    yield from make.gauge(
        "holdfast_source_silent_seconds", "Time since the last record.", each(lambda row: _ms(row.get("idle_ms")))
    )


def _operators(status: Status) -> Iterator[Any]:
    make, rows = _Families(status), status["operators"]

    def each(field: str) -> Samples:
        return [({"operator": row["name"]}, row[field]) for row in rows]

    for name, help, field in (
        ("holdfast_operator_rows_in", "Rows that the operator took, since its worker was deployed.", "rows_in"),
        ("holdfast_operator_rows_out", "Rows that it gave.", "rows_out"),
        ("holdfast_operator_rows_dropped", "Rows that it dropped because a function failed.", "dropped"),
        ("holdfast_operator_dead_letters", "Rows that it made dead letters.", "dlq"),
    ):
        yield from make.counter(name, help, each(field))
    yield from make.gauge("holdfast_operator_state_bytes", "State of the operator.", each("state_bytes"))
    late = (status.get("late") or {}).get("operators") or {}
    yield from make.counter(
        "holdfast_late_records",
        "Records that arrived after their window was closed, as of the last checkpoint.",
        [({"operator": name}, count) for name, count in late.items()],
    )


def _sinks(status: Status) -> Iterator[Any]:
    make, rows = _Families(status), status["sinks"]
    for name, help, field in (
        ("holdfast_sink_staged_epoch", "Newest epoch with output for the sink.", "staged_epoch"),
        ("holdfast_sink_delivered_epoch", "Newest epoch whose output is in the target.", "delivered_epoch"),
    ):
        yield from make.gauge(name, help, [({"sink": row["name"]}, row[field]) for row in rows])
    failing = [({"sink": row["name"]}, int(row["error"] is not None)) for row in rows]
    yield from make.gauge("holdfast_sink_failing", "1 if the last attempt to deliver failed.", failing)


def _workers(status: Status) -> Iterator[Any]:
    make, rows = _Families(status), status["workers"]
    yield from make.gauge("holdfast_workers", "Workers that are connected to the driver.", [({}, len(rows))])
    taken = [({"subtask": subtask}, row) for row in rows for subtask in row["subtasks"]]
    memory = [(labels, row["rss_bytes"]) for labels, row in taken]
    yield from make.gauge("holdfast_worker_memory_bytes", "Resident memory of the worker's process.", memory)
    behind = [(labels, row["lag_epochs"]) for labels, row in taken]
    yield from make.gauge("holdfast_worker_lag_epochs", "Epochs by which the worker's local state lags.", behind)
    standbys = [({"worker": row["id"]}, row) for row in rows if row["role"] == "standby"]
    lag = [(labels, row["lag_epochs"]) for labels, row in standbys]
    yield from make.gauge("holdfast_standby_lag_epochs", "Epochs that the standby's oldest copy lacks.", lag)
    size = [(labels, row["lag_bytes"]) for labels, row in standbys]
    yield from make.gauge("holdfast_standby_lag_bytes", "Stored bytes that the standby's copies lack.", size)


def _s(at_us: int | None) -> float | None:
    return None if at_us is None else at_us / 1_000_000


def _ms(duration_ms: int | None) -> float | None:
    return None if duration_ms is None else duration_ms / 1000


def _known(value: int | None) -> int | None:
    """Return an offset or time; None for the values that mean "not known yet"."""
    return None if value is None or value < 0 else value
