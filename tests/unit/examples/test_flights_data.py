"""From local clocks to instants, and from flights to events: nothing lost, nothing doubled."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from holdfast.errors import ConfigError
from holdfast.examples import flights_data
from holdfast.storage.log.log import LogReader
from holdfast.storage.objects import open_objects

ZONES = {
    "EWR": "America/New_York",
    "LAX": "America/Los_Angeles",
    "ORD": "America/Chicago",
    "HNL": "Pacific/Honolulu",
    "SJU": flights_data.ZONE_OF_OTHERS,
}
TYPES = {
    **dict.fromkeys(("year", "month", "day", "flight", "sched_dep_time", "dep_time", "dep_delay"), pl.Int64),
    **dict.fromkeys(("arr_time", "arr_delay"), pl.Int64),
    **dict.fromkeys(("carrier", "tailnum", "origin", "dest"), pl.String),
}


def flight(**different: Any) -> dict[str, Any]:
    """A flight on 1 March 2013 from Newark to Los Angeles, in winter time; change what matters."""
    usual = {
        "year": 2013,
        "month": 3,
        "day": 1,
        "carrier": "UA",
        "flight": 1,
        "tailnum": "N1",
        "origin": "EWR",
        "dest": "LAX",
        "sched_dep_time": 900,
        "dep_time": 900,
        "dep_delay": 0,
        "arr_time": 1200,
        "arr_delay": 0,
    }
    return usual | different


def events(*flights: dict[str, Any]) -> list[dict[str, Any]]:
    table = pl.DataFrame(list(flights), schema=TYPES)
    return list(flights_data.events_of(table, ZONES).iter_rows(named=True))


def instants(**different: Any) -> dict[str, datetime]:
    """The instants of one flight's events by kind."""
    return {event["kind"]: event["event_time"] for event in events(flight(**different))}


def utc(month: int, day: int, hour: int, minute: int = 0) -> datetime:
    return datetime(2013, month, day, hour, minute, tzinfo=UTC)


class TestDeparture:
    def test_a_departure_is_in_the_local_time_of_the_origin(self) -> None:
        assert instants()["departure"] == utc(3, 1, 14)

    def test_a_delay_past_midnight_departs_on_the_next_day(self) -> None:
        late = instants(sched_dep_time=2350, dep_time=10, dep_delay=20, arr_time=310)
        assert late["departure"] == utc(3, 2, 5, 10)

    def test_an_early_departure_may_be_on_the_previous_day(self) -> None:
        assert instants(sched_dep_time=5, dep_time=2355, dep_delay=-10)["departure"] == utc(3, 1, 4, 55)

    def test_a_delay_across_the_change_to_summer_time_keeps_its_length(self) -> None:
        across = instants(day=10, sched_dep_time=130, dep_time=330, dep_delay=60, arr_time=630)
        assert across["departure"] == utc(3, 10, 7, 30)

    def test_a_delay_across_the_change_to_winter_time_keeps_its_length(self) -> None:
        across = instants(month=11, day=3, sched_dep_time=30, dep_time=130, dep_delay=120, arr_time=430)
        assert across["departure"] == utc(11, 3, 6, 30)


class TestArrival:
    def test_an_arrival_is_in_the_local_time_of_the_destination(self) -> None:
        assert instants()["arrival"] == utc(3, 1, 20)

    def test_an_arrival_after_midnight_is_on_the_next_day(self) -> None:
        assert instants(sched_dep_time=2200, dep_time=2200, arr_time=115)["arrival"] == utc(3, 2, 9, 15)

    def test_midnight_written_as_2400_begins_the_next_day(self) -> None:
        assert instants(sched_dep_time=2100, dep_time=2100, arr_time=2400)["arrival"] == utc(3, 2, 8)

    def test_an_arrival_far_west_may_show_an_earlier_date_than_the_origin(self) -> None:
        # 00:10 in Newark is 19:10 of the day before in Honolulu; 05:00 there is the next morning.
        west = instants(dest="HNL", sched_dep_time=10, dep_time=10, arr_time=500)
        assert west["arrival"] == utc(3, 1, 15)

    def test_a_flight_west_may_arrive_at_the_clock_time_at_which_it_left(self) -> None:
        west = instants(dest="ORD", sched_dep_time=900, dep_time=900, arr_time=901)
        assert west["arrival"] - west["departure"] == timedelta(hours=1, minutes=1)

    def test_an_arrival_in_a_repeated_hour_is_after_the_departure(self) -> None:
        # 06:50 UTC is 01:50 in Chicago for the first time; 01:20 after it is the second one.
        twice = instants(month=11, day=3, dest="ORD", sched_dep_time=30, dep_time=150, dep_delay=140, arr_time=120)
        assert twice["departure"] == utc(11, 3, 6, 50)
        assert twice["arrival"] == utc(11, 3, 7, 20)

    def test_a_local_time_skipped_in_spring_is_read_as_standard_time(self) -> None:
        skipped = instants(day=10, dest="ORD", sched_dep_time=100, dep_time=100, arr_time=230)
        assert skipped["arrival"] == utc(3, 10, 8, 30)

    def test_an_airport_without_a_zone_is_on_caribbean_time(self) -> None:
        airports = pl.DataFrame({"faa": ["EWR"], "tzone": ["America/New_York"]})
        flights = pl.DataFrame([flight(dest="SJU")], schema=TYPES)
        assert flights_data.zones(flights, airports) == {"EWR": "America/New_York", "SJU": "America/Puerto_Rico"}
        assert instants(dest="SJU", arr_time=1345)["arrival"] == utc(3, 1, 17, 45)

    def test_a_missing_zone_in_the_data_counts_as_no_zone(self) -> None:
        airports = pl.DataFrame({"faa": ["EWR", "LAX"], "tzone": ["America/New_York", None]})
        flights = pl.DataFrame([flight()], schema=TYPES)
        assert flights_data.zones(flights, airports)["LAX"] == flights_data.ZONE_OF_OTHERS


