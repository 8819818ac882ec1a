"""Sinks and sources at servers that a test makes fail: kits, and the outages of their servers.

Every server is real. Postgres, Redis, Kafka and the object store are reached through Toxiproxy, so that connections end
and answers are lost on the wire. The rows that a test compares are read past the proxy.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
from http_receiver import HttpReceiver
from kafka_server import USER as KAFKA_USER
from kafka_server import KafkaServer
from kafka_topics import KafkaTopic
from postgres_server import GUARDED, PostgresPlace, PostgresServer
from proxied import Proxied
from redis_server import USER as REDIS_USER
from redis_server import RedisServer
from s3_store import BUCKET, OWNER, SECRET, S3Store

import holdfast as hf
from holdfast.model import CHANGELOG, EPOCH_MAX, NO_EPOCH, Epoch, Stretch, Subtask, Timeline, Writer
from holdfast.runtime.testing.outages import PASSWORD, Outages
from holdfast.runtime.testing.source_kit import SourceKit
from holdfast.runtime.testing.tested_sink import KEY, SCHEMA, Row, SinkKit
from holdfast.sinks.contract.changelogs import AsOf
from holdfast.sinks.contract.owners import Claim
from holdfast.sinks.contract.sink import Sink
from holdfast.sinks.contract.target import DELETE, OP, PUT, Fault, Target
from holdfast.sinks.kafka.changelog.sink import KafkaChangelog
from holdfast.sinks.kafka.target import KafkaTarget
from holdfast.sinks.log.sink import LogTarget
from holdfast.sinks.sql.target import SqlTarget
from holdfast.state.records import KEY as RECORDS_KEY
from holdfast.state.records import RECORDS
from holdfast.storage.log.log import LogReader, LogWriter, create_log
from holdfast.storage.log.table import read_table
from holdfast.storage.objects import FsspecObjects

JOB = "6f9b0f6e-0000-4000-8000-000000000001"
NUMBERS = pa.schema([pa.field("n", pa.int64(), nullable=False)])
COMMITTER = Writer(CHANGELOG, Subtask(0))
S3_USER = "guarded"
_PERMISSIONS = ("s3:PutObject", "s3:ListBucket", "s3:GetObject", "s3:DeleteObject")
_NAMES = count(1)
ANSWER_LOST_AFTER_MS = 400
"""When a connection without an answer ends: later than a busy server has carried out what it was asked."""


@contextmanager
def unreachable(link: Proxied) -> Iterator[None]:
    """End all connections, and refuse new ones, within the block."""
    link.reachable(False)
    try:
        yield
    finally:
        link.reachable(True)


@contextmanager
def unanswered(link: Proxied) -> Iterator[None]:
    """Pass no answer within the block; connections end soon after they have waited for one."""
    link.toxic("timeout", timeout=ANSWER_LOST_AFTER_MS)
    try:
        yield
    finally:
        link.untoxic("timeout")


@contextmanager
def silent(link: Proxied) -> Iterator[None]:
    """Pass no answer within the block; connections stay open, as to a machine that hangs."""
    link.toxic("timeout", timeout=0)
    try:
        yield
    finally:
        link.untoxic("timeout")


@dataclass(frozen=True)
class Failing:
    """A kit, and how its server fails."""

    kit: Any
    outages: Outages


@dataclass(frozen=True)
class FailingTable:
    """A table that is written immediately, and how its server fails."""

    table: Any
    rows: Callable[[], list[Row]]
    outages: Outages


def http(receiver: HttpReceiver, folder: Path) -> Failing:
    """Return a receiver of requests with a token; it is in this process, and ends its connections by itself."""
    headers = {"Authorization": hf.secret("env:OUTAGE_PASSWORD")}
    sink = hf.Http(receiver.url, progress=folder / "progress", headers=headers)

    def opened(given: Sink, writer: Any, fault: Fault) -> Target:
        return sink.opened(JOB, writer, fault=fault)

    rows: Callable[[], list[Row]] = lambda: [tuple(row.values()) for row in receiver.rows()]
    outages = Outages(receiver.away, receiver.restart, receiver.refusing, receiver.unanswered)
    return Failing(SinkKit(lambda: sink, rows, opened), outages)


def iceberg(sink: hf.Iceberg, outages: Outages, catalog: dict[str, Any]) -> Failing:
    """Return a table of Iceberg.

    Args:
        catalog: How to read it past the proxy.
    """
    from pyiceberg.catalog.sql import SqlCatalog

    def rows() -> list[Row]:
        with closing(SqlCatalog(**{"name": "default", **catalog})) as opened:
            return [tuple(row.values()) for row in opened.load_table("shop.rows").scan().to_arrow().to_pylist()]

    def opened(given: Sink, writer: Any, fault: Fault) -> Target:
        target: Target = sink.opened(JOB, writer, fault=fault)
        return target

    return Failing(SinkKit(lambda: sink, rows, opened), outages)


GROUPS = 8


@dataclass(frozen=True)
class ChangelogKit(SinkKit):
    """The changelog of a job in Kafka; the kit's rows are those of an operator, keyed by `user`."""

    @property
    def upsert_key(self) -> tuple[str, ...]:
        return KEY

    def prepared(self) -> Sink:
        sink = self.sink()
        sink.prepare(RECORDS, RECORDS_KEY)
        return sink

    def target(self, writer: Writer = COMMITTER, job: str = JOB, claim: Claim | None = None) -> closing[Target]:
        return closing(self.prepared().open(job, writer, claim))

    def batch(self, *rows: Row) -> pa.RecordBatch:
        """Return rows as a segment gives them; the number of a user decides on the key group."""
        columns: dict[str, Any] = {
            "operator": ["users" for _ in rows],
            "key": pa.array([bytes([0, 1, 0, user % GROUPS]) + f"{user}".encode() for user, _ in rows]),
            "epoch": [1 for _ in rows],
            "row_key": ["{}" for _ in rows],
            "row": ["{}" for _ in rows],
            "layout": ["[]" for _ in rows],
            "value": pa.array([None if name is None else name.encode() for _, name in rows], pa.binary()),
            OP: pa.array([DELETE if name is None else PUT for _, name in rows], pa.int8()),
        }
        columns["key"] = columns["key"].cast(pa.large_binary())
        columns["value"] = columns["value"].cast(pa.large_binary())
        return pa.RecordBatch.from_pydict(columns, schema=RECORDS.append(pa.field(OP, pa.int8(), nullable=False)))


