from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.errors import Damaged
from holdfast.model import Epoch, JobUuid, Timeline
from holdfast.state.local.memory import MemoryKeyValue
from holdfast.state.marker import MARKER_KEY, Marker, read_marker, usable, write_marker

JOB = JobUuid("job")
REWOUND = {Epoch(number): f"manifest of {number}" for number in (40, 45, 50, 57, 190, 200)}
"""The job went on to epoch 80, was rewound to 57 and went on from 181."""


def marker(applied: int, applying: int, job: str = "job", said: str = "manifest of {}", **more: Any) -> Marker:
    named = [said.format(number) if number else "" for number in (applied, applying)]
    return Marker(
        JobUuid(job),
        Timeline(1),
        Epoch(applied),
        Epoch(applying),
        (0, 64),
        (1,),
        (1,),
        applied_manifest=named[0],
        applying_manifest=named[1],
        **{"declared": {1: "a"}, **more},
    )


def base(found: Marker | None, target: int = 200, owned: tuple[int, int] = (32, 96)) -> tuple[int, int] | None:
    return usable(found, JOB, REWOUND, Epoch(target), owned, {1: "a", 2: "b"})


class TestUsableState:
    def test_lies_on_the_lineage_and_covers_what_both_own(self) -> None:
        assert base(marker(50, 57)) == (32, 64)
        assert base(marker(57, 57)) == (32, 64)
        assert base(marker(57, 190)) == (32, 64)

    @pytest.mark.parametrize(
        "found",
        [
            None,
            marker(50, 57, job="another"),
            marker(50, 57, declared={1: "another"}),
            marker(50, 57, declared={1: "a", 2: "another"}),
            marker(50, 57, version=2, declared={}),
            marker(60, 60),
            marker(50, 60),
            marker(190, 201),
            marker(50, 50, said="another manifest of {}"),
            msgspec.structs.replace(marker(50, 57), applied_manifest="another"),
            msgspec.structs.replace(marker(50, 57), applying_manifest="another"),
            marker(50, 50, said=""),
            msgspec.structs.replace(marker(50, 50), version=1),
        ],
        ids=[
            "no marker",
            "another job",
            "another declaration",
            "one of several declarations",
            "earlier version",
            "undone epoch",
            "undone epoch in part",
            "beyond",
            "another history",
            "applied another's",
            "applying another's",
            "content unknown",
            "an older version's",
        ],
    )
    def test_is_nothing_else(self, found: Marker | None) -> None:
        assert base(found) is None

    def test_is_not_newer_than_the_target(self) -> None:
        assert base(marker(40, 50), target=45) is None
        assert base(marker(40, 45), target=45) == (32, 64)

    def test_is_nothing_where_no_key_group_is_shared(self) -> None:
        assert base(marker(50, 57), owned=(64, 128)) is None

    def test_of_epoch_zero_lies_on_every_lineage(self) -> None:
        assert base(marker(0, 0)) == (32, 64)

    def test_is_nothing_of_an_unknown_epoch_where_the_target_does_not_know_it_either(self) -> None:
        assert usable(marker(50, 50, said=""), JOB, {Epoch(50): ""}, Epoch(50), (0, 64), {}) is None


class TestMarker:
    def test_is_read_as_it_was_written(self) -> None:
        store = MemoryKeyValue()
        assert read_marker(store) is None
        write_marker(store, marker(3, 4))
        assert read_marker(store) == marker(3, 4)

    def test_that_is_garbled_is_damage(self) -> None:
        store = MemoryKeyValue({MARKER_KEY: b'{"job_uuid": 7}'})
        with pytest.raises(Damaged, match="marker"):
            read_marker(store)
