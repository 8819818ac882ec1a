"""`holdfast doctor`: each check examines the real system, names the next step, and leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import pytest

from holdfast.runtime.cli.main import main
from holdfast.runtime.cli.start import doctor, doctor_cluster


class TestStorage:
    def test_a_working_root_is_not_changed(self, tmp_path: Path) -> None:
        assert {check.state for check in doctor.storage(str(tmp_path))} <= {"ok", "warn"}
        assert list(tmp_path.iterdir()) == []

    def test_a_missing_root_is_not_left_behind(self, tmp_path: Path) -> None:
        assert next(doctor.storage(str(tmp_path / "root"))).state == "ok"
        list(doctor.storage(str(tmp_path / "root")))
        assert not (tmp_path / "root").exists()

    def test_a_file_in_its_place_fails_with_advice(self, tmp_path: Path) -> None:
        (tmp_path / "root").write_text("no folder")
        [check] = doctor.storage(str(tmp_path / "root"))
        assert (check.name, check.state, check.exit_status) == ("root", "fail", 2)
        assert check.next

    def test_an_unknown_scheme_fails_with_advice(self) -> None:
        [check] = doctor.storage("gopher://somewhere")
        assert check.state == "fail"


class TestJava:
    def test_a_java_home_without_java_fails_with_what_to_install(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        [check] = doctor.java()
        assert check.state == "fail"
        assert str(tmp_path) in check.found
        assert check.next is not None
        assert "Java 17" in check.next

    def test_a_java_that_is_too_old_fails(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        program = tmp_path / "bin" / "java"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
        program.chmod(0o755)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        [check] = doctor.java()
        assert check.state == "fail"
        assert "too old" in check.found


class TestMachine:
    def test_every_check_has_a_name_and_a_finding(self) -> None:
        checks = list(doctor.machine())
        assert [check.name for check in checks] == ["temporary disk", "shared memory", "processors"]
        assert all(check.found for check in checks)


class TestPackages:
    def test_native_packages_are_imported(self) -> None:
        assert [check.name for check in doctor.packages()] == list(doctor.PACKAGES)


class TestRootAccess:
    def test_a_root_writable_by_others_is_a_warning(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o777)
        [check] = [check for check in doctor.storage(str(tmp_path)) if check.name == "root access"]
        assert check.state == "warn" and "everyone" in check.found

    def test_a_root_writable_only_by_its_owner_is_no_warning(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o755)
        [check] = [check for check in doctor.storage(str(tmp_path)) if check.name == "root access"]
        assert check.state == "ok"


class TestCluster:
    SAFE: ClassVar = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
    REACHED: ClassVar = {"spark master": "ok"}

    @pytest.fixture(autouse=True)
    def reached(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """No host name is resolved; tests/unit/runtime/spark/test_reach.py connects."""
        monkeypatch.setattr(doctor_cluster, "unreached", lambda master: None)

    def states(self, master: str | None, environment: dict[str, str], reported: dict[str, str]) -> dict[str, str]:
        return {check.name: check.state for check in doctor_cluster.cluster(master, environment, reported)}

    def test_a_job_on_this_machine_needs_no_cluster_settings(self) -> None:
        assert self.states(None, {}, {}) == {"spark traffic": "ok"}
        assert self.states("local[4]", {}, {}) == {"spark traffic": "ok"}

    def test_unauthenticated_spark_traffic_is_a_warning(self) -> None:
        assert self.states("spark://host:7077", {}, {}) == self.REACHED | {"spark traffic": "warn", "streams": "ok"}
        [check, _] = doctor_cluster.cluster("yarn", {}, {"spark.authenticate": "true"})
        assert check.state == "warn" and check.next and "spark.network.crypto.enabled=true" in check.next

    def test_unencrypted_streams_are_a_warning(self) -> None:
        assert self.states("yarn", {"HOLDFAST_TLS": "off"}, self.SAFE) == {"spark traffic": "ok", "streams": "warn"}

    def test_the_master_is_resolved_as_in_a_run(self) -> None:
        assert self.states(None, {"HOLDFAST_MASTER": "yarn"}, self.SAFE) == {"spark traffic": "ok", "streams": "ok"}
        found = self.states(None, {}, {"spark.master": "spark://h:1"})
        assert found == self.REACHED | {"spark traffic": "warn", "streams": "ok"}

    def test_spark_defaults_conf_is_read_as_spark_reads_it(self, tmp_path: Path) -> None:
        (tmp_path / "spark-defaults.conf").write_text(
            "# a comment\n\nspark.master   spark://h:1\nspark.authenticate=true\n  spark.x = a b \n"
        )
        found = doctor_cluster.spark_defaults({"SPARK_CONF_DIR": str(tmp_path)})
        assert found == {"spark.master": "spark://h:1", "spark.authenticate": "true", "spark.x": "a b"}


class TestWithoutSpark:
    def test_checks_that_workers_can_be_forked_and_neither_java_nor_spark(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))  # has no Java
        assert main(["doctor", "--local", "--json", "--root", str(tmp_path / "root")]) == 0
        states = {check["name"]: check["state"] for check in json.loads(capsys.readouterr().out)["checks"]}
        assert states["workers"] == "ok"
        assert not {"java", "spark"} & states.keys()
