"""The engines of the comparison: Holdfast, and the peers by scripts that PEERS_HOME holds with their environments.

Each run says how many records it read. Start-up is reported apart: for Holdfast it ends when a worker has its first
record, for a peer when its script says so, which is when its source runs (Flink), when the query is started (Spark) or
with the first record (Bytewax, Quix).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patience import wait_for_end
from peer_jobs import Places
from peer_usage import Usage, used_by

from holdfast.checkpoint.repository import Repository
from holdfast.storage.objects import open_objects

JOBS = Path(__file__).with_name("peer_jobs.py")
HOLDFAST = [sys.executable, "-m", "holdfast.runtime.cli.main"]
PARALLEL = ("--master", "local[3]", "--parallelism", "2")
"""Two workers, as all peers have, and a slot for the successor of one that is lost, which does nothing."""
TIMEOUT_S = 600.0
COUNT = "COUNT"
"""Among the words of a peer's command: the number of records that its topics hold."""
SERVERS = "127.0.0.1:19092"
"""Where the peers' scripts expect the broker."""


@dataclass(frozen=True)
class Ran:
    """A query by an engine.

    Args:
        began_at: When the start-up ended, in seconds since 1970.
        busy_s: Seconds from then to the last result.
        cpu_s: Processor seconds of all processes after the start-up; `cpu_all_s`: with it.
        load: The load average of the machine, of the last minute, when it ended.
        checked: What is known about the answer.
    """

    engine: str
    query: str
    records: int
    began_at: float
    busy_s: float
    cpu_s: float
    cpu_all_s: float
    peak_bytes: int
    load: float
    checked: str

    @property
    def cpu_us(self) -> float:
        """Processor microseconds per record, without the start-up."""
        return self.cpu_s / self.records * 1e6

    def line(self, ours: Ran | None) -> str:
        """Return a row of the table.

        Args:
            ours: The same query by Holdfast; None if it was not run.
        """
        ratio = "-" if ours is None else f"{self.cpu_us / ours.cpu_us:.1f}"
        return (
            f"| {self.query} | {self.engine} | {self.records:,} | {self.records / self.busy_s:,.0f} "
            f"| {self.cpu_us:.2f} | {self.cpu_all_s / self.records * 1e6:.2f} | {ratio} "
            f"| {self.peak_bytes / 2**20:,.0f} | {self.load:.1f} | {self.checked} |"
        )


HEADER = (
    "| query | engine | records | records/s | CPU us | with start | times Holdfast | peak MiB | load | answer |",
    "|---|---|---|---|---|---|---|---|---|---|",
)


def holdfast(query: str, places: Places, every: str = "5s") -> Ran:
    """Run a job of ours until it has read what its topics hold and has closed all windows."""
    began_at, stops = list[float](), list[subprocess.Popen[bytes]]()
    root = places.folder / "root"

    def look() -> None:
        if not began_at and (first := _first_record_at(root / query / "live.json")) is not None:
            began_at.append(first)
            stop = [*HOLDFAST, "stop", query, "--finish", "--timeout", f"{TIMEOUT_S:g}s", "--root", str(root)]
            stops.append(subprocess.Popen(stop, start_new_session=True, stdout=subprocess.DEVNULL))

    command = [*HOLDFAST, "run", str(JOBS), "--progress", "none", *PARALLEL]
    variables = {**places.environment(query, every), "TMPDIR": str(places.folder)}
    output = places.folder / "holdfast.txt"
    usage = used_by(command, places.folder, variables, output, TIMEOUT_S, look)
    assert began_at, f"no worker was seen with a record: {output.read_text()[-3_000:]}"
    assert wait_for_end(stops[0], "the end of a stop") == 0
    repository = Repository(open_objects(str(root / query)))
    job = repository.read_log()
    assert job is not None and job.finished
    last = job.completed[-1]
    records = sum(at.offset for at in repository.load_manifest(last.body.manifest).positions)
    return _ran("Holdfast", query, records, usage, began_at[0], last.at / 1e6 - began_at[0], "every row")


def _first_record_at(live: Path) -> float | None:
    """Return when the first worker took its first record, in seconds since 1970, as the driver's report says."""
    if not live.exists():
        return None
    found = [each.get("first_record_at") for each in json.loads(live.read_text())["workers"]]
    return min((at / 1e6 for at in found if at is not None), default=None)


def _ran(engine: str, query: str, records: int, usage: Usage, began_at: float, busy_s: float, checked: str) -> Ran:
    after, load = usage.cpu_s_after(began_at), os.getloadavg()[0]
    return Ran(engine, query, records, began_at, busy_s, after, usage.cpu_s, usage.peak_bytes, load, checked)


