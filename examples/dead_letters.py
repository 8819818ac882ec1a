"""Miles and minutes in the air per carrier, from lines of text, some of which cannot be read.

A function reads each line of the flights of January 2013. A flight that was cancelled or diverted has "NA" where its
minutes should be, and int() fails. With on_error="dlq" such a line does not end the job: it goes to the log of dead
letters unchanged, with the error and its origin; exactly once, like every other output.

    python examples/dead_letters.py     or: holdfast run examples/dead_letters.py
    holdfast dlq list dead-letters      the unreadable lines, with the reasons
    sqlite3 carriers.db "SELECT * FROM carriers ORDER BY miles DESC"

CARRIERS_DB and CARRIERS_DLQ are the paths of the table and the log of dead letters.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import holdfast as hf
from holdfast.examples import flights_data

DB = os.environ.get("CARRIERS_DB", "carriers.db")
DLQ = os.environ.get("CARRIERS_DLQ", "carriers-dead-letters")
HEADER, *ALL = flights_data.text().splitlines()
LINES = [text for text in ALL if text.startswith("2013,1,")]
CARRIER, MINUTES, MILES = (HEADER.split(",").index(name) for name in ("carrier", "air_time", "distance"))


@dataclass
class Line:
    text: str


@dataclass
class Flight:
    carrier: str
    minutes: int
    miles: int


def line(number: int) -> Line:
    """Return one line of the file, the same one whenever it is read."""
    return Line(LINES[number])


def flight(line: Line) -> Flight:
    """Read a line. Raises ValueError if the flight was not flown as planned."""
    columns = line.text.split(",")
    return Flight(columns[CARRIER], int(columns[MINUTES]), int(columns[MILES]))


app = hf.App("dead-letters", dlq=hf.Log(DLQ))
lines = app.source("lines", hf.Generator(Line, line, count=len(LINES), partitions=4))
flown = lines.map(flight, to=Flight, on_error="dlq")
carriers = flown.key_by("carrier").agg("carriers", flights=hf.count(), minutes=hf.sum("minutes"), miles=hf.sum("miles"))
carriers.sink("carriers-out", hf.SQLite(DB, table="carriers", key=["carrier"]))

if __name__ == "__main__":
    app.main()
