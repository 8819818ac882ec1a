"""The data that a loss of power may destroy, and the data that it may not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from unsynced import Unsynced, begin, cut_power

SEEDS = range(20)
Work = Callable[[Path, Unsynced], None]


def left(tmp_path: Path, work: Work) -> set[tuple[tuple[str, bytes], ...]]:
    """Return what may be left after the work, over many seeds."""
    found = set()
    for seed in SEEDS:
        folder, notes = tmp_path / f"{seed}" / "data", tmp_path / f"{seed}" / "notes"
        (folder / "root").mkdir(parents=True)
        (folder / "root" / "old").write_bytes(b"old")
        begin(folder, notes, ("root",))
        work(folder / "root", Unsynced(folder, notes, ("root",)))
        cut_power(folder, notes, ("root",), seed)
        found.add(tuple(sorted((path.name, path.read_bytes()) for path in (folder / "root").iterdir())))
    return found


def write(root: Path, noted: Unsynced, *, synced: bool) -> None:
    (root / "new").write_bytes(b"new")
    noted.note("create", "root/new", "")
    if synced:
        noted.note("fsync", "root/new", "")


class TestLossOfPower:
    def test_keeps_a_file_that_was_synced_with_its_folder(self, tmp_path: Path) -> None:
        def work(root: Path, noted: Unsynced) -> None:
            write(root, noted, synced=True)
            noted.note("fsync", "root", "")

        assert left(tmp_path, work) == {(("new", b"new"), ("old", b"old"))}

    def test_may_remove_a_name_whose_folder_was_not_synced(self, tmp_path: Path) -> None:
        found = left(tmp_path, lambda root, noted: write(root, noted, synced=True))
        assert found == {(("old", b"old"),), (("new", b"new"), ("old", b"old"))}

    def test_may_lose_any_byte_that_was_not_synced(self, tmp_path: Path) -> None:
        def work(root: Path, noted: Unsynced) -> None:
            write(root, noted, synced=False)
            noted.note("fsync", "root", "")

        found = {dict(names)["new"] for names in left(tmp_path, work)}
        assert {b"", b"new", bytes(3)} <= found

    def test_may_undo_a_removal_that_was_not_synced(self, tmp_path: Path) -> None:
        def work(root: Path, noted: Unsynced) -> None:
            (root / "old").unlink()
            noted.note("unlink", "root/old", "")

        assert left(tmp_path, work) == {(), (("old", b"old"),)}

    def test_leaves_a_replaced_file_old_or_new_but_never_mixed(self, tmp_path: Path) -> None:
        def work(root: Path, noted: Unsynced) -> None:
            write(root, noted, synced=True)
            (root / "new").replace(root / "old")
            noted.note("replace", "root/new", "root/old")

        assert left(tmp_path, work) == {(("old", b"old"),), (("old", b"new"),)}
