"""An incident file replays as the job's own checkpoint and sources do, and needs none of them."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from dataclasses import replace

import polars as pl
import pyarrow as pa
import pytest
from replayed_jobs import (
    APPS,
    NOON,
    Noted,
    Row,
    code_of,
    deduplicated,
    joined,
    played,
    rows_of,
    sessions,
    stored,
    totals,
    windows,
)

import holdfast as hf
from holdfast.errors import ConfigError
from holdfast.runtime.plan.ahead import Read
from holdfast.runtime.replay.epochs import Replayable, newest
from holdfast.runtime.replay.incidents.container import IncidentWriter, Unpacked
from holdfast.runtime.replay.incidents.incident import About, Incident, read, taken, write
from holdfast.runtime.replay.incidents.making import made
from holdfast.runtime.replay.incidents.recorded import TakenPartition
from holdfast.runtime.replay.incidents.redaction import Pseudonyms
from holdfast.runtime.replay.incidents.taints import Taint, Taints
from holdfast.runtime.replay.player import Code
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import TestDriver

IN_BOTH_MODES = True
WORDS = (("Aachen", "Ahlen"), ("Berlin", "Bonn"), ("Celle", "Cottbus"), ("Daun", "Dessau"))
"""Keys by partition."""


def packed(incident: Incident) -> bytes:
    into = io.BytesIO()
    write(incident, IncidentWriter(into))
    return into.getvalue()


def file_of(code: Code, epoch: Replayable) -> bytes:
    """Take an epoch, and return its file."""
    return packed(taken(code, epoch))


def words_in(data: bytes) -> set[str]:
    """Return which of the words a file holds, in its own bytes or in those of its members."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = [data, *(archive.read(name) for name in archive.namelist())]
    return {word for words in WORDS for word in words if any(word.encode() in part for part in parts)}


def opened(data: bytes) -> Incident:
    return read(Unpacked(io.BytesIO(data), "of a test"))


class Remembering(hf.KeyedProcess[Row, Noted]):
    """Keeps a text of the last record."""

    last = hf.Value(str)

    def on_record(self, ctx: hf.Context, r: Row) -> None:
        ctx.emit(Noted(self.last.get() or "", r.n))
        self.last.set(r.k)


class TestIncident:
    @pytest.mark.continuous
    def test_replays_as_the_checkpoint(self) -> None:
        with TestDriver(totals()) as t:
            t.push("rows", [Row("a", 1, NOON), Row("b", 2, NOON)])
            t.checkpoint()
            t.push("rows", [Row("a", 3, NOON)], 1)
            t.checkpoint()
            files = [file_of(code_of(t), epoch) for epoch in newest(stored(t), 10)]
            plan = t._plan
        for data in files:
            incident = opened(data)
            proof = incident.replayed(incident.code(plan))
            assert proof.exact and proof.compared >= 4, proof
        assert len(files) == 2

    @pytest.mark.parametrize("app", APPS, ids=lambda app: app.__name__)
    def test_every_epoch_equals_its_checkpoint(self, app: Callable[[], hf.App], seed: int = 2) -> None:
        with TestDriver(app(), seed=seed) as t:
            played(t, seed)
            epochs = newest(stored(t), 100)
            files = [file_of(code_of(t), epoch) for epoch in epochs]
            plan = t._plan
        incidents = [opened(data) for data in files]
        proofs = [each.replayed(each.code(plan)) for each in incidents]
        assert len(epochs) >= 3
        assert [proof.differences for proof in proofs] == [()] * len(epochs)
        assert all(proof.exact and proof.compared >= 2 for proof in proofs)


