"""hf.Http: what it refuses, what it sends, and what it makes of replies."""

from __future__ import annotations

import hashlib
import hmac
import json
import pickle
import ssl
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from http_receiver import HttpReceiver, answering

import holdfast as hf
from holdfast.errors import ConfigError, NotAdmitted, Unavailable
from holdfast.model import Epoch, Subtask, Tag, Timeline, Writer
from holdfast.runtime.processes.tls import make_credentials
from holdfast.runtime.sources.webhook.signatures import problem_of as signature_problem
from holdfast.runtime.sources.webhook.signatures import scheme_of
from holdfast.sinks.contract.target import AlreadyDelivered, Delivered
from holdfast.sinks.http import replies, requests
from holdfast.sinks.http.requests import Request
from holdfast.sinks.http.sink import Http
from holdfast.sinks.log.sink import LogSink
from holdfast.storage.log.log import LogReader
from holdfast.storage.objects import LocalObjects

JOB, LEFT = "6f9b0f6e-0000-4000-8000-000000000001", Writer("out", Subtask(0))
SCHEMA = pa.schema([pa.field("n", pa.int64()), pa.field("word", pa.string())])
SECRET = "a-secret-that-no-message-shows"
URL = "https://api.example.com/rows"
BROKEN = {
    "shorter than announced": b"Content-Length: 9\r\n\r\nok",
    "a broken chunk": b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\nzz\r\n",
    "not compressed as it says": b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\nok",
    "endless": b"\r\n",
}
"""Headers and bodies of replies."""


class Crash(BaseException):
    """The process ends here."""


def tag(epoch: int, timeline: int = 1) -> Tag:
    return Tag(Timeline(timeline), Epoch(epoch))


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"n": n, "word": f"w{n}"} for n in numbers], SCHEMA)


