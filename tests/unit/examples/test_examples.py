"""Every example, with a crash in the middle, gives the result of an oracle without Holdfast."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest

from holdfast.errors import ConfigError
from holdfast.examples import flights_data
from holdfast.runtime.cli.start.jobfile import load
from holdfast.runtime.rows.dead_letters import decode_row
from holdfast.runtime.testing.driver import PARTITIONS, TestDriver
from holdfast.storage.log.log import create_log
from holdfast.storage.objects import open_objects

pytestmark = pytest.mark.thorough

EXAMPLES = Path(__file__).parents[3] / "examples"
SOME_FLIGHTS = 400


def counted(texts: Iterable[str]) -> Counter[str]:
    """Count words letter by letter: an apostrophe belongs to a word if letters are on both sides."""
    found: Counter[str] = Counter()
    for text in texts:
        word = ""
        for at, letter in enumerate(text + " "):
            inside = letter == "'" and word and text[at + 1 : at + 2].isalpha()
            if letter.isalpha() or inside:
                word += letter.lower()
            elif word:
                found[word] += 1
                word = ""
    return found


def some_events() -> pl.DataFrame:
    """The events of a few hundred flights, in the order in which they became known."""
    flights, airports = flights_data.tables()
    return flights_data.events_of(flights.head(SOME_FLIGHTS), flights_data.zones(flights, airports))


def push_with_a_crash(driver: TestDriver, source: str, rows: list[dict[str, object]]) -> None:
    """Push rows to the partitions in turn; a worker dies halfway."""
    half = len(rows) // 2
    for part in (rows[:half], rows[half:]):
        for partition in range(PARTITIONS):
            driver.push(source, part[partition::PARTITIONS], partition)
        if part == rows[:half]:
            driver.checkpoint()
            driver.crash()
            driver.recover()
    driver.finish()


def rows_of_flights(
    example: str,
    sink: str,
    events: pl.DataFrame,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    weather: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Return what an example over the log of flights delivers for these events."""
    create_log(open_objects(str(folder / "events")), flights_data.SCHEMA)
    monkeypatch.setenv("FLIGHTS_LOG", str(folder / "events"))
    with TestDriver(load(str(EXAMPLES / f"{example}.py"))) as driver:
        if weather is not None:
            driver.push("weather", weather.to_dicts())
        push_with_a_crash(driver, "events", events.to_dicts())
        return pl.DataFrame(driver.rows(sink))


def same_rows(have: pl.DataFrame, want: pl.DataFrame) -> None:
    assert Counter(have.select(want.columns).rows()) == Counter(want.rows())


class TestWordCount:
    def test_every_word_is_counted_once(self) -> None:
        from holdfast.examples import word_count

        lines = word_count.LINES[:600]
        with TestDriver(word_count.app) as driver:
            push_with_a_crash(driver, "lines", [{"topic": topic, "text": text} for topic, text in lines])
            rows = {row["word"]: row["n"] for row in driver.rows("words-out")}
        assert rows == counted(text for _, text in lines)
        assert len(rows) > 300

    def test_the_whole_text_is_read(self) -> None:
        from holdfast.examples import word_count

        assert [word_count.line(0), word_count.line(len(word_count.LINES) - 1)] == [
            word_count.Line(*word_count.LINES[0]),
            word_count.Line(*word_count.LINES[-1]),
        ]
        assert len(word_count.LINES) > 5_000


