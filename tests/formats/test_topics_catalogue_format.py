"""A catalogue of topics of formats 1 and 2 can be read, and is written byte for byte as before."""

from __future__ import annotations

from pathlib import Path

from holdfast.runtime.sources.kafka.topics.catalogue import (
    Added,
    Catalogue,
    Listed,
    Place,
    TopicCatalogueHead,
    read_head,
)
from holdfast.runtime.sources.objects import HEAD_PATH, write_head
from holdfast.storage.objects import LocalObjects, MemoryObjects

GOLDEN = Path(__file__).parent / "topics_v1"
HEAD = TopicCatalogueHead(folder="topics-0123456789ab", cluster="MkU3OEVBNTcwNTJENDM2Qg")
LISTINGS = (
    [Added("orders.de", "V0u2KS3mQcGW3nHo0Ye4qA", 2), Added("orders.fr", None, 1)],
    [Added("orders.at", "0dCVCTcZTS2yZWwi6VMfCw", 1), Added("orders.de", "V0u2KS3mQcGW3nHo0Ye4qA", 1)],
)


class TestFormatOneOfTheCatalogue:
    def test_is_read(self) -> None:
        store = LocalObjects(GOLDEN)
        assert read_head(store) == HEAD
        catalogue = Catalogue(store, HEAD)
        catalogue.refresh()
        assert [catalogue.place(number) for number in range(6)] == [
            Place("orders.de", 0),
            Place("orders.de", 1),
            Place("orders.fr", 0),
            Place("orders.at", 0),
            Place("orders.de", 2),
            None,
        ]

    def test_is_written_byte_for_byte(self) -> None:
        store = MemoryObjects()
        write_head(store, HEAD)
        catalogue = Catalogue(store, HEAD)
        assert all(catalogue.append(each) for each in LISTINGS)
        written = {path: store.get(path) for path in store.list("")}
        assert sorted(written) == [HEAD_PATH, "topics-0123456789ab/00000000", "topics-0123456789ab/00000001"]
        assert {path: (GOLDEN / path).read_bytes() for path in written} == written


class TestFormatTwoOfTheCatalogue:
    """It says which topics have ended; what says of none has format 1."""

    ENDED = (*LISTINGS, [Added("orders.fr", "Zk3kq1TMQ0y1mJ0m5f3bVg", 2)])

    def test_is_read(self) -> None:
        catalogue = Catalogue(LocalObjects(GOLDEN.with_name("topics_v2")), HEAD)
        catalogue.refresh()
        assert [number for number in range(7) if catalogue.is_over(number)] == [2, 3]
        assert catalogue.topics == {
            "orders.de": Listed("V0u2KS3mQcGW3nHo0Ye4qA", (0, 1, 4)),
            "orders.fr": Listed("Zk3kq1TMQ0y1mJ0m5f3bVg", (5, 6)),
        }

    def test_is_written_byte_for_byte(self) -> None:
        store = MemoryObjects()
        write_head(store, HEAD)
        catalogue = Catalogue(store, HEAD)
        first, second, third = self.ENDED
        assert (
            catalogue.append(first) and catalogue.append(second) and catalogue.append(third, ["orders.at", "orders.fr"])
        )
        written = {path: store.get(path) for path in store.list("")}
        golden = GOLDEN.with_name("topics_v2")
        assert {path: (golden / path).read_bytes() for path in written} == written
        assert b'"v":2' in written["topics-0123456789ab/00000002"]
