"""Golden file of an incident: files that were written once are replayed by every later release."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pyarrow as pa
from replayed_jobs import NOON, Row, code_of, stored, totals

from holdfast.runtime.replay.epochs import newest
from holdfast.runtime.replay.incidents.container import IncidentWriter, Unpacked
from holdfast.runtime.replay.incidents.incident import About, Incident, read, write
from holdfast.runtime.replay.incidents.making import made
from holdfast.testing import TestDriver

GOLDEN = Path(__file__).parent / "incident_v1.zip"
MEMBERS = {
    "incident.json",
    *("start/manifest.json", "start/state/totals.arrow", "end/manifest.json", "end/state/totals.arrow"),
    *("input/rows/0-0.arrow", "input/rows/1-0.arrow", "rows/out.arrow", "rows/doubled.arrow", "rows/newest.arrow"),
}


def written() -> bytes:
    """Return the file of the second epoch of a job."""
    with TestDriver(totals()) as t:
        t.push("rows", [Row("a", 1, NOON), Row("b", 2, NOON)])
        t.checkpoint()
        t.push("rows", [Row("a", 3, NOON), Row("c", 4, NOON)], 0)
        t.push("rows", [Row("b", 6, NOON)], 1)
        t.checkpoint()
        about = About({"mode": "continuous"}, {"holdfast": "0"}, {"job.py": "0" * 64})
        incident, proof = made(code_of(t), newest(stored(t), 1)[0], about)
    assert proof.exact
    into = io.BytesIO()
    write(incident, IncidentWriter(into))
    return into.getvalue()


def opened(data: bytes) -> Incident:
    return read(Unpacked(io.BytesIO(data), "a file"))


def test_the_golden_file_replays_as_its_checkpoint() -> None:
    incident = opened(GOLDEN.read_bytes())
    with TestDriver(totals()) as t:
        plan = t._plan
    assert incident.replayed(incident.code(plan)).exact and incident.records == 3


def test_a_file_of_today_has_the_same_members_and_contents() -> None:
    with zipfile.ZipFile(GOLDEN) as golden, zipfile.ZipFile(io.BytesIO(written())) as now:
        assert set(golden.namelist()) == set(now.namelist()) == MEMBERS
        one, other = (json.loads(each.read("incident.json")) for each in (golden, now))
    assert one.keys() <= other.keys() and one["v"] == other["v"] == 1
    assert one["input"] == other["input"] and one["start"].keys() == other["start"].keys()


def test_state_can_be_read_without_this_library() -> None:
    with zipfile.ZipFile(GOLDEN) as file:
        table = pa.ipc.open_stream(file.read("end/state/totals.arrow")).read_all()
    assert table.schema.names == ["key/k", "value/rows.count", "value/total.sum", "value/most.max"]
    assert sorted(table.column("key/k").to_pylist()) == ["a", "b", "c"]
