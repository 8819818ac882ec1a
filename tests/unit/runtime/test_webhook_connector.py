"""`hf.Webhook` as users write it, and what it makes of a request."""

from __future__ import annotations

import hashlib
import hmac
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.runtime.capture.requests import KEY_LENGTH_MAX, Accepted, Echo, RefusedRequest, Requests
from holdfast.runtime.sources.log import LogSource
from holdfast.runtime.sources.webhook.connector import Receiving
from holdfast.secrets import Secret
from holdfast.storage.log.log import create_log
from holdfast.storage.objects import LocalObjects

LISTEN = "127.0.0.1:8080"
SECRET = hf.secret("env:WEBHOOK_SECRET")
GITHUB = {"x-hub-signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"}


@dataclass
class Payment:
    id: str
    cents: int
    at: datetime | None = None
    channel: str = "web"


def webhook(**given: Any) -> hf.Webhook[Payment]:
    return hf.Webhook(LISTEN, hf.Log("data/payments"), Payment, **given)


def receiving(**given: Any) -> Receiving:
    return webhook(**given).receiving


class TestSource:
    def test_is_the_log_with_the_columns_of_the_schema(self, tmp_path: Path) -> None:
        source = hf.Webhook(LISTEN, hf.Log(tmp_path, key="id", partitions=2), Payment).source()
        assert isinstance(source, LogSource) and (source.key, source.partitions) == (("id",), 2)
        assert source.schema.names == ["id", "cents", "at", "channel"] and source.row_type is Payment
        assert (source.traits.kind, source.traits.log) == ("Log", str(tmp_path))
        assert source.captured is not None and source.traits.partitioned_by == ("id",)

    def test_with_meta_has_the_key_and_the_time_too(self) -> None:
        source = webhook(meta=True).source()
        assert source.schema.names[-2:] == ["webhook_key", "webhook_at"] and source.row_type is Payment

    def test_gives_what_is_captured_and_travels_without_the_secret(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WEBHOOK_SECRET", "hush")
        source = webhook(signature="github", secret=SECRET).source()
        sent = pickle.dumps(source)
        assert pickle.loads(sent).captured == source.receiving and b"hush" not in sent  # noqa: S301
        assert hf.Log("data/payments").source().captured is None

    def test_names_the_command_while_there_is_no_log(self, tmp_path: Path) -> None:
        with pytest.raises(hf.ConfigError, match="no request was captured yet") as caught:
            hf.Webhook(LISTEN, hf.Log(tmp_path / "none"), Payment).source().check()
        assert "holdfast capture JOB.py" in caught.value.next_step

    def test_reads_a_log_with_more_columns(self, tmp_path: Path) -> None:
        of = hf.Webhook(LISTEN, hf.Log(tmp_path), Payment)
        create_log(LocalObjects(tmp_path), of.receiving.columns)
        of.source().check()
        assert of.source().open().end_offsets() == {0: 0, 1: 0, 2: 0, 3: 0}

    def test_is_planned_as_a_source(self) -> None:
        app = hf.App("payments")
        app.source("payments", webhook()).sink("out", hf.Console())
        assert [spec.name for spec in app.plan().sources] == ["payments"]


class TestArguments:
    def test_have_safe_values_where_they_are_left_out(self) -> None:
        of = receiving()
        assert (of.host, of.port, of.path, of.key, of.scheme, of.secrets) == ("127.0.0.1", 8080, "/", None, None, ())
        assert (of.horizon_us, of.tolerance_s, of.body_max, of.linger_ms) == (3 * 86_400 * 10**6, 300.0, 1 << 20, 50)
        assert of.defaults == {"at": None, "channel": "web"} and of.log.endswith("/data/payments")

    def test_name_an_address_of_either_family(self) -> None:
        found = hf.Webhook("[::1]:0", hf.Log("data/payments"), Payment).receiving
        assert (found.host, found.port) == ("::1", 0)

    def test_take_several_secrets_while_one_is_replaced(self) -> None:
        other = Secret("file:/run/secrets/old")
        assert receiving(signature="github", secret=[SECRET, other]).secrets == (SECRET, other)

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: hf.Webhook("8080", hf.Log("x"), Payment), "listen is '8080'"),
            (lambda: hf.Webhook("127.0.0.1:70000", hf.Log("x"), Payment), "listen is"),
            (lambda: hf.Webhook("http://127.0.0.1:80", hf.Log("x"), Payment), "listen is"),
            (lambda: hf.Webhook(LISTEN, "data/payments", Payment), "into is 'data/payments'"),  # type: ignore[arg-type]
            (lambda: hf.Webhook(LISTEN, hf.Log("x", Payment), Payment), "into has a schema"),
            (lambda: hf.Webhook(LISTEN, hf.Log("x"), None), "schema is None"),  # type: ignore[arg-type]
            (lambda: hf.Webhook(LISTEN, hf.Log("x"), pa.schema([("webhook_at", pa.utf8())])), "one that the log gets"),
            (lambda: hf.Webhook(LISTEN, hf.Log("x"), pa.schema([("x", pa.duration("us"))])), "which hf.JSON cannot"),
            (lambda: webhook(path="payments"), "path is 'payments'"),
            (lambda: webhook(path="/a?b"), "path is"),
            (lambda: webhook(key="id"), "key is 'id'"),
            (lambda: webhook(key="header:a b"), "key is"),
            (lambda: webhook(key="body:"), "key is"),
            (lambda: webhook(horizon="0s"), "horizon is 0"),
            (lambda: webhook(horizon="91d"), "horizon is too large"),
            (lambda: webhook(body_max="17MiB"), "body_max is too large"),
            (lambda: webhook(linger="6s"), "linger is too large"),
            (lambda: webhook(time="ns"), "time is 'ns'"),
            (lambda: webhook(signature="sha1", secret=SECRET), "signature is 'sha1'"),
            (lambda: webhook(signature="github"), "signature is given without secret"),
            (lambda: webhook(secret=SECRET), "secret is given without signature"),
            (lambda: webhook(signature="github", secret="hush"), "is not an hf.secret"),
            (lambda: webhook(signature="github", secret=[SECRET, "hush"]), "is not an hf.secret"),
        ],
    )
    def test_are_refused_when_the_job_is_built(self, make: Callable[[], object], message: str) -> None:
        with pytest.raises(hf.ConfigError, match=message) as caught:
            make()
        assert "hush" not in str(caught.value)

    def test_name_the_place_of_a_key_that_is_a_field(self) -> None:
        with pytest.raises(hf.ConfigError) as caught:
            webhook(key="id")
        assert '"body:id"' in caught.value.next_step


