"""hf.Http: what it refuses, what it sends, and what it makes of replies."""

from __future__ import annotations

import hashlib
import hmac
import json
import pickle
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from http_receiver import HttpReceiver

import holdfast as hf
from holdfast.errors import ConfigError, NotAdmitted, Unavailable
from holdfast.model import Epoch, Subtask, Tag, Timeline, Writer
from holdfast.runtime.sources.webhook.signatures import problem_of as signature_problem
from holdfast.runtime.sources.webhook.signatures import scheme_of
from holdfast.sinks.contract import Delivered
from holdfast.sinks.http import replies
from holdfast.sinks.http.requests import requests_of
from holdfast.sinks.http.sink import Http
from holdfast.storage.log.log import LogReader
from holdfast.storage.objects import LocalObjects

JOB, LEFT = "6f9b0f6e-0000-4000-8000-000000000001", Writer("out", Subtask(0))
SCHEMA = pa.schema([pa.field("n", pa.int64()), pa.field("word", pa.string())])
SECRET = "a-secret-that-no-message-shows"
URL = "https://api.example.com/rows"


class Crash(BaseException):
    """The process ends here."""


def tag(epoch: int, timeline: int = 1) -> Tag:
    return Tag(Timeline(timeline), Epoch(epoch))


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"n": n, "word": f"w{n}"} for n in numbers], SCHEMA)


def prepared(receiver: HttpReceiver, folder: Path, **how: Any) -> Http:
    sink = Http(receiver.url, progress=folder / "progress", **how)
    sink.prepare(SCHEMA, None)
    return sink


class TestArguments:
    @pytest.mark.parametrize(
        ("url", "how", "what"),
        [
            ("ftp://api.example.com/", {}, "not one of http"),
            ("https:///rows", {}, "not one of http"),
            ("https://api.example.com/ro ws", {}, "not one of http"),
            ("https://api.example.com/rows#top", {}, "not one of http"),
            (f"https://app:{SECRET}@api.example.com/rows", {}, "a user or a password"),
            (URL, {"batch_rows": 0}, "batch_rows is 0"),
            (URL, {"batch_rows": True}, "batch_rows is True"),
            (URL, {"timeout_s": 0}, "timeout_s is 0"),
            (URL, {"signature": "hmac-sha256:X-Signature"}, "one without the other"),
            (URL, {"secret": hf.secret("env:S")}, "one without the other"),
            (URL, {"signature": "md5:X", "secret": hf.secret("env:S")}, "signature is 'md5:X'"),
            (URL, {"signature": "hmac-sha256:Host", "secret": hf.secret("env:S")}, "signature is"),
            (URL, {"secret": SECRET}, "is not an hf.secret"),
            (URL, {"headers": {"idempotency-key": "1"}}, "is set by the sink"),
            (URL, {"headers": {"a b": "1"}}, "no header"),
            (URL, {"headers": {"X-Token": f"{SECRET}\n"}}, "not text that a header can hold"),
        ],
    )
    def test_that_do_not_fit_are_refused_without_a_secret(self, url: str, how: dict[str, Any], what: str) -> None:
        with pytest.raises(ConfigError, match=what) as caught:
            Http(url, progress="progress", **how)
        assert SECRET not in str(caught.value)

    def test_a_folder_for_progress_is_required(self) -> None:
        with pytest.raises(ConfigError, match="progress"):
            Http(URL)  # type: ignore[call-arg]
        with pytest.raises(ConfigError, match="progress is empty"):
            Http(URL, progress="")

    def test_a_query_is_not_shown(self) -> None:
        sink = Http(f"{URL}?token={SECRET}", progress="s3://bucket/p")
        assert SECRET not in f"{sink!r} {sink.where} {sink.traits.place}"
        assert sink.traits.local_paths == ()


