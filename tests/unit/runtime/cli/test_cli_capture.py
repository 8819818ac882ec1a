"""`holdfast capture`: which source it captures, and its refusals before anything is received."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.runtime.capture.server import Listening
from holdfast.runtime.cli.start import capture

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
    def test_of_a_job_without_a_webhook_is_refused(self, holdfast: Holdfast, job: Callable[..., str]) -> None:
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

    def test_of_another_source_is_refused_with_the_names(self, holdfast: Holdfast, job: Callable[..., str]) -> None:
        ended = holdfast("capture", job("a", "plain"), "--source", "plain", "--json")
        assert ended.status == 2 and ended.json["next"] == "give one of a"


class TestMissingLibrary:
    def test_is_named_with_its_extra(
        self, holdfast: Holdfast, job: Callable[..., str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "aiohttp", None)
        monkeypatch.delitem(sys.modules, "holdfast.runtime.capture.server", raising=False)
        ended = holdfast("capture", job("a"))
        assert ended.status == 2 and "pip install 'holdfast[http]'" in ended.err


class TestAdvice:
    @pytest.mark.parametrize("as_json", [False, True])
    def test_that_everyone_can_append_rows_is_given_in_each_form(
        self, as_json: bool, capsys: pytest.CaptureFixture[str]
    ) -> None:
        of = hf.Webhook("0.0.0.0:8080", hf.Log("data/log"), pa.schema([("id", pa.utf8())])).receiving
        capture._report_listening(Namespace(json=as_json), "payments", of, Listening("http://0.0.0.0:8080/", 0))
        said = capsys.readouterr()
        assert "requests are not signed" in said.err and "no idempotency key" in said.err
        assert len(said.out.splitlines()) == 1
