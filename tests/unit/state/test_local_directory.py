from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.errors import LocalDamaged
from holdfast.model import Epoch, JobUuid, Timeline
from holdfast.state.directory import LocalDirectory, claim, create, discard, unheld
from holdfast.state.local.rocks import DAMAGED
from holdfast.state.marker import Marker, write_marker

JOB = JobUuid("job")
LINEAGE = {Epoch(number): f"manifest of {number}" for number in range(1, 101)}


def left_behind(root: Path, applied: int, key_groups: tuple[int, int], job: str = "job") -> Path:
    directory = create(root)
    epoch = Epoch(applied)
    manifest = LINEAGE.get(epoch, "")
    marker = Marker(
        JobUuid(job),
        Timeline(1),
        epoch,
        epoch,
        key_groups,
        (1,),
        (1,),
        applied_manifest=manifest,
        applying_manifest=manifest,
    )
    write_marker(directory.store, marker)
    directory.store.flush()
    directory.store.close()
    return directory.path


def claimed(root: Path, target: int = 50) -> LocalDirectory:
    directory = claim(root, JOB, LINEAGE, Epoch(target), (0, 64), {})
    directory.store.close()
    return directory


class TestUnheldDirectories:
    def test_are_none_below_a_root_that_is_not_there(self, tmp_path: Path) -> None:
        assert unheld(tmp_path / "nowhere") == []

    def test_are_listed_with_their_markers(self, tmp_path: Path) -> None:
        path = left_behind(tmp_path, 7, (0, 64))
        (found,) = unheld(tmp_path)
        assert found.path == path and found.marker is not None and found.marker.applied == 7
        found.store.close()

    def test_are_not_those_that_a_live_worker_holds(self, tmp_path: Path) -> None:
        held = create(tmp_path)
        assert unheld(tmp_path) == []
        held.store.close()

    def test_are_not_those_that_are_damaged(self, tmp_path: Path) -> None:
        (left_behind(tmp_path, 7, (0, 64)) / "CURRENT").write_bytes(b"nonsense\n")
        assert unheld(tmp_path) == []

    def test_are_not_those_in_which_damage_was_met_while_they_were_in_use(self, tmp_path: Path) -> None:
        directory = create(tmp_path)
        directory.store.write([(b"%05d" % i, bytes(100)) for i in range(1_000)], [])
        directory.store.flush()
        directory.store.close()
        (sst,) = directory.path.glob("*.sst")
        sst.write_bytes(b"?" + sst.read_bytes()[1:])
        (again,) = unheld(tmp_path)  # its marker lies in another block
        with pytest.raises(LocalDamaged):
            again.store.scan(b"", b"9")
        again.store.close()
        assert unheld(tmp_path) == []


class TestClaim:
    def test_takes_the_directory_that_covers_most(self, tmp_path: Path) -> None:
        left_behind(tmp_path, 9, (0, 16))
        wide = left_behind(tmp_path, 7, (0, 48))
        assert claimed(tmp_path).path == wide

    def test_takes_the_directory_that_is_furthest_among_equals(self, tmp_path: Path) -> None:
        left_behind(tmp_path, 7, (0, 64))
        newest = left_behind(tmp_path, 9, (0, 64))
        left_behind(tmp_path, 8, (0, 64))
        assert claimed(tmp_path).path == newest

    def test_removes_what_could_only_serve_the_same_key_groups(self, tmp_path: Path) -> None:
        newest = left_behind(tmp_path, 9, (0, 64))
        older, elsewhere = left_behind(tmp_path, 7, (0, 64)), left_behind(tmp_path, 8, (64, 128))
        claimed(tmp_path)
        assert newest.exists() and elsewhere.exists() and not older.exists()

    def test_passes_over_directories_that_are_not_usable(self, tmp_path: Path) -> None:
        others = {left_behind(tmp_path, 60, (0, 64)), left_behind(tmp_path, 7, (0, 64), job="another")}
        directory = claimed(tmp_path)
        assert directory.path not in others and directory.marker is None

    def test_releases_what_may_serve_other_key_groups(self, tmp_path: Path) -> None:
        wider = left_behind(tmp_path, 7, (32, 128))
        best = left_behind(tmp_path, 9, (0, 64))
        assert claimed(tmp_path).path == best
        found = unheld(tmp_path)
        assert {directory.path for directory in found} == {wider, best}
        for directory in found:
            directory.store.close()

    def test_leaves_nothing_of_a_discarded_directory(self, tmp_path: Path) -> None:
        directory = create(tmp_path)
        directory.store.write([(b"not", b"flushed")], [])
        discard(directory)
        assert list(tmp_path.iterdir()) == []

    def test_removes_a_directory_together_with_another_worker_that_met_its_removal(self, tmp_path: Path) -> None:
        leaving = create(tmp_path)
        for number in range(2_000):  # so that both are in the middle of it
            (leaving.path / f"{number}.sst").touch()

        def remove_too() -> None:
            while leaving.path.exists():
                pass
            claimed(tmp_path)

        with ThreadPoolExecutor() as pool:
            other = pool.submit(remove_too)
            discard(leaving)
            other.result()
        assert not [path for path in tmp_path.iterdir() if path.name.startswith(".removed-")]

    def test_never_offers_a_directory_whose_removal_was_cut_short(self, tmp_path: Path) -> None:
        path = left_behind(tmp_path, 7, (0, 64))
        path.rename(path.with_name(".removed-" + path.name))
        assert unheld(tmp_path) == []


class TestDamagedDirectories:
    def damaged(self, root: Path) -> Path:
        path = left_behind(root, 7, (0, 64))
        (path / DAMAGED).write_text("a block has another checksum")
        return path

    def test_make_room_for_the_new_copy(self, tmp_path: Path) -> None:
        self.damaged(tmp_path)
        assert [claimed(tmp_path).path] == list(tmp_path.iterdir())

    def test_make_room_also_where_they_cannot_be_opened_any_more(self, tmp_path: Path) -> None:
        (left_behind(tmp_path, 7, (0, 64)) / "CURRENT").write_bytes(b"nonsense\n")
        assert [claimed(tmp_path).path] == list(tmp_path.iterdir())

    def test_stay_while_a_live_worker_holds_them(self, tmp_path: Path) -> None:
        held = create(tmp_path)
        (held.path / DAMAGED).write_text("a block has another checksum")
        claimed(tmp_path)
        assert held.path.exists() and held.store.scan(b"", b"9") == []
        held.store.close()

    def test_whose_removal_was_cut_short_are_removed_by_the_next_worker(self, tmp_path: Path) -> None:
        path = left_behind(tmp_path, 7, (0, 64))
        path.rename(path.with_name(".removed-" + path.name))
        assert [claimed(tmp_path).path] == list(tmp_path.iterdir())
