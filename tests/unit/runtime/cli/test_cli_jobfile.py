"""A job's file is executed without its main block, and its errors are reported with their place."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.errors import ConfigError
from holdfast.runtime.cli.start.jobfile import load, ship_by_value

APP = """
from dataclasses import dataclass
import holdfast as hf

@dataclass
class Word:
    word: str

app = hf.App("hot")
words = app.source("words", hf.Generator(Word, lambda i: Word(str(i)), count=10))
"""
Write = Callable[[str], str]


@pytest.fixture(autouse=True)
def unchanged_imports() -> Iterator[None]:
    """Loading puts a folder on the path and modules into the cache, as for a process that runs one job."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("holdfast_job_") or name == "beside_the_job":
            del sys.modules[name]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a job's file; returns its path."""

    def write(code: str) -> str:
        (tmp_path / "job.py").write_text(code)
        return str(tmp_path / "job.py")

    return write


class TestChangedCode:
    def test_is_read_even_if_time_and_size_of_the_file_are_unchanged(
        self, write: Write, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Python takes bytecode on disk for that of a file of the same second and size."""
        monkeypatch.setattr(sys, "dont_write_bytecode", False)
        path = write(APP)
        os.utime(path, (1_000_000_000, 1_000_000_000))
        assert load(path).name == "hot"
        write(APP.replace('"hot"', '"new"'))
        os.utime(path, (1_000_000_000, 1_000_000_000))
        assert load(path).name == "new"


class TestLoad:
    def test_the_app_of_the_file_is_found(self, write: Write) -> None:
        assert load(write(APP)).name == "hot"

    def test_the_main_block_is_not_run(self, write: Write) -> None:
        assert load(write(APP + '\nif __name__ == "__main__":\n    raise SystemExit(3)\n')).name == "hot"

    def test_a_module_beside_the_file_can_be_imported(self, write: Write, tmp_path: Path) -> None:
        (tmp_path / "beside_the_job.py").write_text("NAME = 'late'")
        assert load(write("import beside_the_job, holdfast as hf\napp = hf.App(beside_the_job.NAME)")).name == "late"

    def test_two_names_of_one_app_are_one_app(self, write: Write) -> None:
        assert load(write(APP + "\nsame = app\n")).name == "hot"

    def test_of_several_apps_one_is_chosen_by_name(self, write: Write) -> None:
        assert load(write(APP + '\nother = hf.App("late")\n'), "late").name == "late"

    @pytest.mark.parametrize(
        ("code", "says"),
        [
            ("x = 1", "builds no app"),
            (APP + '\nother = hf.App("late")\n', "builds 2 apps: hot, late"),
            ("def f(:", "cannot be loaded: line 1: invalid syntax"),
            ("import holdfast\n\nx = 1 / 0\n", "line 3: ZeroDivisionError: division by zero"),
            ("import no_such_module", "line 1: ModuleNotFoundError"),
            ("raise SystemExit(3)", "ends the process when imported"),
            (APP + "\napp.main()\n", "runs its app as soon as it is imported"),
        ],
    )
    def test_an_error_is_reported_with_its_location(self, write: Write, code: str, says: str) -> None:
        with pytest.raises(ConfigError) as refused:
            load(write(code))
        assert says in refused.value.what
        assert refused.value.not_done == "the job was not loaded and nothing was started"

    def test_an_unknown_location_is_left_out(self, write: Write) -> None:
        with pytest.raises(ConfigError, match="cannot be loaded: .*null bytes") as refused:
            load(write("\0"))
        assert "None" not in refused.value.what

    def test_an_empty_path_is_not_the_current_folder(self) -> None:
        with pytest.raises(ConfigError, match="path of the job's file is empty"):
            load("")

    def test_an_error_raised_by_the_app_keeps_its_message(self, write: Write) -> None:
        with pytest.raises(ConfigError, match="cannot be the name of an app"):
            load(write('import holdfast as hf\napp = hf.App("NOT A NAME")'))

    def test_an_unknown_app_is_refused_with_the_apps_of_the_file(self, write: Write) -> None:
        with pytest.raises(ConfigError, match="builds no app 'cold': hot"):
            load(write(APP), "cold")

    @pytest.mark.parametrize("path", ["no-such-file.py", "hot", "."])
    def test_a_path_that_is_no_file_is_refused(self, path: str, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="is (not a file|a folder)"):
            load(str(tmp_path / path))


class TestShipByValue:
    def test_a_process_that_cannot_import_the_job_can_still_use_its_functions(
        self, write: Write, tmp_path: Path
    ) -> None:
        (tmp_path / "beside_the_job.py").write_text("def shout(text):\n    return text.upper()\n")
        code = "import beside_the_job\ndef record(i):\n    return beside_the_job.shout(f'w{i}')\n"
        load(write(APP + code))
        ship_by_value(tmp_path)
        from pyspark import cloudpickle

        data = cloudpickle.dumps(sys.modules["holdfast_job_job"].record)  # type: ignore[no-untyped-call]
        reader = "import sys, pyspark.cloudpickle as p; print(p.loads(sys.stdin.buffer.read())(7))"
        said = subprocess.run([sys.executable, "-c", reader], input=data, capture_output=True, check=True, cwd="/")
        assert said.stdout == b"W7\n"
