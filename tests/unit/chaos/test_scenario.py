"""The contents that a scenario may have, and those refused before anything starts."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from holdfast.chaos.judge.kinds import KINDS
from holdfast.chaos.live.faults.scenario import Feed, LiveScenario, Observed, Waits, parse
from holdfast.chaos.live.loading import SCENARIOS
from holdfast.errors import ConfigError

LEAST: dict[str, Any] = {
    "duration": "30s",
    "platform": "local[4]",
    "check": "module:function",
    "faults": {"worker-kill": 1},
}


def parsed(*, toxiproxy: bool = True, checked_elsewhere: bool = False, **changed: Any) -> LiveScenario:
    raw = {key: value for key, value in (LEAST | changed).items() if value is not None}
    return parse(raw, "name", toxiproxy=toxiproxy, checked_elsewhere=checked_elsewhere)


def refused(**changed: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        parsed(**changed)
    assert caught.value.not_done == "nothing was started"
    return str(caught.value)


class TestScenario:
    def test_an_omitted_value_has_a_default(self) -> None:
        scenario = parsed()
        assert (scenario.name, scenario.seed, scenario.parallelism) == ("name", 0, 2)
        assert scenario.every_ms == (5_000, 15_000)
        assert scenario.wait == Waits()
        assert scenario.timeout_ms("silent_after_ms") == 5_000

    def test_the_timeouts_of_the_job_come_from_its_environment(self) -> None:
        scenario = parsed(job={"environment": {"HOLDFAST_SILENT_AFTER_MS": "2s"}})
        assert scenario.timeout_ms("silent_after_ms") == 2_000

    def test_a_log_may_be_fed(self) -> None:
        scenario = parsed(drive={"from": "whole", "to": "{out}/log", "records_per_second": 500, "prepare": ["make"]})
        assert scenario.drive == Feed("whole", "{out}/log", 500, ("make",))

    def test_a_command_may_write_the_source(self) -> None:
        assert parsed(drive={"command": ["feed", "it"]}).drive == ("feed", "it")

    def test_targets_may_be_observed(self) -> None:
        assert parsed(observe=[{"sqlite": "a.db", "grows": ["t"]}, {"log": "l"}]).observe == (
            Observed("sqlite", "a.db", ("t",)),
            Observed("log", "l"),
        )

    def test_a_local_cluster_is_refused_with_the_equivalent_standalone_cluster(self) -> None:
        with pytest.raises(ConfigError, match="leaves files outside") as caught:
            parsed(platform="local-cluster[3,2,1024]")
        assert 'give "standalone[3,2]"' in caught.value.next_step

    def test_a_standalone_cluster_has_hosts_with_cores(self) -> None:
        platform = parsed(platform="standalone[3,2]").platform
        assert (platform.hosts, platform.cores, platform.slots) == (3, 2, 6)

    def test_the_caller_may_supply_the_check(self) -> None:
        assert parsed(check=None, checked_elsewhere=True).check is None

    @pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.toml")), ids=lambda path: path.stem)
    def test_scenarios_of_the_package_can_be_run(self, path: Path) -> None:
        parse(tomllib.loads(path.read_text()), path.stem, toxiproxy=True)


class TestObserved:
    @pytest.mark.parametrize("grows", ["tails", [3], [""], {"tails": 1}])
    def test_growing_tables_are_a_list_of_names(self, grows: Any) -> None:
        assert "give names of tables" in refused(observe=[{"sqlite": "a.db", "grows": grows}])


class TestRefusals:
    def test_an_unknown_key_is_refused_with_the_known_keys(self) -> None:
        assert "'durations'" in (text := refused(durations="1s")) and "duration, seed" in text

    @pytest.mark.parametrize(
        ("key", "value", "said"),
        [
            ("job", {"env": {}}, "[job] has the unknown key 'env'"),
            ("wait", {"begin": "1s"}, "[wait] has the unknown key 'begin'"),
            ("drive", {"fro": "x"}, "[drive] has the unknown key 'fro'"),
            ("drive", {"from": "x"}, "[drive] lacks from or to"),
            ("drive", {"command": "words in a text"}, "not a list of words"),
            ("observe", [{"sqlite": "a", "log": "b"}], "must name exactly one target"),
            ("observe", ["a"], "not a list of tables"),
            ("duration", None, "has no duration"),
            ("duration", "soon", "duration is 'soon'"),
            ("every", "5s", "every is '5s'"),
            ("every", "9s..5s", "every is '9s..5s'"),
            ("seed", -1, "seed is -1"),
            ("parallelism", "2", "parallelism is '2'"),
            ("platform", "yarn", "platform is 'yarn'"),
            ("platform", "local[0]", "platform is 'local[0]'"),
            ("platform", None, "platform is None"),
            ("check", "not a function", "check is 'not a function'"),
            ("faults", {}, "has no [faults]"),
            ("faults", {"worker-kill": 0}, "the rate of worker-kill is 0"),
            ("faults", {"worker-kill": True}, "the rate of worker-kill is True"),
            ("name", "", "name is ''"),
            ("job", {"environment": {"HOLDFAST_SILENT_AFTER_MS": "later"}}, "silent_after_ms is 'later'"),
            ("job", {"environment": {"X": {"a": 1}}}, "X in [job.environment] is {'a': 1}"),
            ("job", {"environment": {"HOLDFAST_SILENT_AFTER": "2s"}}, "HOLDFAST_SILENT_AFTER in [job"),
            ("every", "0s..0s", "every is '0s..0s'"),
            ("observe", 3, "observe is not a list of tables"),
            ("observe", {"sqlite": "a"}, "observe is not a list of tables"),
            ("observe", [{"sqlite": "a", "grows": "tails"}], "grows is 'tails'"),
            ("faults", {"worker-kill": float("nan")}, "the rate of worker-kill is nan"),
            ("faults", {"worker-kill": float("inf")}, "the rate of worker-kill is inf"),
            ("check", ".:x", "check is '.:x'"),
        ],
    )
    def test_an_invalid_value_is_named(self, key: str, value: Any, said: str) -> None:
        with pytest.raises(ConfigError) as caught:
            parsed(**{key: value})
        assert said in caught.value.what

    def test_an_unknown_fault_is_refused_with_the_nearest_and_all_known_faults(self) -> None:
        text = refused(faults={"worker-kil": 1})
        assert "did you mean worker-kill" in text and all(name in text for name in KINDS)

    def test_killing_an_executor_needs_separate_executors(self) -> None:
        text = refused(faults={"executor-kill": 1})
        assert "'executor-kill' cannot strike on local[4]" in text and "worker-kill" in text
        assert parsed(faults={"executor-kill": 1}, platform="standalone").rates == {"executor-kill": 1.0}

    def test_faults_of_the_network_need_toxiproxy(self) -> None:
        text = refused(faults={"data-reset": 1}, toxiproxy=False)
        assert "tools/bootstrap.sh toxiproxy" in text and "worker-kill" in text and "data-down" not in text

    def test_a_single_worker_has_no_data_connection_to_strike(self) -> None:
        assert "no connection to another" in refused(faults={"data-latency": 1}, parallelism=1)
        assert parsed(faults={"control-latency": 1}, parallelism=1).parallelism == 1

    def test_too_few_slots_are_refused(self) -> None:
        assert "has 1 slots, too few for 2 workers" in refused(platform="local[1]")

    def test_processes_of_this_machine_have_room_for_all_workers_and_none_outside_the_driver(self) -> None:
        assert parsed(faults={"worker-stop": 1, "daemon-kill": 1}, platform="processes", parallelism=64).rates
        assert "cannot strike on processes" in refused(faults={"executor-kill": 1}, platform="processes")

    def test_a_stopped_worker_needs_a_slot_for_its_successor(self) -> None:
        assert "keeps its slot" in refused(faults={"worker-stop": 1}, platform="local[2]")

    def test_a_run_without_a_check_is_refused(self) -> None:
        assert "would prove nothing" in refused(check=None)
