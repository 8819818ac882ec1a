"""Damages the files that a life left, one at a time, and reports how the next life dealt with it.

A specimen is a folder that a killed life left, with committed but undelivered output. For every damage, a copy of it
is damaged and a life runs in it. Then the file is put back, unless the life replaced it, everything is checked, and a
last life continues. In files in which every byte matters, data that is read and not refused must be right; for
RocksDB, reading the entire database shows which bytes do not matter.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

KINDS = {
    "job log record": r"root/life/log/\d{20}\.json",
    "manifest": r"root/life/manifests/.*\.json",
    "segment": r"root/life/segments/.*\.segment",
    "base segment": r"root/life/base/.*\.segment",
    "merged segment": r"root/life/merged/.*\.segment",
    "staged output": r"root/life/staged/.*\.arrow",
    "request": r"root/life/requests/[0-9a-f]{32}\.json",
    "answer": r"root/life/requests/[0-9a-f]{32}\.reply\.json",
    "status": r"root/life/live\.json",
    "log meta": r"(input|output)/meta\.json",
    "log commit": r"(input|output)/commits/\d{20}\.json",
    "log segment": r"(input|output)/data/\d+/[0-9a-f]{32}\.arrow",
    "rocks sst": r"local/.*/\d{6}\.sst",
    "rocks wal": r"local/.*/\d{6}\.log",
    "rocks current": r"local/.*/CURRENT",
    "rocks manifest": r"local/.*/MANIFEST-\d{6}",
    "rocks options": r"local/.*/OPTIONS-\d{6}",
    "rocks identity": r"local/.*/IDENTITY",
    "rocks lock": r"local/.*/LOCK",
    "rocks messages": r"local/.*/LOG(\.old\.\d+)?",
    "rocksdict config": r"local/.*/rocksdict-config\.json",
    "image head": r"local/.*/images/[^/]+/head",
    "image lock": r"local/.*/images/[^/]+/lock",
    "image array": r"local/.*/images/[^/]+/\d+",
    "image small": r"local/.*/images/[^/]+/small-[0-9a-f]{32}",
    "temporary": r"(root|input|output)/(.*/)?\.tmp-[^/]*",
    "sqlite": r"target/.*",
}
"""Every kind of file that a life leaves, except SQLite's, whose pages have no checksum."""
NOT_OURS = {"sqlite"}
REMOVED: dict[str, tuple[str, ...]] = {
    "here": (),
    "elsewhere": ("local",),
    "anew": ("local", "root", "output", "target"),
}
"""Folders that are removed before the next life, by how it continues: on the same machine, without local state, or as
another job on the same input."""
SPECIMEN_STRIDE = 10
"""Steps on the target's files by which a life is killed earlier than the one before."""
UNCHECKED = {"status", "request", "answer", "temporary", "rocks messages"}
"""No decision depends on these files, or their content was already carried out."""


def kind_of(path: str) -> str:
    """Return the kind of a file. Raises KeyError for a file of no listed kind."""
    for kind, pattern in KINDS.items():
        if re.fullmatch(pattern, path):
            return kind
    raise KeyError(f"{path}: a file of no listed kind")


@dataclass(frozen=True)
class Damage:
    """Damage to one file: a flipped bit, a cut end, or removal."""

    path: str
    how: str
    """`flip`, `cut` or `gone`."""
    at: int = 0
    """The byte."""
    bit: int = 0

    def apply(self, folder: Path) -> bytes:
        """Damage the file; return its previous content."""
        place = folder / self.path
        data = place.read_bytes()
        if self.how == "gone":
            place.unlink()
        elif self.how == "cut":
            place.write_bytes(data[: self.at])
        else:
            place.write_bytes(data[: self.at] + bytes([data[self.at] ^ 1 << self.bit]) + data[self.at + 1 :])
        return data


