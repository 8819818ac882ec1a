"""A replay of any epoch gives what the job gave: the same records taken, rows staged and state kept.

The job is killed, rescaled and rewound in between; the replay runs in one worker, without any of that. Expected digests
and state are those of the job's own checkpoints, so nothing here is computed by the replay alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replayed_jobs import (
    APPS,
    NOON,
    PARTITIONS,
    Measured,
    Noted,
    Row,
    code_of,
    played,
    rows_of,
    stored,
    totals,
    windows,
)

import holdfast as hf
from holdfast.checkpoint.audit import Audit, SinkStaged
from holdfast.errors import ConfigError
from holdfast.model import NO_EPOCH, RowDigest, Subtask, Writer
from holdfast.runtime.replay.checking import checked
from holdfast.runtime.replay.epochs import Replayable, newest, replayable
from holdfast.runtime.replay.player import Code, Player
from holdfast.runtime.replay.proof import Difference, Proof, _sinks
from holdfast.runtime.replay.rounding import same_rows
from holdfast.runtime.replay.spans import Range, cut, offsets_in
from holdfast.runtime.replay.why import IN_PIECES, Cause, WatchedRows, WatchedState, explained
from holdfast.runtime.rows.dead_letters import DLQ
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import TestDriver

IN_BOTH_MODES = True


class TestReplay:
    @pytest.mark.parametrize("app", APPS, ids=lambda app: app.__name__)
    @pytest.mark.parametrize("seed", range(2))
    def test_the_replay_of_every_epoch_equals_its_checkpoint(self, app: Callable[[], hf.App], seed: int) -> None:
        with TestDriver(app(), seed=seed) as t:
            played(t, seed)
            epochs = newest(stored(t), 100)
            proofs = list(checked(code_of(t), epochs))
        assert len(epochs) >= 3 and sum(each.offsets for each in epochs) > 60
        assert [proof.differences for proof in proofs] == [()] * len(epochs)
        assert all(proof.exact and proof.compared >= 2 for proof in proofs)

    def test_begins_before_the_first_checkpoint(self) -> None:
        with TestDriver(totals()) as t:
            t.push("rows", [Row("a", 1, NOON), Row("b", 2, NOON)])
            t.checkpoint()
            [epoch] = newest(stored(t), 10)
            assert epoch.start.done is None and epoch.offsets == 2
            [proof] = checked(code_of(t), [epoch])
        assert proof.exact

    def test_reads_no_record_behind_the_epoch_and_leaves_the_job_as_it_is(self) -> None:
        with TestDriver(totals()) as t:
            t.push("rows", [Row("a", 1, NOON)])
            t.checkpoint()
            t.push("rows", [Row("a", 2, NOON)])
            t.checkpoint()
            first = newest(stored(t), 10)[0]
            before = t.rows("out"), t.cluster.driver.state.job
            with Player(code_of(t), first.start, first.manifest, first.done.at, first.span) as player:
                epoch = player.play(first.span)
                [batch] = player.rows("out", epoch)
            assert batch.column("total").to_pylist() == [1]
            assert (t.rows("out"), t.cluster.driver.state.job) == before

    def test_the_replay_of_an_epoch_without_its_records_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with TestDriver(totals()) as t:
            t.push("rows", [Row("a", n, NOON) for n in range(5)])
            t.checkpoint()
            monkeypatch.setattr(t.sources["rows"], "retention_start", lambda partition: 3)
            with pytest.raises(ConfigError, match="no longer has the records from offset 0 of partition 0") as refused:
                list(checked(code_of(t), newest(stored(t), 1)))
        assert "later epoch" in refused.value.next_step


@dataclass
class Weighed:
    k: str
    weight: float


class TestRounding:
    """1e16 + 1 - 1e16 is 0 or 1, by the order: that is another result. A sum of tenths differs in its last digit."""

    @staticmethod
    def played(t: TestDriver, then: list[float], now: list[float]) -> Proof:
        """Let the records of a key be added in another order than in the replay."""
        t.push("rows", [Weighed("a", weight) for weight in then])
        t.checkpoint()
        table = t.sources["rows"].tables[0]
        t.sources["rows"].tables[0] = table.set_column(1, table.schema.field(1), pa.array(now))
        [proof] = checked(code_of(t), newest(stored(t), 1))
        return proof

    @staticmethod
    def app() -> hf.App:
        app = hf.App("replayed")
        rows = app.source("rows", hf.Log("unused/rows", Weighed))
        rows.key_by("k").agg("sums", total=hf.sum("weight"), rows=hf.count()).sink("out", MemorySink(["k"]))
        return app

    def test_rounding_of_sums_is_no_difference(self) -> None:
        tenths = [0.1, 0.2, 0.3]
        assert sum(tenths) != sum(reversed(tenths)), "else this shows nothing"
        with TestDriver(self.app()) as t:
            proof = self.played(t, tenths, tenths[::-1])
        assert proof.exact and [(each.kind, each.name) for each in proof.rounded] == [
            ("sink", "out"),
            ("operator", "sums"),
        ]

    def test_is_not_another_result(self) -> None:
        with TestDriver(self.app()) as t:
            proof = self.played(t, [1e16, -1e16, 1.0], [1e16, 1.0, -1e16])
        assert {(each.kind, each.name) for each in proof.differences} == {("sink", "out"), ("operator", "sums")}

    @pytest.mark.parametrize(
        ("other", "same"),
        [
            ({"k": ["b", "a"], "x": [2.0, 1.0 + 1e-12]}, True),
            ({"k": ["b", "a"], "x": [2.0, 1.0 + 1e-6]}, False),
            ({"k": ["b", "a"], "x": [2.0, None]}, False),
            ({"k": ["b", "c"], "x": [2.0, 1.0]}, False),
            ({"k": ["a"], "x": [1.0]}, False),
        ],
    )
    def test_equal_rows_in_any_order_are_distinguished_from_different_rows(
        self, other: dict[str, Any], same: bool
    ) -> None:
        schema = pa.schema([("k", pa.string()), ("x", pa.float64())])
        one = pa.table({"k": ["a", "b"], "x": [1.0, 2.0]}, schema)
        assert same_rows(one, pa.table(other, schema)) is same


calls = 0


def unsteady(row: Row) -> Noted:
    """Depends on how often it was called."""
    global calls
    calls += 1
    return Noted(row.k, row.n + calls)


class TestCodeThatDoesNotRepeatItself:
    def test_is_found_in_the_sink_and_in_the_state_behind_it(self) -> None:
        app = hf.App("replayed")
        given = rows_of(app).map(unsteady, to=Noted)
        given.sink("given", MemorySink())
        given.key_by("k").agg("totals", total=hf.sum("n")).sink("out", MemorySink(["k"]))
        with TestDriver(app) as t:
            t.push("rows", [Row("a", 1, NOON), Row("b", 2, NOON)])
            t.checkpoint()
            [proof] = checked(code_of(t), newest(stored(t), 1))
        assert not proof.exact
        assert {(each.kind, each.name) for each in proof.differences} == {
            ("sink", "given"),
            ("sink", "out"),
            ("operator", "totals"),
        }
        [state] = [each for each in proof.differences if each.kind == "operator"]
        assert isinstance(state, Difference) and "has other state and 1 other keys" in state.what


def places(causes: tuple[Cause, ...]) -> list[tuple[str, int, int] | None]:
    return [None if c.at is None else (c.at.source, c.at.partition, c.at.first) for c in causes]


class TestWhy:
    """The right records are those that the test pushed under the key: nothing is taken from the replay."""

    @pytest.mark.parametrize("seed", range(4))
    def test_names_each_record_of_the_key_and_what_it_changed(self, seed: int) -> None:
        rng = random.Random(seed)
        with TestDriver(totals(), seed=seed) as t:
            offset: dict[int, int] = dict.fromkeys(range(PARTITIONS), 0)
            expected: dict[int, set[tuple[str, int, int]]] = {}
            sums: list[int] = []
            for _ in range(3):
                mine = set[tuple[str, int, int]]()
                for partition in range(PARTITIONS):
                    rows = [Row(rng.choice("abcdefghij"), rng.randint(1, 40), NOON) for _ in range(rng.randint(0, 40))]
                    for row in rows:
                        if row.k == "c" and row.n % 5:
                            mine.add(("rows", partition, offset[partition]))
                            sums.append(row.n)
                        offset[partition] += 1
                    t.push("rows", rows, partition)
                expected[int(t.checkpoint())] = mine
            found = {
                epoch.manifest.epoch: explained(code_of(t), epoch, WatchedState("totals", "c"), 1_000)
                for epoch in newest(stored(t), 10)
            }
        assert any(expected.values())
        assert {epoch: set(places(each.causes)) for epoch, each in found.items()} == expected
        changes = [change for each in found.values() for cause in each.causes for change in cause.changes]
        steps = [(c.after or {})["total"] - (c.before or {"total": 0})["total"] for c in changes]
        assert sorted(steps) == sorted(sums) and sum(steps) == (changes[-1].after or {})["total"]
        records = [cause.record for each in found.values() for cause in each.causes]
        assert all(record is not None and record["k"] == "c" for record in records)

    def test_why_on_a_sink_names_the_record_of_each_row(self) -> None:
        with TestDriver(totals()) as t:
            t.push("rows", [Row("a", 1, NOON), Row("b", 2, NOON), Row("a", 5, NOON), Row("a", 3, NOON)])
            t.checkpoint()
            [epoch] = newest(stored(t), 1)
            found = explained(code_of(t), epoch, WatchedRows("out", (("k", "a"),)), 10)
            some = explained(code_of(t), epoch, WatchedRows("out", (("k", "a"),)), 1)
        assert places(found.causes) == [("rows", 0, 0), ("rows", 0, 3)]
        assert [change.after for cause in found.causes for change in cause.changes] == [
            {"k": "a", "rows": 1, "total": 1, "most": 1},
            {"k": "a", "rows": 2, "total": 4, "most": 3},
        ]
        assert some.more and len(some.causes) == 1 and not found.more

    def test_a_window_is_closed_by_the_record_that_moves_time_on(self) -> None:
        with TestDriver(windows()) as t:
            for partition in range(PARTITIONS):
                t.push("rows", [Row("a", 1, NOON)], partition)
            t.checkpoint()
            for partition in range(PARTITIONS):
                t.push("rows", [Row("z", 9, NOON + timedelta(minutes=5))], partition)
            t.checkpoint()
            epoch = newest(stored(t), 1)[-1]
            found = explained(code_of(t), epoch, WatchedState("minutes", "a"), 10)
        assert found.proof.exact
        assert [cause.changes[0].change for cause in found.causes] == ["removed"]
        assert places(found.causes) == [("rows", 3, 1)], "the last partition holds time back"

    def test_why_on_the_largest_float_names_its_records(self) -> None:
        app = hf.App("replayed")
        given = app.source("rows", hf.Log("unused/rows", Measured))
        given.key_by("k").agg("peaks", most=hf.max("x")).sink("out", MemorySink(["k"]))
        with TestDriver(app) as t:
            t.push("rows", [Measured("a", 1.5)])
            t.checkpoint()
            t.push("rows", [Measured("b", 9.5), Measured("a", 2.5)])
            t.checkpoint()
            first, second = newest(stored(t), 2)
            found = [explained(code_of(t), epoch, WatchedState("peaks", "a"), 10) for epoch in (first, second)]
        assert [places(each.causes) for each in found] == [[("rows", 0, 0)], [("rows", 0, 2)]]

    def test_why_on_a_key_without_records_finds_nothing(self) -> None:
        with TestDriver(totals()) as t:
            t.push("rows", [Row("a", 1, NOON)])
            t.checkpoint()
            epoch = replayable(stored(t), "latest")
            assert explained(code_of(t), epoch, WatchedState("totals", "absent"), 10).causes == ()


class TestPieces:
    @pytest.mark.continuous
    @given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40)), min_size=1, max_size=4))
    def test_hold_each_record_once_and_end_with_one_each(self, given_: list[tuple[int, int]]) -> None:
        whole = tuple(Range("rows", at, first, first + count) for at, (first, count) in enumerate(given_))
        left, single = [whole], list[tuple[int, int]]()
        while left:
            span = left.pop()
            if offsets_in(span) <= 1:
                single += [(each.partition, each.first) for each in span if each.offsets]
                continue
            pieces = cut(span)
            assert all(offsets_in(piece) < offsets_in(span) for piece in pieces)
            left += pieces
        assert sorted(single) == [(each.partition, at) for each in whole for at in range(each.first, each.end)]


class TestEpochs:
    @pytest.mark.continuous
    def test_epochs_after_an_abandoned_one_can_be_replayed(self) -> None:
        with TestDriver(totals()) as t:
            epochs = []
            for n in range(3):
                t.push("rows", [Row("a", n + 1, NOON)])
                epochs.append(int(t.checkpoint()))
            t.rewind(epochs[0])
            [proof] = checked(code_of(t), [replayable(stored(t), str(epochs[2]))])
        assert proof.exact

    @pytest.mark.continuous
    def test_whose_beginning_has_expired_is_refused(self) -> None:
        with TestDriver(totals()) as t:
            for n in range(3):
                t.push("rows", [Row("a", n, NOON)])
                t.checkpoint()
            given: Any = stored(t)
            first = given.job.completed[0].body.epoch
            job = given.job
            object.__setattr__(job, "completed", job.completed[1:])
            with pytest.raises(ConfigError, match=f"begins with the checkpoint of epoch {first}, which has expired"):
                replayable(given, str(job.completed[0].body.epoch))
            assert [each.manifest.epoch for each in newest(given, 10)] == [job.completed[1].body.epoch]


class Timed(hf.KeyedProcess[Row, Noted]):
    """Keeps a key for ten seconds of processing time."""

    total = hf.Value(int)
    quiet = hf.Timer("processing")

    def on_record(self, ctx: hf.Context, r: Row) -> None:
        self.total.set((self.total.get() or 0) + r.n)
        self.quiet.set(ctx.now() + timedelta(seconds=10))

    @quiet.fires
    def over(self, ctx: hf.Context) -> None:
        ctx.emit(Noted(ctx.key, self.total.get() or 0))
        self.total.clear()


class TestProcessingTime:
    def played(self, t: TestDriver) -> Replayable:
        t.push("rows", [Row("z", 1, NOON)])
        t.checkpoint()
        for _ in range(32):
            t.push("rows", [Row("a", 1, NOON)] if t.sources["rows"].end_offsets()[0] == 1 else [Row("b", 1, NOON)])
            t.advance("1s")
        t.checkpoint()
        return newest(stored(t), 1)[0]

    def app(self) -> hf.App:
        app = hf.App("replayed", checkpoint_every="100s")
        rows_of(app).key_by("k").process("accounts", Timed(), to=Noted).sink("out", MemorySink())
        return app

    @pytest.mark.continuous
    def test_fires_timers_of_an_epoch_and_is_not_compared_itself(self) -> None:
        with TestDriver(self.app()) as t:
            epoch = self.played(t)
            [proof] = checked(code_of(t), [epoch])
        assert epoch.offsets == 32 and proof.differences == ()

    @pytest.mark.continuous
    def test_the_processing_time_of_a_chunk_ends_with_the_chunk_not_with_the_epoch(self) -> None:
        with TestDriver(self.app()) as t:
            found = explained(code_of(t), self.played(t), WatchedState("accounts", "b"), 100)
        changes = [change for cause in found.causes for change in cause.changes]
        steps = [(c.after or {"total": 0})["total"] - (c.before or {"total": 0})["total"] for c in changes]
        assert [step for step in steps if step > 0] == [1] * 31, "each record once, and state grows from 0"
        assert max((c.after or {"total": 0})["total"] for c in changes) == 31


class TestLateRecords:
    def test_records_that_are_late_only_when_replayed_in_chunks_are_reported(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with TestDriver(windows()) as t:
            t.push("rows", [Row("q", 1, NOON)])
            t.checkpoint()
            ahead, past = NOON + timedelta(minutes=9), NOON + timedelta(minutes=1)
            given = [
                Row("z", 1, ahead),
                Row("a", 5, past),
                Row("a", 3, past),
                Row("z", 1, ahead + timedelta(minutes=9)),
            ]
            monkeypatch.setattr(t.sources["rows"]._random, "randint", lambda _, most: most)
            t.push("rows", given)
            t.checkpoint()
            assert [row["total"] for row in t.rows("out") if row["k"] == "a"] == [8]
            [epoch] = newest(stored(t), 1)
            found = explained(code_of(t), epoch, WatchedRows("out", (("k", "a"),)), 10)
        assert not found.proof.exact
        assert [each.what for each in found.proof.differences] == [IN_PIECES]


class TestCounts:
    def test_rows_that_were_only_counted_are_not_provable_and_no_difference(self) -> None:
        with TestDriver(totals()) as t:
            t.push("rows", [Row("a", 1, NOON), Row("b", 2, NOON)])
            t.checkpoint()
            [epoch] = newest(stored(t), 1)
            assert epoch.manifest.audited is not None
            proofs = [next(iter(checked(code_of(t), [counted(epoch, rows)]))) for rows in (2, 3)]
        assert proofs[0].differences == () and "audit is counts" in (proofs[0].unknown or "")
        assert [(each.kind, each.name) for each in proofs[1].differences] == [("source", "rows")]


def counted(epoch: Replayable, rows: int) -> Replayable:
    """Return the epoch as a job with audit=counts has it."""
    audit = epoch.manifest.audited
    assert audit is not None
    sources = tuple(
        msgspec.structs.replace(each, taken=RowDigest(rows if each.taken.rows else 0)) for each in audit.sources
    )
    sinks = tuple(
        msgspec.structs.replace(each, parts=tuple(RowDigest(part.rows) for part in each.parts)) for each in audit.sinks
    )
    fewer = msgspec.structs.replace(audit, sources=sources, sinks=sinks)
    return replace(epoch, manifest=msgspec.structs.replace(epoch.manifest, audit=fewer))


class TestDeadLetters:
    def test_are_counted_since_their_texts_depend_on_how_the_code_was_loaded(self) -> None:
        one, same, more = (
            Audit((), (SinkStaged(Writer(DLQ, Subtask(0)), (RowDigest(rows, digest),)),), (), (), NO_EPOCH)
            for rows, digest in ((2, 7), (2, 8), (3, 8))
        )
        assert list(_sinks([one], [same], lambda _: False)) == []
        assert [each.name for each in _sinks([one], [more], lambda _: False)] == [DLQ]


class TestOtherCode:
    def test_without_the_source_of_the_epoch_is_refused(self) -> None:
        with TestDriver(totals()) as t:
            t.push("rows", [Row("a", 1, NOON)])
            t.checkpoint()
            [epoch] = newest(stored(t), 1)
            code = code_of(t)
            renamed = tuple(replace(spec, name="renamed") for spec in code.plan.sources)
            other = Code(replace(code.plan, sources=renamed), {"renamed": code.opened["rows"]})
            with pytest.raises(ConfigError, match="read source 'rows', which the app no longer has"):
                list(checked(other, [epoch]))
