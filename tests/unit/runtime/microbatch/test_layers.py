"""The layers of a plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.errors import ConfigError
from holdfast.runtime.config.settings import resolve
from holdfast.runtime.execution.checks.microbatch import refusal
from holdfast.runtime.execution.checks.ordered import refuse
from holdfast.runtime.execution.prepare import prepare
from holdfast.runtime.microbatch.layers import layers_of
from holdfast.traits import Endless, SourceTraits


@dataclass
class Visit:
    user: str
    page: int


def app() -> hf.App:
    return hf.App("layers", parallelism=2)


class TestLayers:
    def test_one_layer_without_a_shuffle(self) -> None:
        job = app()
        job.source("visits", hf.Log("in", Visit)).sink("out", hf.Log("out"))
        assert [len(layer) for layer in layers_of(job.plan())] == [1]

    def test_every_shuffle_begins_a_layer(self) -> None:
        job = app()
        visits = job.source("visits", hf.Log("in", Visit))
        users = visits.key_by("user").agg("users", n=hf.count())
        users.sink("out", hf.SQLite("out.db", table="users", key=["user"]))
        pages = visits.key_by("page").agg("pages", n=hf.count())
        pages.sink("pages-out", hf.SQLite("out.db", table="pages", key=["page"]))
        assert [len(layer) for layer in layers_of(job.plan())] == [1, 2]

    def test_a_union_is_in_the_layer_of_its_inputs(self) -> None:
        job = app()
        one, other = job.source("one", hf.Log("one", Visit)), job.source("other", hf.Log("other", Visit))
        users = one.union(other).key_by("user").agg("users", n=hf.count())
        users.sink("out", hf.SQLite("out.db", table="users", key=["user"]))
        assert [len(layer) for layer in layers_of(job.plan())] == [3, 1]


class TestRefusal:
    def test_a_sink_with_immediate_writes_is_refused(self) -> None:
        job = app()
        visits = job.source("visits", hf.Log("in", Visit), partitioned_by=["page"])
        visits.sink("last", hf.SQLite("out.db", table="last", key=["page"], delivery="idempotent"))
        with pytest.raises(ConfigError, match="sink 'last' is written immediately") as refused:
            refuse(refusal(job.plan()))
        assert "--mode continuous" in refused.value.next_step

    @pytest.mark.parametrize(
        ("source", "refused"),
        [
            (hf.Generator(Visit, lambda i: Visit("a", i)), True),
            (hf.Generator(Visit, lambda i: Visit("a", i), rate=10), False),
            (hf.Generator(Visit, lambda i: Visit("a", i), count=10), False),
        ],
    )
    def test_a_source_without_an_end_is_refused_at_any_time(self, source: hf.Generator, refused: bool) -> None:
        job = app()
        job.source("visits", source).sink("out", hf.Log("out"))
        if not refused:
            refuse(refusal(job.plan()))
            return
        with pytest.raises(ConfigError, match="source 'visits' is a generator without a count") as error:
            refuse(refusal(job.plan()))
        assert error.value.next_step == "give the generator a count or a rate, or run it with --mode continuous"

    def test_a_source_from_another_package_gives_its_own_advice(self) -> None:
        class Ticker(hf.Generator[Visit]):
            @property
            def traits(self) -> SourceTraits:
                return replace(super().traits, endless=Endless(what="a ticker", instead="give the ticker an end"))

        job = app()
        job.source("ticks", Ticker(Visit, lambda i: Visit("a", i))).sink("out", hf.Log("out"))
        with pytest.raises(ConfigError, match="source 'ticks' is a ticker") as error:
            refuse(refusal(job.plan()))
        assert error.value.next_step == "give the ticker an end, or run it with --mode continuous"

    def test_comes_with_the_plan_before_any_target_is_created(self, tmp_path: Path) -> None:
        job = hf.App("layers", root=str(tmp_path / "root"), mode="microbatch")
        visits = job.source("visits", hf.Log(str(tmp_path / "in"), Visit), partitioned_by=["page"])
        out = hf.SQLite(str(tmp_path / "out.db"), table="last", key=["page"], delivery="idempotent")
        visits.sink("last", out)
        with pytest.raises(ConfigError, match="sink 'last' is written immediately"):
            prepare(job.plan(), resolve(job))
        assert list(tmp_path.iterdir()) == []
