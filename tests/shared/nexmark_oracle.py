"""What the queries of Nexmark give, computed by DuckDB in SQL from the same events.

Shares no code with the runtime or with the queries under test. Times are without zone, in UTC.

The text of a query follows github.com/nexmark/nexmark, except where docs/nexmark.md says that the meaning
differs. Windows are computed from integers, in microseconds since 1970: no function of DuckDB aligns them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import duckdb
import pyarrow as pa

WINNING = """
    SELECT a.*, b.bidder, b.price, b.time AS time_right, b.extra AS extra_right
    FROM auctions a JOIN bids b ON a.id = b.auction AND b.time BETWEEN a.time AND a.expires
"""
WON = f"SELECT id, category, seller, expires, max(price) AS price FROM ({WINNING}) GROUP BY ALL"


def windows(table: str, seconds: int) -> str:
    """Return a table with the start of the tumbling window of each row, in microseconds."""
    size = seconds * 1_000_000
    return f"(SELECT *, epoch_us(time) // {size} * {size} AS starts FROM {table})"


def ranked(name: str, of: str) -> str:
    """Return an aggregate over all prices and over three ranks of them."""
    ranks = {
        "total": "true",
        "rank1": "price < 10000",
        "rank2": "price >= 10000 AND price < 1000000",
        "rank3": "price >= 1000000",
    }
    return ", ".join(f"count({of}) FILTER (WHERE {where}) AS {rank}_{name}" for rank, where in ranks.items())


DISTINCT = ", ".join(
    ranked(name, of) for name, of in (("bids", "*"), ("bidders", "DISTINCT bidder"), ("auctions", "DISTINCT auction"))
)
DAY, MINUTE = "strftime(time, '%Y-%m-%d')", "strftime(time, '%H:%M')"
EURO = "0.908 * price"
CHANNEL_ID = "nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '')"
COUNTS = """
    SELECT auction, starts, count(*) AS num FROM (
        SELECT auction, epoch_us(time) // 2000000 * 2000000 - k * 2000000 AS starts FROM bids, range(5) AS t(k)
    ) GROUP BY ALL
