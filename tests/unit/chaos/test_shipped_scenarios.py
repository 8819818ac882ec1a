"""The scenarios in the package can be carried out, and together cover every kind of fault."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from holdfast.chaos.judge.kinds import KINDS
from holdfast.chaos.live.faults.scenario import LiveScenario, parse
from holdfast.chaos.live.loading import SCENARIOS, prepared
from holdfast.examples import flights_data

SHIPPED = sorted(path.stem for path in SCENARIOS.glob("*.toml"))
JOB = Path(flights_data.__file__).with_name("flights.py")


def shipped(name: str) -> LiveScenario:
    return parse(tomllib.loads((SCENARIOS / f"{name}.toml").read_text()), name, toxiproxy=True)


class TestShippedScenarios:
    @pytest.mark.parametrize("name", SHIPPED)
    def test_can_be_run_with_every_kind_of_fault_within_their_duration(self, name: str) -> None:
        scenario = shipped(name)
        assert {fault.kind for fault in prepared(scenario, JOB)[0]} == set(scenario.rates)

    def test_strike_every_kind_on_a_standalone_cluster(self) -> None:
        assert set(shipped("flights-standalone").rates) == set(KINDS)
