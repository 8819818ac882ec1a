"""Which tests a run has, how a change is found, and what the table of costs says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path

import pytest
from changes import ROOT, TURNS, Change, find_change
from cost_table import SESSION, STAYS_DEAR_S, CostTable, Measured, file_of
from tiers import FILE_S, QUICK_S, TOUCHED_S, choose, choose_files, in_turn

A, B = "tests/unit/test_a.py", "tests/unit/test_b.py"
COSTS = ROOT / "tests/costs.txt"
RUN_S = 2_200.0
"""CPU seconds that `make test` may need before a change adds its own dear tests, in the mean of six turns."""
BURN = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"


def never(_: str) -> bool:
    return False


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(folder: Path, *names: str) -> str:
    for name in names:
        (folder / name).write_text((folder / name).read_text() + "x" if (folder / name).exists() else "x")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "change")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture(scope="module")
def ten_commits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with ten commits; each adds a file."""
    folder = tmp_path_factory.mktemp("repository")
    git(folder, "init", "-q", "-b", "main")
    for number in range(10):
        commit(folder, f"file{number}")
    return folder


@pytest.fixture
def repository(ten_commits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that for one test."""
    monkeypatch.delenv("HOLDFAST_TESTS_BASE", raising=False)
    return Path(shutil.copytree(ten_commits, tmp_path / "repository"))


class TestTurns:
    def test_each_dear_test_runs_once_in_six_turns(self) -> None:
        table = CostTable({f"{A}::test_{number}": 5.0 for number in range(60)})
        ran = [choose(table.dear, table, turn, never).rotating for turn in range(100, 100 + TURNS)]
        assert sorted(test for each in ran for test in each) == sorted(table.dear)

    def test_a_turn_follows_from_the_name_of_the_test_alone(self) -> None:
        assert [turn for turn in range(12) if in_turn(f"{A}::test_x", turn)] == [
            zlib.crc32(f"{A}::test_x".encode()) % 6,
            zlib.crc32(f"{A}::test_x".encode()) % 6 + 6,
        ]

    def test_a_test_without_an_entry_runs_each_time(self) -> None:
        assert not choose([f"{A}::test_new"], CostTable({f"{A}::test_dear": 9.0}), 0, never).not_now


class TestTouchedTests:
    def test_run_out_of_turn(self) -> None:
        tests = [f"{file}::test_{number}" for file in (A, B) for number in range(6)]
        table = CostTable(dict.fromkeys(tests, 3.0))
        choice = choose(tests, table, 0, lambda file: file == A)
        assert choice.touched | choice.rotating >= set(tests[:6])
        assert choice.resting == {test for test in tests[6:] if not in_turn(test, 0)}

    def test_are_bounded_the_cheapest_first_and_the_others_are_named(self) -> None:
        resting = [test for test in (f"{A}::test_{n}" for n in range(40)) if not in_turn(test, 0)]
        table = CostTable({test: float(10 + place) for place, test in enumerate(resting)})
        choice = choose(resting, table, 0, lambda _: True)
        used_s = sum(table.dear[test] for test in choice.touched)
        assert used_s <= TOUCHED_S < used_s + min(table.dear[test] for test in choice.left_out)
        assert choice.touched == set(resting[: len(choice.touched)])
        assert choice.touched | choice.left_out == set(resting)


class TestQuick:
    def test_takes_touched_files_first_then_the_cheapest_ones(self) -> None:
        table = CostTable(rest={A: QUICK_S - 3, B: 3.0, "tests/unit/test_c.py": 1.5})
        assert choose_files(table.rest, table, lambda file: file == A) == ({A, "tests/unit/test_c.py"}, set())

    def test_counts_files_that_the_table_does_not_list(self) -> None:
        files = [f"tests/unit/test_{number}.py" for number in range(1_000)]
        chosen = len(choose_files(files, CostTable(), never)[0])
        assert chosen * FILE_S <= QUICK_S + FILE_S / 2 < (chosen + 2) * FILE_S

    def test_names_touched_files_that_have_no_room(self) -> None:
        table = CostTable(rest={A: QUICK_S - 2, B: 3.0})
        assert choose_files(table.rest, table, lambda _: True) == ({B}, {A})


class TestChange:
    def test_without_another_branch_is_the_last_six_commits(self, repository: Path) -> None:
        change = find_change(repository)
        assert change.turn == 10
        assert change.files == {f"file{number}" for number in range(4, 10)}

    def test_in_a_fresh_clone_of_main_is_the_last_six_commits(self, repository: Path, tmp_path: Path) -> None:
        git(tmp_path, "clone", "-q", str(repository), "clone")
        assert find_change(tmp_path / "clone") == find_change(repository)

    def test_the_change_of_a_branch_is_what_its_upstream_lacks(self, repository: Path, tmp_path: Path) -> None:
        git(tmp_path, "clone", "-q", str(repository), "clone")
        base = git(repository, "rev-parse", "HEAD")
        commit(tmp_path / "clone", "one")
        commit(tmp_path / "clone", "two")
        assert find_change(tmp_path / "clone") == Change(12, base, frozenset({"one", "two"}))

    def test_the_change_of_a_merge_has_all_merged_commits_and_is_one_turn(self, repository: Path) -> None:
        git(repository, "checkout", "-qb", "side", "HEAD~1")
        commit(repository, "side1")
        commit(repository, "side2")
        git(repository, "checkout", "-q", "main")
        git(repository, "merge", "-q", "--no-ff", "-m", "merge", "side")
        change = find_change(repository)
        assert change.turn == 11
        assert change.files >= {"side1", "side2", "file9"}

    def test_has_what_is_not_committed(self, repository: Path) -> None:
        (repository / "new").write_text("x")
        (repository / "file0").write_text("changed")
        assert find_change(repository).files >= {"new", "file0"}

    def test_may_have_a_base_that_the_user_names(self, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOLDFAST_TESTS_BASE", "HEAD~2")
        assert find_change(repository).files == {"file8", "file9"}

    def test_the_change_of_a_shallow_clone_is_limited_to_its_history(self, repository: Path, tmp_path: Path) -> None:
        git(tmp_path, "clone", "-q", "--depth", "1", repository.as_uri(), "clone")
        assert find_change(tmp_path / "clone").turn == 1

    def test_is_empty_without_history(self, tmp_path: Path) -> None:
        assert find_change(tmp_path) == Change()

    @pytest.mark.parametrize(
        "file",
        [
            "tests/unit/test_a.py",
            "state/a/b.py",
            "state/c/__init__.py",
            "src/holdfast/model.py",
            "tests/shared/part.py",
        ],
    )
    def test_touches_a_test_file_that_is_changed_or_imports_what_is(self, tmp_path: Path, file: str) -> None:
        lines = (
            "from holdfast.state.a import b",
            "import holdfast.state.c",
            "from holdfast.model import Epoch",
            "import part",
        )
        (tmp_path / "tests/unit").mkdir(parents=True)
        (tmp_path / A).write_text("\n".join(lines))
        assert Change(files=frozenset({file})).touches(A, tmp_path)
        assert not Change(files=frozenset({"state/a/other.py", "state/a/__init__.pyi"})).touches(A, tmp_path)

    def test_touches_a_test_file_that_names_a_script(self) -> None:
        assert Change(files=frozenset({"tests/e2e/discovering_job.py"})).touches("tests/e2e/test_added_partitions.py")


class TestTable:
    def test_reads_what_it_writes(self) -> None:
        table = CostTable({f"{A}::TestX::test_y[a b-1]": 12.0, f"{A}::test_z": 2.5}, {A: 3.5, f"{SESSION} kafka": 4.0})
        assert CostTable.parse(table.text()) == table

    def test_a_partial_run_changes_only_what_it_measured(self) -> None:
        table = CostTable({f"{A}::test_x": 5.0, f"{B}::test_y": 6.0}, {A: 3.0, B: 4.0})
        after = table.merged([Measured(f"{A}::test_x", 9.0, {})], whole=[])
        assert after == CostTable({f"{A}::test_x": 9.0, f"{B}::test_y": 6.0}, {A: 3.0, B: 4.0})

    def test_a_measurement_that_says_the_same_changes_nothing(self) -> None:
        table = CostTable({f"{A}::test_x": 5.0}, {A: 3.0})
        assert table.merged([Measured(f"{A}::test_x", 5.9, {}), Measured(f"{A}::test_y", 2.9, {})], [A]) != table
        assert table.merged([Measured(f"{A}::test_x", 5.9, {}), Measured(f"{A}::test_z", 1.9, {})], []) == table

    def test_the_rest_of_a_whole_file_has_cheap_tests_and_its_fixtures(self) -> None:
        measured = [Measured(f"{A}::test_{n}", 1.5, {"tests/unit/test_a.py store": 1.0}) for n in range(2)]
        assert CostTable().merged(measured, [A]) == CostTable(rest={A: 5.0})

    def test_a_test_that_was_dear_stays_so_until_it_is_clearly_cheap(self) -> None:
        table = CostTable({f"{A}::test_x": 2.2})
        assert f"{A}::test_x" in table.merged([Measured(f"{A}::test_x", 1.7, {})], []).dear
        assert not table.merged([Measured(f"{A}::test_x", 1.2, {})], []).dear

    def test_drops_what_no_longer_exists(self) -> None:
        table = CostTable({f"{A}::test_x": 5.0, f"{B}::test_y": 6.0}, {A: 3.0, B: 4.0})
        assert table.merged([], [], [A, f"{B}::test_y"]) == CostTable({}, {B: 4.0})


class TestClock:
    @pytest.mark.parametrize("groups", [True, False])
    def test_counts_a_process_and_its_children(self, groups: bool) -> None:
        code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN!r}])\n{BURN}"
        assert measured(f"subprocess.run([sys.executable, '-c', {code!r}])", groups) >= 0.55

    @pytest.mark.parametrize("groups", [True, False])
    def test_counts_processes_that_still_run(self, groups: bool) -> None:
        code = f"{BURN}\nprint(flush=True)\nimport sys; sys.stdin.read()"
        start = f"child = subprocess.Popen([sys.executable, '-c', {code!r}], stdin=-1, stdout=-1)"
        assert measured(f"{start}; child.stdout.readline()", groups) >= 0.28

    def test_counts_processes_whose_parent_ended_first_if_the_kernel_counts(self) -> None:
        parent = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {BURN!r}], close_fds=False)"
        act = f"""
            ends, held = os.pipe()
            os.set_inheritable(held, True)
            subprocess.run([sys.executable, "-c", {parent!r}], close_fds=False, check=True)
            os.close(held)
            assert os.read(ends, 1) == b"", "until the last process that holds it has ended"
            clock.seconds() >= 0.25 + start or sys.exit(clock.counts_orphans)
        """
        measured(textwrap.dedent(act), groups=True)


def measured(act: str, groups: bool) -> float:
    """Return CPU seconds of statements in a process of its own: only one clock can have this one."""
    code = "\n".join(
        (
            "import os, subprocess, sys",
            "from cpu_clock import CpuClock",
            f"clock = CpuClock(groups={groups})",
            "start = clock.seconds()",
            act,
            "print(clock.seconds() - start)",
            "clock.close()",
        )
    )
    environment = {"PYTHONPATH": str(ROOT / "tests/shared")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


class TestRun:
    """Runs of pytest with the plugin, over a file with a dear test in its turn, one out of turn, and two cheap ones."""

    def test_has_the_dear_tests_of_its_turn_and_fails_one_that_should_be_listed(self, tmp_path: Path) -> None:
        done = run(tmp_path, "-n", "2")
        assert done.returncode == 1, done.stdout
        assert "1 failed, 2 passed, 1 error" in done.stdout
        assert f"turn {find_change().turn % TURNS} of 6: 0 s in 1 tests" in done.stdout
        assert ".venv/bin/python -m pytest 'test_it.py::test_dear" in done.stdout
        assert "test_it.py::test_cheap used 0." in done.stdout
        assert "a test that is not in tests/costs.txt may use 0 s" in done.stdout

    def test_on_a_slow_machine_allows_more(self, tmp_path: Path) -> None:
        done = run(tmp_path, addition="    import tiering\n    tiering.slowness = lambda: 1_000\n")
        assert "1 failed, 2 passed, 2 deselected" in done.stdout

    def test_whose_tests_the_user_names_has_them_all(self, tmp_path: Path) -> None:
        assert "3 failed, 2 passed" in run(tmp_path, tiers=None).stdout


def run(
    folder: Path, *arguments: str, tiers: str | None = "rotate", addition: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder, in the turn of this checkout."""
    names = [f"test_dear{number}" for number in range(40)]
    turn = find_change().turn
    now = next(name for name in names if in_turn(f"test_it.py::{name}", turn))
    later = [name for name in names if not in_turn(f"test_it.py::{name}", turn)][:2]
    dear = {f"test_it.py::{name}": 9.0 for name in (now, *later)}
    (folder / "conftest.py").write_text(
        "from cost_table import CostTable\n"
        "from measuring import Measuring\n"
        "from tiering import Tiering\n"
        "def pytest_configure(config):\n"
        "    if hasattr(config, 'workerinput') or not config.getoption('numprocesses', None):\n"
        "        config.pluginmanager.register(Measuring())\n"
        f"    config.pluginmanager.register(Tiering({tiers!r}, False, (), 0.05, CostTable({dear!r})))\n"
        f"{addition}"
    )
    tests = [f"def {name}():\n    assert False" for name in (now, *later)]
    tests += ["def test_other():\n    pass", f"def test_cheap():\n{textwrap.indent(BURN, '    ')}"]
    (folder / "test_it.py").write_text("\n".join(tests))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests/shared"), "HOLDFAST_TESTS_BASE": "HEAD"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


class TestCosts:
    """The table in the repository, compared with the tree without running anything."""

    TABLE = CostTable.parse(COSTS.read_text())

    def test_list_only_files_that_exist(self) -> None:
        files = {file for file in (*self.TABLE.rest, *map(file_of, self.TABLE.dear)) if not file.startswith(SESSION)}
        assert [file for file in sorted(files) if not (ROOT / file).is_file()] == []

    def test_list_only_tests_that_exist(self) -> None:
        gone = [test for test in self.TABLE.dear if not _is_defined(test)]
        assert gone == [], "to drop them: make costs TESTS=<their files>"

    def test_the_costs_of_expensive_tests_are_above_the_limit(self) -> None:
        assert min(self.TABLE.dear.values()) >= STAYS_DEAR_S

    def test_the_costs_of_tests_in_each_run_are_within_the_budget(self) -> None:
        assert sum(self.TABLE.rest.values()) + sum(self.TABLE.dear.values()) / TURNS <= RUN_S

    def test_are_as_the_flag_writes_them(self) -> None:
        assert COSTS.read_text() == self.TABLE.text()


def _is_defined(test: str) -> bool:
    file, _, names = test.partition("::")
    path = ROOT / file
    parts = names.partition("[")[0].removesuffix("::runTest").split("::")  # a state machine of Hypothesis has one test
    text = path.read_text() if path.is_file() else ""
    return all(re.search(rf"^\s*((class|def) {part}\b|{part} = )", text, re.MULTILINE) for part in parts)
