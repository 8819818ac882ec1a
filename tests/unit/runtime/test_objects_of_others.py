"""What others leave where a job reads small objects: pipes, devices, huge files, deeply nested JSON.

Source: docs/guarantees.md (who is trusted); docs/operate/index.md.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from holdfast.errors import Damaged, NotFound, TooLarge, Unavailable
from holdfast.runtime.cli.operate.history import last_report
from holdfast.runtime.job import live, requests
from holdfast.runtime.job.requests import Inbox, ask
from holdfast.storage.bulk import get_at_most
from holdfast.storage.hashed import with_hash
from holdfast.storage.log.reader import read_meta
from holdfast.storage.objects import LocalObjects, MemoryObjects, open_objects


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def nested(path: Path) -> None:
    path.write_bytes(with_hash(b'{"kind":"savepoint","generation":1,"args":' + b"[" * 20_000 + b"]" * 20_000 + b"}"))


def linked(make: Callable[[Path], object], path: Path) -> None:
    make(path.with_suffix(".other"))
    path.symlink_to(path.with_suffix(".other"))


NO_FILES: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "link to a pipe": partial(linked, os.mkfifo),
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/tty"),
}
LARGE: dict[str, Callable[[Path], object]] = {
    "file of a terabyte": sparse,
    "link to such a file": partial(linked, sparse),
    "50 MB of JSON": lambda path: path.write_bytes(with_hash(json.dumps({"kind": "x" * 50_000_000}).encode())),
}
OTHERS = {**NO_FILES, **LARGE, "nested JSON": nested}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "requests").mkdir()
    return tmp_path


class TestRequests:
    @pytest.mark.parametrize("kind", OTHERS)
    def test_foreign_objects_among_requests_do_not_delay_a_real_request(self, root: Path, kind: str) -> None:
        store = LocalObjects(root)
        OTHERS[kind](root / "requests" / "0.json")
        name = ask(store, "savepoint", {"name": "v1"}, 1)
        assert [each.id for each in Inbox(store).poll()] == [name]

    @pytest.mark.parametrize("kind", NO_FILES)
    def test_requests_that_are_not_files_are_reported(self, root: Path, kind: str) -> None:
        NO_FILES[kind](root / "requests" / "0.json")
        inbox = Inbox(LocalObjects(root))
        for _ in range(requests.UNREADABLE_AFTER):
            assert inbox.poll() == []
        assert list(inbox.unreadable) == ["requests/0.json"]

    @pytest.mark.parametrize("kind", [*LARGE, "nested JSON"])
    def test_objects_that_are_not_requests_are_refused(self, root: Path, kind: str) -> None:
        store = LocalObjects(root)
        OTHERS[kind](root / "requests" / "0.json")
        assert Inbox(store).poll() == []
        reply = requests.answer_to(store, "0")
        assert reply is not None and not reply["accepted"]

    @pytest.mark.parametrize("kind", OTHERS)
    def test_an_answer_of_others_is_not_waited_for(self, root: Path, kind: str) -> None:
        OTHERS[kind](root / "requests" / "0.reply.json")
        with pytest.raises((Damaged, Unavailable)) if kind != "nested JSON" else pytest.raises(Damaged):
            requests.answer_to(LocalObjects(root), "0")


class TestOtherObjects:
    @pytest.mark.parametrize("kind", [*LARGE, "nested JSON"])
    def test_a_report_of_others_is_not_understood(self, root: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(live, "BYTES_MAX", 1 << 20)
        OTHERS[kind](root / live.PATH)
        assert last_report(LocalObjects(root)) is None

    @pytest.mark.parametrize("kind", NO_FILES)
    @pytest.mark.parametrize("how", ["get", "mapped", "opened"])
    def test_no_read_waits_for_what_is_no_file(self, root: Path, kind: str, how: str) -> None:
        NO_FILES[kind](root / "object")
        with pytest.raises(Unavailable):
            getattr(LocalObjects(root), how)("object")

    @pytest.mark.parametrize("kind", LARGE)
    def test_a_large_description_of_a_log_is_refused(self, root: Path, kind: str) -> None:
        LARGE[kind](root / "meta.json")
        with pytest.raises(TooLarge, match=r"meta\.json has more than 16,777,216 bytes"):
            read_meta(LocalObjects(root))

    @pytest.mark.parametrize(
        "made", [LocalObjects, lambda _: MemoryObjects(), lambda root: open_objects(f"memory://{root}")]
    )
    def test_a_limit_is_the_number_of_bytes_that_are_read(
        self, root: Path, made: Callable[[Path], LocalObjects]
    ) -> None:
        store = made(root)
        store.put("object", b"12345")
        assert get_at_most(store, "object", 5) == b"12345"
        with pytest.raises(TooLarge):
            get_at_most(store, "object", 4)
        with pytest.raises(NotFound):
            get_at_most(store, "none", 4)
