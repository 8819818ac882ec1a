"""A catalogue of files of format 1 can be read, and is written byte for byte as before."""

from __future__ import annotations

from pathlib import Path

from holdfast.runtime.sources.files.catalogue import FileCatalogue, FileCatalogueHead, FileEntry, read_head
from holdfast.runtime.sources.objects import HEAD_PATH, write_head
from holdfast.storage.objects import LocalObjects, MemoryObjects

GOLDEN = Path(__file__).parent / "files_v1"
HEAD = FileCatalogueHead(folder="files-0123456789ab", path="s3://bucket/in", format="csv", partitions=2, bounded=False)
LISTINGS = (
    [FileEntry("a.csv", 12, "5d41402abc4b2a76b9719d911017c592", 12), FileEntry("ä/b.csv", 7, "1700000000000000000", 7)],
    [FileEntry("c.csv", 30, "9-2", 30)],
)


class TestFormatOneOfTheCatalogue:
    def test_is_read(self) -> None:
        store = LocalObjects(GOLDEN)
        assert read_head(store) == HEAD
        catalogue = FileCatalogue(store, HEAD)
        catalogue.refresh()
        assert [catalogue.end(partition) for partition in (0, 1)] == [42, 7]
        assert catalogue.hash_of(0, 2) == "3e51e6455952e5358543068a8d2ec8f1"

    def test_is_written_byte_for_byte(self) -> None:
        store = MemoryObjects()
        write_head(store, HEAD)
        catalogue = FileCatalogue(store, HEAD)
        assert all(catalogue.append(each) for each in LISTINGS)
        written = {path: store.get(path) for path in store.list("")}
        assert sorted(written) == [HEAD_PATH, "files-0123456789ab/0/00000000", "files-0123456789ab/0/00000001"]
        assert {path: (GOLDEN / path).read_bytes() for path in written} == written