def users_in(
    changelog: KafkaChangelog, advanced: Callable[[int, int], object] = lambda *_: None, through: int = 99
) -> dict[int, str]:
    """Restore: return the rows of a changelog."""
    whole, found = (Stretch(Timeline(1), Epoch(1), EPOCH_MAX),), dict[int, str]()
    for batch in changelog.open(JOB).records(AsOf(JOB, whole, Epoch(through), NO_EPOCH, (0, GROUPS), GROUPS), advanced):
        for row in batch.to_pylist():
            user = int(row["key"][4:])
            if row["deleted"]:
                found.pop(user, None)
            else:
                found[user] = row["value"].decode()
    return found


def changelog_kit(servers: str, past: str, topic: str, options: dict[str, Any] | None = None) -> ChangelogKit:
    """Return a changelog.

    Args:
        past: The address at which the rows are read.
    """
    changelog = hf.Kafka(servers, topic, options=options).changelog()

    def sink() -> Sink:
        return changelog.sink(RECORDS, RECORDS_KEY, GROUPS)

    def opened(given: Sink, writer: Any, fault: Fault) -> Target:
        target = given.open(JOB, COMMITTER)
        assert isinstance(target, KafkaTarget)
        target._fault = fault
        return target

    return ChangelogKit(sink, lambda: list(users_in(hf.Kafka(past, topic).changelog()).items()), opened)