@pytest.mark.continuous
class TestRedaction:
    @pytest.mark.parametrize("app", (totals, windows, sessions, joined, deduplicated), ids=lambda app: app.__name__)
    def test_leaves_no_byte_of_a_value_and_every_result(self, app: Callable[[], hf.App]) -> None:
        with TestDriver(app(), seed=1) as t:
            played(t, 1, WORDS)
            epochs = newest(stored(t), 2)
            made_of = [made(code_of(t), epoch, About(), columns=["k"]) for epoch in epochs]
            plan = t._plan
        for incident, proof in made_of:
            assert not proof.differences and proof.unknown is None
            data = packed(incident)
            assert words_in(data) == set()
            again = opened(data)
            assert again.replayed(again.code(plan)).exact and again.redacted == ("k",)

    def test_a_file_with_the_values_is_found(self) -> None:
        with TestDriver(totals(), seed=1) as t:
            played(t, 1, WORDS)
            data = file_of(code_of(t), newest(stored(t), 1)[0])
        assert words_in(data) == {word for words in WORDS for word in words}

    @pytest.mark.parametrize("missed", ["of_key", "of_source"])
    def test_missed_state_or_records_are_refused(self, missed: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Planted: pseudonyms are not put into the keys of state, or not into records."""
        free: dict[str, object] = {"of_key": lambda *_: Taint.FREE, "of_source": lambda *_: ()}
        with TestDriver(totals(), seed=1) as t:
            played(t, 1, WORDS)
            monkeypatch.setattr(Taints, missed, free[missed])
            with pytest.raises((ConfigError, AssertionError)):
                made(code_of(t), newest(stored(t), 1)[0], About(), columns=["k"])

    def test_keeps_the_order_and_equality_of_values(self) -> None:
        given = [pa.array(["b", "", None, "a\u00e9", "B"]), pa.array(["b", "ab", "z"])]
        names = Pseudonyms.of(given)
        first, second = (names.replaced(each).to_pylist() for each in given)
        assert first == ["redacted-3", "", None, "redacted-2", "redacted-0"]
        assert second == ["redacted-3", "redacted-1", "redacted-4"]

    def test_a_column_that_a_filter_looks_into_is_refused(self) -> None:
        app = hf.App("replayed")
        rows_of(app).filter(pl.col("k") < "C").key_by("k").agg("totals", rows=hf.count()).sink("out", MemorySink(["k"]))
        with TestDriver(app) as t:
            t.push("rows", [Row("Aachen", 1, NOON), Row("Celle", 2, NOON)])
            t.checkpoint()
            with pytest.raises(ConfigError, match="with other values in k, the epoch gives other results") as refused:
                made(code_of(t), newest(stored(t), 1)[0], About(), columns=["k"])
        assert "filters" in refused.value.next_step

    def test_text_that_a_function_keeps_is_refused_with_its_name(self) -> None:
        app = hf.App("replayed")
        rows_of(app).key_by("n").process("accounts", Remembering(), to=Noted).sink("out", MemorySink())
        with TestDriver(app) as t:
            t.push("rows", [Row("Aachen", 1, NOON)])
            t.checkpoint()
            epoch = newest(stored(t), 1)[0]
            with pytest.raises(ConfigError, match="column 'last' in the state of operator 'accounts'"):
                made(code_of(t), epoch, About(), columns=["k"])

    @pytest.mark.parametrize(
        ("column", "what"), [("n", "is int64: only text and bytes"), ("city", "no source has a column 'city'")]
    )
    def test_numbers_and_unknown_columns_are_refused(self, column: str, what: str) -> None:
        with TestDriver(totals()) as t:
            t.push("rows", [Row("a", 1, NOON)])
            t.checkpoint()
            with pytest.raises(ConfigError, match=what):
                made(code_of(t), newest(stored(t), 1)[0], About(), columns=[column])


@pytest.mark.continuous
class TestFaults:
    """Each is planted in a file that replayed exactly, and the verdict names what differs."""

    @staticmethod
    def played_twice(t: TestDriver) -> Incident:
        for n in (1, 2):
            t.push("rows", [Row(key, n, NOON) for key in ("Aachen", "Berlin", "Celle")], n)
            t.checkpoint()
        incident = taken(code_of(t), newest(stored(t), 1)[0])
        assert incident.replayed(incident.code(t._plan)).exact
        return incident

    @staticmethod
    def differing(t: TestDriver, incident: Incident) -> set[tuple[str, str]]:
        proof = incident.replayed(incident.code(t._plan))
        return {(each.kind, each.name) for each in proof.differences}

    def test_a_record_too_few_at_the_edge_of_the_epoch(self) -> None:
        with TestDriver(totals()) as t:
            incident = self.played_twice(t)
            found = self.differing(t, replace(incident, input=tuple(map(shortened, incident.input))))
        assert {("source", "rows"), ("operator", "totals"), ("sink", "out")} <= found

    def test_state_of_a_fork_that_went_another_way(self) -> None:
        with TestDriver(totals()) as t, TestDriver(totals()) as fork:
            incident = self.played_twice(t)
            fork.push("rows", [Row("Aachen", 3, NOON)], 1)
            fork.checkpoint()
            other = taken(code_of(fork), newest(stored(fork), 1)[0]).end
            assert incident.start is not None
            start = replace(incident.start, state=other.state)
            found = self.differing(t, replace(incident, start=start))
        assert found == {("operator", "totals"), ("sink", "out")}

    def test_rows_of_another_epoch(self) -> None:
        with TestDriver(totals()) as t:
            incident = self.played_twice(t)
            assert incident.start is not None
            end = replace(incident.end, state=incident.start.state)
            found = self.differing(t, replace(incident, end=end))
        assert found == {("operator", "totals")}


def shortened(of: TakenPartition) -> TakenPartition:
    """Leave out the last record; the offsets stay those of the epoch."""
    *reads, (last, watermark) = of.reads or [(Read(None, of.at.end), None)]
    if last.batch is None:
        return of
    short = replace(last, batch=last.batch.slice(0, last.batch.num_rows - 1))
    left = short.batch is not None and short.batch.num_rows
    return replace(of, reads=(*reads, (short if left else Read(None, last.following), watermark)))


@pytest.mark.continuous
class TestKey:
    def test_keeps_the_state_of_its_group_alone_and_replays_it(self) -> None:
        with TestDriver(totals(), seed=3) as t:
            played(t, 3, WORDS)
            epoch = newest(stored(t), 1)[0]
            whole = packed(taken(code_of(t), epoch))
            incident, proof = made(code_of(t), epoch, About(), key="Berlin")
            plan = t._plan
        again = opened(packed(incident))
        assert proof.differences == again.replayed(again.code(plan)).differences == ()
        sizes = [each.start.state["totals"].num_rows for each in (again, opened(whole)) if each.start is not None]
        assert 0 < sizes[0] < sizes[1]
        assert again.records == opened(whole).records and again.rows == {}

    def test_windows_keep_the_clock_of_every_group(self) -> None:
        with TestDriver(windows(), seed=3) as t:
            played(t, 3, WORDS)
            made_of = [made(code_of(t), epoch, About(), key="Berlin") for epoch in newest(stored(t), 100)]
        assert len(made_of) >= 3 and all(proof.differences == () for _, proof in made_of)

    def test_is_refused_where_a_second_shuffle_mixes_keys(self) -> None:
        app = hf.App("replayed")
        once = rows_of(app).key_by("k").dedup("once", within="1m")
        once.key_by("n").agg("again", rows=hf.count()).sink("out", MemorySink(["n"]))
        with TestDriver(app) as t:
            t.push("rows", [Row("a", 1, NOON)])
            t.checkpoint()
            with pytest.raises(ConfigError, match="'again' takes rows of other keys by a second shuffle"):
                made(code_of(t), newest(stored(t), 1)[0], About(), key="a")

    def test_and_its_redacted_column_are_refused_together(self) -> None:
        with TestDriver(totals()) as t:
            t.push("rows", [Row("Aachen", 1, NOON)])
            t.checkpoint()
            with pytest.raises(ConfigError, match="a redacted column is part of the key"):
                made(code_of(t), newest(stored(t), 1)[0], About(), key="Aachen", columns=["k"])

    def test_a_key_of_another_type_is_refused(self) -> None:
        app = hf.App("replayed")
        rows_of(app).key_by("n").agg("totals", rows=hf.count()).sink("out", MemorySink(["n"]))
        with TestDriver(app) as t:
            t.push("rows", [Row("a", 1, NOON)])
            t.checkpoint()
            with pytest.raises(ConfigError, match="'north' is not a value of the key column 'n'"):
                made(code_of(t), newest(stored(t), 1)[0], About(), key="north")
