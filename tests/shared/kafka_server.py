"""A Kafka broker for tests: one node without ZooKeeper, on loopback ports, which ends with the module that started it.

`tools/bootstrap.sh kafka` downloads the jars; HOLDFAST_KAFKA may name another folder with them. The broker has three
listeners: one that trusts every client, one on which clients have a name, a password and only the rights that a test
gives them, and one that sends its clients to a proxy, which a test may run. It ends with the test process, even when
that is killed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from patience import run, wait, wait_for_end

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "HOLDFAST_KAFKA"
HOW_TO_GET_IT = "tools/bootstrap.sh kafka; pip install 'confluent-kafka>=2.6'"
USER, PASSWORD = "app", "a-password-that-no-message-shows"
"""Who may connect to the guarded listener. Without rights: see `allow`."""
ANSWER_WITHIN_S = 120.0
"""For the client's own calls: in C, where the limit of pytest does not reach them."""
_LOOK_S = 1.0
CLASSES = Path(sys.prefix) / "kafka-classes.jsa"
"""Written by tools/kafka_classes.py."""
_CLUSTER = "aG9sZGZhc3QtdGVzdHMtMQ"
_JVM = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{open},GUARDED://127.0.0.1:{guarded},PROXIED://127.0.0.1:{behind},\
CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{open},GUARDED://127.0.0.1:{guarded},PROXIED://127.0.0.1:{proxy}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,GUARDED:SASL_PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.guarded.plain.sasl.jaas.config=\
org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{password}";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
log.dirs={folder}/data
auto.create.topics.enable=false
broker.session.timeout.ms=4000
broker.heartbeat.interval.ms=500
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
transaction.max.timeout.ms=3600000
log.index.size.max.bytes=1048576
log.cleaner.dedupe.buffer.size=2097152
log.cleaner.backoff.ms=200
log.initial.task.delay.ms=500
num.network.threads=2
num.io.threads=2
background.threads=2
"""


def find_jars() -> Path:
    """Return the folder with Kafka's jars: HOLDFAST_KAFKA, or where tools/bootstrap.sh puts them."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast"
    listed = hashlib.sha256((ROOT / "tools/kafka.lock").read_bytes()).hexdigest()[:12]
    folder = Path(os.environ.get(VARIABLE) or cache / f"kafka-{listed}")
    if not folder.is_dir():
        pytest.fail(f"there is no Kafka broker for tests in {folder}; get it with: {HOW_TO_GET_IT}")
    return folder


class Ports(NamedTuple):
    """The ports of a broker, and the one at which a test may run a proxy: clients follow what a listener advertises."""

    open: int
    guarded: int
    behind: int
    """The listener to which a proxy connects."""
    proxy: int
    controller: int

    @property
    def of_broker(self) -> frozenset[int]:
        """Return those at which the broker itself listens for clients."""
        return frozenset((self.open, self.guarded, self.behind))


