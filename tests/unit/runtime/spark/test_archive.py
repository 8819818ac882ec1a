"""The archive of Spark's classes: its name, who may write it, which start stores it, what options of users change."""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.runtime.spark import archive
from holdfast.runtime.spark.archive import FOLDER, LATER_OPTIMIZED, STARTS_MAX, Boost, boost, key_of

WRITES, READS = "-XX:ArchiveClassesAtExit=", "-XX:SharedArchiveFile="


class Machine:
    """A Java, a Spark and the caches of a user, all of them in one folder."""

    def __init__(self, folder: Path) -> None:
        self.java, self.spark, self.caches = folder / "java", folder / "spark", folder / "cache"
        for name in ("bin/java", "lib/server/libjvm.so", "lib/server/classes.jsa", "lib/modules"):
            file = self.java / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(name)
        (self.java / "bin/java").chmod(0o755)
        self.jar("core.jar", "one")
        self.environment = {"JAVA_HOME": str(self.java), "PATH": "/usr/bin:/bin"}

    def jar(self, name: str, content: str) -> None:
        (self.spark / "jars").mkdir(parents=True, exist_ok=True)
        (self.spark / "jars" / name).write_text(content)

    @property
    def folder(self) -> Path:
        return self.caches / FOLDER

    def start(self, **more: str) -> Boost:
        return boost({**self.environment, **more}, self.spark)

    def key(self, **more: str) -> str:
        return key_of({**self.environment, **more}, self.java, self.spark)

    def store(self) -> Path:
        """Start twice; let the second JVM store the archive."""
        self.start()
        second = self.start()
        assert second.archive is not None
        stored = second.archive
        part_of(second).write_bytes(b"classes")
        second.worthwhile = True
        assert second.stored(0)
        return stored


def part_of(start: Boost) -> Path:
    """Return where the JVM is told to write."""
    return Path(start.options.partition(WRITES)[2].partition('"')[0])


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(made.caches))
    return made


