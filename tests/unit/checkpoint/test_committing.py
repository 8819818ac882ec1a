"""The output of all writers of a sink with one committer, gathered into the part of the first."""

from __future__ import annotations

from holdfast.checkpoint.audit import PartAudit, SinkStaged
from holdfast.checkpoint.committing import gathered, left_by_others
from holdfast.checkpoint.manifest import Manifest, SubtaskPart
from holdfast.model import (
    Epoch,
    Generation,
    JobUuid,
    ObjectRef,
    Pending,
    RowDigest,
    Staged,
    Subtask,
    Tag,
    Timeline,
    Uploaded,
    Writer,
)


def blob(name: str) -> ObjectRef:
    return ObjectRef(name, 1, "")


def staged(*names: str, upload: str | None = None) -> Staged:
    return Staged(tuple(map(blob, names)), len(names), () if upload is None else (Uploaded(names[0], upload),))


def digest(sink: str, subtask: int, *parts: int) -> SinkStaged:
    return SinkStaged(Writer(sink, Subtask(subtask)), tuple(RowDigest(1, each, each) for each in parts))


def part(subtask: int, audit: PartAudit | None = None, **output: Staged) -> SubtaskPart:
    return SubtaskPart(Subtask(subtask), (), None, output, (), audit=audit)


class TestGathering:
    def test_names_the_parts_of_all_writers_in_their_order_under_the_first(self) -> None:
        parts = [part(2, log=staged("c")), part(0, log=staged("a"), table=staged("x")), part(1, table=staged("y"))]
        assert gathered(parts, ["log"]) == (
            part(0, log=staged("a", "c"), table=staged("x")),
            part(1, table=staged("y")),
            part(2),
        )

    def test_keeps_what_an_epoch_that_did_not_complete_left_in_order(self) -> None:
        """P8."""
        found = gathered([part(0), part(1, log=staged("b1", "b2"))], ["log"])
        assert found == (part(0, log=staged("b1", "b2")), part(1))

    def test_keeps_all_uploads(self) -> None:
        first, second = staged("a", upload="in the log"), staged("b", upload="too")
        (whole, _) = gathered([part(0, log=first), part(1, log=second)], ["log"])
        assert whole.staged["log"].uploads == (Uploaded("a", "in the log"), Uploaded("b", "too"))

    def test_changes_nothing_if_no_sink_has_one_committer(self) -> None:
        parts = (part(0, log=staged("a")), part(1, log=staged("b")))
        assert gathered(parts, []) == parts

    def test_gathering_parts_without_output_adds_nothing(self) -> None:
        assert gathered([part(0), part(1)], ["log"]) == (part(0), part(1))

    def test_adds_the_digests_of_writers_whose_rows_replace_none_of_each_others(self) -> None:
        audits = [PartAudit(sinks=(digest("log", n, 1 << n), digest("table", n, 9))) for n in range(3)]
        found = gathered([part(n, audit) for n, audit in enumerate(audits)], ["log"])
        whole = SinkStaged(Writer("log", Subtask(0)), (RowDigest(3, 7, 7),))
        assert [each.audit.sinks for each in found if each.audit is not None] == [
            (digest("table", 0, 9), whole),
            (digest("table", 1, 9),),
            (digest("table", 2, 9),),
        ]

    def test_keeps_a_digest_per_part_if_rows_of_one_writer_may_replace_each_other(self) -> None:
        audits = [PartAudit(sinks=(digest("log", 0, 1),)), PartAudit(sinks=(digest("log", 1, 2, 4),))]
        (first, _) = gathered([part(n, audit) for n, audit in enumerate(audits)], ["log"])
        assert first.audit is not None and first.audit.sinks == (digest("log", 0, 1, 2, 4),)


def manifest(committed_once: tuple[str, ...], *pending: Pending) -> Manifest:
    header = JobUuid("u"), Generation(1), Timeline(1), Epoch(1), Epoch(0), 2, 4, (), ()
    return Manifest(*header, pending, (), (), committed_once=committed_once)


class TestOutputOfAnotherKindOfWriters:
    OF_LOG = Pending(Writer("log", Subtask(1)), Tag(Timeline(1), Epoch(1)), staged("a"))
    OF_TABLE = Pending(Writer("table", Subtask(1)), Tag(Timeline(1), Epoch(1)), staged("b"))

    def test_is_that_of_a_sink_that_has_one_committer_from_now_on(self) -> None:
        assert left_by_others(manifest((), self.OF_LOG, self.OF_TABLE), ["log"]) == [self.OF_LOG]

    def test_is_that_of_a_sink_that_had_one(self) -> None:
        assert left_by_others(manifest(("log",), self.OF_LOG, self.OF_TABLE), []) == [self.OF_LOG]

    def test_is_none_otherwise(self) -> None:
        assert left_by_others(manifest(("log",), self.OF_LOG, self.OF_TABLE), ["log"]) == []