def read(body: bytes, headers: dict[str, str] | None = None, **given: Any) -> Accepted | RefusedRequest | Echo:
    return Requests(receiving(**given)).read(headers or {}, body, [b"It's a Secret to Everybody"], 0.0)


class TestBodies:
    def test_a_body_that_fits_becomes_a_row(self) -> None:
        found = read(b'{"id":"p1","cents":250,"at":"2026-11-26T10:00:00Z","more":[1]}')
        assert isinstance(found, Accepted) and found.key is None
        at = datetime(2026, 11, 26, 10, tzinfo=UTC)
        assert found.row.to_pylist() == [{"id": "p1", "cents": 250, "at": at, "channel": "web"}]

    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            (b"", "it is not a JSON object"),
            (b"[]", "it is not a JSON object"),
            (b'{"id":"p1"}', "column 'cents' is missing, which the job's schema does not allow"),
            (b'{"id":null,"cents":1}', "column 'id' is null, which the job's schema does not allow"),
            (b'{"id":"p1","cents":1}{"id":"p2","cents":1}', "it is more than one JSON value"),
            (b'{"id":"p1","cents":1}\n{"id":"p2","cents":1}', "it is more than one JSON value"),
        ],
    )
    def test_a_body_that_does_not_fit_is_refused_with_the_reason(self, body: bytes, reason: str) -> None:
        assert read(body) == RefusedRequest(400, reason)

    @pytest.mark.parametrize("body", [b'{"id":"p1","cents":"1"}', b'{"id":"p1","cents":1.5}', b'{"id":1,"cents":1}'])
    def test_a_body_with_values_of_other_types_is_refused(self, body: bytes) -> None:
        found = read(body)
        assert isinstance(found, RefusedRequest) and found.status == 400

    def test_a_raw_schema_keeps_bodies_of_any_form_unchanged(self) -> None:
        of = hf.Webhook(LISTEN, hf.Log("data/payments"), hf.Raw(), key="body:id")
        assert of.source().schema.names == ["value"] and of.source().row_type is None
        body = b'{"id":"p1","data":{"cents":250}}'
        found = Requests(of.receiving).read({}, body, (), 0.0)
        assert isinstance(found, Accepted) and (found.key, found.row.to_pylist()) == ("p1", [{"value": body}])
        assert isinstance(Requests(of.receiving).read({}, b"text=hello", (), 0.0), RefusedRequest), "it has no key"
        of = hf.Webhook(LISTEN, hf.Log("data/payments"), hf.Raw())
        assert isinstance(Requests(of.receiving).read({}, b"text=hello", (), 0.0), Accepted)