class TestName:
    def test_changes_with_the_jars_of_spark(self, machine: Machine) -> None:
        before = machine.key()
        machine.jar("core.jar", "another")
        changed = machine.key()
        machine.jar("more.jar", "more")
        assert len({before, changed, machine.key()}) == 3

    def test_changes_with_the_java(self, machine: Machine) -> None:
        before = machine.key()
        (machine.java / "lib/modules").write_text("another version")
        assert machine.key() != before

    @pytest.mark.parametrize("name", ["SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "PYSPARK_SUBMIT_ARGS"])
    def test_changes_with_options_of_java(self, machine: Machine, name: str) -> None:
        assert machine.key(**{name: "-XX:+UseParallelGC"}) != machine.key()

    def test_changes_with_the_memory_of_the_driver(self, machine: Machine) -> None:
        assert machine.key(SPARK_DRIVER_MEMORY="40g") != machine.key()

    def test_stays_with_other_properties_such_as_the_file_of_a_log(self, machine: Machine) -> None:
        assert machine.key(SPARK_SUBMIT_OPTS='"-Dlog4j2.configurationFile=/tmp/a b/log"') == machine.key()


class TestTurn:
    def test_the_first_start_stores_no_archive(self, machine: Machine) -> None:
        """A container has a new home with every start."""
        first = machine.start()
        assert first == Boost(LATER_OPTIMIZED)

    def test_the_second_start_stores_the_archive_and_the_third_reads_it(self, machine: Machine) -> None:
        stored = machine.store()
        assert f'"{READS}{stored}"' in machine.start().options
        assert stored.read_bytes() == b"classes"

    def test_is_that_of_one_process_at_a_time(self, machine: Machine) -> None:
        machine.start()
        second, at_the_same_time = machine.start(), machine.start()
        assert WRITES in second.options and at_the_same_time == Boost(LATER_OPTIMIZED)
        part_of(second).write_bytes(b"classes")
        second.worthwhile = True
        assert second.stored(0) and READS in machine.start().options

    @pytest.mark.parametrize(("status", "worthwhile"), [(-9, True), (1, True), (None, True), (0, False)])
    def test_ends_without_an_archive_if_the_jvm_fails_or_never_had_a_context(
        self, machine: Machine, status: int | None, worthwhile: bool
    ) -> None:
        machine.start()
        second = machine.start()
        second.worthwhile = worthwhile
        part_of(second).write_bytes(b"half of the clas")
        assert not second.stored(status)
        assert [file.suffix for file in machine.folder.iterdir()] == [".starts"]
        assert WRITES in machine.start().options

    def test_ends_without_an_archive_if_the_jvm_wrote_none(self, machine: Machine) -> None:
        machine.start()
        second = machine.start()
        second.worthwhile = True
        assert not second.stored(0)

    def test_comes_a_few_times_and_then_once_a_day(self, machine: Machine) -> None:
        for _ in range(STARTS_MAX):
            machine.start().stored(-9)
        assert machine.start() == Boost(LATER_OPTIMIZED)
        (noted,) = machine.folder.iterdir()
        os.utime(noted, times=(0, time.time() - archive.DAY_S - 60))
        again = machine.start()
        assert WRITES in again.options
        again.stored(-9)
        assert machine.start() == Boost(LATER_OPTIMIZED)

    def test_comes_again_with_another_java(self, machine: Machine) -> None:
        before = machine.store()
        (machine.java / "lib/modules").write_text("another version")
        after = machine.store()
        assert before.exists() and after.exists() and before != after

    def test_removes_what_nobody_uses(self, machine: Machine) -> None:
        stored, part = machine.store(), machine.folder / "other.7.part"
        part.touch()
        os.utime(stored, times=(0, time.time() - archive.UNUSED_S - 60))
        os.utime(part, times=(0, time.time() - archive.DAY_S - 60))
        machine.jar("core.jar", "another")
        machine.store()
        assert not stored.exists() and not part.exists()

    def test_does_not_come_without_space(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=archive.SPACE_BYTES - 1))
        machine.start()
        assert machine.start() == Boost(LATER_OPTIMIZED)

    def test_does_not_come_on_a_full_disk(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        machine.start()
        monkeypatch.setattr(os, "pwrite", full)
        assert machine.start() == Boost(LATER_OPTIMIZED)


class TestTrust:
    def test_needs_a_folder_that_only_this_user_can_read_and_write(self, machine: Machine) -> None:
        machine.store()
        machine.folder.chmod(0o770)
        assert machine.start() == Boost(LATER_OPTIMIZED)

    def test_needs_a_folder_and_no_link_to_one(self, machine: Machine, tmp_path: Path) -> None:
        machine.store()
        machine.folder.rename(tmp_path / "elsewhere")
        machine.folder.symlink_to(tmp_path / "elsewhere")
        assert machine.start() == Boost(LATER_OPTIMIZED)

    def test_needs_a_file_that_nobody_else_can_write(self, machine: Machine) -> None:
        machine.store().chmod(0o666)
        assert READS not in machine.start().options

    def test_needs_a_file_and_no_link_to_one(self, machine: Machine, tmp_path: Path) -> None:
        stored = machine.store()
        stored.rename(tmp_path / "archive")
        stored.symlink_to(tmp_path / "archive")
        assert READS not in machine.start().options

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
    def test_needs_a_file_of_this_user(self, machine: Machine) -> None:
        os.chown(machine.store(), 12_345, -1)
        assert READS not in machine.start().options

    def test_is_not_needed_to_start_without_a_cache(self, machine: Machine) -> None:
        machine.caches.write_text("a home that cannot be written")
        assert machine.start() == machine.start() == Boost(LATER_OPTIMIZED)

    def test_is_not_needed_to_start_with_a_cache_whose_path_needs_quotes(
        self, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / 'in "quotes"'))
        machine.start()
        assert machine.start() == Boost(LATER_OPTIMIZED)


class TestOptions:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("SPARK_SUBMIT_OPTS", "-Xshare:auto"),
            ("SPARK_SUBMIT_OPTS", "-XX:SharedArchiveFile=mine.jsa"),
            ("JAVA_TOOL_OPTIONS", "-XX:ArchiveClassesAtExit=mine.jsa"),
            ("JDK_JAVA_OPTIONS", "-javaagent:profiler.jar"),
            ("PYSPARK_SUBMIT_ARGS", "--driver-class-path /srv/conf pyspark-shell"),
            ("PYSPARK_SUBMIT_ARGS", "--properties-file mine.conf pyspark-shell"),
            ("HADOOP_CONF_DIR", "/etc/hadoop"),
        ],
    )
    def test_user_options_for_archives_or_the_class_path_disable_archives(
        self, machine: Machine, name: str, value: str
    ) -> None:
        machine.store()
        for _ in range(3):
            assert machine.start(**{name: value}) == Boost(LATER_OPTIMIZED)

    def test_leave_archives_alone_with_a_configuration_which_is_a_folder_on_the_class_path(
        self, machine: Machine, tmp_path: Path
    ) -> None:
        machine.store()
        (tmp_path / "conf").mkdir()
        given = {"SPARK_CONF_DIR": str(tmp_path / "conf")}
        assert READS in machine.start(**given).options
        (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.ui.enabled true")
        assert machine.start(**given) == Boost(LATER_OPTIMIZED)

    @pytest.mark.parametrize("missing", ["java/bin/java", "java/lib/server/classes.jsa", "spark/jars/core.jar"])
    def test_are_none_for_an_unknown_java_or_spark(self, machine: Machine, tmp_path: Path, missing: str) -> None:
        (tmp_path / missing).unlink()
        if missing.startswith("spark"):
            (tmp_path / missing).parent.rmdir()
        assert machine.start() == Boost()

    def test_options_with_unterminated_quotes_are_left_to_spark(self, machine: Machine) -> None:
        assert machine.start(SPARK_SUBMIT_OPTS='"-Xss2m') == Boost(LATER_OPTIMIZED)

    def test_come_before_those_of_the_user_and_are_gone_after_the_launch(self) -> None:
        environment = {"SPARK_SUBMIT_OPTS": "-Xss2m"}
        with Boost("-Xint").applied(environment):
            assert environment == {"SPARK_SUBMIT_OPTS": "-Xint -Xss2m"}
        assert environment == {"SPARK_SUBMIT_OPTS": "-Xss2m"}
        del environment["SPARK_SUBMIT_OPTS"]
        with Boost("-Xint").applied(environment):
            assert environment == {"SPARK_SUBMIT_OPTS": "-Xint"}
        assert not environment
