"""Explains errors of S3 to users: the operation that is not permitted, wrong credentials, a clock that is off.

Pure. Source: "Error responses" in the API reference of Amazon S3, by their codes; other stores use the same ones.
"""

from __future__ import annotations

from typing import Any, NamedTuple

NO_BUCKET, EXISTS = "NoSuchBucket", "PreconditionFailed"


class Meaning(NamedTuple):
    """The cause of an error, and the next step."""

    cause: str
    next_step: str


class Refusal(Exception):
    """The refusal of one object out of many, as an answer that botocore would have raised."""

    def __init__(self, code: str, operation: str) -> None:
        super().__init__(f"{code} ({operation})")
        self.operation_name, self.response = operation, {"Error": {"Code": code}}


_CREDENTIALS = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use a profile, a role or the machine's identity, on the "
    "driver and on every executor; then try again"
)
_CLOCK = (
    "the clock of this machine differs from the store's by more than a signature allows (15 minutes)",
    "synchronise the clocks of driver and executors (NTP), then try again",
)
_MEANINGS = {
    "InvalidAccessKeyId": Meaning("the store does not know the access key", _CREDENTIALS),
    "SignatureDoesNotMatch": Meaning("the secret key does not belong to the access key", _CREDENTIALS),
    "ExpiredToken": Meaning("the temporary credentials have expired and were not renewed", _CREDENTIALS),
    "InvalidToken": Meaning("the store refuses the session token", _CREDENTIALS),
    "RequestTimeTooSkewed": Meaning(*_CLOCK),
    "RequestExpired": Meaning(*_CLOCK),
    NO_BUCKET: Meaning("the bucket does not exist", "create the bucket, or correct its name, then try again"),
    "SlowDown": Meaning("the store limits the rate of requests", "wait, or ask its operator for a higher rate"),
}
_FORBIDDEN = frozenset(("AccessDenied", "AllAccessDisabled", "403", "Forbidden"))
_PERMISSIONS = {
    "GetObject": "s3:GetObject",
    "HeadObject": "s3:GetObject",
    "PutObject": "s3:PutObject",
    "CreateMultipartUpload": "s3:PutObject",
    "UploadPart": "s3:PutObject",
    "CompleteMultipartUpload": "s3:PutObject",
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "ListObjectsV2": "s3:ListBucket",
    "ListObjects": "s3:ListBucket",
    "DeleteObject": "s3:DeleteObject",
    "DeleteObjects": "s3:DeleteObject",
}
"""The permission that an operation needs."""


_PASSING = frozenset(("SlowDown",))


def lasting(error: BaseException | None) -> Meaning | None:
    """Return the meaning of an error if only a user can remove its cause; None if it may pass."""
    return None if error is None or code_of(error) in _PASSING else meaning(error)


def code_of(error: BaseException | None) -> str | None:
    """Return the store's code of an error, None if the store did not answer."""
    answer = _answer(error)
    return None if answer is None else str(answer.response.get("Error", {}).get("Code"))


def meaning(error: BaseException) -> Meaning | None:
    """Return the meaning of an error, None if its own text is clear."""
    answer, code = _answer(error), code_of(error)
    if code in _FORBIDDEN:
        operation = str(getattr(answer, "operation_name", "") or "this operation")
        return _forbidden(_PERMISSIONS.get(operation, operation), answer.response.get("Error", {}).get("Message"))
    if type(error).__name__ == "NoCredentialsError":
        return Meaning("there are no credentials for the store", _CREDENTIALS)
    if isinstance(error, RuntimeError) and "credentials" in str(error):  # as botocore says that they have expired
        return Meaning(f"the credentials could not be renewed: {error}", _CREDENTIALS)
    return None if code is None else _MEANINGS.get(code)


def _forbidden(permission: str, message: str | None) -> Meaning:
    said = f' ("{message}")' if message and message.rstrip(".") != "Access Denied" else ""
    return Meaning(
        f"the store refused {permission} to these credentials{said}",
        f"grant {permission} on the bucket and prefix to these credentials, or remove the rule that denies it; "
        "then retry",
    )


def _answer(error: BaseException | None) -> Any:
    """Return the error of botocore with the store's answer; s3fs raises others because of it."""
    while error is not None and not isinstance(getattr(error, "response", None), dict):
        error = error.__cause__
    return error
