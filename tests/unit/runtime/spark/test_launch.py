"""What executors are told before the first task: where to find Holdfast."""

from __future__ import annotations

import pytest

from holdfast.runtime.spark.launch import executor_path


class TestTheSearchPathOfExecutors:
    def test_names_what_py_files_brings_as_it_lies_in_their_working_directory(self) -> None:
        given = "file:/home/me/holdfast.zip,hdfs://host/libs/more.egg,/home/me/alone.py"
        assert executor_path(given) == "holdfast.zip:more.egg"

    def test_is_the_drivers_own_without_py_files(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYTHONPATH", "/srv/code::/srv/more")
        assert executor_path("") == "/srv/code:/srv/more"

    def test_leaves_out_wheels_which_spark_does_not_put_on_the_path(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYTHONPATH", "/srv/code")
        assert executor_path("/home/me/holdfast.whl") == "/srv/code"
