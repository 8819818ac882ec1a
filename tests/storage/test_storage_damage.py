"""Every kind of file that a life leaves, damaged: the next life reports it or uses another copy, and is never wrong.

SQLite's file is excluded: its pages carry no checksum, so a flipped bit in a row gives a row with another value.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from cases import Cases, place
from damage import KINDS, NOT_OURS, REMOVED, Damage, Verdict, damages, kind_of
from soaking import SHARE

SEED = 3
NEVER = {"silent", "wrong"}
NOT_LEFT = {"temporary"}
"""Kinds of files that only a life killed in the middle of a write leaves."""
LOUD = {
    "job log record",
    "manifest",
    "segment",
    "base segment",
    "staged output",
    "log meta",
    "log commit",
    "log segment",
}
"""Kinds in which every byte matters: some of their damages must have been read and refused."""


@dataclass
class Specimen:
    """A folder that a life left, and the files that the next life reads, by way of continuing."""

    folder: Path
    files: dict[str, int]
    reads: dict[str, set[str]]


@pytest.fixture(scope="module")
def server() -> Iterator[Cases]:
    with Cases() as cases:
        yield cases


@pytest.fixture(scope="module")
def specimen(server: Cases) -> Iterator[Specimen]:
    with tempfile.TemporaryDirectory(prefix="holdfast-specimen-", dir=place()) as folder:
        left = server.ask({"specimen": folder, "seed": SEED})
        assert not left["problem"], left["problem"]
        asked = {how: {"of": folder, "seed": SEED, "how": how} for how in ("elsewhere", "anew")}
        reads = {how: set(server.ask(what)["read"]) for how, what in asked.items()}
        yield Specimen(Path(folder), left["files"], reads)


def way(path: str) -> str:
    """Return how the next life has to continue so that it reads this file: it has read its input before."""
    folder = Path(path).parts[0]
    return {"local": "here", "input": "anew"}.get(folder, "elsewhere")


def chosen(specimen: Specimen, kind: str, flips: int, files: int) -> list[tuple[Damage, str]]:
    """Return damages of some files of a kind, those that are read first, each with a way of continuing."""
    found = sorted(path for path in specimen.files if kind_of(path) == kind)
    found.sort(key=lambda path: path not in specimen.reads.get(way(path), set()))
    struck = [each for path in found[:files] for each in damages(path, specimen.files[path], flips, SEED)]
    # A log without its newest commit is a shorter log, to a job that has never read it.
    newest = max(path for path in specimen.files if path.startswith("input/commits/"))
    return [(each, way(each.path)) for each in struck if (each.path, each.how) != (newest, "gone")]


def judge(server: Cases, specimen: Specimen, damage: Damage, how: str, mutant: str = "") -> Verdict:
    asked = {"of": str(specimen.folder), "seed": SEED, "how": how, "damage": asdict(damage), "mutant": mutant}
    found: dict[str, Any] = server.ask(asked)
    return Verdict(**(found | {"damage": Damage(**found["damage"])}))


def shown(verdicts: list[Verdict]) -> str:
    """Return the outcomes by kind, as a table."""
    outcomes = sorted({each.outcome for each in verdicts})
    lines = [f"{'kind':18}" + "".join(f"{outcome:>11}" for outcome in outcomes)]
    for kind in dict.fromkeys(each.kind for each in verdicts):
        counts = Counter(each.outcome for each in verdicts if each.kind == kind)
        lines.append(f"{kind:18}" + "".join(f"{counts[outcome]:11}" for outcome in outcomes))
    return "\n".join(lines)


def settle(
    server: Cases, specimen: Specimen, kinds: list[str], flips: int, files: int, every: int = 1
) -> list[Verdict]:
    verdicts = [
        judge(server, specimen, damage, how)
        for number, kind in enumerate(kinds)
        for damage, how in chosen(specimen, kind, flips, files)[number % every :: every]
    ]
    print(f"\n{shown(verdicts)}\n{server.rate()}")
    wrong = [f"{each.damage}: {each.outcome}, {each.reported}" for each in verdicts if each.outcome in NEVER]
    assert not wrong, f"{len(wrong)} of {len(verdicts)}:\n" + "\n\n".join(wrong[:5])
    return verdicts


@pytest.mark.timeout(1_200)
class TestDamage:
    def test_every_listed_kind_of_file_is_written_by_a_run(self, specimen: Specimen) -> None:
        assert {kind_of(path) for path in specimen.files} == set(KINDS) - NOT_LEFT

    def test_strikes_files_that_the_next_life_finds(self, specimen: Specimen) -> None:
        for kind in set(KINDS) - NOT_LEFT:
            for each, how in chosen(specimen, kind, flips=0, files=100):
                assert Path(each.path).parts[0] not in REMOVED[how]

    def test_damage_to_significant_files_is_never_accepted(self, server: Cases, specimen: Specimen) -> None:
        verdicts = settle(server, specimen, sorted(LOUD), flips=0, files=1, every=2)
        missing = LOUD - {each.kind for each in verdicts if each.outcome == "loud"}
        assert not missing, f"damage to these kinds was never refused: {missing}"

    def test_damage_to_local_state_makes_the_worker_restore_the_checkpoint(
        self, server: Cases, specimen: Specimen
    ) -> None:
        kinds = [kind for kind in KINDS if kind.startswith("rocks")]
        verdicts = [
            judge(server, specimen, damage, how)
            for kind in kinds
            for damage, how in chosen(specimen, kind, 0, 1)[:: 1 if kind == "rocks sst" else 3]
        ]
        print(f"\n{shown(verdicts)}")
        assert not [each for each in verdicts if each.outcome in NEVER | {"other", "died", "loud"}], shown(verdicts)
        assert {"rocks sst", "rocks current"} <= {each.kind for each in verdicts if each.outcome == "fell back"}

    @pytest.mark.parametrize(
        ("mutant", "kind"),
        [
            ("hash_not_verified", "staged output"),
            ("record_hash_not_verified", "job log record"),
            ("image_not_verified", "image array"),
        ],
    )
    def test_damage_missed_by_a_faulty_version_is_detected_here(
        self, server: Cases, specimen: Specimen, mutant: str, kind: str
    ) -> None:
        tried = [each for each in chosen(specimen, kind, 40, 3) if each[0].how == "flip"]
        assert any(judge(server, specimen, damage, how, mutant).outcome in NEVER for damage, how in tried)


@pytest.mark.slow
class TestEveryFile:
    """Every file is removed, cut, and struck at its ends and between; `make soak`. 15 minutes, 40 with HOURS=8."""

    @pytest.mark.parametrize("kind", sorted(set(KINDS) - NOT_OURS - NOT_LEFT))
    def test_may_be_damaged_anywhere(self, server: Cases, specimen: Specimen, kind: str) -> None:
        settle(server, specimen, [kind], flips=round(40 * SHARE), files=100)