class TestPlan:
    def test_a_stream_that_replaces_rows_is_refused(self, tmp_path: Path) -> None:
        app = hf.App("words")
        counted = app.source("rows", hf.Log(tmp_path / "in", SCHEMA)).key_by("word").agg("a", n=hf.count())
        with pytest.raises(ConfigError, match="replaces rows by"):
            counted.sink("out", Http(URL, progress=tmp_path / "progress"))

    def test_columns_without_a_form_in_json_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="JSON values cannot hold"):
            Http(URL, progress="p").check(pa.schema([pa.field("t", pa.duration("us"))]), None)

    def test_nan_is_refused_before_it_is_staged(self) -> None:
        with pytest.raises(ConfigError, match="NaN"):
            Http(URL, progress="p").accept(pa.RecordBatch.from_pydict({"x": [float("nan")]}))

    def test_it_travels_without_a_secret(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("S", SECRET)
        sink = Http(URL, progress="p", headers={"X-Token": hf.secret("env:S")})
        assert SECRET.encode() not in pickle.dumps(sink) and pickle.loads(pickle.dumps(sink)) == sink  # noqa: S301
        assert sink.traits.secrets == (hf.secret("env:S"),)


class TestRequests:
    def test_bodies_and_keys_are_the_same_however_rows_are_batched(self) -> None:
        whole = requests_of(JOB, LEFT, tag(1), [rows(1, 2, 3, 4, 5)], 2)
        assert whole == requests_of(JOB, LEFT, tag(1), [rows(1), rows(2, 3, 4), rows(5)], 2)
        assert [json.loads(each.body) for each in whole[1]][2] == [{"n": 5, "word": "w5"}]

    def test_every_part_of_where_rows_are_makes_another_key(self) -> None:
        again = [
            requests_of(JOB, LEFT, tag(1), [rows(1, 1)], 1),
            requests_of("another", LEFT, tag(1), [rows(1)], 1),
            requests_of(JOB, Writer("out", Subtask(1)), tag(1), [rows(1)], 1),
            requests_of(JOB, Writer("more", Subtask(0)), tag(1), [rows(1)], 1),
            requests_of(JOB, LEFT, tag(2), [rows(1)], 1),
            requests_of(JOB, LEFT, tag(1, 2), [rows(1)], 1),
            requests_of(JOB, LEFT, tag(1), [rows(2)], 1),
        ]
        keys = [request.key for _, found in again for request in found]
        assert len(set(keys)) == len(keys) == 8

    def test_a_changed_batch_size_never_uses_a_key_for_other_rows(self) -> None:
        keys = [{each.key for each in requests_of(JOB, LEFT, tag(1), [rows(1, 2, 3)], size)[1]} for size in (2, 3)]
        assert not keys[0] & keys[1]

    def test_a_version_sends_what_earlier_ones_sent(self) -> None:
        [request] = requests_of(JOB, LEFT, tag(7), [rows(1, 2)], 100)[1]
        assert request.body == b'[{"n":1,"word":"w1"},{"n":2,"word":"w2"}]'
        assert request.key == "a5c311df-192a-8cb6-b51e-a2c60cd9505e"

    def test_one_row_is_an_object_and_no_row_is_no_request(self) -> None:
        assert requests_of(JOB, LEFT, tag(1), [rows(1)], 1)[1][0].body == b'{"n":1,"word":"w1"}'
        assert requests_of(JOB, LEFT, tag(1), [], 1) == (0, [])


class TestDelivery:
    def test_a_request_has_its_headers_and_a_signature_that_our_webhook_takes(
        self, receiver: HttpReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("S", SECRET)
        how = {"Authorization": hf.secret("env:S"), "X-Team": "shop"}
        signed = {"signature": "hmac-sha256:X-Signature", "secret": hf.secret("env:S")}
        with closing(prepared(receiver, tmp_path, headers=how, **signed).open(JOB, LEFT)) as target:
            assert target.deliver(tag(1), [rows(1)]) == Delivered(1)
        [taken] = receiver.taken
        shown = {name: taken.headers[name] for name in ("authorization", "x-team", "content-type")}
        assert shown == {"authorization": SECRET, "x-team": "shop", "content-type": "application/json"}
        digest = hmac.new(SECRET.encode(), taken.body, hashlib.sha256).hexdigest()
        assert taken.headers["x-signature"] == f"sha256={digest}"
        scheme = scheme_of("hmac-sha256:X-Signature")
        assert signature_problem(scheme, taken.headers, taken.body, [SECRET.encode()], 0, 1) is None

    def test_a_crash_before_the_tag_sends_the_same_requests_again(
        self, receiver: HttpReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sink, kills = prepared(receiver, tmp_path, batch_rows=2), ["commit"]
        create = LocalObjects.create

        def killed(self: LocalObjects, path: str, data: bytes) -> None:
            if kills:
                raise Crash(kills.pop())
            create(self, path, data)

        monkeypatch.setattr(LocalObjects, "create", killed)
        with closing(sink.open(JOB, LEFT)) as target, pytest.raises(Crash):
            target.deliver(tag(1), [rows(1, 2, 3)])
        assert not kills and len(receiver.taken) == 2
        with closing(sink.open(JOB, LEFT)) as target:
            assert target.delivered() is None
            assert target.deliver(tag(1), [rows(1), rows(2, 3)]) == Delivered(3)
        keys = [each.key for each in receiver.taken]
        assert keys[:2] == keys[2:] and len(receiver.rows()) == 3

    def test_what_was_delivered_is_not_sent_again(self, receiver: HttpReceiver, tmp_path: Path) -> None:
        sink = prepared(receiver, tmp_path)
        for _ in range(2):
            with closing(sink.open(JOB, LEFT)) as target:
                target.deliver(tag(1), [rows(1)])
        assert len(receiver.taken) == 1

    def test_progress_holds_no_row(self, receiver: HttpReceiver, tmp_path: Path) -> None:
        with closing(prepared(receiver, tmp_path).open(JOB, LEFT)) as target:
            target.deliver(tag(1), [rows(1)])
        assert LogReader(LocalObjects(tmp_path / "progress")).end_offsets() == {0: 0}

    @pytest.mark.parametrize("status", [400, 404, 413, 422, 302, 307])
    def test_a_final_refusal_names_status_and_reply_without_secrets(
        self, receiver: HttpReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
    ) -> None:
        monkeypatch.setenv("S", SECRET)
        sink = prepared(receiver, tmp_path, headers={"Authorization": hf.secret("env:S")})
        receiver.replies = [(status, {"Location": f"{receiver.url}/other"}, f"no: {SECRET} {'x' * 999}".encode())]
        with closing(sink.open(JOB, LEFT)) as target, pytest.raises(ConfigError) as caught:
            target.deliver(tag(1), [rows(1)])
        assert f"HTTP {status}: no: *** x" in caught.value.what and SECRET not in str(caught.value)
        assert len(caught.value.what) < 500 and not receiver.taken

    @pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504])
    def test_others_are_sent_again_with_their_key(self, receiver: HttpReceiver, tmp_path: Path, status: int) -> None:
        sink = prepared(receiver, tmp_path)
        receiver.replies = [(status, {}, b"later")]
        with closing(sink.open(JOB, LEFT)) as target:
            with pytest.raises(Unavailable, match=f"HTTP {status}: later"):
                target.deliver(tag(1), [rows(1)])
            assert target.deliver(tag(1), [rows(1)]) == Delivered(1)

    @pytest.mark.parametrize("status", [401, 403])
    def test_a_refused_login_is_waited_for(self, receiver: HttpReceiver, tmp_path: Path, status: int) -> None:
        sink = prepared(receiver, tmp_path)
        receiver.replies = [(status, {}, b"")]
        with closing(sink.open(JOB, LEFT)) as target, pytest.raises(NotAdmitted):
            target.deliver(tag(1), [rows(1)])

    def test_nothing_is_sent_before_the_time_that_the_receiver_asked_for(
        self, receiver: HttpReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = [100.0]
        monkeypatch.setattr("holdfast.sinks.http.client.time.monotonic", lambda: now[0])
        sink = prepared(receiver, tmp_path)
        receiver.replies = [(429, {"Retry-After": "30"}, b"")]
        with closing(sink.open(JOB, LEFT)) as target:
            for message in ("HTTP 429", "asked to be sent nothing for 30 s"):
                with pytest.raises(Unavailable, match=message):
                    target.deliver(tag(1), [rows(1)])
                target.close()  # as after every failure
            now[0] += 30
            assert target.deliver(tag(1), [rows(1)]) == Delivered(1)
        assert receiver.refused == 1

    def test_a_secret_that_no_header_can_hold_is_not_shown(
        self, receiver: HttpReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("S", f"{SECRET}\nX-Other: 1")
        sink = prepared(receiver, tmp_path, headers={"Authorization": hf.secret("env:S")})
        with closing(sink.open(JOB, LEFT)) as target, pytest.raises(ConfigError, match="'Authorization'") as caught:
            target.deliver(tag(1), [rows(1)])
        assert SECRET not in str(caught.value) and not receiver.taken


class TestProbe:
    def test_connects_and_sends_nothing(self, receiver: HttpReceiver, tmp_path: Path) -> None:
        sink = Http(receiver.url, progress=tmp_path / "progress")
        assert "the first start creates the log" in sink.probe(SCHEMA, None)
        assert not receiver.taken and not (tmp_path / "progress").exists()

    def test_a_server_without_tls_is_unavailable(self, receiver: HttpReceiver, tmp_path: Path) -> None:
        sink = Http(receiver.url.replace("http:", "https:"), progress=tmp_path / "progress", timeout_s=2)
        with pytest.raises(Unavailable, match="is unreachable"):
            sink.probe(SCHEMA, None)

    def test_another_job_in_the_same_place_is_refused(self, receiver: HttpReceiver, tmp_path: Path) -> None:
        sink = prepared(receiver, tmp_path)
        with closing(sink.open(JOB, LEFT)) as target:
            target.deliver(tag(1), [])
        with pytest.raises(ConfigError, match="of another job"):
            sink.check_owner(None, "out")


class TestRetryAfter:
    NOW = datetime(2026, 11, 27, 12, 0, tzinfo=UTC).timestamp()

    @pytest.mark.parametrize(
        ("text", "wait"),
        [
            (None, 0.0),
            ("5", 5.0),
            ("86400", replies.RETRY_AFTER_MAX_S),
            ("-1", 0.0),
            ("soon", 0.0),
            ("Fri, 27 Nov 2026 12:00:09 GMT", 9.0),
            ("Fri, 27 Nov 2026 11:00:00 GMT", 0.0),
            ("Sat, 28 Nov 2026 12:00:00 GMT", replies.RETRY_AFTER_MAX_S),
        ],
    )
    def test_is_seconds_or_a_date_within_a_bound(self, text: str | None, wait: float) -> None:
        assert replies.wait_of(text, self.NOW) == wait
