"""Holdfast beside Flink SQL, Spark, Bytewax and Quix: the same records from the same topics, with two workers each.

At smoke size Holdfast alone, with the broker of the tests: one query on Spark, which takes minutes and so is left to
`make soak`, and all of them in memory. At full size all queries on Spark. With PEERS_HOME, which holds the scripts and
environments of the peers, one run measures them too, with the broker at 127.0.0.1:19092 and the topics that their
load.py writes:

    PEERS_HOME=... $PEERS_HOME/kafka_start.sh
    (cd $PEERS_HOME && vmisc/bin/python load.py 4000000 && vmisc/bin/python load.py 200000 bids200k)
    PEERS_HOME=... pytest -s --timeout=0 --bench=full tests/bench/bench_peers.py

PEERS and PEER_QUERIES choose some engines and queries: PEERS="Flink SQL,Quix" PEER_QUERIES=q_count,latency.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from harness import Bench
from peer_data import all_auctions, all_bids, auctions, bids, filled, last_written, read
from peer_engines import HEADER, HOLDFAST, JOBS, LATENCIES, PARALLEL, PEERS, SERVERS, Peer, Ran, holdfast, latency
from peer_jobs import AUCTION, BID, COLUMNS, Places, answer, in_order, make
from polars.testing import assert_frame_equal

from holdfast.runtime.inspect.logframe import log
from holdfast.runtime.sources.kafka.connector import Delivery
from holdfast.testing import TestDriver

QUERIES = ("q_count", "q_python", "q_hop", "q_join", "q_pass")
LATENCY = "latency"
PER_SECOND = 50_000
OURS: tuple[tuple[str, Delivery, str], ...] = (
    ("exactly-once", "transactional", "100ms"),
    ("at-least-once", "at-least-once", "1s"),
)
"""What is promised, how it is written, and how often a checkpoint is made."""
PASSED = {"auction": pl.Int64, "bidder": pl.Int64, "dateTime": pl.Int64, "price": pl.Float64}


@pytest.mark.e2e
@pytest.mark.kafka
@pytest.mark.slow
def bench_peers(bench: Bench, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Budget: keyed count with at most a fifth of Flink SQL's processor time per record, windows and join a tenth."""
    home = Path(os.environ["PEERS_HOME"]) if bench.full and "PEERS_HOME" in os.environ else None
    places, rows, opened = given(bench, tmp_path, request, home)
    ran = list[Ran]()
    with bench.timed():
        for query in chosen("PEER_QUERIES", (*QUERIES, LATENCY) if bench.full else QUERIES[:1]):
            if query == LATENCY:
                latencies(bench, home, tmp_path)
                continue
            ours = ours_checked(query, replace(places, folder=tmp_path / query), rows, opened)
            ran.append(ours)
            print(ours.line(ours), flush=True)  # what stands if a later engine fails
            for peer in peers_of(query, home):
                assert home is not None
                ran.append(peer.run(home, records_of(peer), tmp_path / f"{peer.engine}-{query}.txt"))
                print(ran[-1].line(ours), flush=True)
    total = sum(each.records for each in ran)
    bench.report(per=max(total, 1), unit="record", check=total)
    for line in HEADER:
        bench.note(line)
    for each in ran:
        bench.note(each.line(next((one for one in ran if one.engine == "Holdfast" and one.query == each.query), None)))