class TestLastSeen:
    def test_every_tail_has_the_extremes_of_its_event_times(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        events = some_events()
        rows = rows_of_flights("last_seen", "seen-out", events, tmp_path, monkeypatch)
        flown = events.filter(pl.col("tailnum").is_not_null(), pl.col("kind") != "cancellation")
        time = pl.col("event_time")
        want = flown.group_by(tail="tailnum").agg(first_seen=time.min(), last_seen=time.max(), events=pl.len())
        assert set(rows.select(want.columns).rows()) == set(want.rows())
        assert rows.height == want.height > 100


class TestRotations:
    def test_a_pause_of_more_than_three_hours_begins_a_session(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        events, time = some_events(), pl.col("event_time")
        rows = rows_of_flights("rotations", "rotations-out", events, tmp_path, monkeypatch)
        moves = events.filter(pl.col("tailnum").is_not_null(), pl.col("kind") != "cancellation").sort("event_time")
        begins = (time.diff() > timedelta(hours=3)).over("tailnum").fill_null(False)
        numbered = moves.with_columns(session=begins.cast(pl.Int64).cum_sum().over("tailnum"))
        want = numbered.group_by("tailnum", "session").agg(
            window_start=time.min(),
            window_end=time.max() + timedelta(hours=3),
            moves=pl.len(),
            first_from=pl.col("origin").filter(time == time.min()).min(),
            last_to=pl.col("dest").filter(time == time.max()).max(),
        )
        same_rows(rows, want.drop("session"))
        assert want.height > want["tailnum"].n_unique() > 100


class TestTopRoutes:
    def test_every_hour_has_its_three_busiest_routes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        events = some_events()
        rows = rows_of_flights("top_routes", "best-out", events, tmp_path, monkeypatch)
        departures = events.filter(pl.col("kind") == "departure")
        hours = departures.group_by(
            window_start=pl.col("event_time").dt.truncate("1h"), route=pl.col("origin") + "-" + pl.col("dest")
        ).agg(flights=pl.len())
        best = hours.sort("flights", "route", descending=True).group_by("window_start")
        want = best.agg(routes=pl.col("route").head(3), flights=pl.col("flights").sum())
        have = rows.with_columns(pl.col("routes").list.join(" "))
        same_rows(have, want.with_columns(pl.col("routes").list.join(" ")))
        assert want.height > 5


class TestFleets:
    def test_aircraft_are_counted_per_month_and_estimated(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        flights, airports = flights_data.tables()
        some = pl.concat([flights.filter(pl.col("month") == month).head(SOME_FLIGHTS) for month in (2, 3)])
        events = flights_data.events_of(some, flights_data.zones(flights, airports))
        rows = rows_of_flights("fleets", "fleets-out", events, tmp_path, monkeypatch)
        month = pl.col("event_time").dt.convert_time_zone("America/New_York").dt.truncate("1mo")
        flown = pl.col("tailnum").filter(pl.col("kind") != "cancellation")
        want = events.group_by("carrier", window_start=month.dt.convert_time_zone("UTC")).agg(
            aircraft=flown.drop_nulls().n_unique()
        )
        same_rows(rows, want)
        assert rows["window_start"].n_unique() == 2 and rows["aircraft"].max() == want["aircraft"].max()
        wrong = (rows["about"] - rows["aircraft"]).abs() > 1 + rows["aircraft"] * 0.05
        assert not wrong.any()


class TestMissedConnections:
    def test_the_next_flight_after_a_late_arrival_left_late_or_was_cancelled(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        flights, airports = flights_data.tables()
        storm = flights.filter(pl.col("month") == 3, pl.col("day") == 8, pl.col("tailnum").is_not_null())
        again = storm.filter(pl.col("tailnum").is_duplicated()).head(2 * SOME_FLIGHTS)
        events = flights_data.events_of(again, flights_data.zones(flights, airports))
        have = rows_of_flights("missed_connections", "missed-out", events, tmp_path, monkeypatch)
        rows = events.sort("tailnum", "event_time")
        assert not rows.select("tailnum", "event_time").is_duplicated().any(), "their order would be that of arrival"
        following = [pl.col(c).shift(-1).over("tailnum").alias(f"next_{c}") for c in events.columns if c != "tailnum"]
        late = (pl.col("next_kind") == "departure") & (pl.col("next_delay_minutes") >= 15)
        want = rows.with_columns(following).filter(
            pl.col("kind") == "arrival",
            pl.col("delay_minutes") >= 60,
            late | (pl.col("next_kind") == "cancellation"),
            pl.col("next_event_time") - pl.col("event_time") < timedelta(hours=12),
        )
        names = {"flight": "arrival_flight", "delay_minutes": "arrival_delay_minutes", "next_event_time": "event_time"}
        same_rows(have, want.drop("event_time").rename(names).select(have.columns))
        assert want.height > 5 and want["next_delay_minutes"].null_count() < want.height


class TestWeather:
    def test_a_departure_has_the_newest_observation_at_its_airport(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        events = some_events()
        began, ended = events["event_time"].quantile(0.1), events["event_time"].max()
        weather = flights_data.weather().filter(pl.col("observed").is_between(began, ended))
        rows = rows_of_flights("weather", "departures-out", events, tmp_path, monkeypatch, weather)
        departures = events.filter(pl.col("kind") == "departure").select("flight", "event_time", "origin")
        want = departures.sort("event_time").join_asof(
            weather, left_on="event_time", right_on="observed", by="origin", strategy="backward", check_sortedness=False
        )
        same_rows(rows, want)
        assert 0 < want["observed"].null_count() < want.height
        assert want["observed"].n_unique() > 5


class TestDeadLetters:
    def test_unreadable_lines_are_kept_as_dead_letters_and_all_others_count(self) -> None:
        from holdfast.examples import dead_letters

        lines = dead_letters.LINES[:4_000]
        with TestDriver(dead_letters.app) as driver:
            push_with_a_crash(driver, "lines", [{"text": text} for text in lines])
            carriers, letters = driver.rows("carriers-out"), driver.rows("dlq")
        table = pl.read_csv("\n".join([dead_letters.HEADER, *lines]).encode(), null_values=["NA"])
        flown = table.filter(pl.col("air_time").is_not_null())
        want = flown.group_by("carrier").agg(
            flights=pl.len(), minutes=pl.col("air_time").sum(), miles=pl.col("distance").sum()
        )
        assert set(pl.DataFrame(carriers).select(want.columns).rows()) == set(want.rows())
        kept = Counter(decode_row(letter["raw"]).column("text")[0].as_py() for letter in letters)
        assert kept == Counter(text for text, minutes in zip(lines, table["air_time"], strict=True) if minutes is None)
        assert len(letters) == table.height - flown.height > 20


class TestFlightsLog:
    def test_an_existing_log_is_not_changed(self, tmp_path: Path) -> None:
        path = str(tmp_path / "events")
        create_log(open_objects(path), flights_data.SCHEMA)
        assert flights_data.written(path) == path
        assert not (tmp_path / "events" / "commits").exists()

    def test_a_log_created_concurrently_by_another_process_is_used(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = str(tmp_path / "events")

        def both_make_it(unfinished: str) -> None:
            for made in (unfinished, path):
                create_log(open_objects(made), flights_data.SCHEMA)

        monkeypatch.setattr(flights_data, "main", both_make_it)
        assert flights_data.written(path) == path
        assert [each.name for each in tmp_path.iterdir()] == ["events"]

    def test_a_folder_with_other_files_is_not_changed(self, tmp_path: Path) -> None:
        (tmp_path / "events").mkdir()
        (tmp_path / "events" / "mine").write_text("kept")
        with pytest.raises(ConfigError, match="not a log of flights"):
            flights_data.written(str(tmp_path / "events"))
        assert [path.name for path in (tmp_path / "events").iterdir()] == ["mine"]

    def test_a_path_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("a file, no folder")
        with pytest.raises(ConfigError, match="cannot be created"):
            flights_data.written(str(tmp_path / "file" / "events"))


class TestTestsOfExamples:
    def test_the_test_of_word_count_passes_as_a_user_would_run_it(self) -> None:
        plugin = ["-p", "holdfast.chaos.pytest_plugin"]
        command = [sys.executable, "-m", "pytest", "-q", *plugin, "test_word_count.py", "--chaos-seed", "1"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
        done = subprocess.run(command, cwd=EXAMPLES, env=environment, capture_output=True, text=True, check=False)
        assert "1 passed" in done.stdout, done.stdout + done.stderr