@dataclass(frozen=True)
class FailingPostgres:
    """A server whose user needs a password, behind a proxy."""

    server: PostgresServer
    link: Proxied

    @property
    def outages(self) -> Outages:
        return Outages(lambda: unreachable(self.link), self._restart, self._refused, lambda: unanswered(self.link))

    def immediate(self) -> FailingTable:
        place = self.server.place()
        place.ask(f"GRANT ALL ON SCHEMA {place.schema} TO {GUARDED}")
        rows: Callable[[], list[Row]] = lambda: place.ask('SELECT totals."user", name FROM totals')
        return FailingTable(self.table(place, KEY, "idempotent"), rows, self.outages)

    def sink(self, key: tuple[str, ...] | None, delivery: str = "transactional") -> Failing:
        place = self.server.place()
        place.ask(f"GRANT ALL ON SCHEMA {place.schema} TO {GUARDED}")
        sink = self.table(place, key, delivery)

        def opened(given: Sink, writer: Any, fault: Fault) -> Target:
            return SqlTarget(sink, JOB, writer, fault)

        rows: Callable[[], list[Row]] = lambda: place.ask('SELECT totals."user", name FROM totals')
        return Failing(SinkKit(lambda: sink, rows, opened), self.outages)

    def iceberg(self, folder: Path) -> Failing:
        """A table whose catalogue is in the server; its warehouse is a folder."""
        place = self.server.place()
        self.admin(f"GRANT ALL ON SCHEMA public TO {GUARDED}")
        catalog, warehouse = f"postgresql://{GUARDED}@{self.link.address}/postgres", folder / "lake"
        password = hf.secret("env:OUTAGE_PASSWORD")
        sink = hf.Iceberg("shop.rows", catalog, warehouse, catalog_name=place.schema, password=password)
        past = f"postgresql+psycopg://postgres@/postgres?host={self.server.folder}&port={self.server.port}"
        found = {"uri": past, "warehouse": f"file://{warehouse}", "name": place.schema}
        return iceberg(sink, self.outages, found)

    def table(self, place: PostgresPlace, key: tuple[str, ...] | None, delivery: str) -> hf.Postgres:
        """Return a sink of the user with the password."""
        host, port = self.link.address.split(":")
        dsn = f"host={host} port={port} dbname=postgres user={GUARDED}"
        return hf.Postgres(dsn, "totals", key, delivery, schema=place.schema, password=hf.secret("env:OUTAGE_PASSWORD"))

    def admin(self, *statements: str) -> None:
        place = PostgresPlace(self.server.dsn(), "public")
        for each in statements:
            place.ask(each)

    @contextmanager
    def _refused(self) -> Iterator[None]:
        ended = f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = '{GUARDED}'"
        self.admin(f"ALTER ROLE {GUARDED} NOLOGIN", ended)
        try:
            yield
        finally:
            self.admin(f"ALTER ROLE {GUARDED} LOGIN")

    def _restart(self) -> None:
        self.server.stop()
        self.server.start()


@dataclass(frozen=True)
class FailingRedis:
    """A server whose user needs a password, behind a proxy."""

    server: RedisServer
    link: Proxied

    @property
    def outages(self) -> Outages:
        return Outages(lambda: unreachable(self.link), self._restart, self._refused, lambda: unanswered(self.link))

    def sink(self) -> Failing:
        keys = self.server.keys(KEY)
        self.server.allow("~*", "+@all")
        url = f"redis://{REDIS_USER}@{self.link.address}/0"
        sink = hf.Redis(url, keys.prefix, KEY, hf.secret("env:OUTAGE_PASSWORD"))

        def opened(given: Sink, writer: Any, fault: Fault) -> Target:
            target: Target = sink.opened(JOB, writer, fault=fault)
            return target

        return Failing(SinkKit(lambda: sink, keys.rows, opened), self.outages)

    @contextmanager
    def _refused(self) -> Iterator[None]:
        self.server.ask("ACL", "SETUSER", REDIS_USER, "off")
        self.server.ask("CLIENT", "KILL", "USER", REDIS_USER)
        try:
            yield
        finally:
            self.server.allow("~*", "+@all")

    def _restart(self) -> None:
        self.server.kill()
        self.server.start()
        self.server.allow("~*", "+@all")


@dataclass(frozen=True)
class FailingKafka:
    """A broker with two ways to it: one through a proxy, one for a user with a password and rights."""

    server: KafkaServer
    link: Proxied

    @property
    def outages(self) -> Outages:
        """Those of the way through the proxy, on which every client may do everything."""
        return Outages(lambda: unreachable(self.link), self._restart, None, lambda: unanswered(self.link))

    def sink(self, key: tuple[str, ...] | None) -> Failing:
        topic = KafkaTopic(self.server, key)
        sink = hf.Kafka(self.link.address, topic.name, key=key).sink()
        return Failing(self._kit(topic, sink), self.outages)

    def changelog(self) -> Failing:
        """The changelog of a job, which is read past the proxy."""
        name = f"{self.server.topic()}-state"
        return Failing(changelog_kit(self.link.address, self.server.servers, name), self.outages)

    def guarded_changelog(self) -> Failing:
        name = f"{self.server.topic()}-state"
        self.server.allow_all()
        kit = changelog_kit(self.server.guarded, self.server.servers, name, self.login())
        return Failing(kit, Outages(refused=self._refused))

    def guarded_sink(self, key: tuple[str, ...] | None) -> Failing:
        topic = KafkaTopic(self.server, key)
        self.server.allow_all()
        sink = hf.Kafka(self.server.guarded, topic.name, key=key, options=self.login()).sink()
        return Failing(self._kit(topic, sink), Outages(refused=self._refused))

    def source(self) -> Failing:
        topic, append = self._numbers()
        source = hf.Kafka(self.link.address, topic, hf.JSON(NUMBERS)).source()
        return Failing(SourceKit(lambda: source, append), self.outages)

    def guarded_source(self) -> Failing:
        topic, append = self._numbers()
        self.server.allow_all()
        source = hf.Kafka(self.server.guarded, topic, hf.JSON(NUMBERS), options=self.login()).source()
        return Failing(SourceKit(lambda: source, append), Outages(refused=self._refused))

    def login(self) -> dict[str, Any]:
        """Return the options of the user with the password."""
        secret = hf.secret("env:OUTAGE_PASSWORD")
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": KAFKA_USER,
            "sasl.password": secret,
        }

    def _kit(self, topic: KafkaTopic, sink: Any) -> SinkKit:
        def opened(given: Sink, writer: Any, fault: Fault) -> Target:
            target: Target = sink.opened(JOB, writer, fault=topic.watched(fault))
            return target

        return SinkKit(lambda: sink, topic.rows, opened)

    def _numbers(self) -> tuple[str, Callable[[], None]]:
        topic = self.server.topic(2)

        def append() -> None:
            for partition in (0, 1):
                self.server.produce(topic, [b'{"n": 1}', b'{"n": 2}', b'{"n": 3}'], partition)

        append()
        return topic, append

    @contextmanager
    def _refused(self) -> Iterator[None]:
        self.server.allow_nothing()
        try:
            yield
        finally:
            self.server.allow_all()

    def _restart(self) -> None:
        self.server.kill()
        self.server.start()


