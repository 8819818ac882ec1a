"""Checkpoints outlive the version that wrote them: a later one restores all their state, also under changed code.

The folders were written by tests/shared/checkpoint_job.py: checkpoint_v1 by the last version without field ids,
checkpoint_v2, in which operators evolved, by the first version with them, checkpoint_v3 by the first version with text,
bytes and nulls.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from checkpoint_job import FIRST, NOTED, SCHEMA, TEXT, app_of, noted, sale

import holdfast as hf
from holdfast.checkpoint.bases import pieces
from holdfast.checkpoint.manifest import Manifest, decode, encode
from holdfast.checkpoint.repository import Repository
from holdfast.model import ObjectRef, WorkerId
from holdfast.runtime.inspect.reading import reading_of
from holdfast.runtime.inspect.stored import open_job
from holdfast.runtime.plan.kept_state import with_identities
from holdfast.state.store import Identity, Piece, StateStore
from holdfast.storage.objects import LocalObjects

HERE = Path(__file__).parent
Rows = dict[Any, dict[str, Any]]
AGAIN = {
    "highest": hf.max("price").was("top"),
    "n": hf.count(),
    "mean": hf.mean("price"),
    "least": hf.min("pieces"),
}


def manifest_of(folder: str, epoch: int | None = None) -> Manifest:
    repository = Repository(LocalObjects(str(HERE / folder)))
    job = repository.read_log()
    assert job is not None
    found = [each.body.manifest for each in job.completed if epoch in (None, each.body.epoch)]
    return repository.load_manifest(found[-1])


def restored(folder: str, app: hf.App, drop: Sequence[str] = (), epoch: int | None = None) -> dict[str, Rows]:
    """The rows of every operator, by key; values under the names of the present columns."""
    manifest, objects = manifest_of(folder, epoch), LocalObjects(str(HERE / folder))
    plan, _ = with_identities(app.plan(), manifest.operators, drop)
    rows: dict[str, Rows] = {operator.name: {} for operator in plan.operators}
    for handle in manifest.state:
        identity = Identity(manifest.job_uuid, manifest.generation, manifest.timeline, WorkerId("reader"))
        specs = [operator.table for operator in plan.operators]
        store = StateStore(identity, specs, manifest.key_groups, handle.key_groups)
        read = [Piece(objects.get(p.object.path), p.key_groups or handle.key_groups) for p in pieces(handle)]
        store.restore(manifest.epoch, read)
        for operator in plan.operators:
            table = store.table(operator.id)
            slots = table.present()
            keys = zip(*(column.to_pylist() for column in table.key_columns(slots)), strict=True)
            columns = {
                c.name: (table.column(c.name)[slots] if c.plain else table.read(c.name, slots)).tolist()
                for c in operator.table.columns
            }
            values = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
            rows[operator.name] |= dict(zip(keys, values, strict=True))
    return rows


def sales(first: int, end: int) -> dict[tuple[str, int], list[dict[str, Any]]]:
    grouped: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in map(sale, range(first, end)):
        grouped.setdefault((row["shop"], row["item"]), []).append(row)
    return grouped


def prices(rows: list[dict[str, Any]]) -> list[float]:
    return [row["price"] for row in rows if row["price"] is not None]


class TestACheckpointWithoutFieldIds:
    def test_is_restored_by_the_same_code(self) -> None:
        rows = restored("checkpoint_v1", app_of(FIRST, {"n": hf.count()}))
        assert {key: (row["n.count"], row["least.min"], row["mean.seen"]) for key, row in rows["totals"].items()} == {
            key: (len(each), min(row["pieces"] for row in each), len(prices(each)))
            for key, each in sales(0, 20).items()
        }
        assert sum(row["n.count"] for row in rows["hours"].values()) == 20
        assert len(rows["first"]) == 4

    def test_is_restored_by_changed_code(self) -> None:
        wide = SCHEMA.set(2, pa.field("pieces", pa.int64(), nullable=False))
        wide = wide.set(1, pa.field("item", pa.int64(), nullable=False))
        totals = {
            "low": hf.min("pieces").was("least"),
            "n": hf.count(),
            "more": hf.sum("pieces"),
            "mean": FIRST["mean"],
        }
        app = app_of(totals, {"n": hf.count(), "top": hf.max("price")}, wide)
        rows = restored("checkpoint_v1", app, ["totals.top"])
        assert {key: (row["low.min"], row["n.count"], row["more.sum"]) for key, row in rows["totals"].items()} == {
            key: (min(row["pieces"] for row in each), len(each), 0) for key, each in sales(0, 20).items()
        }
        assert all(row["top.seen"] == 0 for row in rows["hours"].values())

    def test_stays_a_manifest_of_format_1_until_an_operator_evolves(self) -> None:
        manifest = manifest_of("checkpoint_v1")
        assert b'"v":1' in encode(manifest)


class TestACheckpointWithFieldIds:
    def test_is_restored_by_the_same_code(self) -> None:
        rows = restored("checkpoint_v2", app_of(AGAIN, {"sales": hf.count(), "top": hf.max("price")}))
        later = sales(25, 30)
        for key, each in sales(0, 30).items():
            row = rows["totals"][key]
            assert row["n.count"] == len(later.get(key, ())), "the count that came back reads nothing of the first one"
            assert row["least.min"] == min(one["pieces"] for one in each)
            assert row["mean.seen"] == len(prices(each))
            if prices(each):
                assert row["highest.max"] == max(prices(each))
        assert sum(row["sales.count"] for row in rows["hours"].values()) == 30
        assert sum(row["top.seen"] for row in rows["hours"].values()) == len(prices(list(map(sale, range(25, 30)))))

    def test_is_restored_at_an_epoch_before_the_operators_evolved(self) -> None:
        rows = restored("checkpoint_v2", app_of(FIRST, {"n": hf.count()}), epoch=2)
        assert {key: row["n.count"] for key, row in rows["totals"].items()} == {
            key: len(each) for key, each in sales(0, 20).items()
        }

    def test_is_inspected_under_the_names_of_its_results(self) -> None:
        found = pa.Table.from_batches(reading_of(open_job(str(HERE), "checkpoint_v2"), "totals").batches()).to_pylist()
        later = sales(25, 30)
        assert {(row["shop"], row["item"]): (row["n"], row["least"], row["highest"]) for row in found} == {
            key: (len(later.get(key, ())), min(one["pieces"] for one in each), max(prices(each), default=None))
            for key, each in sales(0, 30).items()
        }

    def test_keeps_current_ids_by_name_and_retired_ids(self) -> None:
        (totals, *_) = manifest_of("checkpoint_v2").operators
        assert totals.schema["fields"] == {
            "ids": {
                "highest.max": "top.max",
                "highest.seen": "top.seen",
                "n.count": "n.count#2",
                "mean.mean": "mean.mean",
                "mean.seen": "mean.seen",
                "least.min": "least.min",
            },
            "late": ["n.count#2"],
            "past": ["n.count"],
        }

    def test_has_a_manifest_of_format_2_that_is_rewritten_byte_for_byte(self) -> None:
        manifest = manifest_of("checkpoint_v2")
        (path,) = (HERE / "checkpoint_v2" / "manifests").rglob(f"*{manifest.epoch:012d}-*.json")
        data = path.read_bytes()
        assert manifest.v == 2 and encode(manifest) == data
        with pytest.raises(hf.ConfigError, match="has format 8; this version of Holdfast reads formats up to 7"):
            decode(data.replace(b'"v":2', b'"v":8', 1), ObjectRef("m", len(data), ""))


class TestACheckpointWithText:
    def expected(self) -> dict[Any, tuple[Any, ...]]:
        """Least and greatest note and greatest raw bytes, by shop and item."""
        grouped: dict[Any, list[dict[str, Any]]] = {}
        for row in map(noted, range(20)):
            grouped.setdefault((row["shop"], row["item"]), []).append(row)
        notes = {key: [row["note"] for row in each if row["note"] is not None] for key, each in grouped.items()}
        return {
            key: (min(notes[key], default=None), max(notes[key], default=None), max(row["raw"] for row in each))
            for key, each in grouped.items()
        }

    def test_is_restored(self) -> None:
        rows = restored("checkpoint_v3", app_of(FIRST | TEXT, TEXT, NOTED))
        found = {key: (row["first.min"], row["last.max"], row["raw.max"]) for key, row in rows["totals"].items()}
        assert found == self.expected()
        assert any(first is None for first, *_ in found.values())

    def test_is_inspected(self) -> None:
        found = pa.Table.from_batches(reading_of(open_job(str(HERE), "checkpoint_v3"), "totals").batches()).to_pylist()
        shown = {(row["shop"], row["item"]): (row["first"], row["last"], row["raw"]) for row in found}
        assert shown == self.expected()

    def test_has_a_manifest_of_format_3_which_is_written_as_it_was_read(self) -> None:
        manifest = manifest_of("checkpoint_v3")
        (path,) = (HERE / "checkpoint_v3" / "manifests").rglob(f"*{manifest.epoch:012d}-*.json")
        assert manifest.v == 3 and encode(manifest) == path.read_bytes()
