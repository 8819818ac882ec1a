"""Where workers keep local state: which folders are removed, and which belong to others."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.errors import ConfigError
from holdfast.model import NO_EPOCH, Epoch, Generation, JobUuid, SnapshotHandle, Subtask, Timeline, WorkerId
from holdfast.runtime.wire.messages import ActiveRole, Deploy
from holdfast.runtime.wire.presence import machine_id
from holdfast.runtime.worker.local.home import Home
from holdfast.runtime.worker.local.opened import LocalFolders
from holdfast.storage.objects import MemoryObjects

JOB = JobUuid("1" * 32)


@dataclass
class Bid:
    auction: int


def folders(root: Path, machine: str, boot: str) -> set[str]:
    """Let a worker of this machine and boot open its state; return all folders of boots that there are then."""
    app = hf.App("hot", key_groups=8)
    bids = app.source("bids", hf.Generator(Bid, lambda i: Bid(i), count=1))
    bids.key_by("auction").agg("hot", bids=hf.count()).sink("out", hf.SQLite("unused.db", table="hot", key=["auction"]))
    handle = SnapshotHandle(Subtask(0), (0, 8), (), NO_EPOCH, ())
    deploy = Deploy(JOB, Generation(1), Timeline(1), Epoch(1), NO_EPOCH, ActiveRole(Subtask(0)), (), handle, (), (), ())
    local = LocalFolders(Home(root, machine, boot))
    local.open(app.plan(), deploy, WorkerId("w"), MemoryObjects()).close()
    return {path.relative_to(root).as_posix() for path in root.glob("*/*")}


def test_folders_of_this_machine_from_before_its_reboot_are_removed(tmp_path: Path) -> None:
    assert folders(tmp_path, "one", "first") == {"one/first"}
    assert folders(tmp_path, "one", "second") == {"one/second"}


def test_folders_of_another_machine_on_a_shared_disk_are_kept(tmp_path: Path) -> None:
    folders(tmp_path, "one", "a")
    assert folders(tmp_path, "two", "b") == {"one/a", "two/b"}
    assert folders(tmp_path, "one", "c") == {"one/c", "two/b"}


def test_nothing_is_removed_where_the_boot_is_unknown(tmp_path: Path) -> None:
    folders(tmp_path, "one", "a")
    assert folders(tmp_path, "one", "") == {"one/a", "one/unknown-boot"}


def test_folders_of_earlier_versions_are_not_removed(tmp_path: Path) -> None:
    """Their boot ids are directly below the root and do not identify the machine."""
    (tmp_path / "another-boot" / JOB).mkdir(parents=True)
    assert "another-boot/" + JOB in folders(tmp_path, "one", "a")


def test_a_machine_is_also_identified_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers of one image have the same machine id."""
    here = machine_id()
    assert here == machine_id()
    monkeypatch.setattr("socket.gethostname", lambda: "another-container")
    assert machine_id() != here


def test_a_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o777)
    with pytest.raises(ConfigError, match="not a folder that only this user owns"):
        folders(tmp_path, "one", "a")