@dataclass(frozen=True)
class Peer:
    """A query as a script of the peers.

    Args:
        needs: The folder below PEERS_HOME without which the engine is not installed.
        topic: The topic that it reads besides auctions.
        limit: How many records of the topic it reads; None: all.
    """

    engine: str
    query: str
    needs: str
    words: tuple[str, ...]
    topic: str = "bids"
    limit: int | None = None

    def run(self, home: Path, records: int, output: Path) -> Ran:
        """Run it.

        Args:
            records: How many its topics hold.
            output: The file that takes what it prints.
        """
        words = [str(records) if each == COUNT else each for each in self.words]
        usage = used_by(words, home, {"PEERS_HOME": str(home)}, output, TIMEOUT_S)
        result = result_of(output)
        wanted = self.limit or records
        assert result["events"] == wanted, f"{self} read {result['events']} records of {wanted}"
        began_at = usage.began_at + result["startup_s"]
        return _ran(self.engine, self.query, wanted, usage, began_at, result["engine_s"], "number of records")


def _flink(query: str, *more: str) -> tuple[str, ...]:
    return ("vflink/bin/python", "flink_sql.py", query, "topic=bids", *more)


def _spark(query: str, *more: str) -> tuple[str, ...]:
    return ("vspark/bin/python", "spark_ss.py", query, *more)


_SMALL, _KEYED = "bids200k", "bids1m_keyed"


def _bytewax(query: str, topic: str) -> tuple[str, ...]:
    return ("./bytewax_run.sh", query, topic, COUNT, "2", "1")


PEERS: Sequence[Peer] = (
    *(Peer("Flink SQL", query, "vflink", _flink(query)) for query in ("q_count", "q_hop", "q_join", "q_pass")),
    *(Peer("Spark", query, "vspark", _spark(query)) for query in ("q_count", "q_hop", "q_join", "q_pass")),
    Peer("Bytewax", "q_count", "vmisc", _bytewax("q_count", _SMALL), _SMALL),
    Peer("Bytewax", "q_hop", "vmisc", _bytewax("q_hop", _SMALL), _SMALL),
    Peer("Quix", "q_count", "vmisc", ("vmisc/bin/python", "quix_count.py", _KEYED, COUNT, "exactly-once"), _KEYED),
    Peer(
        "PyFlink in threads",
        "q_python",
        "vflink",
        ("vflink/bin/python", "pyflink_ds.py", "bids", "thread", "100000"),
        limit=100_000,
    ),
    Peer(
        "Spark by rows",
        "q_python",
        "vspark",
        _spark("q_count_tws_row", f"topic={_SMALL}", "max=50000", "name=spark_tws_row"),
        _SMALL,
    ),
)


@dataclass(frozen=True)
class Live:
    """A peer that runs q_pass until it is ended, from the topic lat_in_TAG to lat_out_TAG.

    Args:
        promise: What it promises, and how often it makes a checkpoint.
        needs: The folder below PEERS_HOME without which the engine is not installed.
    """

    engine: str
    promise: str
    needs: str
    tag: str
    words: tuple[str, ...]

    def installed(self, home: Path) -> bool:
        """Return whether its environment is there."""
        return (home / self.needs / "bin").exists()


def _live_flink(guarantee: str, short: str) -> Live:
    tag = f"flink_{short}"
    flags = (f"out=lat_out_{tag}", f"guarantee={guarantee}", "bounded=0", "ckpt=1")
    words = ("vflink/bin/python", "flink_sql.py", "q_pass", f"name=lat_{tag}", f"topic=lat_in_{tag}", *flags)
    return Live("Flink SQL", f"{guarantee}, 1 s", "vflink", tag, words)


def _live_spark(promise: str, mode: str, tag: str) -> Live:
    return Live("Spark", promise, "vspark", tag, ("vspark/bin/python", "spark_lat.py", mode, tag))


LATENCIES = (
    _live_flink("at-least-once", "alo"),
    _live_flink("exactly-once", "eos"),
    _live_spark("at-least-once, batches as they come", "processing", "spark_mb"),
    _live_spark("at-least-once, real-time mode", "realtime", "spark_rtm"),
)
"""Spark's sink of Kafka is at-least-once, whatever the trigger."""


def result_of(output: Path) -> dict[str, Any]:
    """Return what a script of the peers reports."""
    lines = [line for line in output.read_text(errors="replace").splitlines() if line.startswith("RESULT ")]
    assert lines, f"{output} has no result: {output.read_text(errors='replace')[-3_000:]}"
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
    return found


def latency(
    home: Path, tag: str, rate: int, command: Sequence[str], variables: dict[str, str], output: Path
) -> dict[str, Any]:
    """Measure the time from a record's creation to its arrival at a reader of committed records, by the peers' script.

    Args:
        tag: The topics are lat_in_TAG and lat_out_TAG.
        rate: Records per second.
        command: Starts the engine, which the script ends.
    """
    script = ("vmisc/bin/python", "lat.py", tag, str(rate), "30", "20", "read_committed", "--", *command)
    used_by(script, home, {**variables, "PEERS_HOME": str(home)}, output, TIMEOUT_S)
    return result_of(output)