@dataclass
class KafkaServer:
    """A broker whose files are in a folder; it keeps its ports and topics when it starts again.

    Args:
        folder: Holds settings, data and the broker's log.
        ports: Where it listens.
        options: Of its JVM.
    """

    folder: Path
    ports: Ports
    options: Sequence[str]
    _made: Iterator[int] = field(default_factory=lambda: count(1))
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _clients: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def servers(self) -> str:
        """The address at which every client may do everything."""
        return f"127.0.0.1:{self.ports.open}"

    @property
    def guarded(self) -> str:
        """The address at which clients need `USER`, `PASSWORD` and rights."""
        return f"127.0.0.1:{self.ports.guarded}"

    @property
    def behind_proxy(self) -> str:
        """The address to which a proxy connects that listens at `proxied`."""
        return f"127.0.0.1:{self.ports.behind}"

    @property
    def proxied(self) -> str:
        """The address that the broker tells clients of `behind_proxy`; only a proxy of the test listens there."""
        return f"127.0.0.1:{self.ports.proxy}"

    # The process

    def create(self) -> None:
        """Create the files."""
        text = _SETTINGS.format(**self.ports._asdict(), folder=self.folder, user=USER, password=PASSWORD)
        (self.folder / "server.properties").write_text(text)
        settings = str(self.folder / "server.properties")
        command = [*_java(_archived()), "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", settings]
        status, out, errors = run(command, self.folder, "the broker's folder")
        assert status == 0, f"the broker's folder could not be formatted: {out}{errors}"

    def start(self) -> None:
        """Start the process, and wait until the broker answers."""
        settings = str(self.folder / "server.properties")
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                # The kernel ends the broker if the test process is killed.
                ["setpriv", "--pdeathsig", "KILL", *_java(self.options), "kafka.Kafka", settings],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )
        wait(self._answers, "the Kafka broker")

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        assert self._process is not None, "the broker does not run"
        return self._process.pid

    def stop(self) -> None:
        """End the process in an orderly way."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the process without warning, as a crash does."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """End the process, if it runs, and drop the clients."""
        self._clients.clear()
        if self._process is not None:
            self.kill()

    def _end(self, how: signal.Signals) -> None:
        assert self._process is not None, "the broker does not run"
        self._process.send_signal(how)
        wait_for_end(self._process, "the end of the Kafka broker")
        self._process = None

    def _answers(self) -> bool:
        from confluent_kafka import KafkaException

        assert self._process is not None
        ended = self._process.poll()
        assert ended is None, f"the broker ended with {ended}: {(self.folder / 'log').read_text()[-3_000:]}"
        try:
            return bool(self.admin.list_topics(timeout=_LOOK_S).brokers)
        except KafkaException:
            return False

    # Topics

    def topic(self, partitions: int = 1, name: str | None = None, **settings: str) -> str:
        """Create a topic, by default with a name of its own; settings have _ where Kafka has a full stop."""
        from confluent_kafka.admin import NewTopic

        name = name or f"topic-{next(self._made)}"
        named = {key.replace("_", "."): value for key, value in settings.items()}
        _done(self.admin.create_topics([NewTopic(name, partitions, 1, config=named)]))
        wait(lambda: len(self._partitions(name)) == partitions, f"topic {name}")
        return name

    def widen(self, topic: str, partitions: int) -> None:
        """Raise the number of partitions."""
        from confluent_kafka.admin import NewPartitions

        _done(self.admin.create_partitions([NewPartitions(topic, partitions)]))
        wait(lambda: len(self._partitions(topic)) == partitions, f"the partitions of {topic}")
        self._clients.pop("producer", None)  # it would learn of them minutes later

    def delete(self, topic: str) -> None:
        """Delete a topic, and wait until no broker knows it."""
        _done(self.admin.delete_topics([topic]))
        wait(lambda: not self._partitions(topic), f"the end of {topic}")

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Remove the records before an offset, as retention does."""
        from confluent_kafka import TopicPartition

        _done(self.admin.delete_records([TopicPartition(topic, partition, before)]))

    def allow(self, topic: str, *operations: str) -> None:
        """Give `USER` rights on a topic, such as "READ" and "DESCRIBE"."""
        from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

        who = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{USER}", "*")
        self._grant([AclBinding(*who, AclOperation[each], AclPermissionType.ALLOW) for each in operations])

    def allow_all(self) -> None:
        """Give `USER` every right on every topic and transaction."""
        from confluent_kafka.admin import AclBinding

        self._grant([AclBinding(*each) for each in self._everything()])

    def _grant(self, rights: Sequence[Any]) -> None:
        """Create rights, and wait until the broker knows them: it learns of them from the controller, later."""
        from confluent_kafka.admin import AclBindingFilter

        def known(right: Any) -> bool:
            names = ("restype", "name", "resource_pattern_type", "principal", "host", "operation", "permission_type")
            wanted = AclBindingFilter(*(getattr(right, name) for name in names))
            return bool(self.admin.describe_acls(wanted).result(ANSWER_WITHIN_S))

        _done(self.admin.create_acls(list(rights)))
        wait(lambda: all(known(right) for right in rights), "the broker to know new rights")

    def allow_nothing(self) -> None:
        """Take from `USER` what `allow_all` has given."""
        from confluent_kafka.admin import AclBindingFilter

        _done(self.admin.delete_acls([AclBindingFilter(*each) for each in self._everything()]))

    def _everything(self) -> list[tuple[Any, ...]]:
        from confluent_kafka.admin import AclOperation, AclPermissionType, ResourcePatternType, ResourceType

        every = ("*", ResourcePatternType.LITERAL, f"User:{USER}", "*", AclOperation.ALL, AclPermissionType.ALLOW)
        return [(kind, *every) for kind in (ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID)]

    def ends(self, topic: str, isolation: str = "read_committed") -> dict[int, int]:
        """Return, per partition, the offset after the last record that a client with this isolation level sees."""
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        wanted = {TopicPartition(topic, each): OffsetSpec.latest() for each in self._partitions(topic)}
        found = self.admin.list_offsets(wanted, isolation_level=IsolationLevel[isolation.upper()])
        return {place.partition: each.result(ANSWER_WITHIN_S).offset for place, each in found.items()}

    def stored(self, group: str, topic: str) -> dict[int, int]:
        """Return the offsets of a consumer group."""
        from confluent_kafka import Consumer, TopicPartition

        asked = [TopicPartition(topic, partition) for partition in self._partitions(topic)]
        consumer = Consumer({**self.quiet(), "group.id": group})
        try:
            return {each.partition: each.offset for each in consumer.committed(asked, timeout=ANSWER_WITHIN_S)}
        finally:
            consumer.close()

    def _partitions(self, topic: str) -> list[int]:
        found = self.admin.list_topics(timeout=ANSWER_WITHIN_S).topics.get(topic)
        return [] if found is None or found.error is not None else sorted(found.partitions)

    # Records

    def produce(
        self,
        topic: str,
        values: Iterable[bytes | None],
        partition: int = 0,
        key: bytes | None = None,
        **more: Any,
    ) -> None:
        """Append records with these values; returns when the broker has them."""
        producer = self.producer
        for value in values:
            producer.produce(topic, value, key, partition, **more)
        assert producer.flush(ANSWER_WITHIN_S) == 0, "the broker did not take the records"

    def fill(self, topic: str, values: Iterable[bytes]) -> None:
        """Append many records to partition 0."""
        producer = self.producer
        for place, value in enumerate(values):
            producer.produce(topic, value, partition=0)
            if place % 10_000 == 0:
                producer.flush(ANSWER_WITHIN_S)
        assert producer.flush(ANSWER_WITHIN_S) == 0, "the broker did not take the records"

    @contextmanager
    def transaction(self, name: str = "test", *, commit: bool = True) -> Iterator[Any]:
        """Give a producer in a transaction, which is committed or aborted when the block ends."""
        from confluent_kafka import Producer

        producer = Producer({**self.quiet(), "transactional.id": name})
        producer.init_transactions(ANSWER_WITHIN_S)
        producer.begin_transaction()
        yield producer
        producer.flush(ANSWER_WITHIN_S)
        if commit:
            producer.commit_transaction(ANSWER_WITHIN_S)
        else:
            producer.abort_transaction(ANSWER_WITHIN_S)

    def records(self, topic: str, isolation: str = "read_committed") -> list[Any]:
        """Return all messages of a topic that a consumer with this isolation level sees, by partition and offset."""
        from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

        consumer = Consumer(
            {
                **self.quiet(),
                "group.id": "test",
                "isolation.level": isolation,
                "enable.partition.eof": True,
                "enable.auto.commit": False,
            }
        )
        places = [TopicPartition(topic, each, OFFSET_BEGINNING) for each in self._partitions(topic)]
        consumer.assign(places)
        found: list[Any] = []
        ended: set[int] = set()
        while len(ended) < len(places):
            message = consumer.poll(ANSWER_WITHIN_S)
            assert message is not None, f"the broker does not answer about {topic}"
            if (error := message.error()) is None:
                found.append(message)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(message.partition())
        consumer.close()
        return sorted(found, key=lambda each: (each.partition(), each.offset()))

    @property
    def admin(self) -> Any:
        """A client for administration."""
        return self._client("admin")

    @property
    def producer(self) -> Any:
        """A producer without transactions, which does not change the order of records."""
        return self._client("producer")

    def _client(self, kind: str) -> Any:
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient

        if kind not in self._clients:
            quiet = self.quiet()
            made = AdminClient(quiet) if kind == "admin" else Producer({**quiet, "enable.idempotence": True})
            self._clients[kind] = made
        return self._clients[kind]

    def quiet(self) -> dict[str, Any]:
        """Return the settings of clients that report nothing of a broker that a test has ended."""
        return {"bootstrap.servers": self.servers, "log_level": 0, "reconnect.backoff.max.ms": 500}


