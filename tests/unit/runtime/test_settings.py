"""Origins of settings, their forms, and refused values."""

from __future__ import annotations

import ast
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import holdfast as hf
import holdfast.runtime.config.settings
from holdfast.errors import ConfigError
from holdfast.model import (
    ChannelId,
    Epoch,
    Generation,
    JobUuid,
    ObjectRef,
    Pending,
    SnapshotHandle,
    Staged,
    Subtask,
    Tag,
    Timeline,
    Writer,
)
from holdfast.runtime.config.durations import duration_ms
from holdfast.runtime.config.settings import SETTINGS, Setting, misspelt, resolve, size_bytes
from holdfast.runtime.driver.state import Rules
from holdfast.runtime.processes.exchange import TcpNetwork
from holdfast.runtime.processes.host import WorkerTask, limits_of
from holdfast.runtime.processes.streams import close_listener, listen
from holdfast.runtime.processes.tls import make_credentials
from holdfast.runtime.testing.cluster import MemberPorts
from holdfast.runtime.testing.lanes import VirtualClock
from holdfast.runtime.wire import messages as m
from holdfast.runtime.wire.channels import MemoryNetwork, OpenLinks
from holdfast.runtime.wire.mailbox import Mailbox
from holdfast.runtime.worker.deliveries import Deliveries
from holdfast.runtime.worker.local.opened import MemoryState
from holdfast.runtime.worker.loop import Limits
from holdfast.storage.objects import MemoryObjects


@dataclass(frozen=True)
class Code:
    """What a job's code set."""

    name: str = "hot"
    root: str | None = None
    checkpoint_every: str = "1s"
    parallelism: int | None = None
    standbys: int | None = None
    key_groups: int = 128
    state_memory: str | int | None = None
    mode: str = "continuous"
    record_order: bool | None = None


@dataclass
class Numbered:
    """A row."""

    n: int


FLAG = {"parallelism": 3}
ENVIRONMENT = {"HOLDFAST_PARALLELISM": "4", "PATH": "/bin"}
SPARK = {"spark.holdfast.parallelism": "5", "spark.app.name": "x"}


class TestOrigins:
    def test_a_flag_wins_over_all(self) -> None:
        settings = resolve(Code(parallelism=6), FLAG, ENVIRONMENT, SPARK)
        assert (settings.parallelism, settings.origin("parallelism")) == (3, "flag")

    def test_the_environment_wins_over_spark(self) -> None:
        settings = resolve(Code(parallelism=6), {"parallelism": None}, ENVIRONMENT, SPARK)
        assert (settings.parallelism, settings.origin("parallelism")) == (4, "environment")

    def test_spark_wins_over_the_code(self) -> None:
        settings = resolve(Code(parallelism=6), {}, {}, SPARK)
        assert (settings.parallelism, settings.origin("parallelism")) == (5, "spark")

    def test_the_code_wins_over_the_default(self) -> None:
        settings = resolve(Code(checkpoint_every="250ms"))
        assert (settings.checkpoint_every_ms, settings.origin("checkpoint_every")) == (250, "code")

    def test_an_unset_setting_has_the_default(self) -> None:
        settings = resolve(Code())
        assert (settings.parallelism, settings.key_groups, settings.root) == (2, 128, "./.holdfast")
        assert {settings.origin(setting.name) for setting in SETTINGS} == {"default"}

    def test_every_setting_is_described_with_its_origin(self) -> None:
        described = resolve(Code(), FLAG).describe()
        assert [entry["name"] for entry in described] == [setting.name for setting in SETTINGS]
        assert next(entry for entry in described if entry["name"] == "parallelism")["origin"] == "flag"


class TestForms:
    @pytest.mark.parametrize(
        ("given", "milliseconds"),
        [("250ms", 250), ("1s", 1_000), ("1.5s", 1_500), ("5m", 300_000), ("2 h", 7_200_000), ("1d", 86_400_000)]
        + [("0s", 0), (timedelta(minutes=1), 60_000), (timedelta(milliseconds=1), 1), (timedelta(), 0)],
    )
    def test_durations_become_milliseconds(self, given: str | timedelta, milliseconds: int) -> None:
        assert duration_ms(given, "it") == milliseconds

    @pytest.mark.parametrize(
        "given",
        ["", "s", "1 week", "-1s", "1s1", "0.5ms", "nan", True, None, b"1s"]
        + [timedelta(microseconds=1_500), timedelta(seconds=-1)],
    )
    def test_anything_else_is_not_a_duration(self, given: object) -> None:
        with pytest.raises(ConfigError, match="not a duration such as"):
            duration_ms(given, "it")

    @pytest.mark.parametrize("given", [60, 60.0, "60", 0, "0", -60, np.int64(60)])
    def test_a_number_without_a_unit_is_refused_with_both_spellings(self, given: object) -> None:
        number = str(given).removeprefix("-")
        with pytest.raises(ConfigError, match="a number without a unit") as refused:
            duration_ms(given, "size")
        assert refused.value.next_step == (
            f'write "{number}s" or timedelta(seconds={number}) for seconds, "{number}ms" for milliseconds'
        )

    def test_a_flag_without_a_unit_is_refused_as_text(self) -> None:
        with pytest.raises(ConfigError, match="--older-than is '5', a number without a unit") as refused:
            duration_ms("5", "--older-than")
        assert refused.value.next_step == 'write "5s" for seconds or "5ms" for milliseconds'

    @pytest.mark.parametrize("given", [2_000, "2000", "2s", timedelta(seconds=2)])
    def test_a_setting_whose_name_has_the_unit_takes_a_number(self, given: object) -> None:
        assert resolve(Code(), {"hung_after_ms": given}).hung_after_ms == 2_000

    @pytest.mark.parametrize(
        ("text", "size"), [("64MiB", 64 << 20), ("1GB", 10**9), ("1.5 KiB", 1536), ("7", 7), ("7B", 7)]
    )
    def test_sizes_become_bytes(self, text: str, size: int) -> None:
        assert size_bytes(text, "it") == size

    @pytest.mark.parametrize("text", ["", "MiB", "64 mb", "-1KiB", -1, True])
    def test_any_other_text_is_not_a_size(self, text: str | int) -> None:
        with pytest.raises(ConfigError, match="not a size such as"):
            size_bytes(text, "it")


