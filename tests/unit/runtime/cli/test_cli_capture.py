"""`holdfast capture`: which source it captures, and its refusals before anything is received."""

from __future__ import annotations

import signal
import sys
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.runtime.capture import webhook
from holdfast.runtime.capture.postgres import capturer as postgres
from holdfast.runtime.capture.server import Listening
from holdfast.runtime.capture.sqlite import capturer as sqlite
from holdfast.runtime.cli.start import capture
from holdfast.storage.log.log import create_log
from holdfast.storage.objects import LocalObjects

if TYPE_CHECKING:
    from tests.unit.runtime.cli.conftest import Ended

    Holdfast = Callable[..., Ended]

HEAD = """
import holdfast as hf
import pyarrow as pa

SCHEMA = pa.schema([("id", pa.utf8())])
app = hf.App("payments")
"""
WEBHOOK = 'hf.Webhook("127.0.0.1:0", hf.Log("{name}"), SCHEMA)'
LINE = 'app.source("{name}", {source}).sink("{name}-out", hf.Console())\n'


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., str]:
    """Writes a job with sources, by name; those that are called "plain" are no webhooks."""

    def write(*names: str) -> str:
        lines = []
        for name in names:
            path = tmp_path / name
            source = f"hf.Log({str(path)!r}, SCHEMA)" if name == "plain" else WEBHOOK.format(name=path)
            lines.append(LINE.format(name=name, source=source))
        file = tmp_path / "job.py"
        file.write_text(HEAD + "".join(lines))
        return str(file)

    return write


class TestChoice:
    def test_capture_of_a_job_without_a_webhook_is_refused(self, holdfast: Holdfast, job: Callable[..., str]) -> None:
        ended = holdfast("capture", job("plain"))
        assert ended.status == 2
        assert ended.err.splitlines()[:2] == [
            "holdfast: app 'payments' has no source that is captured.",
            "Not done: nothing was received.",
        ]

    def test_among_several_has_to_be_made(self, holdfast: Holdfast, job: Callable[..., str]) -> None:
        ended = holdfast("capture", job("a", "plain", "b"))
        assert ended.status == 2 and "has several sources that are captured: a, b" in ended.err
        assert "--source a" in ended.err

    def test_the_choice_of_an_uncaptured_source_is_refused_with_the_valid_names(
        self, holdfast: Holdfast, job: Callable[..., str]
    ) -> None:
        ended = holdfast("capture", job("a", "plain"), "--source", "plain", "--json")
        assert ended.status == 2 and ended.json["next"] == "give one of a"


class TestChanges:
    @pytest.fixture
    def changes(self, tmp_path: Path) -> str:
        """A job with a captured table, whose log exists."""
        columns = pa.schema([pa.field("id", pa.int64(), False)])
        create_log(LocalObjects(tmp_path / "log"), columns, 1, ["id"], changelog=True)
        source = f'hf.PostgresChanges("host=/nowhere dbname=d user=u", "t", hf.Log({str(tmp_path / "log")!r}))'
        file = tmp_path / "job.py"
        file.write_text(HEAD + LINE.format(name="t", source=source))
        return str(file)

    def test_capture_from_an_unreachable_server_exits_with_status_5(self, holdfast: Holdfast, changes: str) -> None:
        before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        ended = holdfast("capture", changes)
        assert ended.status == 5 and "Postgres /nowhere/d" in ended.err
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before

    def test_are_checked_by_doctor(self, holdfast: Holdfast, changes: str) -> None:
        ended = holdfast("doctor", changes, "--json")
        (check,) = [each for each in ended.json["checks"] if each["name"] == "capture t"]
        assert check["state"] == "fail" and "Postgres /nowhere/d" in check["found"]

    def test_need_psycopg(self, holdfast: Holdfast, changes: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "holdfast.runtime.capture.postgres.process", None)
        ended = holdfast("capture", changes)
        assert ended.status == 2 and "pip install 'psycopg[binary]>=" in ended.err