@contextmanager
def running(*options: str) -> Iterator[KafkaServer]:
    """Run a broker without topics.

    Args:
        options: Of its JVM; without any, it loads its classes from the archive, if there is one.
    """
    try:
        import confluent_kafka  # noqa: F401
    except ImportError as error:
        pytest.fail(f"confluent-kafka is missing ({error}); get it with: {HOW_TO_GET_IT}")
    folder = Path(tempfile.mkdtemp(prefix="hf-kafka-"))
    server = KafkaServer(folder, _free_ports(), options or _archived())
    try:
        server.create()
        server.start()
        yield server
    finally:
        server.close()
        shutil.rmtree(folder)


def _archived() -> Sequence[str]:
    """Return the options that let a JVM start in half of the time; one with other classes starts as well."""
    if CLASSES.exists() and CLASSES.stat().st_size:
        return f"-XX:SharedArchiveFile={CLASSES}", "-Xlog:cds=off,cds+dynamic=off"
    return ()


def _java(options: Sequence[str]) -> Sequence[str]:
    home = os.environ.get("JAVA_HOME")
    return (f"{home}/bin/java" if home else "java", *_JVM, *options, _QUIET, "-cp", f"{find_jars()}/*")


def _free_ports() -> Ports:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in Ports._fields]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return Ports(*(each.getsockname()[1] for each in sockets))


def _done(futures: dict[Any, Any]) -> None:
    for each in futures.values():
        each.result(ANSWER_WITHIN_S)
