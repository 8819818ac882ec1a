from __future__ import annotations

from holdfast.chaos.explore import coverage
from holdfast.chaos.explore.coverage import MUST_BE_HIT, ROWS, built, empty_cells, table_lines
from holdfast.chaos.sim.faults import points
from holdfast.chaos.sim.faults.faults import CODES, Fault
from holdfast.chaos.sim.faults.points import MEANS, Point
from holdfast.checkpoint import joblog
from holdfast.checkpoint.joblog import GenerationStarted, Record
from holdfast.model import NO_EPOCH, Epoch, Generation, JobUuid, Timeline


def record(epochs: int) -> bytes:
    body = GenerationStarted(Epoch(epochs), NO_EPOCH, "host", "started")
    return joblog.encode(Record(1, JobUuid("j"), Generation(1), Timeline(1), "d1", 0, body))


class TestCoverage:
    def test_every_fault_has_its_rows_and_every_point_its_meaning(self) -> None:
        assert set(CODES) == set(Fault)
        assert {code for codes in CODES.values() for code in codes} <= set(ROWS)
        assert set(MEANS) == set(Point)

    def test_a_cell_that_was_never_hit_is_reported(self) -> None:
        everything = dict.fromkeys(MUST_BE_HIT, 1) | {(code, Point.BETWEEN): 1 for code in coverage.ANYWHERE}
        assert empty_cells(everything) == []
        assert empty_cells({**everything, ("F9", Point.SWEEP): 0}) == ["F9 x P13"]

    def test_a_cell_of_a_fault_that_is_not_built_may_be_empty(self) -> None:
        missing = {code for code in ROWS if not built(code)}
        assert {cell.split()[0] for cell in empty_cells({})}.isdisjoint(missing)

    def test_the_table_marks_required_cells_and_faults_that_are_not_built(self) -> None:
        lines = {line.split()[0]: line for line in table_lines({("F1", Point.ALIGN): 7})}
        assert " 7 " in lines["F1"] and "!" in lines["F1"]
        assert all("not built" in lines[code] for code in ROWS if not built(code))


class TestPoints:
    def test_a_record_is_at_the_point_of_its_kind(self) -> None:
        assert points.of_write("log/00000000000000000001.json", record(1), "log") == (Point.START,)

    def test_an_object_is_at_the_point_of_its_folder(self) -> None:
        found = [points.of_write(f"{folder}/1/2", b"x", "") for folder in ("segments", "staged", "manifests")]
        assert found == [(Point.UPLOAD,), (Point.STAGE,), (Point.COMMIT,)]

    def test_a_read_is_at_the_point_of_its_lane_or_of_its_object(self) -> None:
        assert points.of_read("manifests/1", "sweep") == (Point.SWEEP,)
        assert points.of_read("segments/1", "") == (Point.RESTORE, Point.REPLAY)
