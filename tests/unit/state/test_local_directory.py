from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.state.local.directory import claim
from holdfast.state.local.rocks import DAMAGED

GROUPS = (0, 64)


def left_behind(parent: Path, *left: tuple[tuple[int, int], int]) -> list[Path]:
    """Leave folders of these key groups with a copy of so many bytes, as workers do that ended together."""
    held = [claim(parent, key_groups) for key_groups, _ in left]
    for folder, (_, size) in zip(held, left, strict=True):
        folder.copies.put("a", bytes(size))
        folder.store.flush()
        folder.close()
    return [folder.path for folder in held]


def claimed(parent: Path, key_groups: tuple[int, int] = GROUPS) -> tuple[Path, int]:
    """Claim and release a folder; return it, and the bytes of its copies."""
    folder = claim(parent, key_groups)
    folder.close()
    return folder.path, folder.copies.nbytes


class TestClaim:
    def test_creates_a_folder_where_there_is_none_to_take_over(self, tmp_path: Path) -> None:
        path, nbytes = claimed(tmp_path)
        assert (list(tmp_path.iterdir()), nbytes) == ([path], 0)

    def test_takes_over_the_folder_with_the_most_copies_and_removes_the_others(self, tmp_path: Path) -> None:
        _, most, _ = left_behind(tmp_path, (GROUPS, 7), (GROUPS, 9), (GROUPS, 8))
        assert claimed(tmp_path) == (most, 9) and list(tmp_path.iterdir()) == [most]

    def test_takes_over_no_folder_of_other_key_groups(self, tmp_path: Path) -> None:
        others = left_behind(tmp_path, ((0, 128), 9), ((32, 96), 9), ((64, 128), 9))
        path, nbytes = claimed(tmp_path)
        assert nbytes == 0 and set(tmp_path.iterdir()) == {path, *others}

    def test_removes_folders_of_key_groups_inside_these(self, tmp_path: Path) -> None:
        mine, *_ = left_behind(tmp_path, (GROUPS, 1), ((0, 32), 9), ((32, 64), 9), ((8, 9), 9))
        assert claimed(tmp_path) == (mine, 1) and list(tmp_path.iterdir()) == [mine]

    def test_leaves_a_folder_that_a_live_worker_holds(self, tmp_path: Path) -> None:
        held = claim(tmp_path, GROUPS)
        held.copies.put("a", b"1")
        path, _ = claimed(tmp_path)
        assert path != held.path and held.path.exists()
        held.close()

    def test_leaves_what_is_no_folder_of_copies(self, tmp_path: Path) -> None:
        others = [tmp_path / name for name in ("notes", "0-64", "a-b-c")]
        for other in others:
            other.mkdir()
        path, _ = claimed(tmp_path)
        assert set(tmp_path.iterdir()) == {path, *others}

    def test_removes_a_folder_together_with_another_worker_that_met_its_removal(self, tmp_path: Path) -> None:
        leaving = claim(tmp_path, GROUPS)
        for number in range(2_000):  # so that both are in the middle of it
            (leaving.path / f"{number}.sst").touch()

        def remove_too() -> None:
            while leaving.path.exists():
                pass
            claimed(tmp_path)

        with ThreadPoolExecutor() as pool:
            other = pool.submit(remove_too)
            leaving.discard()
            other.result()
        assert not [path for path in tmp_path.iterdir() if path.name.startswith(".removed-")]

    def test_never_takes_over_a_folder_whose_removal_was_cut_short_but_completes_it(self, tmp_path: Path) -> None:
        (path,) = left_behind(tmp_path, (GROUPS, 1))
        path.rename(path.with_name(".removed-" + path.name))
        taken, nbytes = claimed(tmp_path)
        assert nbytes == 0 and list(tmp_path.iterdir()) == [taken]


class TestDiscard:
    def test_leaves_nothing(self, tmp_path: Path) -> None:
        folder = claim(tmp_path, GROUPS)
        folder.copies.put("not", b"flushed")
        folder.discard()
        assert list(tmp_path.iterdir()) == []


class TestADamagedFolder:
    @pytest.mark.parametrize("opens", [True, False])
    def test_is_replaced(self, tmp_path: Path, opens: bool) -> None:
        (path,) = left_behind(tmp_path, (GROUPS, 1))
        if opens:  # the damage was found while it was in use
            (path / DAMAGED).write_text("a block has another checksum")
        else:
            (path / "CURRENT").write_bytes(b"nonsense\n")
        taken, nbytes = claimed(tmp_path)
        assert nbytes == 0 and taken != path
        claimed(tmp_path)  # one that could not be opened is known as damaged by now
        assert list(tmp_path.iterdir()) == [taken]

    def test_stays_while_a_live_worker_holds_it(self, tmp_path: Path) -> None:
        held = claim(tmp_path, GROUPS)
        (held.path / DAMAGED).write_text("a block has another checksum")
        path, _ = claimed(tmp_path)
        assert path != held.path and held.path.exists() and held.store.scan(b"", b"9") == []
        held.close()
