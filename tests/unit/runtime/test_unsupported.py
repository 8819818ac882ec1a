"""Names and arguments that the API has and this version lacks, or that a user forgot: one sentence each."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from planned_source import PlannedSource

import holdfast as hf
from holdfast.runtime.api import unsupported
from holdfast.runtime.api.app import App
from holdfast.runtime.api.stream import Keyed, Stream
from holdfast.runtime.cli.start.jobfile import load

TIMED = pa.schema(
    [pa.field("v", pa.int64(), nullable=False), pa.field("at", pa.timestamp("us", "UTC"), nullable=False)]
)


def stream() -> Any:
    return hf.App("hot").source("bids", PlannedSource(TIMED), event_time="at")


def said(call: Callable[[], object]) -> hf.ConfigError:
    with pytest.raises(hf.ConfigError) as refused:
        call()
    assert refused.value.next_step and refused.value.not_done == "the job was not planned"
    return refused.value


class TestNamesOfTheApi:
    @pytest.mark.parametrize(
        ("owner", "kind", "names"),
        [
            (stream(), "Stream", unsupported.STREAM),
            (stream().key_by("v"), "Keyed", unsupported.KEYED_STREAM),
            (hf.App("hot"), "App", unsupported.APP),
        ],
        ids=["stream", "keyed", "app"],
    )
    def test_unsupported_names_of_objects_suggest_the_alternative(
        self, owner: Any, kind: str, names: dict[str, str]
    ) -> None:
        for name, instead in names.items():
            error = said(lambda name=name: getattr(owner, name)("x"))  # type: ignore[misc]
            assert (error.what, error.next_step) == (f"{kind}.{name} is not in this version", instead)

    def test_none_of_them_exists(self) -> None:
        for owner, names in ((Stream, unsupported.STREAM), (Keyed, unsupported.KEYED_STREAM), (App, unsupported.APP)):
            assert not [name for name in names if name in dir(owner)]

    def test_are_reported_as_missing_to_hasattr(self) -> None:
        assert not hasattr(stream(), "sessionize")

    def test_unknown_names_of_the_package_are_refused_with_the_importing_line(self, tmp_path: Path) -> None:
        (tmp_path / "typo.py").write_text("from holdfast import Sqlite\n")
        with pytest.raises(hf.ConfigError, match="typo.py cannot be loaded: line 1: ImportError"):
            load(str(tmp_path / "typo.py"))


class TestUnknownNames:
    @pytest.mark.parametrize(
        ("use", "message"),
        [
            (lambda: hf.Sqlite, "hf has no attribute 'Sqlite'; did you mean 'SQLite'?"),
            (lambda: stream().fliter, "Stream has no attribute 'fliter'; did you mean 'filter'?"),
            (lambda: stream().print, "Stream has no attribute 'print'; to see rows, use .sink("),
            (lambda: stream().group_by, "Stream has no attribute 'group_by'; use .key_by(...)"),
            (lambda: stream().agg, "'agg'; group the rows first: .key_by(\"column\").agg"),
            (
                lambda: stream().dedup,
                "'dedup'; group the rows first: .key_by(\"column\").dedup",
            ),
            (lambda: stream().drop_duplicates, 'use .key_by("column").dedup(name, within="10m")'),
            (lambda: stream().collect, "'collect'; to see rows, use .sink(name, hf.Collect()) and app.run(once=True)"),
            (lambda: hf.App("hot").start, "App has no attribute 'start'; use .run() in a notebook or script, .main() "),  # type: ignore[attr-defined]
            (lambda: stream().key_by("v").sum, "Keyed has no attribute 'sum'; use .agg(name, total="),
            (lambda: stream().key_by("v").window(hf.tumbling("1s")).sink, "'sink'; aggregate first: .agg("),
            (lambda: hf.App("hot").sources, "App has no attribute 'sources'; did you mean 'source'?"),  # type: ignore[attr-defined]
        ],
    )
    def test_are_attribute_errors_with_a_hint(self, use: Callable[[], object], message: str) -> None:
        with pytest.raises(AttributeError, match=re.escape(message)) as missing:
            use()
        assert not isinstance(missing.value, hf.ConfigError)


class TestForgottenArguments:
    @pytest.mark.parametrize(
        ("call", "says"),
        [
            (lambda: hf.App(), "an app at test_unsupported.py:"),
            (lambda: hf.App("hot").source(), "has no name: nothing is given"),
            (lambda: hf.App("hot").source(PlannedSource(TIMED)), "has no name: its first argument is PlannedSource"),  # type: ignore[call-overload]
            (lambda: hf.App("hot").source("bids"), "no source is given"),
            (lambda: stream().sink(hf.SQLite("x.db", table="t")), "a sink at test_unsupported.py:"),
            (lambda: stream().sink("out"), "no sink is given"),
            (lambda: stream().key_by("v").agg(n=hf.count()), "an operator at test_unsupported.py:"),
            (lambda: stream().key_by("v").agg(hf.count()), "has no name: its first argument is Aggregation"),
            (lambda: stream().key_by("v").agg("n", hf.count()), "count() has no name"),
            (lambda: stream().key_by("v").window().agg("n", n=hf.count()), "None is not a window"),
            (lambda: stream().key_by("v").window(hf.tumbling("1s")).agg(n=hf.count()), "an operator at"),
            (lambda: stream().key_by("v").window(hf.tumbling("1s")).agg("n", hf.sum("v")), "sum('v') has no name"),
            (lambda: stream().map(lambda row: row), "to= is missing: it describes the rows that the function returns"),
            (lambda: hf.sum(), "sum(): an aggregate takes the name of a column"),
            (lambda: stream().key_by("v").agg("n", n=hf.count(filter=1)), "filter= of n: the condition is 1"),  # type: ignore[arg-type]
            (lambda: planned(mode="batch"), "app 'hot': mode is 'batch'"),
            (lambda: planned(changelog=1), "changelog=1 cannot hold the changelog of a job"),
        ],
    )
    def test_are_refused_in_one_sentence(self, call: Callable[[], object], says: str) -> None:
        assert says in said(call).what


class TestArgumentsThatDoNotFit:
    @pytest.mark.parametrize(
        ("call", "says", "shows"),
        [
            (lambda: hf.SQLite("x"), "hf.SQLite at test_unsupported.py:{} lacks 'table'", "hf.SQLite("),  # type: ignore[call-arg]
            (lambda: hf.SQLite(), "hf.SQLite at test_unsupported.py:{} lacks 'path' and 'table'", "hf.SQLite("),  # type: ignore[call-arg]
            (lambda: hf.SQLite("x", tabel="t"), "has no argument 'tabel'", "did you mean 'table'?"),  # type: ignore[call-arg]
            (lambda: hf.tumbling(), "hf.tumbling at test_unsupported.py:{} lacks 'size'", 'hf.tumbling("1h"'),  # type: ignore[call-arg]
            (lambda: hf.tumbling("1h", "0s", "5m"), "has too many arguments: 3 by position", "hf.tumbling("),  # type: ignore[call-arg]
            (lambda: hf.Log(), "hf.Log at test_unsupported.py:{} lacks 'path'", "hf.Log("),  # type: ignore[call-arg]
            (lambda: hf.Log("x", partition=3), "has no argument 'partition'", "did you mean 'partitions'?"),  # type: ignore[call-arg]
            (lambda: hf.Generator(), "hf.Generator at test_unsupported.py:{} lacks 'schema' and 'fn'", "count="),  # type: ignore[call-arg]
            (lambda: hf.App("hot", checkpoint_evry="1s"), "has no argument 'checkpoint_evry'", "'checkpoint_every'?"),  # type: ignore[call-arg]
            (lambda: stream().filter(), ".filter at test_unsupported.py:{} lacks 'predicate'", "pl.col("),
            (lambda: stream().map(), ".map at test_unsupported.py:{} lacks 'fn'", "to=Out"),
            (lambda: stream().key_by("v").window(size="1h"), "has no argument 'size'", "hf.tumbling("),
            (lambda: hf.hopping("1h"), "hf.hopping at test_unsupported.py:{} lacks 'every'", "every="),  # type: ignore[call-arg]
            (lambda: hf.session(), "hf.session at test_unsupported.py:{} lacks 'gap'", "hf.session("),  # type: ignore[call-arg]
        ],
    )
    def test_are_refused_in_one_sentence_with_the_place(
        self, call: Callable[[], object], says: str, shows: str
    ) -> None:
        error = said(call)
        assert says.format(call.__code__.co_firstlineno) in error.what and shows in error.next_step

    def test_are_type_errors_too(self) -> None:
        with pytest.raises(TypeError):
            hf.tumbling()  # type: ignore[call-arg]

    def test_do_not_include_a_type_error_raised_inside_the_call(self) -> None:
        with pytest.raises(TypeError) as found:
            hf.Log(3)  # type: ignore[arg-type]
        assert not isinstance(found.value, hf.ConfigError)


def planned(**arguments: Any) -> object:
    app = hf.App("hot", **arguments)
    app.source("bids", PlannedSource(TIMED)).sink("out", hf.SQLite("unused.db", table="t"))
    return app.plan()


class TestTypeCheckers:
    @pytest.mark.parametrize("module", ["app", "stream"])
    def test_do_not_see_attributes_that_only_explain_what_is_missing(self, module: str) -> None:
        source = inspect.getsource(__import__(f"holdfast.runtime.api.{module}", fromlist=["x"]))
        hidden = [
            name.name
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.If) and ast.unparse(node.test) == "not TYPE_CHECKING"
            for name in ast.walk(node)
            if isinstance(name, ast.FunctionDef)
        ]
        assert hidden.count("__getattr__") == source.count("def __getattr__") > 0


class TestShownInANotebook:
    """The last line of a cell shows the value."""

    def test_a_stream_shows_its_columns(self) -> None:
        bids = stream()
        assert repr(bids) == "<Stream 'bids': v: int64, at: timestamp[us, tz=UTC]>"
        counts = bids.key_by("v").agg("counts", n=hf.count())
        assert repr(counts) == "<Stream 'counts': v: int64, n: int64; upsert by v>"
        assert repr(bids.key_by("v")) == "<Keyed: stream 'bids' by v>"
        assert repr(bids.key_by("v").window(hf.tumbling("10s"))) == "<Windowed: stream 'bids' by v over tumbling(10s)>"

    def test_an_app_shows_its_names(self) -> None:
        app = hf.App("hot")
        app.source("bids", PlannedSource(TIMED)).key_by("v").agg("counts", n=hf.count())
        assert repr(app) == "<hf.App 'hot': source 'bids', operator 'counts'>"


class TestDurations:
    @pytest.mark.parametrize(
        ("call", "what"),
        [
            (lambda: hf.tumbling("10 mins"), r"size of hf\.tumbling at test_unsupported\.py:\d+ is '10 mins'"),
            (lambda: hf.tumbling("1h", offset="x"), r"offset of hf\.tumbling at test_unsupported\.py:\d+ is 'x'"),
            (
                lambda: stream().key_by("v").dedup("d", within="soon"),
                r"dedup 'd' on stream .*: within is 'soon'",
            ),
            (
                lambda: stream().key_by("v").window(hf.tumbling("1h"), allowed_lateness="x"),
                r"window on stream 'bids' at .*: allowed_lateness is 'x'",
            ),
            (
                lambda: hf.App("hot").source("b", PlannedSource(TIMED), idle_after="x"),
                r"source 'b' at .*: idle_after is 'x'",
            ),
        ],
    )
    def test_a_malformed_duration_is_named_with_its_place(self, call: Callable[[], object], what: str) -> None:
        with pytest.raises(hf.ConfigError, match=what) as refused:
            call()
        assert refused.value.next_step.startswith('give a duration such as "250ms"')

    def test_an_unknown_argument_of_app_run_is_refused(self) -> None:
        with pytest.raises(hf.ConfigError, match=r"app\.run at .* has no argument 'onces'") as refused:
            hf.App("hot").run(onces=True)  # type: ignore[call-arg]
        assert refused.value.next_step.startswith("did you mean 'once'?")
