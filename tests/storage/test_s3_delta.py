"""`hf.Delta` on a real S3 server: commits by conditional put, credentials, a server that does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from s3_store import OWNER, SECRET, S3Store, s3_store

import holdfast as hf
from holdfast.errors import NotAdmitted, Unavailable
from holdfast.model import Epoch, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract.sink import Rewinding
from holdfast.sinks.contract.target import AlreadyDelivered, Delivered, FaultPoint
from holdfast.sinks.delta.sink import Delta

pytestmark = [pytest.mark.s3, pytest.mark.toxiproxy]
JOB, LEFT = "6f9b0f6e-0000-4000-8000-000000000001", Writer("out", Subtask(0))
SCHEMA = pa.schema([pa.field("n", pa.int64())])


def tag(epoch: int, timeline: int = 1) -> Tag:
    return Tag(Timeline(timeline), Epoch(epoch))


def rows(*numbers: int) -> list[pa.RecordBatch]:
    return [pa.record_batch([pa.array(numbers, pa.int64())], schema=SCHEMA)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Store]:
    with s3_store(tmp_path_factory.mktemp("s3")) as running:
        yield running


@dataclass
class Lake:
    """A table for one test."""

    url: str
    options: dict[str, Any]

    @property
    def sink(self) -> Delta:
        return hf.Delta(self.url, options={**self.options, "AWS_SECRET_ACCESS_KEY": hf.secret("env:LAKE_SECRET")})

    def shown(self) -> list[int]:
        options = {**self.options, "AWS_SECRET_ACCESS_KEY": SECRET}
        return sorted(DeltaTable(self.url, storage_options=options).to_pyarrow_table().column("n").to_pylist())


@pytest.fixture
def lake(server: S3Store, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Lake:
    monkeypatch.setenv("LAKE_SECRET", SECRET)
    options = {
        "AWS_ACCESS_KEY_ID": OWNER,
        "AWS_ENDPOINT_URL": f"http://{server.link.address}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
    }
    return Lake(server.url(request.node.name), options)


class TestTable:
    def test_takes_each_epoch_once_though_a_zombie_comes_in_between(self, lake: Lake) -> None:
        lake.sink.prepare(SCHEMA, None)
        left = [lake.sink.open(JOB, LEFT)]

        def zombie(point: FaultPoint) -> None:
            if point == "before_commit" and left:
                left.pop().deliver(tag(1), rows(1))

        late = lake.sink.opened(JOB, LEFT, fault=zombie)
        assert late.deliver(tag(1), rows(1)) == AlreadyDelivered(tag(1))
        assert late.deliver(tag(2), rows(2), tag(1)) == Delivered(1)
        assert lake.shown() == [1, 2]

    def test_is_taken_back(self, lake: Lake) -> None:
        lake.sink.prepare(SCHEMA, None)
        for epoch in (1, 2):
            lake.sink.open(JOB, LEFT).deliver(tag(epoch), rows(epoch))
        assert lake.sink.repair(Rewinding(JOB, "out", tag(1, 2), (LEFT,)), SCHEMA, None).delete == 1
        assert lake.shown() == [1]

    def test_waits_for_a_server_that_cannot_be_reached(self, lake: Lake, server: S3Store) -> None:
        lake.sink.prepare(SCHEMA, None)
        target = lake.sink.open(JOB, LEFT)
        target.deliver(tag(1), rows(1))
        server.reachable(False)
        try:
            with pytest.raises(Unavailable):
                target.deliver(tag(2), rows(2), tag(1))
        finally:
            server.reachable(True)
        assert target.deliver(tag(2), rows(2), tag(1)) == Delivered(1) and lake.shown() == [1, 2]

    def test_delivery_to_a_table_that_denies_access_raises_not_admitted(
        self, lake: Lake, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lake.sink.prepare(SCHEMA, None)
        monkeypatch.setenv("LAKE_SECRET", "wrong-hunter2")
        with pytest.raises(NotAdmitted) as caught:
            lake.sink.open(JOB, LEFT).deliver(tag(1), rows(1))
        assert "hunter2" not in str(caught.value)