class TestRefusals:
    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            ({"parallelism": 0}, "--parallelism is 0, which is not a value from 1 to 1,024"),
            ({"parallelism": "two"}, "not a whole number"),
            ({"parallelism": True}, "not a whole number"),
            ({"checkpoint_every": "1ms"}, "--checkpoint-every is '1ms', which is not a value from 10ms to 1h"),
            ({"checkpoint_every": "fast"}, "not a duration"),
            ({"channel_bytes_max": "1B"}, "not a value from 64KiB to 4GiB"),
            ({"max_records_per_second": "0"}, "not a value of at least 1"),
            ({"root": ""}, "not text that is not empty"),
            ({"paralelism": 2}, "use 'parallelism'"),
            ({"parallelism": 9, "key_groups": 8}, "lower parallelism to at most 8"),
            ({"heartbeat_ms": 3_000}, "at least twice heartbeat_ms"),
        ],
    )
    def test_an_invalid_value_is_refused_under_the_name_it_was_given_with(
        self, flags: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            resolve(Code(), flags)

    def test_a_misspelt_spark_setting_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="use 'checkpoint_every'"):
            resolve(Code(), spark_conf={"spark.holdfast.checkpoint_evry": "1s"})

    def test_other_variables_with_the_prefix_are_ignored(self) -> None:
        assert resolve(Code(), env={"HOLDFAST_PG_DSN": "x"}).parallelism == 2


class TestChoices:
    def test_a_number_without_its_unit_is_explained(self) -> None:
        with pytest.raises(ConfigError) as refused:
            resolve(Code(), {"hung_after_ms": "2"})
        assert refused.value.next_step.endswith("; the number alone counts as milliseconds")

    def test_a_setting_whose_name_has_no_unit_needs_one(self) -> None:
        with pytest.raises(ConfigError, match="a number without a unit"):
            resolve(Code(), env={"HOLDFAST_CHECKPOINT_EVERY": "500"})

    @pytest.mark.parametrize(
        ("variable", "meant"),
        [
            ("HOLDFAST_CHECKPOINTS_EVERY", "HOLDFAST_CHECKPOINT_EVERY"),
            ("HOLDFAST_CHECKPOINT_INTERVAL", "HOLDFAST_CHECKPOINT_EVERY"),
            ("HOLDFAST_SILENT_AFTER", "HOLDFAST_SILENT_AFTER_MS"),
            ("HOLDFAST_METRIC_PORT", "HOLDFAST_METRICS_PORT"),
        ],
    )
    def test_a_variable_named_almost_like_a_setting_is_reported(self, variable: str, meant: str) -> None:
        assert misspelt({variable: "1s", "PATH": ""}) == (
            f"{variable} is set, but no setting has this name, so it has no effect; did you mean {meant}?",
        )

    @pytest.mark.parametrize(
        "name", ["HOLDFAST_DETOUR", "HOLDFAST_TOXIPROXY", "HOLDFAST_CHAOS_RUN", "HOLDFAST_PG_DSN", "HOLDFAST_ROOT"]
    )
    def test_a_variable_with_a_different_name_is_not_reported(self, name: str) -> None:
        assert misspelt({name: "1"}) == ()

    def test_tls_and_shared_paths_accept_only_their_choices(self) -> None:
        settings = resolve(Code(), {}, {"HOLDFAST_TLS": "off"}, {"spark.holdfast.shared_paths": "true"})
        assert (settings.tls, settings.origin("tls")) == ("off", "environment")
        assert (settings.shared_paths, settings.origin("shared_paths")) == ("true", "spark")
        with pytest.raises(ConfigError, match="auto, on, off"):
            resolve(Code(), {}, {"HOLDFAST_TLS": "yes"})


