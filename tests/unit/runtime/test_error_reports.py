"""Errors as values: what crosses the wire is the error itself, not its text."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.errors import ConfigError, Damaged, Fenced, HoldfastError, JobFailed, LocalDamaged, Unavailable, Where
from holdfast.model import Generation, WorkerId
from holdfast.runtime.wire import messages as m

WHAT = "the text.\nNot done: nothing.\nNext: nothing either"
"""A text that looks like the parts of an error."""


def arrived(error: HoldfastError) -> HoldfastError:
    sent = m.Failed(WorkerId("w1"), Generation(3), error.report(), permanent=True)
    found = m.FROM_WORKER.decode(msgspec.msgpack.encode(sent))
    assert isinstance(found, m.Failed)
    return found.error.as_error()


class TestAnErrorOnTheWire:
    @pytest.mark.parametrize("kind", [ConfigError, Damaged, Fenced, JobFailed, Unavailable])
    def test_arrives_with_its_kind_parts_and_place(self, kind: type[HoldfastError]) -> None:
        where = Where("hot", "counts", 7, "words", 0, 12)
        sent = kind(WHAT, not_done="the epoch", next_step="see the cause", where=where)
        found = arrived(sent)
        assert type(found) is kind
        assert (found.what, found.not_done, found.next_step, found.where) == (WHAT, "the epoch", "see the cause", where)

    def test_the_error_for_a_damaged_local_folder_arrives_as_damage(self) -> None:
        assert type(arrived(LocalDamaged("the folder is torn", next_step="wait"))) is Damaged

    def test_an_error_of_no_known_kind_arrives_as_a_job_failure(self) -> None:
        assert type(arrived(HoldfastError("it broke", next_step="see the cause"))) is JobFailed

    def test_has_the_fields_of_the_documented_errors_in_their_order(self) -> None:
        assert list(ConfigError("x", next_step="y").as_json()) == [
            "kind",
            "job",
            "operator",
            "epoch",
            "source",
            "partition",
            "offset",
            "what",
            "not_done",
            "next",
        ]