"""
TOP = ("price", "bidder", "channel", "url", "time", "extra")
QUERIES = {
    "q0": "SELECT auction, bidder, price, time, extra FROM bids",
    "q1": f"SELECT auction, bidder, time, extra, {EURO} AS price FROM bids",
    "q2": "SELECT auction, price FROM bids WHERE auction % 123 = 0",
    "q3": """
        SELECT p.name, p.city, p.state, a.id FROM auctions a JOIN persons p ON a.seller = p.id
        WHERE a.category = 10 AND (p.state = 'OR' OR p.state = 'ID' OR p.state = 'CA')
    """,
    "q4": f"SELECT category, avg(price) AS final FROM ({WON}) GROUP BY category",
    "q5": f"""
        WITH counts AS ({COUNTS}), most AS (SELECT starts, max(num) AS num FROM counts GROUP BY starts)
        SELECT auction, num, make_timestamp(starts + 10000000) AS window_end
        FROM counts JOIN most USING (starts, num)
    """,
    "q6": f"""
        SELECT seller, avg(price) AS avg_price FROM (
            SELECT *, row_number() OVER (PARTITION BY seller ORDER BY expires DESC, price DESC) AS newest FROM ({WON})
        ) WHERE newest <= 10 GROUP BY seller
    """,
    "q7": f"""
        WITH timed AS {windows("bids", 10)}, highest AS (SELECT starts, max(price) AS price FROM timed GROUP BY starts)
        SELECT auction, bidder, price, time, extra FROM timed JOIN highest USING (starts, price)
    """,
    "q8": f"""
        SELECT DISTINCT p.id, p.name, make_timestamp(p.starts) AS window_start
        FROM {windows("persons", 10)} p JOIN {windows("auctions", 10)} a ON p.id = a.seller AND p.starts = a.starts
    """,
    "q9": f"""
        SELECT * EXCLUDE rank FROM (
            SELECT *, row_number() OVER (PARTITION BY id ORDER BY price DESC, time_right ASC) AS rank FROM ({WINNING})
        ) WHERE rank = 1
    """,
    "q10": f"SELECT auction, bidder, price, time, extra, {DAY} AS dt, {MINUTE} AS hm FROM bids",
    "q11": """
        WITH gaps AS (SELECT *, time - lag(time) OVER bidders > INTERVAL 10 SECONDS AS gap FROM bids
                      WINDOW bidders AS (PARTITION BY bidder ORDER BY time)),
             numbered AS (SELECT *, count(*) FILTER (WHERE gap) OVER (PARTITION BY bidder ORDER BY time) AS n FROM gaps)
        SELECT bidder, min(time) AS window_start, max(time) + INTERVAL 10 SECONDS AS window_end, count(*) AS bid_count
        FROM numbered GROUP BY bidder, n
    """,
    "q12": "SELECT bidder, count(*) AS bid_count FROM bids GROUP BY bidder",
    "q13": """
        SELECT auction, bidder, price, time, value FROM bids
        JOIN (SELECT key, key::VARCHAR AS value FROM range(10000) AS side(key)) ON auction % 10000 = key
    """,
    "q14": f"""
        SELECT auction, bidder, {EURO} AS price, time, extra, len(extra) - len(replace(extra, 'c', '')) AS c_counts,
            CASE WHEN hour(time) >= 8 AND hour(time) <= 18 THEN 'dayTime'
                 WHEN hour(time) <= 6 OR hour(time) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS time_type
        FROM bids WHERE {EURO} > 1000000 AND {EURO} < 50000000
    """,
    "q15": f"SELECT {DAY} AS day, {DISTINCT} FROM bids GROUP BY 1",
    "q16": f"SELECT channel, {DAY} AS day, max({MINUTE}) AS minute, {DISTINCT} FROM bids GROUP BY 1, 2",
    "q17": f"""
        SELECT auction, {DAY} AS day, {ranked("bids", "*")}, min(price) AS min_price, max(price) AS max_price,
            avg(price) AS avg_price, sum(price) AS sum_price
        FROM bids GROUP BY 1, 2
    """,
    "q18": """
        SELECT bidder, auction, price, channel, url, time, extra FROM (
            SELECT *, row_number() OVER (PARTITION BY bidder, auction ORDER BY time DESC) AS newest FROM bids
        ) WHERE newest = 1
    """,
    "q19": f"""
        SELECT auction, {", ".join(f"list({x} ORDER BY price DESC, {x} DESC)[1:10] AS {x}s" for x in TOP)}
        FROM bids GROUP BY auction
    """,
    "q20": """
        SELECT b.*, a.* RENAME (time AS time_right, extra AS extra_right)
        FROM bids b JOIN auctions a ON b.auction = a.id WHERE a.category = 10
    """,
    "q21": f"""
        SELECT * FROM (
            SELECT auction, bidder, price, channel, CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1'
                WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3' ELSE {CHANNEL_ID} END AS channel_id
            FROM bids
        ) WHERE channel_id IS NOT NULL
    """,
    "q22": """
        SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2,
            split_part(url, '/', 6) AS dir3
        FROM bids
    """,
}


NAMES = {"time": "at", "time_right": "at_right", "times": "ats"}
"""The names of columns in results; AT is a word of SQL."""
NAMES_IN_SQL = {"at": "time"}


def expected(query: str, events: Mapping[str, pa.Table]) -> list[dict[str, Any]]:
    """Return the rows of a query.

    Args:
        events: The tables persons, auctions and bids.
    """
    found = _run(QUERIES[query], events)
    names = [NAMES.get(column[0], column[0]) for column in found.description]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def count(query: str, events: Mapping[str, pa.Table]) -> int:
    """Return how many rows a query gives; `events` as for `expected`."""
    [(rows,)] = _run(f"SELECT count(*) FROM ({QUERIES[query]})", events).fetchall()
    return int(rows)


def counted(rows: list[dict[str, Any]], names: list[str]) -> Counter[tuple[Any, ...]]:
    """Count equal rows by these columns; times are without zone, floats have nine digits."""
    return Counter(tuple(_comparable(row[name]) for name in names) for row in rows)


def _comparable(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    if isinstance(value, float):
        return float(f"{value:.9g}")
    return tuple(map(_comparable, value)) if isinstance(value, list) else value


def _run(sql: str, events: Mapping[str, pa.Table]) -> duckdb.DuckDBPyConnection:
    database = duckdb.connect()
    database.execute("SET TimeZone = 'UTC'")
    for name, table in events.items():
        given = table.rename_columns([NAMES_IN_SQL.get(column, column) for column in table.column_names])
        database.register("given", given)
        times = ", ".join(
            f"CAST({c.name} AS TIMESTAMP) AS {c.name}" for c in given.schema if pa.types.is_timestamp(c.type)
        )
        database.execute(f"CREATE TABLE {name} AS SELECT * REPLACE ({times}) FROM given")
        database.unregister("given")
    return database.execute(sql)