class FaultyRemote(FsspecObjects):
    """A store that calls `fault` as the append of a log passes the points of a delivery."""

    def __init__(self, url: str, fault: Fault) -> None:
        super().__init__(url)
        self._fault = fault

    def put(self, path: str, data: bytes) -> None:
        self._fault("before_begin")
        super().put(path, data)

    def create(self, path: str, data: bytes) -> None:
        self._fault("after_tag")  # Rows and tag are one object, so there is one point for both.
        self._fault("before_commit")
        super().create(path, data)
        self._fault("after_commit")


@dataclass(frozen=True)
class FailingStore:
    """An S3 server behind a proxy, with a user whose permissions are a policy of the bucket."""

    server: S3Store
    prefix: str = field(default_factory=lambda: f"outage-{next(_NAMES)}")

    @property
    def url(self) -> str:
        return self.server.url(f"{self.prefix}/target")

    @property
    def outages(self) -> Outages:
        link = self.server.link
        return Outages(lambda: unreachable(link), self._restart, self._refused, lambda: unanswered(link))

    def log(self, key: tuple[str, ...] | None = None) -> Failing:
        sink = hf.Log(self.url, key=key).sink()

        def rows() -> list[Row]:
            store = FsspecObjects(self.url)
            if key is not None:
                return [tuple(row.values()) for each in read_table(store) for row in each.rows.to_pylist()]
            reader = LogReader(store)
            return [row for each, end in reader.end_offsets().items() for row in _records(reader, each, end)]

        def opened(given: Sink, writer: Any, fault: Fault) -> Target:
            store = FaultyRemote(self.url, fault)
            return LogTarget(sink.where, lambda: store, JOB, writer)

        return Failing(SinkKit(lambda: sink, rows, opened), self.outages)

    def files(self) -> Failing:
        sink = hf.Files(self.url).sink()

        def rows() -> list[Row]:
            import pyarrow.dataset as ds

            found = ds.dataset(str(self.server.files / self.prefix / "target"), SCHEMA, format="parquet").to_table()
            return [tuple(row.values()) for row in found.to_pylist()]

        def opened(given: Sink, writer: Any, fault: Fault) -> Target:
            return sink.opened(JOB, writer, fault=fault)

        return Failing(SinkKit(lambda: sink, rows, opened), self.outages)

    def delta(self, key: tuple[str, ...] | None = None) -> Failing:
        from deltalake import DeltaTable

        at = {"AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
        options: dict[str, Any] = {
            **at,
            "AWS_ENDPOINT_URL": f"http://{self.server.link.address}",
            "AWS_ACCESS_KEY_ID": S3_USER,
            "AWS_SECRET_ACCESS_KEY": hf.secret("env:OUTAGE_PASSWORD"),
            "max_retries": "1",
            "retry_timeout": "2s",
        }
        owner = {"AWS_ACCESS_KEY_ID": OWNER, "AWS_SECRET_ACCESS_KEY": SECRET}
        past = {**at, **owner, "AWS_ENDPOINT_URL": f"http://{self.server.address}"}
        sink = hf.Delta(self.url, key, options=options)

        def rows() -> list[Row]:
            table = DeltaTable(self.url, storage_options=past).to_pyarrow_table(columns=["user", "name"])
            return [tuple(row.values()) for row in table.to_pylist()]

        def opened(given: Sink, writer: Any, fault: Fault) -> Target:
            target: Target = sink.opened(JOB, writer, fault=fault)
            return target

        return Failing(SinkKit(lambda: sink, rows, opened), self.outages)

    def iceberg(self, folder: Path, key: tuple[str, ...] | None = None) -> Failing:
        """A table whose warehouse is in the store; its catalogue is a file."""
        # The default, of pyarrow, completes uploads by requests that versitygw does not always understand.
        files = {"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"}
        at = {"s3.region": "us-east-1", "s3.connect-timeout": "2", "s3.request-timeout": "2", **files}
        user = {"s3.access-key-id": S3_USER, "s3.secret-access-key": hf.secret("env:OUTAGE_PASSWORD")}
        options: dict[str, Any] = {**at, **user, "s3.endpoint": f"http://{self.server.link.address}"}
        owner = {"s3.access-key-id": OWNER, "s3.secret-access-key": SECRET}
        past = {**at, **owner, "s3.endpoint": f"http://{self.server.address}"}
        catalog = f"sqlite:///{folder}/catalog.db"
        sink = hf.Iceberg("shop.rows", catalog, self.url, key, options=options)
        return iceberg(sink, self.outages, {"uri": catalog, "warehouse": self.url, **past})

    def log_source(self) -> Failing:
        store = FsspecObjects(self.url)
        create_log(store, NUMBERS, partitions=2)

        def append() -> None:
            LogWriter(store).append({partition: pa.table({"n": [1, 2, 3]}, NUMBERS) for partition in (0, 1)})

        append()
        return Failing(SourceKit(lambda: hf.Log(self.url, NUMBERS).source(), append), self.outages)

    def files_source(self) -> Failing:
        inbox, numbers = FsspecObjects(self.url), count()

        def append() -> None:
            inbox.put(f"part-{next(numbers)}", b"n\n1\n2\n3")

        append()
        source = hf.Files(self.url, NUMBERS, "csv", partitions=1).source()
        listed = source.in_folder(self.server.url(f"{self.prefix}/job")).copied(again=True)
        return Failing(SourceKit(lambda: listed, append), self.outages)

    def permit(self, *actions: str) -> None:
        """Let the user do this in the bucket, and nothing else."""
        import s3fs

        bucket = f"arn:aws:s3:::{BUCKET}"
        rules = [
            {
                "Effect": "Allow",
                "Principal": {"AWS": [S3_USER]},
                "Action": [action],
                "Resource": [bucket if action == "s3:ListBucket" else f"{bucket}/*"],
            }
            for action in actions
        ]
        policy = json.dumps({"Version": "2012-10-17", "Statement": rules})
        owner = s3fs.S3FileSystem(key=OWNER, secret=SECRET, endpoint_url=f"http://{self.server.address}")
        owner.call_s3("put_bucket_policy", Bucket=BUCKET, Policy=policy)

    def permit_all(self) -> None:
        """Let the user do what a job needs."""
        self.permit(*_PERMISSIONS)

    @contextmanager
    def _refused(self) -> Iterator[None]:
        self.permit(*_PERMISSIONS[-1:])
        try:
            yield
        finally:
            self.permit_all()

    def _restart(self) -> None:
        self.server.stop()
        self.server.start()


def _records(reader: LogReader, partition: int, end: int) -> Iterator[Row]:
    offset = 0
    while offset < end:
        batch, following = reader.read(partition, offset, 1 << 20)
        if batch is None:
            return
        yield from (tuple(row.values()) for row in batch.to_pylist())
        offset = following


def sqlite(folder: Path, key: tuple[str, ...] | None, delivery: str = "transactional") -> Failing:
    """Return a table in a file that another process holds while it is away; there is no server, and no login."""
    path = folder / "out.db"
    sink = hf.SQLite(path, "totals", key, delivery)

    def rows() -> list[Row]:
        with closing(sqlite3.connect(path)) as db:
            return db.execute('SELECT totals."user", name FROM totals').fetchall()

    @contextmanager
    def held() -> Iterator[None]:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            yield
            other.execute("ROLLBACK")

    def opened(given: Sink, writer: Any, fault: Fault) -> Target:
        return SqlTarget(sink, JOB, writer, fault)

    return Failing(SinkKit(lambda: sink, rows, opened), Outages(held))


PASSWORDS = {"OUTAGE_PASSWORD": PASSWORD}
"""Where the sinks and sources of this module read the password."""
