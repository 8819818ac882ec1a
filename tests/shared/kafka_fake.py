"""The transactions of Kafka's brokers without a network: what init, commit and late requests do to a topic.

A transactional id has an epoch, which every init raises, and at most one open transaction. A request of an older
epoch is refused. A request that is late meets whatever transaction is open then, if the epoch is still its own:
brokers of version 1 of the transaction protocol cannot tell two transactions of one producer apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from holdfast.errors import HoldfastError, Unavailable
from holdfast.sinks.kafka.progress import Progress
from holdfast.sinks.kafka.target import Mark, ProducerFenced, Records

CommitFault = Literal["none", "lost", "late", "resent", "timed out", "resent and lost"]
"""none: the commit succeeds. lost: it succeeds without a reply. late: it lands later. resent: the library sent it
twice, and the first request lands later. timed out: the brokers aborted the transaction before. resent and lost:
resent, and no reply comes."""
Record = tuple[bytes, bytes]
FAULTS: tuple[CommitFault, ...] = ("none", "lost", "late", "resent", "timed out", "resent and lost")


@dataclass
class Transaction:
    """What a transaction adds."""

    marks: list[tuple[bytes, bytes]] = field(default_factory=list)
    rows: list[bytes | None] = field(default_factory=list)
    placed: list[tuple[int, Record]] = field(default_factory=list)
    """The records whose partition the producer chose."""


@dataclass
class FakeBrokers:
    """One topic, its progress topic, and the transactions of all ids."""

    rows: list[bytes | None] = field(default_factory=list)
    """Values that a read_committed reader sees."""
    marks: list[tuple[bytes, bytes]] = field(default_factory=list)
    logs: dict[int, list[Record | None]] = field(default_factory=dict)
    """By partition, records by their offsets; None is the marker of a transaction, which takes an offset."""
    marked: int = 0
    """How many records, and markers of transactions, the progress topic ever had."""
    epochs: dict[str, int] = field(default_factory=dict)
    opened: dict[str, Transaction] = field(default_factory=dict)
    late: list[tuple[str, int]] = field(default_factory=list)
    """Commits that are on their way, each with the epoch of its producer."""
    calls: list[str] = field(default_factory=list)
    fault: Callable[[], CommitFault] = lambda: "none"
    cut: Callable[[str], None] = lambda _: None
    """Called with the name of each call of a producer, and with `poll` by readers of changelogs; raises while the
    brokers are to be unreachable."""
    meanwhile: Callable[[], None] = lambda: None
    """Called before an init and before the progress topic is read: what others do there."""
    committed: list[tuple[bytes, bytes]] = field(default_factory=list)
    """The marks of which targets said that they are in."""
    topic: str | None = None
    """The id of the topic."""

    def replace(self, topic: str) -> None:
        """Delete the topic and create it again, as its administrator does."""
        self.topic, self.rows, self.logs = topic, [], {}

    def commit(self, name: str) -> None:
        """Make an open transaction visible."""
        done = self.opened.pop(name)
        self.marked += 1
        self.rows += done.rows
        for partition, record in done.placed:
            self.logs.setdefault(partition, []).append(record)
        for partition in sorted({partition for partition, _ in done.placed}):
            self.logs[partition].append(None)
        self.marks += done.marks

    def void(self, name: str) -> None:
        """Abort an open transaction, if there is one."""
        if self.opened.pop(name, None) is not None:
            self.marked += 1

    def land(self) -> None:
        """Let the oldest late commit arrive."""
        if self.late:
            name, epoch = self.late.pop(0)
            if self.epochs[name] == epoch and name in self.opened:
                self.commit(name)


class FakeProducer:
    """See target.TransactionalProducer."""

    def __init__(self, brokers: FakeBrokers, name: str) -> None:
        self._brokers, self._name, self._epoch = brokers, name, 0
        self._disturbed = False

    @property
    def disturbed(self) -> bool:
        """See TransactionalProducer.disturbed."""
        return self._disturbed

    def init(self) -> None:
        """See TransactionalProducer.init."""
        self._said("init")
        self._brokers.meanwhile()
        self._epoch = self._brokers.epochs.get(self._name, 0) + 1
        self._brokers.epochs[self._name] = self._epoch
        self._brokers.void(self._name)

    def begin(self) -> None:
        """See TransactionalProducer.begin."""
        self._said("begin")
        self._brokers.opened[self._name] = Transaction()

    def mark(self, key: bytes, value: bytes) -> None:
        """See TransactionalProducer.mark."""
        self._said("mark")
        self._transaction().marks.append((key, value))
        self._brokers.marked += 1

    def send(self, records: Records) -> None:
        """See TransactionalProducer.send."""
        self._said("send")
        transaction = self._transaction()
        transaction.rows += records.values
        if records.partition is not None:
            pairs = zip(records.keys or (), records.values, strict=True)
            transaction.placed += [(records.partition, (key or b"", value or b"")) for key, value in pairs]

    def flush(self) -> None:
        """See TransactionalProducer.flush."""
        self._said("flush")
        self._check()

    def commit(self) -> None:
        """See TransactionalProducer.commit."""
        self._said("commit")
        self._check()
        brokers, fault = self._brokers, self._brokers.fault()
        if fault == "timed out":
            brokers.void(self._name)
        if self._name not in brokers.opened:
            raise self._unknown("invalid transaction state")
        if fault in ("late", "resent", "resent and lost"):
            brokers.late.append((self._name, self._epoch))
        if fault == "late":
            raise self._unknown("no reply")
        brokers.commit(self._name)
        if fault in ("lost", "resent and lost"):
            raise self._unknown("no reply")
        self._disturbed |= fault == "resent"

    def abort(self) -> None:
        """See TransactionalProducer.abort."""
        self._said("abort")
        if self._brokers.epochs[self._name] == self._epoch:
            self._brokers.void(self._name)

    def destroy(self) -> None:
        """See TransactionalProducer.destroy."""
        self._said("destroy")

    def _transaction(self) -> Transaction:
        self._check()
        # A late commit may have ended the transaction: brokers of version 1 then begin another one.
        return self._brokers.opened.setdefault(self._name, Transaction())

    def _check(self) -> None:
        if self._brokers.epochs[self._name] != self._epoch:
            raise ProducerFenced("a newer producer exists")

    def _said(self, what: str) -> None:
        self._brokers.calls.append(what)
        self._brokers.cut(what)

    def _unknown(self, what: str) -> HoldfastError:
        return Unavailable(what, next_step="read the tag")


class FakeConnection:
    """See target.Connection."""

    def __init__(self, brokers: FakeBrokers, name: str) -> None:
        self._brokers, self._name = brokers, name
        self._read = 0
        self._topic: str | None = None

    def producer(self) -> FakeProducer:
        """See BrokerConnection.producer."""
        return FakeProducer(self._brokers, self._name)

    def progress(self) -> Progress:
        """See BrokerConnection.progress."""
        self._brokers.calls.append("read")
        self._brokers.meanwhile()
        if any(each.marks for name, each in self._brokers.opened.items() if name != self._name):
            raise Unavailable("its progress topic could be read up to an open transaction only", next_step="again")
        found = Progress("the progress topic")
        for key, value in self._brokers.marks:
            found.apply(key, value)
        self._read = self._brokers.marked
        return found

    def topic(self) -> str | None:
        """See BrokerConnection.topic."""
        self._topic = self._brokers.topic
        return self._topic

    def replaced(self) -> bool:
        """See BrokerConnection.replaced."""
        return self._brokers.topic != self._topic

    def committed(self, marks: Sequence[Mark]) -> None:
        """See BrokerConnection.committed."""
        self._brokers.committed += marks

    def added(self) -> int:
        """See BrokerConnection.added."""
        return self._brokers.marked - self._read

    def close(self) -> None:
        """See BrokerConnection.close."""


def as_records(batch: pa.RecordBatch) -> Records:
    """Return rows of one text column as records without keys."""
    return Records(None, [text.encode() for text in batch.column(0).to_pylist()])
