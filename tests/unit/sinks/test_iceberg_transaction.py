"""A transaction that looks at the metadata as often as the library does, and copies it once for each change."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from iceberg_tables import FolderCatalog
from pyiceberg.table import Table, Transaction

from holdfast.sinks.iceberg.transaction import OneCopy


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = FolderCatalog(tmp_path)
    made.sink.prepare(pa.schema([pa.field("n", pa.int64())]), None)
    return made.load()


class TestATransaction:
    def test_copies_the_metadata_once_however_often_it_is_looked_at(self, table: Table) -> None:
        transaction = OneCopy(table)
        assert transaction.table_metadata is transaction.table_metadata

    def test_shows_what_is_staged_as_the_library_does(self, table: Table) -> None:
        ours, plain = OneCopy(table), Transaction(table)
        for value in ("1", "2"):
            for each in (ours, plain):
                each.set_properties({"number": value})
            assert ours.table_metadata.properties == plain.table_metadata.properties
            assert ours.table_metadata.properties["number"] == value

    def test_leaves_the_table_as_it_was_until_the_commit(self, table: Table) -> None:
        before = table.metadata.model_dump_json()
        OneCopy(table).append(pa.table({"n": pa.array([1], pa.int64())}))
        assert table.metadata.model_dump_json() == before