class TestRefusal:
    def test_a_missing_secret_at_first_start_is_a_configuration_error(self, holdfast: Holdfast, tmp_path: Path) -> None:
        """As `holdfast run` and `holdfast doctor` take it. A process that has captured before waits instead."""
        signed = f"""signature="github", secret=hf.secret("file:{tmp_path / "missing"}"))"""
        source = WEBHOOK.format(name=tmp_path / "log").replace("SCHEMA)", f"SCHEMA, {signed}")
        (tmp_path / "job.py").write_text(HEAD + LINE.format(name="a", source=source))
        ended = holdfast("capture", str(tmp_path / "job.py"), "--json")
        assert ended.status == 2 and ended.json["kind"] == "config"
        assert str(tmp_path / "missing") in ended.json["what"]


class TestMissingLibrary:
    def test_is_named_with_its_extra(
        self, holdfast: Holdfast, job: Callable[..., str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "aiohttp", None)
        monkeypatch.delitem(sys.modules, "holdfast.runtime.capture.server", raising=False)
        ended = holdfast("capture", job("a"))
        assert ended.status == 2 and "pip install 'aiohttp>=" in ended.err


class TestAdvice:
    @pytest.mark.parametrize("as_json", [False, True])
    def test_advice_about_open_access_appears_in_each_output_format(
        self, as_json: bool, capsys: pytest.CaptureFixture[str]
    ) -> None:
        of = hf.Webhook("0.0.0.0:8080", hf.Log("data/log"), pa.schema([("id", pa.utf8())])).receiving
        line = partial(webhook.line, "payments", of)
        report = partial(capture.report_event, Namespace(json=as_json), "payments", line)
        webhook.listens(of, report, Listening("http://0.0.0.0:8080/", 0))
        said = capsys.readouterr()
        assert "requests are not signed" in said.err and "no idempotency key" in said.err
        assert len(said.out.splitlines()) == 1


class TestLines:
    """What people read while changes of a database are captured: numbers of things, of which there may be one."""

    SALES = hf.PostgresChanges("postgresql://app@db.example/sales", "t", hf.Log("memory/log")).capturing
    SHOP = hf.SQLiteChanges("/data/shop.db", "t", hf.Log("memory/log")).capturing

    @pytest.mark.parametrize(
        ("number", "rows", "records", "bytes_"),
        [(1, "1 row", "1 record", "1 byte"), (1_200, "1,200 rows", "1,200 records", "1,200 bytes")],
    )
    def test_postgres_capture_lines_agree_in_number(self, number: int, rows: str, records: str, bytes_: str) -> None:
        told: dict[str, object] = {"position": "0/1A", "rows": number, "records": number}
        told |= {"behind_bytes": number, "retained_bytes": number}
        lines = {
            each: postgres.line("t", self.SALES, {"event": each, **told}) for each in ("captured", "stopped", "at")
        }
        assert lines == {
            "captured": f"appended {rows} as of 0/1A to {self.SALES.log}",
            "stopped": f"stopped capturing t: {records} appended",
            "at": f"t is at 0/1A, {bytes_} behind; the server keeps {bytes_}; {records} appended",
        }

    @pytest.mark.parametrize(
        ("number", "rows", "records", "changes"),
        [(1, "1 row", "1 record", "1 change"), (1_200, "1,200 rows", "1,200 records", "1,200 changes")],
    )
    def test_sqlite_capture_lines_agree_in_number(self, number: int, rows: str, records: str, changes: str) -> None:
        told: dict[str, object] = {"position": 26, "rows": number, "records": number, "behind_records": number}
        lines = {each: sqlite.line("t", self.SHOP, {"event": each, **told}) for each in ("captured", "stopped", "at")}
        assert lines == {
            "captured": f"appended {rows} as of change 26 to {self.SHOP.log}",
            "stopped": f"stopped capturing t: {records} appended",
            "at": f"t is at change 26, {changes} behind; {records} appended",
        }

    def test_webhook_capture_lines_agree_in_number(self) -> None:
        of = hf.Webhook("0.0.0.0:8080", hf.Log("data/log"), pa.schema([("id", pa.utf8())])).receiving
        line = webhook.line("t", of, {"event": "listening", "url": "http://0.0.0.0:8080/", "known_keys": 1})
        assert line.endswith("; 1 known key")
