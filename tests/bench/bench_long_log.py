"""A log with very many commits: how long it takes to open and to read, before and after its commits are packed."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from counted import BulkObjects
from harness import Bench

from holdfast.model import Epoch, Tag, Timeline
from holdfast.ports import ObjectStore
from holdfast.storage.log.commits import Commits
from holdfast.storage.log.format import (
    Draft,
    LogSegment,
    WriterTag,
    before_the_first,
    commit_path,
    encode_commit,
    placed,
)
from holdfast.storage.log.log import create_log
from holdfast.storage.log.packer import pack
from holdfast.storage.log.reader import existing_meta
from holdfast.storage.objects import LocalObjects


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def age(store: ObjectStore, put: Callable[[str, bytes], object], commits: int, block: int) -> None:
    """Give an empty log so many commits of one row, as a job's committer makes them; their rows are missing."""
    tail = before_the_first(existing_meta(store))
    for number in range(1, commits + 1):
        tag = WriterTag("6f9b0f6e-0000-4000-8000-000000000001/out/0", Tag(Timeline(1), Epoch(number)))
        segment = LogSegment(0, 0, 1, f"data/0/{number:032x}.arrow", 1_000, "0" * 16)
        tail = placed(Draft("append", f"{number:032x}", number, (segment,), tag), tail, block)
        put(commit_path(tail.sequence), encode_commit(tail))


def bench_long_log(bench: Bench) -> None:
    """A log in a folder, and one in a store that costs a round trip per request."""
    commits = bench.size("commits", smoke=40, full=100_000)
    block = bench.size("commits per pack", smoke=5, full=1_000)
    folder = Path(tempfile.mkdtemp(prefix="long-log-"))
    try:
        _folder(bench, folder, commits, block)
    finally:
        shutil.rmtree(folder)
    store = BulkObjects()
    create_log(store, pa.schema([("n", pa.int64())]), 1)
    age(store, store.create, commits, block)
    for what in ("before", "packed"):
        store.requests.clear()
        opened = Commits(store, existing_meta(store))
        to_open = store.requests.total()
        assert opened.find(0, commits // 3)[0] == commits // 3 + 1
        bench.note(f"{what}: {to_open} requests to open, {store.requests.total() - to_open} more to find an offset")
        while what == "before" and pack(store, opened).packs:
            pass


def _folder(bench: Bench, folder: Path, commits: int, block: int) -> None:
    store = LocalObjects(folder)
    create_log(store, pa.schema([("n", pa.int64())]), 1)
    (folder / "commits").mkdir()
    age(store, lambda path, data: (folder / path).write_bytes(data), commits, block)

    def open_it() -> Commits:
        return Commits(store, existing_meta(store))

    before, opened = seconds(open_it), open_it()
    made = deleted = 0
    with bench.timed():
        while (done := pack(store, opened)).packs:
            made, deleted = made + done.packs, deleted + done.deleted
    assert deleted == made * block > 0
    left = sum(1 for _ in folder.glob("commits/*"))
    size = sum(path.stat().st_size for path in folder.glob("packs/*"))
    bench.note(
        f"a folder opens in {before:.3f} s before, {seconds(open_it):.4f} s with {made} packs, {left} objects left"
    )
    bench.note(f"{size / deleted:.0f} B per packed commit")
    bench.report(per=deleted, unit="packed commit", check=deleted)
