"""A topic outlives the version that wrote it: a later one restores the state from it, and writes its records alike.

The folders were written by tests/shared/checkpoint_job.py: `root` has the manifests (format 4) and no segment, `topic`
the changelog.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from checkpoint_job import FIRST, NOTED, TEXT, app_of, noted

import holdfast as hf
from holdfast.checkpoint.manifest import FORMAT_VERSION, Manifest, decode, encode
from holdfast.checkpoint.repository import Repository
from holdfast.checkpoint.timeline import lineage_of
from holdfast.errors import ConfigError
from holdfast.model import NO_EPOCH, Epoch, ObjectRef, Timeline, WorkerId
from holdfast.runtime.inspect.reading import reading_of
from holdfast.runtime.inspect.stored import open_job
from holdfast.runtime.plan.kept_state import with_identities
from holdfast.runtime.plan.model import Plan
from holdfast.sinks.contract.changelogs import AsOf
from holdfast.sinks.log.changelog import LogChangelog
from holdfast.state.changelog import SegmentHeader, seal
from holdfast.state.records import deltas_in, records_of
from holdfast.storage.objects import LocalObjects, open_objects

HERE = Path(__file__).parent / "changelog_topic_v1"


def manifest() -> tuple[Manifest, ObjectRef]:
    repository = Repository(LocalObjects(HERE / "root"))
    job = repository.read_log()
    assert job is not None
    ref = job.completed[-1].body.manifest
    return repository.load_manifest(ref), ref


def records(found: Manifest) -> pa.Table:
    """Return the records of the topic, in their order."""
    whole = (0, found.key_groups)
    which = AsOf(found.job_uuid, lineage_of(()), found.epoch, NO_EPOCH, whole, found.key_groups)
    return pa.Table.from_batches(LogChangelog(str(HERE / "topic"), 2).open(found.job_uuid).records(which))


def plan_of(found: Manifest) -> Plan:
    return with_identities(app_of(FIRST | TEXT, TEXT, NOTED).plan(), found.operators, ())[0]


class TestManifestFour:
    def test_names_the_topic_and_is_written_byte_for_byte(self) -> None:
        found, ref = manifest()
        data = (HERE / "root" / ref.path).read_bytes()
        assert b'"v":4' in data and encode(found) == data
        assert found.topic is not None and found.topic["kind"] == "log"
        assert all(segment.writer == handle.subtask for handle in found.state for segment in handle.segments)

    def test_is_refused_by_releases_that_read_up_to_format_3(self) -> None:
        """They compare the version before anything else, as this release does with the next one."""
        found, ref = manifest()
        newer = FORMAT_VERSION + 1
        with pytest.raises(ConfigError, match=f"has format {newer}; this version of Holdfast reads formats up to"):
            decode(encode(found).replace(b'"v":4', b'"v":%d' % newer), ref)

    def test_without_a_topic_keeps_its_version(self) -> None:
        found, _ = manifest()
        without = msgspec.structs.replace(found, changelog=msgspec.UNSET)
        assert b'"v":3' in encode(without) and b'"changelog":' not in encode(without)


class TestRecords:
    def test_are_written_as_they_were(self) -> None:
        found, _ = manifest()
        specs = {operator.id: operator.table for operator in plan_of(found).operators}
        again: dict[bytes, tuple[Any, ...]] = {}
        names = {operator.id: operator.name for operator in plan_of(found).operators}
        for batch in records(found).to_batches():
            for delta in deltas_in(batch, specs, (0, found.key_groups), found.key_groups, Epoch(2)):
                header = SegmentHeader(found.job_uuid, found.generation, Timeline(1), Epoch(2), NO_EPOCH, WorkerId("w"))
                for part in records_of(seal(header, [delta]), names):
                    again |= {r["key"]: (r["operator"], r["row_key"], r["row"]) for r in part.to_pylist()}
                    assert part.column("layout").unique().to_pylist()[0] in batch.column("layout").to_pylist()
        stored = {r["key"]: (r["operator"], r["row_key"], r["row"]) for r in records(found).to_pylist()}
        assert again == stored and len(stored) > 20

    def test_are_the_state_that_commands_show(self) -> None:
        found, _ = manifest()
        assert found.topic is not None
        store_into_memory(found.topic["path"])
        shown = reading_of(open_job(str(HERE), "root"), "totals").batches()
        grouped: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for row in map(noted, range(20)):
            grouped.setdefault((row["shop"], row["item"]), []).append(row)
        rows = [row for batch in shown for row in batch.to_pylist()]
        assert {(r["shop"], r["item"]): (r["n"], r["least"], r["first"], r["raw"]) for r in rows} == {
            key: (
                len(each),
                min(row["pieces"] for row in each),
                min((row["note"] for row in each if row["note"] is not None), default=None),
                max(row["raw"] for row in each),
            )
            for key, each in grouped.items()
        }

    def test_can_be_read_as_a_table(self) -> None:
        table = hf.log(HERE / "topic", as_table=True).collect()
        assert set(table["operator"]) >= {"totals", "hours", "first"} and not table["value"].null_count()


def store_into_memory(path: str) -> None:
    """Put the topic where the manifest says that it is: in the memory of the process that wrote it."""
    memory, golden = open_objects(path), LocalObjects(HERE / "topic")
    for each in golden.list(""):
        memory.put(each, golden.get(each))
