"""Where the function that checks a run is searched."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.chaos.judge.findings import Check
from holdfast.chaos.live.loading import load, prepared
from holdfast.errors import ConfigError

CHECK = """
from holdfast.testing import Context, Finding

def check(context: Context):
    yield Finding("{}", True)
"""


@pytest.fixture(autouse=True)
def _path_and_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in set(sys.modules) - before:
        if name.endswith("_of_run"):
            del sys.modules[name]


def named(folder: Path, check: str) -> Check:
    """Return the check of a scenario in one folder for a job in another."""
    for name in ("jobs", "scenarios"):
        (folder / name).mkdir(exist_ok=True)
    scenario = f'duration = "60s"\nplatform = "local[3]"\ncheck = "{check}"\nfaults = {{ worker-kill = 1 }}\n'
    (folder / "scenarios" / "faults.toml").write_text(scenario)
    (folder / "jobs" / "job.py").write_text("")
    [found] = prepared(load(folder / "scenarios" / "faults.toml"), folder / "jobs" / "job.py")[1]
    return found


def module(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


class TestCheckModule:
    @pytest.mark.parametrize("beside", ["jobs", "scenarios"])
    def test_is_found_next_to_the_job_or_the_scenario(self, tmp_path: Path, beside: str) -> None:
        module(tmp_path / beside / f"{beside}_of_run.py", CHECK.format(beside))
        found = named(tmp_path, f"{beside}_of_run:check")
        assert sys.modules[f"{beside}_of_run"].__dict__["check"] is found

    def test_next_to_the_job_has_precedence(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for folder in ("elsewhere", "scenarios", "jobs"):
            module(tmp_path / folder / "first_of_run.py", CHECK.format(folder))
        monkeypatch.syspath_prepend(tmp_path / "elsewhere")
        named(tmp_path, "first_of_run:check")
        assert sys.modules["first_of_run"].__file__ == str(tmp_path / "jobs" / "first_of_run.py")

    def test_is_found_again_with_its_imports_from_the_same_folder(self, tmp_path: Path) -> None:
        module(tmp_path / "jobs" / "expected_of_run.py", "TOTALS = {}")
        module(tmp_path / "jobs" / "both_of_run.py", "from expected_of_run import TOTALS\ncheck = TOTALS.get")
        assert named(tmp_path, "both_of_run:check") == named(tmp_path, "both_of_run:check")

    def test_with_the_name_of_another_jobs_module_is_refused(self, tmp_path: Path) -> None:
        for job in ("one", "other"):
            module(tmp_path / job / "jobs" / "same_of_run.py", CHECK.format(job))
        named(tmp_path / "one", "same_of_run:check")
        with pytest.raises(ConfigError, match="has the same name as a loaded module"):
            named(tmp_path / "other", "same_of_run:check")

    @pytest.mark.parametrize("text", ["1 / 0", "raise SystemExit(0)", "import no_such_module_here"])
    def test_a_check_module_that_cannot_be_loaded_is_refused(self, tmp_path: Path, text: str) -> None:
        module(tmp_path / "jobs" / "raising_of_run.py", text)
        with pytest.raises(ConfigError, match="the check 'raising_of_run:check' cannot be loaded"):
            named(tmp_path, "raising_of_run:check")

    def test_a_missing_check_module_is_refused_with_the_searched_folders(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError) as caught:
            named(tmp_path, "nowhere_of_run:check")
        assert f"({tmp_path / 'jobs'}, {tmp_path / 'scenarios'})" in caught.value.next_step
