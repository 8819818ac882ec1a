"""Secrets: references that never show a value."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import holdfast as hf


class TestSecret:
    def test_is_resolved_where_it_is_used(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "password").write_text("from a file\n")
        monkeypatch.setenv("KAFKA_PASSWORD", "from the environment")
        assert hf.secret("env:KAFKA_PASSWORD").resolve() == "from the environment"
        assert hf.secret(f"file:{tmp_path}/password").resolve() == "from a file"

    def test_shows_and_carries_no_value(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KAFKA_PASSWORD", "hush")
        given = hf.secret("env:KAFKA_PASSWORD")
        assert repr(given) == str(given) == "***"
        assert b"hush" not in pickle.dumps(given)
        assert given == hf.secret("env:KAFKA_PASSWORD") != hf.secret("env:OTHER")

    @pytest.mark.parametrize("given", ["hush", "env:", "file:relative/path", "vault:x", ""])
    def test_that_is_no_reference_is_refused_without_being_repeated(self, given: str) -> None:
        with pytest.raises(hf.ConfigError, match="takes a reference to a secret") as caught:
            hf.secret(given)
        assert not given or given not in f"{caught.value.what} {caught.value.not_done}"

    def test_that_a_process_lacks_is_an_error_that_names_the_place(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("MISSING", raising=False)
        with pytest.raises(hf.ConfigError, match="environment variable MISSING is not set"):
            hf.secret("env:MISSING").resolve()
        with pytest.raises(hf.ConfigError, match="cannot be read: No such file"):
            hf.secret(f"file:{tmp_path}/gone").resolve()
        (tmp_path / "empty").write_text("\n")
        with pytest.raises(hf.ConfigError, match="is empty"):
            hf.secret(f"file:{tmp_path}/empty").resolve()