def sent(
    of: Tag, batches: list[pa.RecordBatch], batch_rows: int, job: str = JOB, writer: Writer = LEFT
) -> list[Request]:
    return list(requests.requests_of(job, writer, of, batches, batch_rows))


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
            (URL, {"headers": {"a b": "1"}}, "not a header"),
            (URL, {"headers": {"X-Token": f"{SECRET}\n"}}, "not text that a header can hold"),
            (URL, {"headers": {"authorization": f"Bearer {SECRET}"}}, "header 'authorization' holds a secret"),
            (URL, {"headers": {"X-Api-Key": SECRET}}, "header 'X-Api-Key' holds a secret"),
            (URL, {"headers": {"X-Team": "a", "x-team": "b"}}, "names 'x-team' twice"),
        ],
    )
    def test_arguments_that_do_not_fit_are_refused_without_showing_a_secret(
        self, url: str, how: dict[str, Any], what: str
    ) -> None:
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
        assert SECRET not in f"{sink!r} {sink.place!r} {sink.where} {sink.traits.place}"
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
        whole = sent(tag(1), [rows(1, 2, 3, 4, 5)], 2)
        assert whole == sent(tag(1), [rows(1), rows(2, 3, 4), rows(5)], 2)
        assert [json.loads(each.body) for each in whole][2] == [{"n": 5, "word": "w5"}]
        assert [each.rows for each in whole] == [2, 2, 1]

    def test_every_part_of_where_rows_are_makes_another_key(self) -> None:
        again = [
            sent(tag(1), [rows(1, 1)], 1),
            sent(tag(1), [rows(1)], 1, job="another"),
            sent(tag(1), [rows(1)], 1, writer=Writer("out", Subtask(1))),
            sent(tag(1), [rows(1)], 1, writer=Writer("more", Subtask(0))),
            sent(tag(2), [rows(1)], 1),
            sent(tag(1, 2), [rows(1)], 1),
            sent(tag(1), [rows(2)], 1),
        ]
        keys = [request.key for found in again for request in found]
        assert len(set(keys)) == len(keys) == 8

    def test_a_changed_batch_size_never_uses_a_key_for_other_rows(self) -> None:
        keys = [{each.key for each in sent(tag(1), [rows(1, 2, 3)], size)} for size in (2, 3)]
        assert not keys[0] & keys[1]

    def test_a_version_sends_what_earlier_ones_sent(self) -> None:
        [request] = sent(tag(7), [rows(1, 2)], 100)
        assert request.body == b'[{"n":1,"word":"w1"},{"n":2,"word":"w2"}]'
        assert request.key == "a5c311df-192a-8cb6-b51e-a2c60cd9505e"

    def test_one_row_is_an_object_and_no_row_is_no_request(self) -> None:
        assert sent(tag(1), [rows(1)], 1)[0].body == b'{"n":1,"word":"w1"}'
        assert sent(tag(1), [], 1) == []

    def test_pieces_are_limited_in_requests_and_in_bytes(self) -> None:
        small, large = Request("k", b"x", 1), Request("k", b"x" * requests.PIECE_BYTES, 1)
        assert [len(piece) for piece in requests.in_pieces([small] * 101)] == [100, 1]
        assert [len(piece) for piece in requests.in_pieces([small, large, large, small])] == [2, 1, 1]


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

    def test_after_a_failure_it_continues_behind_the_requests_that_were_taken(
        self, receiver: HttpReceiver, tmp_path: Path
    ) -> None:
        with closing(prepared(receiver, tmp_path, batch_rows=1).open(JOB, LEFT)) as target:
            for _ in range(2):
                receiver.quota = 2
                with pytest.raises(Unavailable, match="HTTP 429"):
                    target.deliver(tag(1), [rows(1, 2, 3), rows(4, 5)])
                target.close()  # as after every failure
            receiver.quota = None
            assert target.deliver(tag(1), [rows(1, 2, 3), rows(4, 5)]) == Delivered(5)
            assert target.deliver(tag(2), [rows(6)]) == Delivered(1)
        assert [row["n"] for row in receiver.rows_with_repetitions()] == [1, 2, 3, 4, 5, 6]

    @pytest.mark.parametrize("following", [tag(2), tag(1, 2)], ids=["the next epoch", "another timeline"])
    def test_all_requests_of_another_epoch_are_sent_however_many_of_this_one_were(
        self, receiver: HttpReceiver, tmp_path: Path, following: Tag
    ) -> None:
        """The reply to the first epoch is lost to another process, or a rewind leaves that epoch."""
        sink = prepared(receiver, tmp_path, batch_rows=1)
        with closing(sink.open(JOB, LEFT)) as target, closing(sink.open(JOB, LEFT)) as other:
            receiver.quota = 2
            with pytest.raises(Unavailable, match="HTTP 429"):
                target.deliver(tag(1), [rows(1, 2, 3)])
            receiver.quota = None
            if following == tag(2):
                other.deliver(tag(1), [rows(1, 2, 3)])
                assert target.deliver(tag(1), [rows(1, 2, 3)]) == AlreadyDelivered(tag(1))
            before = len(receiver.taken)
            assert target.deliver(following, [rows(4, 5, 6)]) == Delivered(3)
        assert [json.loads(each.body)["n"] for each in receiver.taken[before:]] == [4, 5, 6]

    def test_a_close_drops_the_connection_also_if_the_progress_cannot_be_closed(
        self, receiver: HttpReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        closed = list[str]()

        def fails(_target: object) -> None:
            closed.append("progress")
            raise Unavailable("the log is unreachable", not_done="nothing", next_step="nothing")

        target = prepared(receiver, tmp_path).open(JOB, LEFT)
        assert target.deliver(tag(1), [rows(1)]) == Delivered(1)
        monkeypatch.setattr(type(target._progress), "close", fails)
        monkeypatch.setattr(type(target._sender), "close", lambda _sender: closed.append("sender"))
        with pytest.raises(Unavailable, match="the log is unreachable"):
            target.close()
        assert closed == ["progress", "sender"]

    def test_rows_are_read_as_they_are_sent(self, receiver: HttpReceiver, tmp_path: Path) -> None:
        held = list[int]()

        def batches() -> Iterator[pa.RecordBatch]:
            for n in range(250):
                held.append(n - len(receiver.taken))
                yield rows(n)

        with closing(prepared(receiver, tmp_path, batch_rows=1).open(JOB, LEFT)) as target:
            assert target.deliver(tag(1), batches()) == Delivered(250)
        assert max(held) <= requests.PIECE_REQUESTS and len(receiver.taken) == 250

    def test_a_process_that_was_overtaken_while_it_sends_stops_after_a_piece(
        self, receiver: HttpReceiver, tmp_path: Path
    ) -> None:
        sink = prepared(receiver, tmp_path, batch_rows=1)

        def batches() -> Iterator[pa.RecordBatch]:
            for n in range(250):
                if n == 150:
                    with closing(sink.open(JOB, LEFT)) as faster:
                        faster.deliver(tag(2), [])
                yield rows(n)

        with closing(sink.open(JOB, LEFT)) as target:
            assert target.deliver(tag(1), batches()) == AlreadyDelivered(tag(2))
        assert len(receiver.taken) == requests.PIECE_REQUESTS

    def test_requests_share_a_connection(self, receiver: HttpReceiver, tmp_path: Path) -> None:
        sink = prepared(receiver, tmp_path, batch_rows=1)
        with closing(sink.open(JOB, LEFT)) as target:
            target.deliver(tag(1), [rows(1, 2, 3)])
        assert len(receiver.taken) == 3 and len(receiver.senders) == 1

    @pytest.mark.parametrize("how", BROKEN)
    def test_a_status_counts_though_the_body_behind_it_is_broken(self, tmp_path: Path, how: str) -> None:
        for status in (b"200 OK", b"400 Bad Request"):
            head = b"HTTP/1.1 " + status + b"\r\n" + BROKEN[how]
            with answering(head, endless=how == "endless") as url:
                sink = Http(url, progress=tmp_path / status.decode(), timeout_s=0.2)
                sink.prepare(SCHEMA, None)
                with closing(sink.open(JOB, LEFT)) as target:
                    if status.startswith(b"200"):
                        assert target.deliver(tag(1), [rows(1)]) == Delivered(1)
                    else:
                        with pytest.raises(ConfigError, match="HTTP 400"):
                            target.deliver(tag(1), [rows(1)])

    def test_parts_of_secrets_that_a_reply_repeats_are_not_shown(
        self, receiver: HttpReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("S", f"Bearer {SECRET}")
        receiver.replies = [(400, {}, f"token {SECRET} and {SECRET[::-1]} are wrong".encode())]
        url, secret = f"{receiver.url}?a=b&key={SECRET[::-1]}", hf.secret("env:S")
        sink = Http(url, progress=tmp_path / "progress", headers={"Authorization": secret})
        sink.prepare(SCHEMA, None)
        with closing(sink.open(JOB, LEFT)) as target, pytest.raises(ConfigError) as caught:
            target.deliver(tag(1), [rows(1)])
        assert "token *** and *** are wrong" in caught.value.what

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
        more = {"Location": f"{receiver.url}/other?token={SECRET}"} if status < 400 else {}
        receiver.replies = [(status, more, f"no: {SECRET} {'x' * 999}".encode())]
        with closing(sink.open(JOB, LEFT)) as target, pytest.raises(ConfigError) as caught:
            target.deliver(tag(1), [rows(1)])
        to = f" to {receiver.url}/other" if "Location" in more else ""
        assert f"HTTP {status}{to}: no: *** x" in caught.value.what and SECRET not in str(caught.value)
        assert len(caught.value.what) < 500 and not receiver.taken

    @pytest.mark.parametrize(
        ("batch_rows", "advice"), [(100, "or lower batch_rows"), (1, "or rewind to before this row")]
    )
    def test_a_request_that_is_too_large_is_described_and_the_advice_fits_it(
        self, receiver: HttpReceiver, tmp_path: Path, batch_rows: int, advice: str
    ) -> None:
        sink = prepared(receiver, tmp_path, batch_rows=batch_rows)
        receiver.replies = [(413, {}, b"too large")]
        with closing(sink.open(JOB, LEFT)) as target, pytest.raises(ConfigError) as caught:
            target.deliver(tag(1), [rows(1, 2)])
        size = {100: "2 rows in 41 bytes", 1: "1 row in 19 bytes"}[batch_rows]
        assert f"refuses a request of {size} (HTTP 413: too large)" in caught.value.what
        assert advice in caught.value.next_step

    def test_an_answer_that_is_no_http_is_not_called_unreachable(self, tmp_path: Path) -> None:
        with answering(b"SSH-2.0-OpenSSH_9.2\r\n") as url:
            sink = Http(url, progress=tmp_path / "progress")
            sink.prepare(SCHEMA, None)
            with closing(sink.open(JOB, LEFT)) as target, pytest.raises(Unavailable) as caught:
                target.deliver(tag(1), [rows(1)])
        assert "sent a response that is not valid HTTP: 'SSH-2.0-OpenSSH_9.2" in caught.value.what
        assert "unreachable" not in caught.value.what

    def test_a_connection_that_ends_without_an_answer_is_described_without_names_of_classes(
        self, receiver: HttpReceiver, tmp_path: Path
    ) -> None:
        receiver.loses = 1
        with closing(prepared(receiver, tmp_path).open(JOB, LEFT)) as target, pytest.raises(Unavailable) as caught:
            target.deliver(tag(1), [rows(1)])
        assert caught.value.what.endswith("is unreachable: Remote end closed connection without response")

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
            for message in ("HTTP 429", "HTTP 429.*, and asked to be sent nothing for 30 s"):
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
    def test_a_file_of_authorities_that_is_missing_or_has_none_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "empty.pem").write_text("no certificate")
        for name in ("none.pem", "empty.pem"):
            sink = Http("https://127.0.0.1:1/rows", progress=tmp_path / "progress", ca=tmp_path / name)
            with pytest.raises(NotAdmitted, match=f"{name}' cannot be read on"):
                sink.probe(SCHEMA, None)

    def test_connects_and_sends_nothing(self, receiver: HttpReceiver, tmp_path: Path) -> None:
        sink = Http(receiver.url, progress=tmp_path / "progress")
        assert "the first start creates the log" in sink.probe(SCHEMA, None)
        assert not receiver.taken and not (tmp_path / "progress").exists()

    def test_a_certificate_that_no_known_authority_signed_is_named_as_such(self, tmp_path: Path) -> None:
        made, pem = make_credentials(encrypted=True), tmp_path / "server.pem"
        pem.write_bytes((made.certificate or b"") + (made.private_key or b""))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        with answering(b"", tls=context) as url:
            sink = Http(url, progress=tmp_path / "progress")
            with pytest.raises(Unavailable, match="the receiver's certificate is refused: self.signed") as caught:
                sink.probe(SCHEMA, None)
            assert "ca=" in caught.value.next_step
            with closing(sink.opened(JOB, LEFT)) as target, pytest.raises(Unavailable, match="certificate is refused"):
                LogSink(str(tmp_path / "progress"), partitions=1).prepare(SCHEMA, None)
                target.deliver(tag(1), [rows(1)])

    def test_a_server_without_tls_is_unavailable(self, receiver: HttpReceiver, tmp_path: Path) -> None:
        sink = Http(receiver.url.replace("http:", "https:"), progress=tmp_path / "progress", timeout_s=2)
        with pytest.raises(Unavailable, match="is unreachable"):
            sink.probe(SCHEMA, None)

    def test_another_job_in_the_same_place_is_refused(self, receiver: HttpReceiver, tmp_path: Path) -> None:
        sink = prepared(receiver, tmp_path)
        with closing(sink.open(JOB, LEFT)) as target:
            target.deliver(tag(1), [])
        with pytest.raises(ConfigError, match="of another job"):
            sink.ownership.check_owner(None, "out")


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
            ("Fri, 27 Nov 99999999999999999999 12:00:09 GMT", 0.0),
            ("Fri, 27 Nov 2026 12:00:09 +99999999999999", 0.0),
            ("Sat, 28 Nov 2026 12:00:00 GMT", replies.RETRY_AFTER_MAX_S),
        ],
    )
    def test_is_seconds_or_a_date_within_a_bound(self, text: str | None, wait: float) -> None:
        assert replies.wait_of(text, self.NOW) == wait