class TestPasswords:
    @pytest.mark.parametrize("origin", ["flag", "environment", "spark", "code"])
    def test_in_a_root_are_refused_from_any_origin_and_not_repeated(self, origin: str) -> None:
        url = "s3://key:hunter2@bucket"
        with pytest.raises(ConfigError, match="holds a password") as caught:
            resolve(
                Code(root=url if origin == "code" else None),
                {"root": url} if origin == "flag" else {},
                {"HOLDFAST_ROOT": url} if origin == "environment" else {},
                {"spark.holdfast.root": url} if origin == "spark" else {},
            )
        assert "hunter2" not in str(caught.value) + repr(caught.value.as_json())


@cache
def reads_of_settings() -> set[str]:
    """Return which attributes of settings the code of a run reads; showing a setting is no use of it."""
    found: set[str] = set()
    folder = Path(holdfast.runtime.config.settings.__file__).parents[1]
    for file in folder.rglob("*.py"):
        if file.name in ("settings.py", "compiler.py", "plan.py", "plan_changes.py"):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value).split(".")[-1] == "settings":
                found.add(node.attr)
    return found


class TestEverySettingHasAnEffect:
    @pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
    def test_the_setting_is_read_by_a_run(self, setting: Setting) -> None:
        name = "checkpoint_every_ms" if setting.name == "checkpoint_every" else setting.name
        assert name in reads_of_settings()

    def test_channels_accept_data_up_to_their_limit(self) -> None:
        deaf = listen("127.0.0.1")  # takes connections and answers none, so nothing leaves the queue
        network = TcpNetwork("127.0.0.1", make_credentials(False), Mailbox(), 1_000)
        own, away = ChannelId(0, Subtask(0), Subtask(0)), ChannelId(0, Subtask(0), Subtask(1))
        batch = pa.record_batch({"n": pa.array(range(100), pa.int64())})
        links = network.open(
            OpenLinks(
                JobUuid("job"),
                Generation(1),
                Subtask(0),
                (own,),
                (own, away),
                {Subtask(1): deaf.getsockname()[:2]},
                {0: batch.schema},
                lambda *_: None,
            )
        )
        try:
            for channel in (own, away):
                links.put(channel, batch)
                assert links.room(channel)
                links.put(channel, batch)
                assert not links.room(channel)
        finally:
            links.close()
            network.close()
            close_listener(deaf)

    def test_the_loop_of_a_worker_gets_its_limits(self, tmp_path: Path) -> None:
        app = hf.App("numbers")
        app.source("n", hf.Generator(Numbered, Numbered, count=1)).sink("out", hf.SQLite("unused.db", table="t"))
        given = {"max_records_per_second": 9, "staged_bytes_max": 2_000_000, "state_memory": 100 << 20}
        task = WorkerTask(app.plan(), "root", ("127.0.0.1", 1), make_credentials(False), resolve(app, given))
        limits = limits_of(task)
        assert (limits.max_records_per_second, limits.staged_bytes_max) == (9.0, 2_000_000)
        assert limits.budget is not None and limits.budget.total == 100 << 20

    def test_pending_output_stops_sources_at_its_limit(self) -> None:
        app = hf.App("numbers")
        app.source("n", hf.Generator(Numbered, Numbered, count=1)).sink("out", hf.SQLite("unused.db", table="t"))
        ports = MemberPorts(VirtualClock(), MemoryObjects(), MemoryNetwork(), MemoryState(), lambda _: None)

        def is_full(staged_bytes_max: int) -> bool:
            deliveries = Deliveries(
                app.plan(), ports, lambda *_: None, lambda *_: None, list[BaseException]().append, staged_bytes_max
            )
            staged = Staged((ObjectRef("staged/x", 1_000, "0"),), 1)
            pending = Pending(Writer("out", Subtask(0)), Tag(Timeline(1), Epoch(1)), staged)
            handle = SnapshotHandle(Subtask(0), (0, 128), (), Epoch(0), ())
            deliveries.deploy(
                m.Deploy(
                    JobUuid("j"),
                    Generation(1),
                    Timeline(1),
                    Epoch(1),
                    Epoch(0),
                    m.ActiveRole(Subtask(0)),
                    (),
                    handle,
                    (),
                    (pending,),
                    (),
                )
            )
            return deliveries.full()

        assert (is_full(1_000), is_full(1_001)) == (True, False)


class TestNames:
    @pytest.mark.parametrize("inside", [Rules, Limits])
    def test_a_setting_has_the_same_name_inside_but_for_its_unit(self, inside: type) -> None:
        """A reader who searches for a setting finds it only if the code calls it by the same name."""
        known = {setting.name.removesuffix("_ms") for setting in SETTINGS}
        within = {field.name.removesuffix("_s") for field in fields(inside)}
        expected = {
            Rules: {
                "key_groups",
                "checkpoint_every",
                "silent_after",
                "restart_failures_max",
                "restart_window",
                "restart_backoff_first",
                "restart_backoff_max",
                "standbys",
                "audit",
                "staged_bytes_max",
                "loss_alarm",
                "record_order",
            },
            Limits: {"max_records_per_second", "staged_bytes_max"},
        }
        assert known & within == expected[inside]
