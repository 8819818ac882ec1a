"""A run writes only below its folder."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pyspark

from holdfast.chaos.live.folders import keeps_temporary_below
from holdfast.chaos.live.job import LiveJob


class TestTemporaryFiles:
    def test_temporary_files_of_python_and_spark_are_below_the_run_folder(self, tmp_path: Path) -> None:
        environment = LiveJob(tmp_path / "job.py", tmp_path, (), {}, "token").environment
        assert {environment[name] for name in ("TMPDIR", "SPARK_LOCAL_DIRS")} == {str(tmp_path / "tmp")}
        assert (tmp_path / "tmp").is_dir()

    def test_temporary_files_of_the_driver_jvm_are_there_even_if_the_path_has_spaces(self, tmp_path: Path) -> None:
        out = tmp_path / "a run"
        out.mkdir()
        launcher = Path(pyspark.__file__).parent / "bin" / "spark-class"
        command = [str(launcher), "org.apache.spark.deploy.SparkSubmit", "--version"]
        environment = {**os.environ, **keeps_temporary_below(out), "SPARK_PRINT_LAUNCH_COMMAND": "1"}
        said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert f"-Djava.io.tmpdir={out / 'tmp'} " in said.stderr
