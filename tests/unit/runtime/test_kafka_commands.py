"""Commands about a job whose topic removes records: what `doctor` says before, and `audit` and `status` after."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from kafka_server import KafkaServer
from msgspec.structs import replace as replace_fields
from patience import wait

from holdfast.model import DriverProcess
from holdfast.runtime.cli.main import main
from holdfast.runtime.cli.start.doctor_cluster import Check
from holdfast.runtime.cli.start.doctor_job import job
from holdfast.runtime.cli.start.jobfile import load
from holdfast.runtime.config.settings import resolve
from holdfast.runtime.execution.prepare import prepare
from holdfast.runtime.job.status import of_run, records_at_risk
from holdfast.runtime.plan.loss import Risk
from holdfast.runtime.testing.cluster import Cluster
from holdfast.storage.objects import LocalObjects

pytestmark = pytest.mark.kafka
JOB = """
import re

import holdfast as hf

app = hf.App("words", root={root!r}, key_groups=8)
app.source("rows", hf.Kafka({servers!r}, {topic}, hf.Raw(), on_lost="earliest")).sink("out", hf.Log({log!r}))
"""
HALF_AN_HOUR_MS = 30 * 60_000


@pytest.fixture
def topic(kafka: KafkaServer) -> str:
    topic = kafka.topic(retention_ms=str(2 * HALF_AN_HOUR_MS))
    kafka.produce(topic, [b"one", b"two"])
    return topic


@pytest.fixture(params=["topic", "pattern"])
def file(request: pytest.FixtureRequest, kafka: KafkaServer, topic: str, tmp_path: Path) -> Path:
    """Return the file of a job that reads the topic by its name, or by a pattern that only it matches."""
    given = repr(topic) if request.param == "topic" else f"re.compile({topic!r})"
    file = tmp_path / "words.py"
    places = {"root": str(tmp_path / "root"), "log": str(tmp_path / "out")}
    file.write_text(JOB.format(servers=kafka.servers, topic=given, **places))
    return file


def run(file: Path, end: int = 2) -> Cluster:
    """Run the job until it has read everything."""
    app = load(str(file))
    prepared = prepare(app.plan(), resolve(app))
    cluster = Cluster(prepared.plan, 1, 0, prepared.folder.store, 1.0, prepared.inputs.partitions)
    cluster.begin()

    def read() -> bool:
        cluster.pass_time(1.0)
        running = cluster.driver.state.deployed
        return running is not None and running.last is not None and running.last.positions[0].offset == end

    wait(read, "a checkpoint behind all records")
    return cluster


def checks(file: Path) -> list[Check]:
    return [each for each in job(str(file), None, None, None) if each.name == "retention rows"]


class TestDoctor:
    def test_reports_nothing_before_the_first_checkpoint(self, file: Path) -> None:
        assert checks(file) == []

    def test_warns_of_records_that_a_stopped_job_will_lose(
        self, kafka: KafkaServer, topic: str, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run(file)
        assert [(each.state, each.found) for each in checks(file)] == [
            ("ok", "no unread record is removed within 3,600 s")
        ]
        kafka.produce(topic, [b"three"], timestamp=round(1000 * time.time()) - HALF_AN_HOUR_MS)
        (check,) = checks(file)
        assert check.state == "warn" and "unread records before offset 3 will be removed" in check.found
        assert check.found.endswith("the last checkpoint is at offset 2, and the job is not running")
        assert check.next is not None and "retention.ms" in check.next
        kafka.delete_records(topic, 0, 3)
        kafka.produce(topic, [b"four"])
        (check,) = checks(file)
        assert check.state == "warn" and "offsets 2 to 2 (1), which the last checkpoint has not read" in check.found
        monkeypatch.setenv("HOLDFAST_LOSS_ALARM_MS", "0")
        assert checks(file) == []

    def test_repeats_what_the_driver_of_a_running_job_has_found(
        self, kafka: KafkaServer, topic: str, file: Path
    ) -> None:
        cluster = run(file)
        kafka.produce(topic, [b"three"])
        now_us = round(1e6 * time.time())
        shown = of_run(cluster.driver.state, "", "continuous", DriverProcess(host="h", pid=1, at=now_us, owner="o"))
        store = LocalObjects(file.parent / "root" / "words")
        store.put("live.json", json.dumps(shown.as_json()).encode())
        assert [each.state for each in checks(file)] == ["ok"], "the job reads it in a moment"
        problems = records_at_risk({("rows", 0): Risk(2, 3, 0, 0.5), ("others", 0): Risk(2, 3, 0, 0.5)}, 3600.0)
        shown = replace_fields(shown, problems=tuple(problems))
        store.put("live.json", json.dumps(shown.as_json()).encode())
        (check,) = checks(file)
        assert check.state == "warn" and check.found.endswith("the job reads 0.5 offsets per second")
        old = replace_fields(shown, driver=DriverProcess(host="h", pid=1, at=now_us - 60_000_000, owner="o"))
        store.put("live.json", json.dumps(old.as_json()).encode())
        (check,) = checks(file)
        assert check.found.endswith("the job is not running"), "that driver is gone"


@pytest.mark.parametrize("file", ["pattern"], indirect=True)
class TestTopicsByPattern:
    def test_are_checked_by_plan_and_doctor_before_and_after_the_first_start(
        self, kafka: KafkaServer, topic: str, file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (source,) = [each for each in job(str(file), None, None, None) if each.name == "source rows"]
        assert source.state == "ok" and source.found.endswith("the first start copies its list of topics")
        assert main(["plan", str(file)]) == 0
        run(file)
        assert main(["plan", str(file)]) == 0
        capsys.readouterr()
        kafka.delete(topic)
        kafka.topic(1, topic)
        main(["plan", str(file)])
        assert "was recreated" not in capsys.readouterr().out, "the topic that was read has ended"
        file.write_text(file.read_text().replace(', on_lost="earliest"', ""))
        main(["plan", str(file)])
        assert f"topic {topic!r}" in (shown := capsys.readouterr().out) and "was recreated" in shown

    def test_keep_their_numbers_in_a_fork(self, file: Path) -> None:
        run(file)
        root = file.parent / "root"
        assert main(["fork", "words", "copy", "--from-epoch", "1", "--root", str(root)]) == 0
        lists = [LocalObjects(root / each / "sources" / "rows") for each in ("words", "copy")]
        before, after = [{path: store.get(path) for path in store.list("")} for store in lists]
        assert before == after and len(before) == 2


class TestLost:
    def test_offsets_are_named_by_the_audit_and_by_the_status_of_a_stopped_job(
        self, kafka: KafkaServer, topic: str, file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run(file)
        kafka.produce(topic, [b"three", b"four", b"five"])
        kafka.delete_records(topic, 0, 4)
        run(file, end=5)
        capsys.readouterr()
        assert main(["audit", str(file)]) == 0
        shown = capsys.readouterr().out
        assert "offsets 2 to 3 were removed before they were read" in shown
        assert shown.rstrip().endswith("2 offsets of sources were removed before they were read: rows partition 0 2")
        assert main(["audit", str(file), "--json"]) == 0
        sources = json.loads(capsys.readouterr().out)["sources"]
        assert [each["lost"] for each in sources if "lost" in each] == [[[2, 4]]]
        assert main(["status", "words", "--root", str(file.parent / "root"), "--json"]) == 0
        assert [each["lost"] for each in json.loads(capsys.readouterr().out)["sources"]] == [2]