def bench_peer_answers(bench: Bench) -> None:
    """Every query gives every row, on the loop of production in memory."""
    count = bench.size("bids", smoke=1_000, full=20_000)
    rows, opened = all_bids(count), all_auctions(count // 10)
    with bench.timed():
        found = {query: played(query, rows, opened) for query in QUERIES}
    assert found.keys() == COLUMNS.keys()
    for query, each in found.items():
        same(query, each, rows, opened)
    bench.report(per=count * len(QUERIES), unit="record", check=sum(each.height for each in found.values()))


def given(
    bench: Bench, folder: Path, request: pytest.FixtureRequest, home: Path | None
) -> tuple[Places, pl.DataFrame, pl.DataFrame]:
    """Return the topics, and the rows that they hold, which are read back."""
    if home is None:
        kafka = request.getfixturevalue("kafka")
        count = bench.size("bids", smoke=20_000, full=4_000_000)
        topics = filled(kafka, bids(count)), filled(kafka, auctions(count // 10))
        places = Places(kafka.servers, folder, *topics)
    else:
        places = Places(SERVERS, folder)
    rows, opened = read(places.servers, places.bids, BID), read(places.servers, places.auctions, AUCTION)
    bench.sizes["bids"] = rows.height
    assert rows.height == 10 * opened.height > 0, "load the topics first; see the top of this file"
    return places, rows, opened


def ours_checked(query: str, places: Places, rows: pl.DataFrame, opened: pl.DataFrame) -> Ran:
    """Run a query of ours, and compare every row of its result."""
    places.folder.mkdir()
    if query == "q_pass":
        places = replace(places, passed=f"out_holdfast_{os.getpid()}")
    ran = holdfast(query, places)
    assert ran.records == rows.height + (opened.height if query == "q_join" else 0)
    if query == "q_pass":
        found = read(places.servers, places.passed, PASSED)
        ran = replace(ran, busy_s=max(ran.busy_s, last_written(places.servers, places.passed) - ran.began_at))
    else:
        found = log(places.results, as_table=query == "q_count").collect()
    same(query, found, rows, opened)
    return ran


def same(query: str, found: pl.DataFrame, rows: pl.DataFrame, opened: pl.DataFrame) -> None:
    """Compare a result with the answer."""
    assert_frame_equal(in_order(query, found), answer(query, rows, opened))


def played(query: str, rows: pl.DataFrame, opened: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of a job in memory."""
    with TestDriver(make(query, Places("broker.example:9092", Path("unused")))) as t:
        if query == "q_join":
            t.push("auctions", timed(opened))
        t.push("bids", timed(rows))
        t.finish()
        return pl.DataFrame(t.rows("out"), infer_schema_length=None)


def timed(rows: pl.DataFrame) -> list[dict[str, Any]]:
    """Return rows with points in time where the topics have milliseconds."""
    return [row | {"dateTime": datetime.fromtimestamp(row["dateTime"] / 1_000, UTC)} for row in rows.to_dicts()]


def chosen(variable: str, default: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names in a variable, or all."""
    return tuple(os.environ[variable].split(",")) if variable in os.environ else default


def peers_of(query: str, home: Path | None) -> list[Peer]:
    """Return the peers that have this query and are installed."""
    if home is None:
        return []
    wanted = chosen("PEERS", tuple({each.engine for each in PEERS}))
    return [
        each for each in PEERS if each.query == query and each.engine in wanted and (home / each.needs / "bin").exists()
    ]


def records_of(peer: Peer) -> int:
    """Return how many records the topics of a peer's query hold."""
    topics = (peer.topic, "auctions") if peer.query == "q_join" else (peer.topic,)
    return sum(held(topic) for topic in topics)


def held(topic: str) -> int:
    """Return how many records a topic holds."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": SERVERS, "group.id": "oracle"})
    partitions = consumer.list_topics(topic, 30).topics[topic].partitions
    places = [TopicPartition(topic, each) for each in partitions]
    ends = [consumer.get_watermark_offsets(each, 30) for each in places]
    consumer.close()
    return sum(high - low for low, high in ends)


def latencies(bench: Bench, home: Path | None, folder: Path) -> None:
    """Note the latency of q_pass, from topic to topic, exactly once and at least once."""
    if home is None:
        bench.note("latency from topic to topic: not measured without PEERS_HOME")
        return
    ours = [*HOLDFAST, "run", str(JOBS), "--progress", "none", *PARALLEL]
    found = {}
    for promise, delivery, every in OURS:
        tag = f"holdfast_{time.time_ns():x}"
        places = Places(SERVERS, folder / tag, f"lat_in_{tag}", "auctions", f"lat_out_{tag}", delivery)
        places.folder.mkdir()
        variables = {**places.environment("q_pass", every), "TMPDIR": str(places.folder)}
        output = folder / f"latency-{delivery}.txt"
        found[f"Holdfast, {promise}, {every}"] = latency(home, tag, PER_SECOND, ours, variables, output)
    for peer in LATENCIES:
        if peer.installed(home) and peer.engine in chosen("PEERS", (peer.engine,)):
            output = folder / f"latency-{peer.tag}.txt"
            found[f"{peer.engine}, {peer.promise}"] = latency(home, peer.tag, PER_SECOND, peer.words, {}, output)
    for engine, each in found.items():
        bench.note(
            f"latency, {engine}: p50 {each['p50_ms']} ms, p99 {each['p99_ms']} ms, longest {each['max_ms']} ms at "
            f"{each['rate_real']:,} records/s, {each['samples']:,} samples; load {os.getloadavg()[0]:.1f}"
        )
