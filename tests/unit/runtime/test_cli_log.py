"""`holdfast log` as a user types it: what goes to stdout, what to stderr, and with which exit status."""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from logged import rows_in

from holdfast.errors import ConfigError, Damaged, HoldfastError
from holdfast.model import Epoch, Subtask, Tag, Timeline, Writer
from holdfast.runtime.cli.log.columns import parse_columns
from holdfast.runtime.cli.log.commands import add_parser, append, tail
from holdfast.sinks.contract.sink import Rewinding
from holdfast.sinks.log.sink import LogSink
from holdfast.storage.log.format import describe_column
from holdfast.storage.log.log import LogReader, LogWriter, read_meta
from holdfast.storage.objects import LocalObjects

SCHEMA = "n:int64,word:utf8?"


def parsed(*arguments: object) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="holdfast")
    add_parser(parser.add_subparsers())
    return parser.parse_args(["log", *map(str, arguments)])


def run(*arguments: object) -> int:
    args = parsed(*arguments)
    handler: Callable[[argparse.Namespace], int] = args.handler
    return handler(args)


def refused(*arguments: object) -> HoldfastError:
    with pytest.raises(HoldfastError) as caught:
        run(*arguments)
    assert caught.value.what and caught.value.not_done and caught.value.next_step
    return caught.value


def from_stdin(text: str, *arguments: object) -> int:
    return append(parsed("append", *arguments), io.BytesIO(text.encode()))


def numbers(folder: Path) -> list[int]:
    return sorted(row["n"] for row in rows_in(folder))


