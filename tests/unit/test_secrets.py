"""Secrets: an object that names the place of a value, and never shows the value."""

from __future__ import annotations

import copy
import pickle
import socket
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.errors import ConfigError, HoldfastError, NotAdmitted
from holdfast.secrets import BYTES_MAX, Secret, secret_argument

VALUE = "open sesame"


def fault(secret: Secret) -> HoldfastError:
    with pytest.raises(HoldfastError) as caught:
        secret.value()
    return caught.value


class TestReference:
    @pytest.mark.parametrize(
        "given",
        [
            *("open sesame", "", "sesame", "env:", "env:open sesame", "env:1SESAME", "file:", "file:sesame"),
            *("file:~/sesame", "file:/sesame\0", "vault:sesame", "ENV:sesame"),
        ],
    )
    def test_another_text_is_refused_and_not_repeated(self, given: str) -> None:
        with pytest.raises(ConfigError) as caught:
            hf.secret(given)
        assert "sesame" not in f"{caught.value!r} {caught.value} {caught.value.__cause__} {caught.value.__context__}"
        assert 'hf.secret("env:PG_PASSWORD")' in caught.value.next_step

    def test_something_that_is_no_text_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="takes the place of a secret"):
            hf.secret(b"sesame")  # type: ignore[arg-type]

    def test_it_shows_as_asterisks(self) -> None:
        secret = hf.secret("env:PG_PASSWORD")
        assert [repr(secret), str(secret), f"{secret}", f"{(secret,)}"] == ["***", "***", "***", "(***,)"]

    def test_two_of_one_place_are_equal(self) -> None:
        assert hf.secret("env:A") == hf.secret("env:A") != hf.secret("env:B")
        assert len({hf.secret("env:A"), hf.secret("env:A")}) == 1


class TestArgument:
    def test_a_plain_text_is_refused_and_not_repeated(self) -> None:
        with pytest.raises(ConfigError, match=r"^hf.X\(token=\) is not an hf.secret") as caught:
            secret_argument(VALUE, "hf.X(token=)")
        assert "sesame" not in f"{caught.value!r} {caught.value}"

    def test_a_secret_or_nothing_is_taken(self) -> None:
        secret = hf.secret("env:A")
        assert secret_argument(secret, "x") is secret and secret_argument(None, "x") is None


class TestValue:
    def test_the_value_of_a_variable_is_read_when_requested(self, monkeypatch: pytest.MonkeyPatch) -> None:
        secret = hf.secret("env:SECRET_OF_A_TEST")
        for value in (VALUE, "another", " spaces stay \n"):
            monkeypatch.setenv("SECRET_OF_A_TEST", value)
            assert secret.value() == value

    @pytest.mark.parametrize(
        ("data", "value"), [(b"a\n", "a"), (b"a\r\n", "a"), (b"a\n\n", "a\n"), (b" \xc3\xa4", " ä")]
    )
    def test_the_value_of_a_file_omits_one_line_end(self, tmp_path: Path, data: bytes, value: str) -> None:
        (tmp_path / "secret").write_bytes(data)
        assert hf.secret(f"file:{tmp_path}/secret").value() == value

    def test_the_value_of_a_file_is_read_again_each_time(self, tmp_path: Path) -> None:
        """As Kubernetes and vault agents replace it: by a link that leads elsewhere."""
        secret, link = hf.secret(f"file:{tmp_path}/secret"), tmp_path / "secret"
        for value in ("old", "new"):
            (tmp_path / value).write_text(value)
            link.unlink(missing_ok=True)
            link.symlink_to(value)
            assert secret.value() == value

    def test_is_in_no_copy_of_the_object(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("SECRET_OF_A_TEST", VALUE)
        (tmp_path / "secret").write_text(VALUE)
        for secret in (hf.secret("env:SECRET_OF_A_TEST"), hf.secret(f"file:{tmp_path}/secret")):
            assert secret.value() == VALUE
            assert VALUE.encode() not in pickle.dumps(secret)
            assert VALUE not in f"{vars(secret)}"
            assert copy.deepcopy(secret) == secret == pickle.loads(pickle.dumps(secret))  # noqa: S301


class TestMissing:
    @pytest.mark.parametrize(("value", "what"), [(None, "is not set"), ("", "is empty"), ("\udcff", "is not text")])
    def test_a_variable_is_named_with_the_host(
        self, monkeypatch: pytest.MonkeyPatch, value: str | None, what: str
    ) -> None:
        monkeypatch.delenv("SECRET_OF_A_TEST", raising=False)
        if value is not None:
            monkeypatch.setenv("SECRET_OF_A_TEST", value)
        error = fault(hf.secret("env:SECRET_OF_A_TEST"))
        assert isinstance(error, ConfigError)
        assert f"the environment variable SECRET_OF_A_TEST, which a secret names, {what}" in error.what
        assert error.what.endswith(f" on {socket.gethostname()}") and "set SECRET_OF_A_TEST" in error.next_step

    def test_a_file_is_named_with_the_host_and_may_come_back(self, tmp_path: Path) -> None:
        path = tmp_path / "secret"
        error = fault(hf.secret(f"file:{path}"))
        assert isinstance(error, NotAdmitted)
        assert error.what == f"the file {path}, which a secret names, does not exist on {socket.gethostname()}"

    @pytest.mark.parametrize(
        ("data", "what"),
        [
            (b"", "is empty"),
            (b"\n", "is empty"),
            (b"sesame\xff", "is not text in UTF-8"),
            (b"sesame\0", "holds a NUL character"),
            (b"s" * (BYTES_MAX + 1), "is larger than 65,536 bytes"),
        ],
    )
    def test_a_file_without_a_secret_is_refused_and_not_repeated(self, tmp_path: Path, data: bytes, what: str) -> None:
        (tmp_path / "secret").write_bytes(data)
        error = fault(hf.secret(f"file:{tmp_path}/secret"))
        assert isinstance(error, NotAdmitted) and what in error.what
        assert "sesame" not in f"{error!r} {error} {error.__cause__!r} {error.__context__!r}"

    def test_a_folder_is_not_a_file(self, tmp_path: Path) -> None:
        assert "is not a file" in fault(hf.secret(f"file:{tmp_path}")).what