class TestKeys:
    BODY = b'{"id":"p1","cents":250,"number":7}'

    def test_come_from_a_header_whatever_the_case_of_its_name(self) -> None:
        found = read(self.BODY, {"idempotency-key": " k1 "}, key="header:Idempotency-Key")
        assert isinstance(found, Accepted) and found.key == "k1"

    @pytest.mark.parametrize(("field", "key"), [("id", "p1"), ("number", "7")])
    def test_come_from_a_field(self, field: str, key: str) -> None:
        found = read(self.BODY, key=f"body:{field}")
        assert isinstance(found, Accepted) and found.key == key

    @pytest.mark.parametrize(
        ("place", "headers", "body"),
        [
            ("header:K", {}, BODY),
            ("header:K", {"k": " "}, BODY),
            ("header:K", {"k": "x" * (KEY_LENGTH_MAX + 1)}, BODY),
            ("header:K", {"k": "a\tb"}, BODY),
            ("header:K", {"k": "\udcff"}, BODY),
            ("body:k", {}, BODY),
            ("body:k", {}, b'{"id":"p1","cents":1,"k":null}'),
            ("body:k", {}, b'{"id":"p1","cents":1,"k":""}'),
            ("body:k", {}, b'{"id":"p1","cents":1,"k":1.5}'),
            ("body:k", {}, b'{"id":"p1","cents":1,"k":{"x":1}}'),
            ("body:k", {}, b"[]"),
            ("body:k", {}, b"{"),
            ("body:k", {}, b'{"id":"p1","cents":1,"k":"\xff"}'),
            ("body:k", {}, b'{"id":"p1","cents":1,"k":"\\ud800"}'),
            ("body:k", {}, b'{"id":"p1","cents":1,"x":' + b"[" * 100_000),
        ],
    )
    def test_missing_or_invalid_keys_are_refused(self, place: str, headers: dict[str, str], body: bytes) -> None:
        found = read(body, headers, key=place)
        assert isinstance(found, RefusedRequest) and found.status == 400


class TestSignatures:
    def test_are_checked_before_the_body_is_looked_at(self) -> None:
        found = read(b"Hello, World!", GITHUB, signature="github", secret=SECRET, key="body:id")
        assert isinstance(found, RefusedRequest) and found.status == 400
        found = read(b"Hello, World?", GITHUB, signature="github", secret=SECRET, key="body:id")
        assert found == RefusedRequest(401, "the signature is not that of this body with the secret")

    def test_slack_signatures_let_slack_verify_the_address(self) -> None:
        body = b'{"token":"t","challenge":"3eZbrw1a","type":"url_verification"}'
        signed = hmac.new(b"It's a Secret to Everybody", b"v0:0:" + body, hashlib.sha256).hexdigest()
        headers = {"x-slack-request-timestamp": "0", "x-slack-signature": f"v0={signed}"}
        assert read(body, headers, signature="slack", secret=SECRET) == Echo("3eZbrw1a")
        wrong = read(body + b" ", headers, signature="slack", secret=SECRET)
        assert isinstance(wrong, RefusedRequest) and wrong.status == 401
        assert isinstance(read(body), RefusedRequest), "without a signature anyone could send it"
