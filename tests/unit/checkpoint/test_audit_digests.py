"""Digests of parts and epochs: how they add up, and how a manifest stores them."""

from __future__ import annotations

import json

import msgspec
import pytest

from holdfast.checkpoint.audit import (
    Audit,
    OperatorCount,
    PartAudit,
    SinkStaged,
    SinkTotal,
    SourceTaken,
    balance,
    joined,
    manifest_audit,
)
from holdfast.checkpoint.manifest import Manifest, SubtaskPart, decode, encode, follow
from holdfast.model import (
    NO_EPOCH,
    Epoch,
    Generation,
    JobUuid,
    ObjectRef,
    RowDigest,
    SnapshotHandle,
    SourcePosition,
    Subtask,
    Timeline,
    Writer,
)
from holdfast.runtime.audit.checks import balances, chain

OUT = Writer("out", Subtask(0))
REF = ObjectRef("manifests/1", 1, "0" * 64)


def took(first: int, end: int, partition: int = 0, known: RowDigest | None = None) -> SourceTaken:
    return SourceTaken("s", partition, first, end, known or RowDigest(end - first, end, first))


def gave(*parts: RowDigest, writer: Writer = OUT) -> SinkStaged:
    return SinkStaged(writer, parts)


def manifest(
    epoch: int, follows: int, *taken: SourceTaken, reported: bool = True, offset: int | None = None
) -> Manifest:
    ends = {each.partition: each.end for each in taken}
    positions = tuple(SourcePosition("s", p, end if offset is None else offset) for p, end in ends.items())
    header = Manifest(
        JobUuid("job"), Generation(1), Timeline(1), Epoch(epoch), Epoch(follows), 1, 1, positions, (), (), (), ()
    )
    audit = Audit(taken, (), (), (), NO_EPOCH)
    return msgspec.structs.replace(header, audit=audit) if reported else header


class TestEpochsThatDidNotComplete:
    def test_their_input_is_part_of_the_next_epoch_from_their_first_record_on(self) -> None:
        one, two = took(0, 3, known=RowDigest(3, 5, 6)), took(3, 7, known=RowDigest(4, 10, 3))
        assert joined([PartAudit((one,)), PartAudit((two,))]).sources == (took(0, 7, known=RowDigest(7, 15, 5)),)

    def test_their_lost_offsets_are_those_of_the_next_epoch(self) -> None:
        one = SourceTaken("s", 0, 0, 6, RowDigest(2, 1, 1), ((2, 6),))
        two = SourceTaken("s", 0, 6, 12, RowDigest(3, 1, 1), ((6, 7), (9, 11)))
        whole = SourceTaken("s", 0, 0, 12, RowDigest(5, 2, 0), ((2, 7), (9, 11)))
        assert joined([PartAudit((one,)), PartAudit((two,))]).sources == (whole,)

    def test_their_staged_output_stays_in_separate_parts_in_order(self) -> None:
        parts = PartAudit(sinks=(gave(RowDigest(1, 1, 1)),)), PartAudit(sinks=(gave(RowDigest(2, 2, 2)),))
        assert joined(parts).sinks == (gave(RowDigest(1, 1, 1), RowDigest(2, 2, 2)),)

    def test_their_operator_counts_are_added_up(self) -> None:
        counts = [OperatorCount("f", "function", 5, 4, 1), OperatorCount("f", "function", 7, 7, 0)]
        assert joined(PartAudit(operators=(count,)) for count in counts).operators == (
            OperatorCount("f", "function", 12, 11, 1),
        )

    def test_a_gap_between_their_offsets_stops_the_worker(self) -> None:
        with pytest.raises(AssertionError, match="in neither"):
            joined([PartAudit((took(0, 3),)), PartAudit((took(4, 5),))])


class TestManifest:
    def test_totals_accumulate_from_epoch_to_epoch(self) -> None:
        first = manifest_audit(NO_EPOCH, None, [PartAudit(sinks=(gave(RowDigest(2, 5, 6)),))])
        assert first is not None
        second = manifest_audit(Epoch(1), first, [PartAudit(sinks=(gave(RowDigest(3, 1, 1), RowDigest(1, 1, 2)),))])
        assert second is not None
        assert (second.totals, second.since) == ((SinkTotal("out", RowDigest(6, 7, 5)),), 0)

    def test_totals_after_checkpoints_without_digests_name_the_epoch_they_start_from(self) -> None:
        made = manifest_audit(Epoch(9), None, [PartAudit()])
        assert made is not None and (made.totals, made.since) == ((), 9)

    def test_one_worker_without_digests_makes_the_epoch_unknown(self) -> None:
        assert manifest_audit(NO_EPOCH, None, [PartAudit(), None]) is None

    def test_an_unknown_audit_is_left_out_of_the_json(self) -> None:
        unknown = manifest(3, 0, reported=False)
        assert "audit" not in json.loads(encode(unknown))
        assert decode(encode(unknown), REF).audited is None

    def test_an_audit_with_the_largest_sums_is_read_back_unchanged(self) -> None:
        known = manifest(3, 0, took(0, 1, known=RowDigest(1, (1 << 64) - 1, (1 << 64) - 1)))
        assert decode(encode(known), REF) == known

    def test_lost_offsets_are_read_back_and_left_out_if_there_are_none(self) -> None:
        known = manifest(3, 0, SourceTaken("s", 0, 0, 6, RowDigest(2, 1, 1), ((2, 6),)))
        assert decode(encode(known), REF) == known
        assert "lost" not in encode(manifest(3, 0, took(0, 6))).decode()

    def test_the_audit_comes_from_the_acks_of_workers(self) -> None:
        handles = [SnapshotHandle(Subtask(0), (0, 1), (), NO_EPOCH, ())]
        part = SubtaskPart(Subtask(0), (SourcePosition("s", 0, 3),), None, {}, (), audit=PartAudit((took(0, 3),)))
        made = follow(handles, (), (), {}, manifest(3, 0, reported=False), [part])
        assert made.audited == Audit((took(0, 3),), (), (), (), NO_EPOCH)


