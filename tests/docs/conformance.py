"""Which test covers which failure of which sink and source: the tables of docs/conformance.md.

A cell names tests by letters, or says why there is nothing to test. `{}` in the name of a test stands for the kind of
the row. tools/docs.py writes the tables; test_conformance_page.py collects the tests and fails if one does not exist,
or if a connector has no row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

KIT = "tests/contract/test_conformance.py::test_{}s[{{}}-{}]"
OUTAGE = "tests/contract/test_outages.py::test_{}s[{{}}-{}]"
CONTRACT = "tests/contract/test_sink_contract.py::"
IMMEDIATE = "tests/contract/test_immediate_contract.py::"
UNIT = "tests/unit/runtime/"

TESTS: Mapping[str, str] = {
    "a": KIT.format("sink", "survives_a_crash_at_every_point"),
    "b": KIT.format("sink", "changes_nothing_when_it_is_delivered_again"),
    "c": KIT.format("sink", "refuses_what_is_older"),
    "d": KIT.format("sink", "remembers_who_took_it_over"),
    "e": CONTRACT + "TestRepetition::test_a_lost_reply_does_not_duplicate_rows[{}]",
    "f": CONTRACT + "TestBeforeImages::test_a_redelivery_does_not_write_before_images_again[sqlite]",
    "g": OUTAGE.format("sink", "delivers_once_if_the_answer_is_lost"),
    "h": KIT.format("sink", "moves_the_tag_for_an_empty_epoch"),
    "i": KIT.format("sink", "takes_output_back"),
    "j": UNIT + "test_sink_jobs.py::TestRewind::test_ends_with_exact_results_or_has_to_be_accepted[kafka]",
    "k": UNIT + "test_sink_jobs.py::TestRewind::test_ends_with_exact_results_or_has_to_be_accepted[redis]",
    "l": OUTAGE.format("sink", "waits_while_its_server_is_away"),
    "m": "tests/contract/test_outages.py::TestMinute::test_every_sink_waits_for_a_minute",
    "n": OUTAGE.format("sink", "keeps_what_was_delivered_over_a_restart"),
    "o": OUTAGE.format("sink", "waits_while_its_user_is_refused"),
    "p": "tests/contract/test_outages.py::test_sinks[kafka guarded-waits_while_its_user_is_refused]",
    "A": IMMEDIATE + "TestCrash::test_a_write_is_atomic_and_can_be_repeated[{}-before_commit]",
    "B": IMMEDIATE + "TestTags::test_an_older_value_does_not_replace_a_newer_one[{}]",
    "C": IMMEDIATE + "TestFence::test_a_newer_generation_ends_an_older_one[{}]",
    "D": IMMEDIATE + "TestCrash::test_a_lost_reply_does_not_change_the_result[{}]",
    "E": IMMEDIATE + "TestTags::test_a_newer_timeline_replaces_any_offset_of_an_older_one[{}]",
    "F": "tests/contract/test_outages.py::TestImmediate::test_every_row_is_written_once[{}-away]",
    "G": "tests/contract/test_outages.py::TestImmediate::test_every_row_is_written_once[{}-restart]",
    "H": "tests/contract/test_outages.py::TestImmediate::test_every_row_is_written_once[{}-refused]",
    "I": "tests/contract/test_outages.py::TestImmediate::test_every_row_is_written_once[{}-unanswered]",
    "q": KIT.format("source", "reads_the_same_again_from_every_offset"),
    "r": UNIT + "test_kafka_job.py::TestJob::test_counts_every_record_once_through_crashes_and_added_partitions",
    "s": UNIT + "test_files_job.py::TestJob::test_counts_every_record_once_through_crashes_and_new_files",
    "t": UNIT + "test_real_sinks.py::TestJobWithRealTargets",
    "u": "tests/contract/test_webhook_killed.py::test_killed_at_any_moment_it_has_stored_each_answered_key_once",
    "v": UNIT + "test_webhook_appending.py::TestAnyCrash",
    "w": "tests/contract/test_postgres_capture_killed.py"
    "::test_killed_at_any_moment_it_shows_the_table_as_of_one_transaction",
    "x": UNIT
    + "test_postgres_following.py::test_every_change_is_in_the_log_once_and_in_order_over_crashes_and_lost_replies",
    "y": "tests/e2e/test_spark_frame.py::test_is_copied_once_and_read_exactly_once_through_a_kill",
    "z": UNIT + "spark/test_frames.py::TestCopy::test_a_copy_killed_before_completion_is_removed",
    "aa": KIT.format("source", "reads_a_partition_that_is_added"),
    "ab": KIT.format("source", "takes_more_records_behind_those_it_has"),
    "ac": OUTAGE.format("source", "reads_on_when_its_server_is_back"),
    "ad": OUTAGE.format("source", "reads_on_after_a_restart"),
    "ae": OUTAGE.format("source", "reads_on_when_its_user_is_let_in_again"),
    "af": "tests/contract/test_outages.py::test_sources[kafka guarded-reads_on_when_its_user_is_let_in_again]",
    "ag": UNIT
    + "test_webhook_server.py::TestAnswers::test_a_log_that_cannot_be_written_is_503_and_the_retry_is_stored",
    "ah": "tests/contract/test_postgres_capture_killed.py::test_goes_on_after_a_server_that_shuts_down_or_crashes",
    "ai": "tests/contract/test_postgres_capture_killed.py::test_waits_while_its_user_is_not_let_in_and_goes_on",
    "aj": UNIT + "test_kafka_job.py::TestRetention::test_a_job_ends_by_default_and_says_what_it_lost",
    "ak": UNIT + "test_kafka_job.py::TestRetention::test_a_job_counts_and_names_what_it_lost_and_continues",
    "al": UNIT + "test_files_source.py::TestFiles::test_files_deleted_before_they_are_read_are_an_error",
    "am": UNIT + "test_source_identity.py",
    "an": UNIT + "test_compacted_logs.py",
    "ao": UNIT + "test_postgres_capture.py::TestSlot::test_a_missing_slot_is_reported_and_the_log_is_unchanged",
    "ap": UNIT + "test_postgres_capture.py::TestSlot::test_a_slot_advanced_by_another_program_is_reported",
    "ar": UNIT + "test_sqlite_following.py::test_each_commit_of_the_log_equals_the_table_as_of_one_transaction",
    "av": "tests/contract/test_sqlite_capture_killed.py"
    "::test_killed_at_any_moment_it_shows_the_table_as_of_one_transaction",
    "as": UNIT + "test_sqlite_capture.py::TestDatabase::test_a_database_locked_by_another_program_is_unavailable",
    "at": UNIT
    + "test_sqlite_capture.py::TestDatabase::test_a_database_restored_from_a_copy_is_refused_even_after_more_changes",
    "au": UNIT + "test_sqlite_capture.py::TestDatabase::test_a_recreated_database_is_refused",
    "aq": UNIT + "spark/test_frames.py::TestFrameSource::test_a_machine_that_lacks_the_folder_is_named",
    "aw": UNIT + "test_http_job.py::TestJob::test_rows_are_exact_by_key_though_workers_crash_and_replies_are_lost",
    "ax": "tests/unit/sinks/test_http_sink.py::TestDelivery::test_a_crash_before_the_tag_sends_the_same_requests_again",
    "ay": UNIT + "test_sink_jobs.py::TestRewind::test_ends_with_exact_results_or_has_to_be_accepted[http]",
    "az": UNIT
    + "test_kafka_topics_job.py::TestJob::test_counts_every_record_once_through_crashes_and_topics_that_appear",
    "ba": KIT.format("sink", "goes_on_after_a_lost_reply"),
}

SINK_POINTS = (
    "crash at every point",
    "redelivery",
    "zombie",
    "reply lost",
    "empty epoch",
    "rewind",
    "server away",
    "restarted",
    "login revoked",
)
SOURCE_POINTS = ("restart at each point", "partition added", "server away", "restarted", "login revoked", "offset lost")


@dataclass(frozen=True)
class Row:
    """One sink or source.

    Args:
        connector: Its name in `holdfast connectors`.
        name: How the page names it.
        kind: What stands for `{}` in the names of its tests.
        cells: Per point the letters of its tests, or a reason in a sentence why there are none.
    """

    connector: str
    name: str
    kind: str
    cells: tuple[str, ...] = field(default=())


NO_SERVER = "*a file has no server*"
NO_LOGIN = "*a file has no login*"
OF_LOG = "*as hf.Log*"
OF_ICEBERG = "*as Iceberg*"
SINKS: tuple[Row, ...] = (
    Row("sqlite", "SQLite", "sqlite", ("a", "b", "c d", "e ba", "h", "i", "l m", NO_SERVER, NO_LOGIN)),
    Row("sqlite", "SQLite, key", "sqlite key", ("a", "b", "c d", "f", "h", "i", "l", NO_SERVER, NO_LOGIN)),
    Row(
        "sqlite",
        "SQLite, idempotent",
        "sqlite idempotent",
        ("a", "b", "c d", "e ba", "h", "i", "l", NO_SERVER, NO_LOGIN),
    ),
    Row("sqlite", "SQLite, immediate", "sqlite", ("A", "B", "C", "D", "*no epochs*", "E", "F", NO_SERVER, NO_LOGIN)),
    Row("postgres", "Postgres", "postgres", ("a", "b", "c d", "e g ba", "h", "i", "l", "n", "o")),
    Row("postgres", "Postgres, key", "postgres key", ("a", "b", "c d", "g", "h", "i", "l m", "n", "o")),
    Row("postgres", "Postgres, idempotent", "postgres idempotent", ("a", "b", "c d", "g", "h", "i", "l", "n", "o")),
    Row("postgres", "Postgres, immediate", "postgres", ("A", "B", "C", "D I", "*no epochs*", "E", "F", "G", "H")),
    Row("kafka", "Kafka", "kafka", ("a", "b", "c d", "e g ba", "h", "j", "l m", "n", "p")),
    Row("kafka", "Kafka, key", "kafka key", ("a", "b", "c d", "g", "h", "j", "l", "n", "p")),
    Row("redis", "Redis", "redis", ("a", "b", "c d", "e g ba", "h", "k", "l m", "n", "o")),
    Row("http", "Http", "http", ("a ax", "b", "c d", "e g ba aw", "h", "ay", "l", "n", "o")),
    Row("log", "Log", "log", ("a", "b", "c d", "e g ba", "h", "i", "l m", "n", "o")),
    Row("log", "Log, changelog", "changelog", ("a", "b", "c d", "g", "h", "i", "l", "n", "o")),
    Row("files", "Files", "files", ("a", "b", "c d", "e g ba", "h", "i", "l", "n", "o")),
    Row("delta", "Delta", "delta", ("a", "b", "c d", "e g ba", "h", "i", "l", "n", "o")),
    Row("delta", "Delta, key", "delta key", ("a", "b", "c d", "g", "h", "i", "l", "n", "o")),
    Row("iceberg", "Iceberg", "iceberg", ("a", "b", "c d", "e g ba", "h", "i", "l", "n", "o")),
    Row("iceberg", "Iceberg, key", "iceberg key", ("a", "b", "c d", "g", "h", "i", "l", "n", "o")),
    Row("iceberg", "Iceberg, catalogue in Postgres", "catalogue", (*6 * (OF_ICEBERG,), "l", "n", "o")),
)
SOURCES: tuple[Row, ...] = (
    Row("kafka", "Kafka", "kafka", ("q r", "aa r", "ac", "ad", "af", "aj ak")),
    Row(
        "kafka",
        "Kafka, topics by a pattern",
        "kafka topics",
        ("q az", "aa az", "*as Kafka*", "*as Kafka*", "*as Kafka*", "*as Kafka*"),
    ),
    Row("files", "Files, Parquet", "parquet", ("q s", "ab s", "*as CSV*", "*as CSV*", "*as CSV*", "al")),
    Row("files", "Files, JSON lines", "jsonl", ("q", "ab", "*as CSV*", "*as CSV*", "*as CSV*", "al")),
    Row("files", "Files, CSV", "csv", ("q", "ab", "ac files", "ad files", "ae files", "al")),
    Row("log", "Log", "log", ("q t", "aa", "ac", "ad", "ae", "am an")),
    Row(
        "generator",
        "Generator",
        "generator",
        ("q", "*fixed*", "*no server*", "*no server*", "*no login*", "*none is lost*"),
    ),
    Row("webhook", "Webhook", "", ("u v", OF_LOG, "ag", OF_LOG, OF_LOG, OF_LOG)),
    Row("postgres-changes", "PostgresChanges", "", ("w x", "*fixed*", "ah", "ah", "ai", "ao ap")),
    Row("sqlite-changes", "SQLiteChanges", "", ("ar av", "*fixed*", "as", NO_SERVER, NO_LOGIN, "at au")),
    Row(
        "spark-frame",
        "SparkFrame",
        "",
        ("y z", "*copied once*", "*copied once*", "*copied once*", "*copied once*", "aq"),
    ),
)


def tests_of(row: Row) -> Iterator[tuple[str, str]]:
    """Yield the letter and the name of every test that the row names."""
    for cell in row.cells:
        if not cell.startswith("*"):
            letters = [each for each in cell.split() if each in TESTS]
            kind = next((each for each in cell.split() if each not in TESTS), row.kind)
            for letter in letters:
                yield letter, TESTS[letter].format(kind)


def sinks() -> str:
    """Return the table of sinks."""
    return _table("sink", SINK_POINTS, SINKS)


def sources() -> str:
    """Return the table of sources."""
    return _table("source", SOURCE_POINTS, SOURCES)


def names() -> str:
    """Return the list of tests."""
    return "".join(f"- **{letter}** `{name.replace('{}', 'KIND')}`\n" for letter, name in TESTS.items())


def _table(what: str, points: tuple[str, ...], rows: tuple[Row, ...]) -> str:
    lines = [f"| {what} | KIND | {' | '.join(points)} |", f"|---|---|{'---|' * len(points)}"]
    for row in rows:
        assert len(row.cells) == len(points), row.name
        cells = [
            each if each.startswith("*") else " ".join(x for x in each.split() if x in TESTS) for each in row.cells
        ]
        lines.append(f"| {row.name} | {f'`{row.kind}`' if row.kind else ''} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