@pytest.fixture
def log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A log with one partition and the columns of SCHEMA."""
    assert run("create", tmp_path / "log", "--schema", SCHEMA, "--partitions", 1) == 0
    capsys.readouterr()
    return tmp_path / "log"


class TestCreate:
    def test_a_log_is_created_with_the_given_partitions_key_and_columns(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        schema = "auction:int64,price:float64?"
        assert run("create", tmp_path / "log", "--schema", schema, "--partitions", 3, "--key", "auction") == 0
        meta = read_meta(LocalObjects(tmp_path / "log"))
        assert meta is not None
        assert (meta.partitions, meta.key, meta.schema) == (3, ("auction",), parse_columns(schema))
        assert "3 partitions, key auction, columns auction:int64, price:double?" in capsys.readouterr().out

    def test_create_reports_the_log_as_json(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run("create", tmp_path / "log", "--schema", SCHEMA, "--json")
        made = json.loads(capsys.readouterr().out)
        assert (made["partitions"], made["key"]) == (4, [])
        assert made["columns"][1] == {"name": "word", "type": "string", "nullable": True}

    @pytest.mark.parametrize("schema", ["n", "n:", ":int64", "n:int", "n:integer", "n:float", "n:decimal128(99,1)"])
    def test_a_schema_that_cannot_be_read_names_the_column(self, tmp_path: Path, schema: str) -> None:
        if schema == "n:int":
            assert parse_columns(schema).field("n").type == pa.int64()
            return
        error = refused("create", tmp_path / "log", "--schema", f"good:int64,{schema}")
        assert error.exit_status == 2 and repr(schema) in error.what
        assert not (tmp_path / "log" / "meta.json").exists()

    def test_an_existing_log_is_refused_and_not_changed(self, log: Path) -> None:
        assert refused("create", log, "--schema", SCHEMA).exit_status == 2

    def test_columns_are_read_as_they_are_printed(self) -> None:
        printed = "a:int8, b:double?, c:string, d:bool, e:binary, f:timestamp[us, tz=UTC]?, g:date32[day]"
        printed += ", h:decimal128(18, 2)"
        assert ", ".join(map(describe_column, parse_columns(printed))) == printed


class TestAppend:
    def test_json_lines_from_stdin_are_appended(self, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert from_stdin('{"n": 1, "word": "a"}\n\n{"n": 2}\n', log) == 0
        assert numbers(log) == [1, 2]
        assert capsys.readouterr().out == "appended 2 rows\n  partition 0: 2 rows from offset 0\n"

    def test_append_reports_offsets_as_json(self, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
        from_stdin('{"n": 1}\n', log)
        capsys.readouterr()
        from_stdin('{"n": 2}\n', log, "--json")
        done = json.loads(capsys.readouterr().out)
        assert (done["rows"], done["partitions"]) == (1, [{"partition": 0, "first_offset": 1, "rows": 1}])

    @pytest.mark.parametrize("name", ["x.csv", "x.jsonl", "x.parquet"])
    def test_files_of_every_format_give_the_same_rows(self, log: Path, tmp_path: Path, name: str) -> None:
        path = tmp_path / name
        if name.endswith("parquet"):
            pa.parquet.write_table(pa.table({"word": ["a", None], "n": pa.array([1, 2], pa.int32())}), path)
        else:
            path.write_text("word,n\na,1\n,2\n" if name.endswith("csv") else '{"word":"a","n":1}\n{"n":2}\n')
        run("append", log, "--file", path)
        batch, _ = LogReader(LocalObjects(log)).read(0, 0, 1 << 30)
        assert batch is not None and batch.to_pydict() == {"n": [1, 2], "word": ["a", None]}

    @pytest.mark.parametrize(
        ("name", "text", "message"),
        [
            ("x.jsonl", '{"n":1}\n{"n":"2"}\n', "line 2 of .*'n' takes int64, not str '2'"),
            ("x.jsonl", '{"n":1}\n\n{"word":"b"}\n', "line 3 of .*'n' is missing"),
            ("x.jsonl", '{"n":1}\n{"n":\n', "line 2 of .*truncated"),
            ("x.jsonl", "[1]\n", "line 1 of .*Expected `object`"),
            ("x.jsonl", '{"n":1,"wrod":"b"}\n', "line 1 of .*'wrod' is not in the schema"),
            ("x.csv", "n,word\n1,a\nx,b\n", "invalid value 'x'"),
            ("x.csv", "n,word\n1,a\n,b\n", "row 2 of .*'n' is null"),
            ("x.csv", "word\na\n", "'n' is missing"),
            ("x.csv", "n,wrod\n1,a\n", "'wrod' is not in the schema"),
            ("x.csv", "", "Empty CSV"),
            ("x.parquet", "n", "not a Parquet file"),
            ("x.txt", "n", "not a .csv, .jsonl or .parquet file"),
        ],
    )
    def test_a_wrong_file_is_refused_completely(
        self, log: Path, tmp_path: Path, name: str, text: str, message: str
    ) -> None:
        (tmp_path / name).write_text(text)
        with pytest.raises(ConfigError, match=message):
            run("append", log, "--file", tmp_path / name)
        assert numbers(log) == []

    def test_a_missing_file_is_refused(self, log: Path, tmp_path: Path) -> None:
        assert "No such file" in refused("append", log, "--file", tmp_path / "absent.csv").what

    def test_a_wrong_line_from_stdin_is_refused_with_the_rows_appended_before_it(self, log: Path) -> None:
        lines = "".join(f'{{"n":{n}}}\n' for n in range(5)) + "wrong\n"
        with pytest.raises(ConfigError, match="line 6 of stdin") as caught:
            from_stdin(lines, log, "--every", 2)
        assert caught.value.not_done == "only the first 4 rows were appended, nothing after them"
        assert numbers(log) == [0, 1, 2, 3]

    def test_times_need_a_zone(self, tmp_path: Path) -> None:
        run("create", tmp_path / "log", "--schema", "at:timestamp", "--partitions", 1)
        from_stdin('{"at": "2026-01-02T03:04:05Z"}\n{"at": "2026-01-02T03:04:05.000006+02:00"}\n', tmp_path / "log")
        with pytest.raises(ConfigError, match="without a time zone"):
            from_stdin('{"at": "2026-01-02T03:04:05"}\n', tmp_path / "log")
        with pytest.raises(ConfigError, match="line 1 of stdin: column 'at'"):
            from_stdin('{"at": "noon"}\n', tmp_path / "log")

    def test_rows_of_a_key_share_a_partition(self, tmp_path: Path) -> None:
        run("create", tmp_path / "log", "--schema", SCHEMA, "--partitions", 8, "--key", "n")
        from_stdin("".join(f'{{"n":{n % 10}}}\n' for n in range(100)), tmp_path / "log")
        ends = LogReader(LocalObjects(tmp_path / "log")).end_offsets()
        assert sum(ends.values()) == 100
        assert all(end % 10 == 0 for end in ends.values())

    def test_a_partition_can_be_chosen(self, tmp_path: Path) -> None:
        run("create", tmp_path / "log", "--schema", SCHEMA, "--partitions", 3)
        from_stdin('{"n":1}\n', tmp_path / "log", "--partition", 2)
        assert LogReader(LocalObjects(tmp_path / "log")).end_offsets() == {0: 0, 1: 0, 2: 1}

    def test_a_log_without_a_key_gets_rows_in_turn_also_over_several_appends(self, tmp_path: Path) -> None:
        run("create", tmp_path / "log", "--schema", SCHEMA, "--partitions", 4)
        for first in range(0, 12, 3):  # three rows each, in batches of two
            from_stdin("".join(f'{{"n":{first + n}}}\n' for n in range(3)), tmp_path / "log", "--every", 2)
        reader = LogReader(LocalObjects(tmp_path / "log"))
        parts = list[list[int]]()
        for partition in range(4):
            parts.append([])
            batch, offset = reader.read(partition, 0, 1 << 30)
            while batch is not None:
                parts[-1] += batch.column("n").to_pylist()
                batch, offset = reader.read(partition, offset, 1 << 30)
        assert parts == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]

    @pytest.mark.parametrize(
        ("keyed", "arguments", "message"),
        [
            (False, ["--partition", 9], "no partition 9"),
            (False, ["--key", "absent"], "'absent' is not among the columns"),
            (True, ["--partition", 0], "partitioned by n, so --partition 0 cannot be"),
            (True, ["--key", "word"], "partitioned by n, so --key word cannot be"),
        ],
    )
    def test_an_invalid_partition_is_refused(
        self, tmp_path: Path, keyed: bool, arguments: list[object], message: str
    ) -> None:
        run("create", tmp_path / "log", "--schema", SCHEMA, *(["--key", "n"] if keyed else []))
        with pytest.raises(ConfigError, match=message):
            from_stdin('{"n":1}\n', tmp_path / "log", *arguments)
        assert numbers(tmp_path / "log") == []

    def test_a_sealed_log_accepts_no_rows(self, log: Path) -> None:
        run("seal", log)
        with pytest.raises(ConfigError, match="is sealed"):
            from_stdin('{"n":1}\n', log)


class TestRead:
    @pytest.fixture
    def filled(self, log: Path, capsys: pytest.CaptureFixture[str]) -> Path:
        from_stdin("".join(f'{{"n":{n},"word":"w{n}"}}\n' for n in range(30)), log)
        capsys.readouterr()
        return log

    def test_read_shows_a_table_and_reports_that_more_rows_follow(
        self, filled: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("read", filled, "--limit", 2) == 0
        shown = capsys.readouterr()
        assert shown.out == "partition  offset  n  word\n0          0       0  w0\n0          1       1  w1\n"
        assert shown.err == "2 of 30 rows shown; --limit shows more\n"

    def test_read_prints_one_json_object_per_row(self, filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run("read", filled, "--partition", 0, "--offset", 28, "--json")
        shown = capsys.readouterr()
        assert [json.loads(line) for line in shown.out.splitlines()] == [
            {"partition": 0, "offset": n, "row": {"n": n, "word": f"w{n}"}} for n in (28, 29)
        ]
        assert shown.err == ""

    def test_values_without_a_json_type_are_strings(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        columns = "f:float64,at:timestamp,on:date,raw:binary,d:decimal128(5,2)"
        run("create", tmp_path / "log", "--schema", columns, "--partitions", 1)
        row = {"f": "NaN", "at": "2026-01-02T03:04:05.000006Z", "on": "2026-01-02", "raw": "AP8=", "d": "1.50"}
        from_stdin(json.dumps(row), tmp_path / "log")
        capsys.readouterr()
        run("read", tmp_path / "log", "--json")
        assert json.loads(capsys.readouterr().out)["row"] == row

    def test_control_characters_do_not_reach_the_terminal(self, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
        from_stdin(json.dumps({"n": 1, "word": "a\x1b[31m\nb"}), log)
        capsys.readouterr()
        run("read", log)
        assert capsys.readouterr().out.splitlines()[1].split() == ["0", "0", "1", "a?[31m?b"]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--offset", 3], "--offset without --partition"),
            (["--partition", 0, "--offset", 31], "offset 31 is outside partition 0, which holds 0 to before 30"),
            (["--partition", 0, "--offset", -1], "offset -1 is outside"),
            (["--partition", 1], "no partition 1"),
        ],
    )
    def test_an_offset_or_partition_that_does_not_exist_is_refused(
        self, filled: Path, arguments: list[object], message: str
    ) -> None:
        error = refused("read", filled, *arguments)
        assert error.exit_status == 2 and message in error.what

    @pytest.mark.parametrize("command", ["read", "tail", "seal", "append"])
    def test_a_log_that_does_not_exist_is_refused_and_not_created(self, tmp_path: Path, command: str) -> None:
        error = refused(command, tmp_path / "absent")
        assert error.exit_status == 2 and f"no log at {tmp_path}/absent" in error.what
        assert not (tmp_path / "absent").exists()

    def test_damaged_data_is_detected_and_has_its_own_exit_status(self, filled: Path) -> None:
        (segment,) = (filled / "data" / "0").iterdir()
        segment.write_bytes(segment.read_bytes()[:-1])
        error = refused("read", filled)
        assert isinstance(error, Damaged) and error.exit_status == 4
        assert segment.name in error.what


class TestVoidRows:
    @pytest.fixture
    def rewound(self, log: Path, capsys: pytest.CaptureFixture[str]) -> Path:
        """Offsets 0 and 3 hold rows; 1 and 2 are void."""
        store = LocalObjects(log)
        sink = LogSink(str(log))
        schema = parse_columns(SCHEMA)
        for epoch, numbers in ((1, [10]), (2, [20, 21])):
            rows = pa.RecordBatch.from_pylist([{"n": n, "word": None} for n in numbers], schema=schema)
            sink.open("job", Writer("out", Subtask(0))).deliver(Tag(Timeline(1), Epoch(epoch)), [rows])
        sink.repair(Rewinding("job", "out", Tag(Timeline(2), Epoch(1)), ()), schema, None)
        LogWriter(store).append({0: pa.table({"n": [30], "word": pa.array([None], pa.utf8())})})
        capsys.readouterr()
        return log

    @pytest.mark.parametrize(("offset", "found"), [(0, [(0, 10), (3, 30)]), (2, [(3, 30)]), (3, [(3, 30)])])
    def test_read_leaves_them_out_and_keeps_offsets(
        self, rewound: Path, capsys: pytest.CaptureFixture[str], offset: int, found: list[tuple[int, int]]
    ) -> None:
        assert run("read", rewound, "--partition", 0, "--offset", offset, "--json") == 0
        shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [(row["offset"], row["row"]["n"]) for row in shown] == found

    def test_tail_leaves_them_out_and_seal_does_not_count_them(
        self, rewound: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("seal", rewound) == 0
        assert "is sealed with 2 rows" in capsys.readouterr().out
        for lines, offsets in ((1, [3]), (2, [0, 3])):
            assert tail(parsed("tail", rewound, "--lines", lines, "--json")) == 0
            assert [json.loads(line)["offset"] for line in capsys.readouterr().out.splitlines()] == offsets


class TestTailAndSeal:
    def test_seal_is_final_and_may_be_repeated(self, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
        from_stdin('{"n":1}\n', log)
        capsys.readouterr()
        assert run("seal", log) == 0
        assert run("seal", log, "--json") == 0
        first, second = capsys.readouterr().out.splitlines()
        assert first == f"{log} is sealed with 1 row"
        assert json.loads(second) == {
            "path": str(log),
            "sealed": True,
            "partitions": [{"partition": 0, "end_offset": 1}],
        }

    def test_tail_shows_the_last_rows_then_new_ones_until_the_seal(
        self, log: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        writer = LogWriter(LocalObjects(log))
        batch = pa.table({"n": [0, 1, 2], "word": pa.array(["a", "b", "c"])})
        writer.append({0: batch})
        steps: list[Callable[[], object]] = [writer.seal, lambda: None, lambda: writer.append({0: batch.slice(0, 1)})]

        def meanwhile(_: float) -> None:
            steps.pop()()

        assert tail(parsed("tail", log, "--lines", 1, "--json"), meanwhile) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [(row["offset"], row["row"]["n"]) for row in rows] == [(2, 2), (3, 0)]

    def test_tail_ends_quietly_at_an_interrupt(self, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
        def interrupt(_: float) -> None:
            raise KeyboardInterrupt

        assert tail(parsed("tail", log), interrupt) == 0
        assert capsys.readouterr().out == "partition\toffset\tn\tword\n"

    @pytest.mark.parametrize("command", ["create", "append", "read", "tail", "seal"])
    def test_every_command_has_an_example_in_its_help(self, command: str, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as caught:
            parsed(command, "--help")
        assert caught.value.code == 0
        assert f"example:\n  holdfast log {command} data/bids" in capsys.readouterr().out


class TestWrongUse:
    @pytest.mark.parametrize(
        "arguments",
        [("create", "", "--schema", SCHEMA), ("append", ""), ("read", ""), ("tail", ""), ("seal", ""), ("compact", "")],
    )
    def test_an_empty_path_is_refused_and_is_not_the_current_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        error = refused(*arguments)
        assert isinstance(error, ConfigError) and "is empty" in error.what
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(("command", "flag"), [("read", "--limit"), ("tail", "--lines")])
    def test_a_negative_number_of_rows_is_refused(self, log: Path, command: str, flag: str) -> None:
        error = refused(command, log, flag, "-2")
        assert isinstance(error, ConfigError) and f"{flag} is -2" in error.what
        assert error.not_done == "nothing was read"

    def test_a_log_can_be_followed_without_any_old_row(self, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
        from_stdin('{"n": 1}', log)
        run("seal", log)
        capsys.readouterr()
        assert run("tail", log, "--lines", 0) == 0
        assert capsys.readouterr().out == "partition\toffset\tn\tword\n"

    @pytest.mark.parametrize("flag", ["--older-than", "--keep-tombstones", "--grace"])
    def test_an_invalid_duration_is_refused_and_the_log_is_not_compacted(self, log: Path, flag: str) -> None:
        error = refused("compact", log, flag, "banana")
        assert flag in error.what
        assert error.not_done == "the log was not compacted"
