"""Signatures of webhooks, with the examples that the senders publish where there are any."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping

import pytest

import holdfast as hf
from holdfast.runtime.sources.webhook.signatures import SIGNATURES_MAX, problem_of, scheme_of

NOW_S = 1_531_420_618
TOLERANCE_S = 300.0
SLACK_SECRET = b"8f742231b10e8888abcd99yyyzzz85a5"
SLACK_BODY = (
    b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&"
    b"channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&"
    b"response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&"
    b"trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
)
SLACK = {
    "x-slack-request-timestamp": str(NOW_S),
    "x-slack-signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
}
"""The example of docs.slack.dev, Verifying requests from Slack."""
GITHUB = {"x-hub-signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"}
GITHUB_SECRET, GITHUB_BODY = b"It's a Secret to Everybody", b"Hello, World!"
"""The test values of docs.github.com, Validating webhook deliveries."""
RFC_SECRET, RFC_BODY = b"Jefe", b"what do ya want for nothing?"
RFC_HEX = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
"""Test case 2 of RFC 4231."""
RFC_BASE64 = base64.b64encode(bytes.fromhex(RFC_HEX)).decode()
EVENT = b'{"id":"evt_1"}'


def problem(
    scheme: str,
    headers: Mapping[str, str],
    body: bytes,
    *secrets: bytes,
    now_s: float = NOW_S,
    tolerance_s: float = TOLERANCE_S,
) -> str | None:
    return problem_of(scheme_of(scheme), headers, body, secrets, now_s, tolerance_s)


def signed_by(secret: bytes, text: bytes) -> str:
    return hmac.new(secret, text, hashlib.sha256).hexdigest()


def stripe(*secrets: bytes, time_s: int = NOW_S, body: bytes = EVENT) -> dict[str, str]:
    given = "".join(f",v1={signed_by(secret, b'%d.%s' % (time_s, body))}" for secret in secrets)
    return {
        "stripe-signature": f"t={time_s}{given},v0=6ffbb59b2300aae63f272406069a9788598b792a944a07aba816edb039989a39"
    }


class TestPublishedExamples:
    def test_the_published_slack_example_is_accepted(self) -> None:
        assert problem("slack", SLACK, SLACK_BODY, SLACK_SECRET) is None

    def test_the_published_github_example_is_accepted(self) -> None:
        assert problem("github", GITHUB, GITHUB_BODY, GITHUB_SECRET) is None

    @pytest.mark.parametrize(
        ("scheme", "headers"),
        [
            ("shopify", {"x-shopify-hmac-sha256": RFC_BASE64}),
            ("github", {"x-hub-signature-256": f"sha256={RFC_HEX}"}),
            ("hmac-sha256:X-Signature", {"x-signature": RFC_HEX}),
            ("hmac-sha256:X-Signature", {"x-signature": RFC_HEX.upper()}),
            ("hmac-sha256:X-Signature", {"x-signature": f"sha256={RFC_HEX}"}),
            ("hmac-sha256:X-Signature", {"x-signature": RFC_BASE64}),
        ],
    )
    def test_the_published_hmac_sha256_example_is_accepted_in_each_senders_form(
        self, scheme: str, headers: dict[str, str]
    ) -> None:
        assert problem(scheme, headers, RFC_BODY, RFC_SECRET) is None


class TestRefused:
    @pytest.mark.parametrize(
        ("scheme", "headers", "body", "secret"),
        [
            ("slack", SLACK, SLACK_BODY, SLACK_SECRET),
            ("github", GITHUB, GITHUB_BODY, GITHUB_SECRET),
            ("shopify", {"x-shopify-hmac-sha256": RFC_BASE64}, RFC_BODY, RFC_SECRET),
            ("hmac-sha256:X-Signature", {"x-signature": RFC_HEX}, RFC_BODY, RFC_SECRET),
            ("stripe", stripe(b"whsec_1"), EVENT, b"whsec_1"),
        ],
    )
    def test_is_another_body_or_secret_and_a_missing_header(
        self, scheme: str, headers: dict[str, str], body: bytes, secret: bytes
    ) -> None:
        wrong = "the signature is not that of this body with the secret"
        assert problem(scheme, headers, body, secret) is None
        assert problem(scheme, headers, body + b" ", secret) == wrong
        assert problem(scheme, headers, body, secret + b" ") == wrong
        assert problem(scheme, {}, body, secret) == f"the header {scheme_of(scheme).header} is missing"

    @pytest.mark.parametrize("off_s", [-301, 301])
    def test_is_a_time_beyond_the_tolerance_whatever_the_signature(self, off_s: int) -> None:
        reason = "the signed time is 301 s from the time here; at most 300 s are accepted"
        assert problem("slack", SLACK, SLACK_BODY, SLACK_SECRET, now_s=NOW_S + off_s) == reason
        assert problem("stripe", stripe(b"a"), EVENT, b"a", now_s=NOW_S + off_s) == reason
        assert problem("stripe", stripe(b"a"), EVENT, b"a", now_s=NOW_S + off_s, tolerance_s=301) is None

    def test_is_a_time_that_was_changed_after_signing(self) -> None:
        later = {**SLACK, "x-slack-request-timestamp": str(NOW_S + 1)}
        assert problem("slack", later, SLACK_BODY, SLACK_SECRET) is not None
        moved = {"stripe-signature": stripe(b"a")["stripe-signature"].replace(f"t={NOW_S}", f"t={NOW_S + 1}")}
        assert problem("stripe", moved, EVENT, b"a") is not None

    @pytest.mark.parametrize(
        ("scheme", "headers"),
        [
            ("stripe", {"stripe-signature": f"t={NOW_S}"}),
            ("stripe", {"stripe-signature": f"v1={RFC_HEX}"}),
            ("stripe", {"stripe-signature": f"t={NOW_S},t={NOW_S},v1={RFC_HEX}"}),
            ("stripe", {"stripe-signature": f"t=-{NOW_S},v1={RFC_HEX}"}),
            ("stripe", {"stripe-signature": f"t={'9' * 400},v1={RFC_HEX}"}),
            ("stripe", {"stripe-signature": f"t=\u0661,v1={RFC_HEX}"}),
            ("github", {"x-hub-signature-256": RFC_HEX}),
            ("slack", {"x-slack-signature": f"v0={RFC_HEX}"}),
            ("slack", {**SLACK, "x-slack-signature": SLACK["x-slack-signature"].removeprefix("v0=")}),
            ("shopify", {"x-shopify-hmac-sha256": RFC_HEX}),
            ("hmac-sha256:X-Signature", {"x-signature": "\udcff\u20ac"}),
        ],
    )
    def test_is_a_header_of_another_form(self, scheme: str, headers: dict[str, str]) -> None:
        assert problem(scheme, headers, RFC_BODY, RFC_SECRET) is not None

    def test_is_a_scheme_of_stripe_other_than_v1(self) -> None:
        old = {"stripe-signature": f"t={NOW_S},v0={signed_by(b'a', b'%d.%s' % (NOW_S, EVENT))}"}
        assert problem("stripe", old, EVENT, b"a") == "the header stripe-signature is not t=TIME,v1=HEX"

    def test_repeats_neither_the_signature_nor_the_secret(self) -> None:
        reason = problem("hmac-sha256:X-Signature", {"x-signature": "hush"}, RFC_BODY, RFC_SECRET)
        assert reason is not None and "hush" not in reason and "Jefe" not in reason

    @pytest.mark.parametrize("text", ["", "Stripe", "hmac-sha256", "hmac-sha256:", "hmac-sha256:X Y", "sha1:X", "x"])
    def test_is_a_scheme_that_does_not_exist(self, text: str) -> None:
        with pytest.raises(hf.ConfigError, match="signature is"):
            scheme_of(text)


class TestReplacedSecrets:
    def test_one_of_several_secrets_is_enough(self) -> None:
        assert problem("github", GITHUB, GITHUB_BODY, b"new", GITHUB_SECRET) is None

    def test_one_of_several_signatures_is_enough(self) -> None:
        assert problem("stripe", stripe(b"new", b"old"), EVENT, b"old") is None

    def test_a_request_cannot_cost_any_number_of_comparisons(self) -> None:
        many = stripe(*[b"other"] * SIGNATURES_MAX, b"mine")
        assert problem("stripe", many, EVENT, b"mine") is not None
