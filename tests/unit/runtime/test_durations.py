"""Every argument that takes a duration takes text or a timedelta, and refuses a number without a unit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from planned_source import PlannedSource

import holdfast as hf
from holdfast.runtime.config.settings import resolve
from holdfast.runtime.plan.identity import describe_operators
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import TestDriver

TIMED = pa.schema(
    [pa.field("v", pa.int64(), nullable=False), pa.field("at", pa.timestamp("us", "UTC"), nullable=False)]
)


def source_times(**given: Any) -> Any:
    app = hf.App("hot")
    app.source("b", PlannedSource(TIMED), event_time="at", **given).sink("out", MemorySink())
    [spec] = app.plan().sources
    return spec.out_of_orderness_us, spec.idle_after_s


def planned(build: Callable[[Any], Any]) -> Any:
    app = hf.App("hot")
    build(app.source("b", PlannedSource(TIMED), event_time="at")).sink("out", MemorySink())
    return describe_operators(app.plan())


def passed(duration: Any) -> float:
    app = hf.App("hot")
    app.source("b", hf.Log("data/b", TIMED)).sink("out", MemorySink())
    with TestDriver(app) as t:
        before = t.cluster.clock.now
        t.advance(duration)
        return float(t.cluster.clock.now - before)


def webhook(**given: Any) -> Any:
    return hf.Webhook("127.0.0.1:8080", hf.Log("data/h"), TIMED, **given)


def windows(lateness: Any) -> Any:
    return planned(
        lambda rows: (
            rows.key_by("v").window(hf.tumbling("1h"), allowed_lateness=lateness).agg("n", n=hf.count(), emit="final")
        )
    )


TAKE_DURATIONS: list[Callable[[Any], Any]] = [
    hf.tumbling,
    lambda d: hf.tumbling("1h", offset=d),
    lambda d: hf.hopping(d, every="1s"),
    lambda d: hf.hopping("1h", every=d),
    hf.sliding,
    hf.session,
    hf.every,
    lambda d: hf.between(d, "1h"),
    lambda d: hf.between("0s", d),
    lambda d: hf.pattern("a").within(d).within_us,
    lambda d: hf.Value(int, ttl=d).ttl_us,
    lambda d: hf.List(int, ttl=d).ttl_us,
    lambda d: hf.Map(int, int, ttl=d).ttl_us,
    lambda d: resolve(hf.App("hot", checkpoint_every=d)).checkpoint_every_ms,
    lambda d: source_times(out_of_orderness=d),
    lambda d: source_times(idle_after=d),
    lambda d: planned(lambda rows: rows.key_by("v").dedup("d", within=d)),
    windows,
    lambda d: webhook(horizon=d).receiving.horizon_us,
    lambda d: webhook(tolerance=d).receiving.tolerance_s,
    lambda d: webhook(linger=d).receiving.linger_ms,
    passed,
]


class TestDurations:
    @pytest.mark.parametrize("call", TAKE_DURATIONS)
    @pytest.mark.parametrize("bare", [60, 0, 1.5, "60"])
    def test_a_number_without_a_unit_is_refused_everywhere(self, call: Callable[[Any], Any], bare: object) -> None:
        with pytest.raises(hf.ConfigError, match="a number without a unit") as refused:
            call(bare)
        assert f'write "{bare}s" or timedelta(seconds={bare})' in refused.value.next_step

    @pytest.mark.parametrize("call", TAKE_DURATIONS)
    def test_a_timedelta_is_a_duration_everywhere(self, call: Callable[[Any], Any]) -> None:
        assert call(timedelta(seconds=2)) == call("2s") == call("2000ms")

    def test_a_join_bound_may_be_a_negative_timedelta(self) -> None:
        assert hf.between(timedelta(minutes=-5), timedelta(minutes=5)) == hf.between("-5m", "5m")
