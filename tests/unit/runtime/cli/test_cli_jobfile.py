"""A job's file is executed without its main block, and its errors are reported with their place."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
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

    def test_an_app_is_chosen_by_name_from_a_file_with_several(self, write: Write) -> None:
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


class TestModulesOfWorkers:
    """A process that is forked for a function finds what the function names, as `pickle` does: by module and name."""

    CODE = """
import beside_the_job

@dataclass
class Word:
    word: str

def square(number):
    return number * number

def work(numbers):
    return list(map(square, numbers)), Word("x"), beside_the_job.shout
"""
    READER = """
import pickle, sys
import {cloudpickle} as cloudpickle
sys.path[:0] = {path}
_, (work,) = cloudpickle.loads(sys.stdin.buffer.read())
{do}
"""

    def said(self, folder: Path, do: str, *, path: Sequence[str] = (), local: bool = True) -> str:
        """Return what a process prints that got functions of the job as a worker does."""
        (folder / "beside_the_job.py").write_text("LATER = 3\ndef shout(text):\n    return text.upper()\n")
        (folder / "job.py").write_text(APP.partition("@dataclass")[0] + self.CODE + '\napp = hf.App("hot")\n')
        load(str(folder / "job.py"))
        code = ship_by_value(folder, local=local)
        name = "cloudpickle" if local else "pyspark.cloudpickle"
        data: bytes = import_module(name).dumps((code, [sys.modules["holdfast_job_job"].work]))
        reader = self.READER.format(cloudpickle=name, path=list(path), do=do)
        command = [sys.executable, "-c", reader]
        return subprocess.run(command, input=data, capture_output=True, check=True, cwd="/").stdout.decode()

    @pytest.mark.parametrize("local", [True, False])
    def test_hold_the_functions_of_the_jobs_file(self, tmp_path: Path, local: bool) -> None:
        do = "square = work.__globals__['square']; print(pickle.loads(pickle.dumps(square)) is square)"
        assert self.said(tmp_path, do, local=local) == "True\n"

    def test_hold_its_classes(self, tmp_path: Path) -> None:
        do = "row = work([])[1]; print(pickle.loads(pickle.dumps(row)) == row)"
        assert self.said(tmp_path, do) == "True\n"

    def test_give_functions_to_a_pool_of_forked_processes(self, tmp_path: Path) -> None:
        do = """
import multiprocessing
with multiprocessing.get_context("fork").Pool(1) as pool:
    print(pool.map(work.__globals__["square"], [1, 2, 3]))
"""
        assert self.said(tmp_path, do) == "[1, 4, 9]\n"

    def test_hold_functions_of_modules_beside_it_even_if_those_can_be_imported(self, tmp_path: Path) -> None:
        do = "shout = work([])[2]; print(pickle.loads(pickle.dumps(shout)) is shout)"
        assert self.said(tmp_path, do, path=[str(tmp_path)]) == "True\n"

    def test_import_what_has_not_travelled_from_modules_beside_it(self, tmp_path: Path) -> None:
        do = "import beside_the_job as b; b.LATER += 1; from beside_the_job import LATER; print(LATER)"
        assert self.said(tmp_path, do, path=[str(tmp_path)]) == "4\n"

    def test_lack_what_has_not_travelled_and_cannot_be_imported(self, tmp_path: Path) -> None:
        do = "import holdfast_job_job as job; print(hasattr(job, 'app'), hasattr(job, '__wrapped__'))"
        assert self.said(tmp_path, do) == "False False\n"

    def test_go_on_by_value_to_processes_that_cannot_import_them(self, tmp_path: Path) -> None:
        do = "print(b'numbers' in cloudpickle.dumps(work))"
        assert self.said(tmp_path, do) == "True\n"