def damages(path: str, size: int, flips: int, seed: int) -> Iterator[Damage]:
    """Return damages of one file: structural ones, and bit flips at seeded places."""
    rng = random.Random(f"{seed}/{kind_of(path)}/{size}")
    yield Damage(path, "gone")
    if size == 0:
        return
    yield from (Damage(path, "cut", at) for at in sorted({0, size // 2, size - 1}))
    places = [0, size - 1, max(0, size - 9), max(0, size - 21), *(rng.randrange(size) for _ in range(flips))]
    yield from (Damage(path, "flip", at, rng.randrange(8)) for at in dict.fromkeys(places))


@dataclass
class Verdict:
    """The outcome of one damage.

    `loud`: an error named the file, and with the file put back the job continued. `fell back`: another copy was used.
    `made good`: the missing data was written again. `not read`: the file was not needed. `no matter`: nothing depends
    on these bytes. `silent` and `wrong` must not occur.
    """

    kind: str
    damage: Damage
    outcome: str
    reported: str = ""
    """The error that the life reported, or a description of the violation."""
    used: bool = False


# In the server of cases.py


def answer(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Make a specimen, or damage a copy of one."""
    if "specimen" in asked:
        return asdict(make_specimen(Path(asked["specimen"]), asked["seed"]))
    specimen, seed, how, mutant = Path(asked["of"]), asked["seed"], asked["how"], asked.get("mutant", "")
    if "damage" not in asked:
        return {"read": reads(specimen, seed, how)}
    return asdict(judged(specimen, seed, Damage(**asked["damage"]), how, mutant))


def copied(specimen: Path, data: Path, how: str) -> list[dict[str, Any]]:
    """Copy a specimen for the next life; return the earlier lives' reports that still hold.

    Args:
        how: See REMOVED.
    """
    shutil.copytree(specimen / "data", data, symlinks=True)
    reported: list[dict[str, Any]] = json.loads((specimen / "told.json").read_text())
    for name in REMOVED[how]:
        shutil.rmtree(data / name)
        (data / name).mkdir(mode=0o700)
    return [line for line in reported if {"created", "append", "appended"} & line.keys()] if how == "anew" else reported


def reads(specimen: Path, seed: int, how: str) -> list[str]:
    """Return the files that the next life reads if nothing is damaged."""
    from cases import Case, Fault, _life, place

    folder = Path(tempfile.mkdtemp(prefix="holdfast-damage-", dir=place()))
    try:
        reported = copied(specimen, folder / "data", how)
        lines, _ = _life(folder / "data", folder, Case(seed, ()), 1, Fault(), True, reported)
        read: list[str] = next(line["read"] for line in lines if "read" in line)
        return read
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Specimen:
    """The files that a life left, and its reports."""

    files: dict[str, int] = field(default_factory=dict)
    problem: str = ""


def make_specimen(folder: Path, seed: int) -> Specimen:
    """Play lives that are killed earlier and earlier, until one left output that was committed and not delivered.

    Keep its files and arguments. Of staged output that was left, the next life reads only such.
    """
    from cases import Case, Fault, _checked, _life, make_folders

    data = folder / "data"
    case = Case(seed, ())
    whole = Path(tempfile.mkdtemp(dir=folder)) / "data"
    make_folders(whole)
    lines, _ = _life(whole, folder, case, 0, Fault("kill", 10**9, below="target"), False, [])
    able = next(line["able"] for line in lines if "able" in line)
    shutil.rmtree(whole.parent)
    files: dict[str, int] = {}
    reported: list[dict[str, Any]] = []
    problem = "no life left output that was committed and not delivered"
    for at in range(able - SPECIMEN_STRIDE, 0, -SPECIMEN_STRIDE):
        shutil.rmtree(data, ignore_errors=True)
        make_folders(data)
        reported, killed = _life(data, folder, case, 0, Fault("kill", at, below="target"), False, [])
        (folder / "told.json").write_text(json.dumps(reported))
        files = {str(path.relative_to(data)): path.stat().st_size for path in sorted(data.rglob("*")) if path.is_file()}
        read = files.keys() & reads(folder, seed, "elsewhere")
        if killed and any(kind_of(path) == "staged output" for path in read):
            problem = ""
            break
    return Specimen(files, problem or _checked(data, reported, False))


def judged(specimen: Path, seed: int, damage: Damage, how: str, mutant: str) -> Verdict:
    """Damage a copy, run a life in it, put the file back, check, and run another life."""
    from cases import Case, Fault, _checked, _life, place

    kind = kind_of(damage.path)
    folder = Path(tempfile.mkdtemp(prefix="holdfast-damage-", dir=place()))
    data, verdict = folder / "data", Verdict(kind, damage, "")
    try:
        reported = copied(specimen, data, how)
        before = damage.apply(data)
        if kind.startswith("rocks"):
            verdict.outcome, verdict.reported = _read_whole(specimen / "data", data, damage.path)
        case = Case(seed, (), mutant)
        lines, killed = _life(data, folder, case, 1, Fault(), True, reported)
        over = next((line for line in lines if "over" in line), {"over": "killed" if killed else "lost"})
        read: list[str] = next((line["read"] for line in lines if "read" in line), [])
        verdict.used = damage.path in read
        reported += lines
        _put_back(data, damage, before)
        wrong = _checked(data, reported, over["over"] == "well")
        if not wrong and over["over"] != "well":
            lines, _ = _life(data, folder, case, 2, Fault(), True, reported)
            last = next((line for line in lines if "over" in line), {"over": "lost"})
            wrong = "" if last["over"] == "well" else f"after the file was put back: {last}"
            wrong = wrong or _checked(data, reported + lines, True)
        _judge(verdict, over, wrong, [line["swept"] for line in lines if "swept" in line])
        return verdict
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _judge(verdict: Verdict, over: Mapping[str, Any], wrong: str, swept: list[dict[str, Any]]) -> None:
    findings = over.get("findings", [])
    if wrong or over["over"] not in ("well", "raised", "stalled"):
        verdict.outcome, verdict.reported = "silent" if over["over"] == "well" else "wrong", wrong or json.dumps(over)
    elif over["over"] != "well":
        named = [each for each in findings if each.get("what") and each.get("next")]
        verdict.outcome = "loud" if named else "wrong"
        verdict.reported = " / ".join(str(each["what"]) for each in named) or json.dumps(over)
    elif verdict.outcome:  # RocksDB, read whole
        other = verdict.outcome if verdict.used else "fell back"
        verdict.outcome = "no matter" if verdict.outcome == "same" else other
    elif swept:
        verdict.outcome, verdict.reported = "loud", str(swept[0]["what"])
    elif not verdict.used:
        verdict.outcome = "not read"
    elif verdict.kind.startswith("image"):
        verdict.outcome = "fell back"  # the rows are right, so they did not come from it
    elif verdict.damage.how == "gone":
        verdict.outcome = "made good"  # pending output of an epoch is delivered again
    else:
        verdict.outcome = "no matter" if verdict.kind in UNCHECKED else "silent"


def _put_back(data: Path, damage: Damage, before: bytes) -> None:
    """Restore the file as an operator would, if it is still the damaged one."""
    place = data / damage.path
    if damage.path.startswith("local/"):
        return
    if damage.how == "gone":
        if not place.exists() and place.parent.exists():
            place.write_bytes(before)
    elif place.exists() and place.stat().st_size == (damage.at if damage.how == "cut" else len(before)):
        place.write_bytes(before)


def _read_whole(good: Path, data: Path, path: str) -> tuple[str, str]:
    """Read every row of a copy of a damaged RocksDB: `same`, `older`, `refused` or `silent`."""
    from cases import forked

    folder = str(Path(path).parent)

    def child(tell: Callable[[Mapping[str, Any]], None]) -> None:
        try:
            rows = [_rows(root / folder) for root in (good, data)]
            tell({"read": "same" if rows[0] == rows[1] else "other", "why": ""})
        except Exception as error:  # noqa: BLE001 - reported; the caller judges it
            kind = type(error).__name__
            tell({"read": "refused" if kind in ("Damaged", "Unavailable") else kind, "why": traceback.format_exc()})

    lines, _ = forked(child)
    return (lines[0]["read"], lines[0]["why"]) if lines else ("died", "")


def _rows(folder: Path) -> list[tuple[bytes, bytes]]:
    from holdfast.state.local.rocks import RocksKeyValue

    copy = Path(tempfile.mkdtemp(dir=folder.parents[2])) / "copy"
    shutil.copytree(folder, copy)
    try:
        store = RocksKeyValue(copy)
        rows = store.scan(b"", b"\xff" * 40)
        store.close()
        return rows
    finally:
        shutil.rmtree(copy.parent)