class TestChain:
    def verdict(self, *manifests: Manifest) -> tuple[str, str | None]:
        line = chain(manifests, [manifests[-1].epoch])[0]
        return line.verdict, line.reason

    def test_an_epoch_that_begins_where_its_predecessor_ended_is_proven(self) -> None:
        assert self.verdict(manifest(3, 0, took(0, 5)), manifest(7, 3, took(5, 9))) == ("proven", None)

    def test_the_first_epoch_of_a_job_needs_no_predecessor(self) -> None:
        assert self.verdict(manifest(3, 0, took(0, 5))) == ("proven", None)

    def test_skipped_records_differ(self) -> None:
        verdict, reason = self.verdict(manifest(3, 0, took(0, 5)), manifest(7, 3, took(6, 9)))
        assert verdict == "differs" and "between offsets 5 and 6 were taken not at all" in str(reason)

    def test_records_read_twice_differ(self) -> None:
        verdict, reason = self.verdict(manifest(3, 0, took(0, 5)), manifest(7, 3, took(2, 9)))
        assert verdict == "differs" and "between offsets 2 and 5 were taken again" in str(reason)

    def test_records_beyond_the_resume_offset_differ(self) -> None:
        verdict, reason = self.verdict(manifest(3, 0, took(0, 5), offset=4))
        assert verdict == "differs" and "reading resumes at 4" in str(reason)

    def test_a_partition_that_two_workers_read_differs(self) -> None:
        assert self.verdict(manifest(3, 0, took(0, 5), took(0, 5)))[0] == "differs"

    def test_an_epoch_whose_predecessor_is_not_kept_is_not_provable(self) -> None:
        assert self.verdict(manifest(7, 3, took(5, 9)))[0] == "not provable"

    def test_an_epoch_without_digests_is_not_provable(self) -> None:
        assert self.verdict(manifest(7, 0, reported=False))[0] == "not provable"

    def test_a_lost_partition_differs_where_it_is_missing_and_where_it_reappears(self) -> None:
        both = manifest(3, 0, took(0, 5), took(0, 8, partition=1))
        forgets = manifest(5, 3, took(5, 9))
        verdict, reason = self.verdict(both, forgets)
        assert (verdict, "partition 1: the offset" in str(reason)) == ("differs", True)
        verdict, reason = self.verdict(both, forgets, manifest(7, 5, took(9, 9), took(0, 8, partition=1)))
        assert (verdict, "partition 1: the records between offsets 0 and 8 were taken again" in str(reason)) == (
            "differs",
            True,
        )

    def test_a_new_partition_with_an_unknown_first_record_is_not_provable(self) -> None:
        before = manifest(3, 0, took(0, 5))
        assert self.verdict(before, manifest(5, 3, took(5, 9), took(0, 2, partition=1))) == ("proven", None)
        for first in (before, manifest(5, 3, took(5, 9), took(7, 7, partition=1))), (manifest(3, 0, took(7, 9)),):
            verdict, reason = self.verdict(*first)
            assert (verdict, "begins at offset 7" in str(reason)) == ("not provable", True)

    def test_a_partition_without_digests_is_not_provable(self) -> None:
        silent = msgspec.structs.replace(
            manifest(5, 3, took(5, 9)), positions=(SourcePosition("s", 0, 9), SourcePosition("s", 1, 4))
        )
        assert self.verdict(manifest(3, 0, took(0, 5)), silent)[0] == "not provable"

    def test_a_difference_is_reported_before_what_is_not_provable(self) -> None:
        verdict, _ = self.verdict(
            manifest(3, 0, took(0, 5, partition=1)), manifest(5, 3, took(7, 9), took(6, 9, partition=1))
        )
        assert verdict == "differs"


class TestBalance:
    def test_rows_out_dropped_late_and_dead_balance_rows_in(self) -> None:
        assert balance(OperatorCount("f", "function", 10, 5, 2, 1, 2)) == 0
        assert balance(OperatorCount("f", "function", 10, 5, 2)) == 3

    def test_a_filter_has_no_balance(self) -> None:
        assert balance(OperatorCount("f", "filter", 10, 5)) is None

    def test_a_table_takes_all_rows_of_its_edge(self) -> None:
        edge = {"edge 0": OperatorCount("edge 0", "edge", 11, 11)}
        assert balance(OperatorCount("t", "keyed", 10, 5, after="edge 0"), edge) == 1

    def test_rows_that_an_edge_lost_differ(self) -> None:
        lost = Audit((), (), (OperatorCount("edge 0", "edge", 10, 9),), (), NO_EPOCH)
        (line,) = balances(msgspec.structs.replace(manifest(3, 0), audit=lost))
        assert (line.verdict, line.reason) == ("differs", "not accounted for: 1 row of 10")

    def test_records_that_were_read_but_did_not_enter_the_source_operator_differ(self) -> None:
        lost = Audit((took(0, 5),), (), (OperatorCount("s", "source", 4, 4),), (), NO_EPOCH)
        (line,) = balances(msgspec.structs.replace(manifest(3, 0), audit=lost))
        assert (line.verdict, line.reason) == ("differs", "5 records taken, 4 came in")
