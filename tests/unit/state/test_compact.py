from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from merged_pieces import compact

from holdfast.model import Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.state import blocks, changelog, packing
from holdfast.state.changelog import SegmentHeader, seal, unseal
from holdfast.state.keys.batch import KeyType
from holdfast.state.store import Identity, Piece, StateStore
from holdfast.state.tables.delta import OperatorDelta
from holdfast.state.tables.spec import ColumnSpec, TableSpec

JOB, GROUPS = JobUuid("1" * 32), 8
KINDS = {
    1: KeyType.of([pa.field("n", pa.int64(), nullable=False)]),
    2: KeyType.of([pa.field("word", pa.string(), nullable=True)]),
}
Write = tuple[int, int, int | None]
"""Operator, key, value; None deletes."""
writes = st.lists(st.tuples(st.sampled_from([1, 2]), st.integers(0, 12), st.none() | st.integers(0, 9)), max_size=12)


def header(epoch: int, follows: int) -> SegmentHeader:
    return SegmentHeader(JOB, Generation(1), Timeline(1), Epoch(epoch), Epoch(follows), WorkerId("w"))


def sealed(epoch: int, written: list[Write]) -> bytes:
    deltas = []
    for operator, kind in KINDS.items():
        last = {key: value for number, key, value in written if number == operator}
        texts = [None if key == 0 else f"k{key}" for key in last]
        column = pa.array(list(last), pa.int64()) if operator == 1 else pa.array(texts, pa.string())
        puts = np.array([value is not None for value in last.values()], dtype=bool)
        values = np.array([value or 0 for value in last.values()], dtype=np.int64)
        deltas.append(
            OperatorDelta(
                Epoch(epoch), Epoch(epoch - 1), operator, GROUPS, kind.encode([column]), puts, {"value": values}
            )
        )
    return seal(header(epoch, epoch - 1), deltas)


SPECS = [TableSpec(o, f"op{o}", kind, (ColumnSpec("value", np.dtype(np.int64)),)) for o, kind in KINDS.items()]


def rows(pieces: list[bytes | Piece], through: int) -> dict[int, dict[object, int]]:
    identity = Identity(JOB, Generation(1), Timeline(1), WorkerId("w"))
    store = StateStore(identity, SPECS, GROUPS, (0, GROUPS))
    store.restore(Epoch(through), pieces)
    found: dict[int, dict[object, int]] = {}
    for operator in KINDS:
        table = store.table(operator)
        slots = table.present()
        keys = table.key_columns(slots)[0].to_pylist()
        found[operator] = dict(zip(keys, table.column("value")[slots].tolist(), strict=True))
    return found


@pytest.fixture(autouse=True, params=[1 << 19, 60], ids=["one batch", "several batches"])
def _batches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write blocks of one record batch, read whole, and of several, read column by column."""
    monkeypatch.setattr(changelog, "BATCH_BYTES", request.param)
    if request.param == 60:
        monkeypatch.setattr(blocks, "READ_WHOLE_BYTES", 0)
        monkeypatch.setattr(changelog, "PACKED_FROM_BYTES", 0)
        monkeypatch.setattr(packing, "_is_worth_it", lambda *_: True)
        monkeypatch.setattr(changelog, "ROWS_AT_ONCE", 2)
        monkeypatch.setattr(blocks, "ROWS_AT_ONCE", 2)


class TestMergedSegments:
    @settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.lists(writes, min_size=1, max_size=7), st.data())
    def test_restoring_a_merge_gives_what_its_pieces_give(self, epochs: list[list[Write]], data: st.DataObject) -> None:
        pieces = [sealed(i + 1, written) for i, written in enumerate(epochs)]
        first = data.draw(st.integers(0, len(pieces) - 1))
        whole = (0, GROUPS)
        merged = compact(header(len(pieces), first), [(piece, whole) for piece in pieces[first:]], SPECS)
        assert rows([*pieces[:first], merged], len(pieces)) == rows([*pieces], len(pieces))

    @settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.lists(writes, min_size=1, max_size=5))
    def test_a_base_has_no_tombstones(self, epochs: list[list[Write]]) -> None:
        pieces = [(sealed(i + 1, written), (0, GROUPS)) for i, written in enumerate(epochs)]
        assert all(delta.puts.all() for delta in unseal(compact(header(len(pieces), 0), pieces, SPECS))[1])

    @settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.lists(writes, min_size=2, max_size=6), st.integers(1, GROUPS - 1), st.data())
    def test_a_newer_base_of_one_range_stands_beside_older_pieces_of_another(
        self, epochs: list[list[Write]], cut: int, data: st.DataObject
    ) -> None:
        """After a rescale: what was deleted before the base must not come back from a piece of the other range."""
        sources = [sealed(i + 1, written) for i, written in enumerate(epochs)]
        at = data.draw(st.integers(1, len(sources)))
        low, high = (0, cut), (cut, GROUPS)
        base = Piece(compact(header(at, 0), [(piece, low) for piece in sources[:at]], SPECS), low)
        mixed = [base, *(Piece(piece, low) for piece in sources[at:]), *(Piece(piece, high) for piece in sources)]
        mixed.sort(key=lambda piece: unseal(piece.data)[0].epoch)
        assert rows([*mixed], len(sources)) == rows([*sources], len(sources))
        again = compact(header(len(sources), 0), [(piece.data, piece.key_groups) for piece in mixed], SPECS)
        assert rows([again], len(sources)) == rows([*sources], len(sources))