class TestEvents:
    def test_a_cancelled_flight_is_one_event_at_its_scheduled_time(self) -> None:
        [event] = events(flight(dep_time=None, dep_delay=None, arr_time=None, arr_delay=None, tailnum=None))
        assert (event["kind"], event["event_time"]) == ("cancellation", utc(3, 1, 14))
        assert (event["tailnum"], event["delay_minutes"]) == (None, None)

    def test_a_diverted_flight_departs_and_never_arrives(self) -> None:
        assert [event["kind"] for event in events(flight(arr_time=None, arr_delay=None))] == ["departure"]

    def test_every_event_becomes_known_within_twenty_minutes(self) -> None:
        heard = [event["known_at"] - event["event_time"] for event in events(*(flight(flight=n) for n in range(200)))]
        assert timedelta(0) <= min(heard) < max(heard) <= timedelta(minutes=20)
        assert len(set(heard)) > 100

    def test_events_are_in_the_order_in_which_they_became_known(self) -> None:
        known = [event["known_at"] for event in events(*(flight(flight=n) for n in range(200)))]
        assert known == sorted(known)

    def test_the_order_of_events_does_not_depend_on_the_order_of_flights(self) -> None:
        flights = [flight(flight=n) for n in range(50)]
        assert events(*flights) == events(*reversed(flights))


class TestLog:
    @pytest.fixture
    def written(self, tmp_path: Path) -> tuple[str, pl.DataFrame]:
        flights = pl.DataFrame([flight(flight=n) for n in range(100)], schema=TYPES)
        events = flights_data.events_of(flights, ZONES)
        flights_data.write_log(str(tmp_path / "log"), events)
        return str(tmp_path / "log"), events

    def test_every_event_is_in_the_log_once(self, written: tuple[str, pl.DataFrame]) -> None:
        path, events = written
        reader = LogReader(open_objects(path))
        parts = [reader.read(number, 0, 1 << 30)[0] for number in range(flights_data.PARTITIONS)]
        rows = pl.concat([pl.DataFrame(part) for part in parts if part is not None])
        assert sum(reader.end_offsets().values()) == events.height
        assert rows.sort("flight", "kind").equals(events.sort("flight", "kind"))

    def test_a_flight_departs_before_it_arrives_in_its_partition(self, written: tuple[str, pl.DataFrame]) -> None:
        reader = LogReader(open_objects(written[0]))
        for number in range(flights_data.PARTITIONS):
            part, _ = reader.read(number, 0, 1 << 30)
            kinds = pl.DataFrame(part).group_by("flight", maintain_order=True).agg("kind")["kind"].to_list()
            assert kinds and all(both == ["departure", "arrival"] for both in kinds)

    def test_the_log_is_sealed(self, written: tuple[str, pl.DataFrame]) -> None:
        assert LogReader(open_objects(written[0])).sealed

    def test_a_second_conversion_adds_nothing(self, written: tuple[str, pl.DataFrame]) -> None:
        path, events = written
        with pytest.raises(ConfigError):
            flights_data.write_log(path, events)
        assert sum(LogReader(open_objects(path)).end_offsets().values()) == events.height


class TestTheWheel:
    def test_every_flight_leaves_or_is_cancelled_and_every_instant_is_known(self) -> None:
        flights, airports = flights_data.tables()
        all_events = flights_data.events_of(flights, flights_data.zones(flights, airports))
        kinds = dict(all_events["kind"].value_counts().iter_rows())
        assert kinds == {"departure": 328_521, "arrival": 328_063, "cancellation": 8_255}
        assert kinds["departure"] + kinds["cancellation"] == flights.height
        assert all_events["event_time"].null_count() == 0
        assert all_events.select("flight", "kind").is_unique().all()

    def test_no_flight_arrives_sooner_than_its_time_in_the_air(self) -> None:
        flights, airports = flights_data.tables()
        pairs = (
            flights_data.events_of(flights, flights_data.zones(flights, airports))
            .pivot("kind", index="flight", values="event_time")
            .with_columns(minutes=(pl.col("arrival") - pl.col("departure")).dt.total_minutes())
        )
        name = pl.format("{}-{}{}-{}", pl.date("year", "month", "day"), "carrier", "flight", "origin")
        in_air = flights.select(flight=name, air_time="air_time")
        on_ground = pairs.join(in_air, on="flight").select(pl.col("minutes") - pl.col("air_time")).to_series()
        assert on_ground.drop_nulls().is_between(1, 4 * 60).all()
