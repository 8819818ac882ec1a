"""A Kafka topic as a target: rows and tag in one transaction, in an order that no older writer survives.

A target initialises its transactional id, then reads the progress topic to its end, then compares, then delivers. From
the init on, the commit of any older producer of the id fails, so nothing can change between the comparison and the
commit. All writers of a sink have one id: the owner of the target is compared under the same fence.

Invariants
    - A session begins with the init; what it knows of the progress topic was read after it.
    - A session ends with the first error, and with the first sign that the library has resent a request. Its producer
      is never used again.
    - An error after the commit was sent proves neither a commit nor an abort: the progress topic decides.
    - The tag is the first record of a transaction.
    - A delivery goes to the topic that has the sink's earlier rows: the progress topic says which one of its name.
    - A transaction that adds more to the progress topic than tag, topic and owner (a changelog's first delivery) is
      committed only if nothing else came there since it was read: of two such transactions under ids that do not fence
      each other, the one whose records are later sees the other's.

Pure: no clock, thread or I/O of its own; client.py has the connections.
Source: PROTOCOL P17, P19, P24; docs/decisions/0076-kafka-sink.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import pyarrow as pa

from holdfast.errors import ConfigError, HoldfastError, Unavailable
from holdfast.model import Tag, Writer
from holdfast.sinks.contract.owners import Claim, check_continues, rows_taken_back
from holdfast.sinks.contract.phrases import NOTHING, RETRIES
from holdfast.sinks.contract.target import (
    AlreadyDelivered,
    Delivered,
    EpochOutput,
    Fault,
    Merges,
    Outcome,
    Target,
    already,
    no_fault,
)
from holdfast.sinks.kafka.progress import Progress, owner_record, tag_record, topic_record

Values: TypeAlias = Sequence[bytes | None] | pa.Array
"""Bytes, one by one or as a binary array of Arrow."""
TOPIC_REPLACED = "the topic was deleted and created again"
Epoch = tuple[Tag, Sequence[pa.RecordBatch]]


@dataclass(frozen=True)
class Records:
    """Rows as the topic holds them; key and value of a record have the same place.

    Args:
        keys: None: the records have no key.
        values: None deletes the key.
        partition: Where all of them go; None: the key of each decides.
    """

    keys: Values | None
    values: Values
    partition: int | None = None


def listed(values: Values) -> Sequence[bytes | None]:
    """Return values one by one."""
    return values.to_pylist() if isinstance(values, pa.Array) else values


Mark = tuple[bytes, bytes]
"""Key and value of a record of the progress topic."""


class Content(Protocol):
    """The content of a target's transactions besides tags and owners."""

    def marks(self, progress: Progress) -> Iterable[Mark]:
        """Return what else a transaction adds to the progress topic: what makes the topic that of this content.

        Raises:
            HoldfastError: the topic is not the one that the progress topic describes, or cannot be looked at now.
        """

    def session(self) -> None:
        """A session begins: what was seen of the topic before may have changed."""

    def records(self, tag: Tag, before: Tag | None, batches: Sequence[pa.RecordBatch]) -> Iterable[Records]:
        """Return the records of one epoch. Raises ConfigError: the topic can never take one.

        Args:
            before: The writer's tag as it was; None if it never delivered.
        """


def check_rows_fit(where: str, progress: Progress, not_done: str) -> None:
    """Refuse rows of a stream for a topic that holds a changelog: no state could be restored from it any more.

    Raises:
        ConfigError: it holds one.
    """
    if progress.layout is not None:
        raise ConfigError(
            f"{where}: holds the changelog of a job: its state is in there",
            not_done=not_done,
            next_step="name another topic; a missing one is created to fit",
        )


@dataclass(frozen=True)
class EachRow(Content):
    """Rows as they are, each a record.

    Args:
        where: How messages name the topic.
        of: Returns rows as records. Raises ConfigError.
    """

    where: str
    of: Callable[[pa.RecordBatch], Records]

    def marks(self, progress: Progress) -> Iterable[Mark]:
        """A job may have made the topic that of its changelog since this one started."""
        check_rows_fit(self.where, progress, NOTHING)
        return ()

    def session(self) -> None:
        """Every session writes the same."""

    def records(self, tag: Tag, before: Tag | None, batches: Sequence[pa.RecordBatch]) -> Iterable[Records]:
        return map(self.of, batches)


class ProducerFenced(Exception):
    """A newer producer of the transactional id exists: this one's transaction can no longer be committed."""


class NotAlone(ProducerFenced):
    """Another process begins to deliver to the topic too: what it has committed can be read after an init."""


class TransactionalProducer(Protocol):
    """One producer with its transactional id.

    Its calls raise ProducerFenced or a HoldfastError; after either, only `abort` and `destroy` may be called.
    """

    def init(self) -> None:
        """Fence older producers of the id, and end what they left open."""

    def begin(self) -> None:
        """Begin a transaction."""

    def mark(self, key: bytes, value: bytes) -> None:
        """Add a record to the progress topic."""

    def send(self, records: Records) -> None:
        """Add records to the topic."""

    def flush(self) -> None:
        """Wait until the brokers have every record of the transaction."""

    def commit(self) -> None:
        """Commit the transaction, whose records are flushed. After an error, the outcome is unknown."""

    def abort(self) -> None:
        """Try to abort the transaction, so that readers need not wait for its timeout."""

    @property
    def disturbed(self) -> bool:
        """Whether the library reported any error, so that it may have resent a request."""

    def destroy(self) -> None:
        """Give up the producer without another word to the brokers."""


class BrokerConnection(Protocol):
    """The open connection of a target to the brokers."""

    def producer(self) -> TransactionalProducer:
        """Return a new producer of the target's transactional id, which is not initialised yet."""

    def progress(self) -> Progress:
        """Read the progress topic to its end, and return what all of its records add up to."""

    def committed(self, marks: Sequence[Mark]) -> None:
        """A transaction with these records was committed, whose producer no other process fenced since the progress
        topic was read: if nothing else came there, `progress` need not read them back."""

    def added(self) -> int:
        """Return how many records came to the progress topic since it was read last, those of open transactions too."""

    def topic(self) -> str | None:
        """Ask the brokers what the topic differs by from others of its name; None if they have no such ids."""

    def replaced(self) -> bool:
        """Return whether the topic or its progress topic is known to be another one than when it was asked for; asks
        once a second, and waits a moment for the answer."""

    def close(self) -> None:
        """Release what is open for reading; the next call opens it again."""


def must_be_alone(producer: TransactionalProducer, connection: BrokerConnection, marked: int) -> None:
    """Give up a transaction if more came to the progress topic since it was read than the records that it has marked.

    Raises:
        NotAlone: it was given up.
    """
    producer.flush()
    if connection.added() != marked:
        producer.abort()
        raise NotAlone("another process delivers to the topic")


@dataclass
class ProducerSession:
    """A producer from its init to its first error."""

    producer: TransactionalProducer
    progress: Progress
    topic: str | None
    """The id of the topic."""


class KafkaTarget(Merges, Target):
    """One writer's way into a topic. See contract.Merges.

    Args:
        where: How messages name the topic.
        connection: Opens what is needed at the first use.
        content: Returns what the transactions hold.
        job_uuid: The job.
        writer: Whose output this is.
        claim: See Sink.open.
        fault: Called at every fault point of a delivery; for tests.
    """

    def __init__(
        self,
        where: str,
        connection: BrokerConnection,
        content: Content,
        job_uuid: str,
        writer: Writer,
        claim: Claim | None = None,
        fault: Fault = no_fault,
    ) -> None:
        self._where = f"{where}, sink {writer.sink!r}, writer {writer.subtask}"
        self._connection, self._content = connection, content
        self._job, self._writer, self._claim, self._fault = job_uuid, writer, claim, fault
        self._session: ProducerSession | None = None

    def delivered(self) -> Tag | None:
        try:
            return self._admit(self._refreshed().progress)
        except ProducerFenced as error:
            raise self._fenced(error) from error

    def deliver(self, tag: Tag, batches: Iterable[pa.RecordBatch], known: Tag | None = None) -> Outcome:
        return self.deliver_together([EpochOutput(tag, batches)], known)

    def deliver_together(self, epochs: Sequence[EpochOutput], known: Tag | None = None) -> Outcome:
        first, last = epochs[0].tag, epochs[-1].tag
        try:
            session = self._refreshed()
            if (prior_outcome := self._covered(session, first, known)) is not None:
                return prior_outcome
            epoch_rows = [(epoch.tag, list(epoch.batches)) for epoch in epochs]
            self._fault("before_begin")
            with suppress(ProducerFenced):
                return Delivered(self._transact(session, last, epoch_rows))
            # The transaction is void. Whatever the newer producer has committed can be read after another init.
            session = self._opened()
            if (prior_outcome := self._covered(session, first, known)) is not None:
                return prior_outcome
            return Delivered(self._transact(session, last, epoch_rows))
        except ProducerFenced as error:
            raise self._fenced(error) from error

    def forget(self, through: Tag) -> None:
        """A topic replaces no record, so there are no before-images."""

    def close(self) -> None:
        """The next target's init ends a transaction that is still open."""
        self._end_session()
        self._connection.close()

    def _refreshed(self) -> ProducerSession:
        """Return the open session with what the progress topic says now, or a new session."""
        if self._session is None:
            return self._opened()
        try:
            if self._connection.replaced():
                self._end_session()
                self._connection.close()
                return self._opened()
            self._session.progress = self._connection.progress()
        except BaseException:
            self._end_session()
            raise
        return self._session

    def _opened(self) -> ProducerSession:
        """Begin a session: first the init, then the progress topic (P19)."""
        producer = self._connection.producer()
        self._content.session()
        try:
            producer.init()
            progress = self._connection.progress()
            topic = self._connection.topic()
        except BaseException:
            producer.destroy()
            self._connection.close()
            raise
        self._session = ProducerSession(producer, progress, topic)
        return self._session

    def _end_session(self) -> None:
        if self._session is not None:
            self._session.producer.destroy()
            self._session = None

    def _covered(self, session: ProducerSession, first: Tag, known: Tag | None) -> AlreadyDelivered | None:
        """Return the tag if it covers the delivery; else compare it with what the writer knows.

        Raises:
            Fenced, Damaged, Unavailable: see Target.deliver.
        """
        standing = self._admit(session.progress)
        if standing is not None and standing >= first:
            return already(self._where, first, standing)
        if known is not None:
            check_continues(self._where, standing, known)
        return None

    def _admit(self, progress: Progress) -> Tag | None:
        """Compare the owner, and return the writer's tag."""
        self._must_take_over(progress)
        return progress.tag_of(self._job, self._writer)

    def _must_take_over(self, progress: Progress) -> bool:
        if self._claim is None:
            return False
        job, sink = self._job, self._writer.sink
        return self._claim.must_take_over(self._where, progress.held(job, sink), lambda: progress.newest(job, sink))

    def _transact(self, session: ProducerSession, tag: Tag, epochs: Sequence[Epoch]) -> int:
        """Commit the rows of the epochs with the last tag; return their number.

        Raises:
            ProducerFenced: nothing was committed, or a newer producer knows better.
            HoldfastError: nothing was committed, or the outcome is unknown.
        """
        producer = session.producer
        in_doubt = False
        try:
            marks, rows = self._filled(session, tag, epochs)
            producer.flush()
            self._fault("before_commit")
            in_doubt = True
            producer.commit()
            self._fault("after_commit")
        except HoldfastError:
            if not in_doubt:
                producer.abort()
            self._end_session()
            raise
        except BaseException:
            self._end_session()
            raise
        if producer.disturbed:
            self._end_session()
        else:
            self._connection.committed(marks)
        return rows

    def _filled(self, session: ProducerSession, tag: Tag, epochs: Sequence[Epoch]) -> tuple[Sequence[Mark], int]:
        """Begin the transaction, and add tag, owner and rows to it; return its marks and the number of rows."""
        producer, rows, before = session.producer, 0, session.progress.tag_of(self._job, self._writer)
        marks = list(self._content.marks(session.progress))
        delivery_marks = [tag_record(self._job, self._writer, tag), *self._topic_marks(session, tag)]
        if self._claim is not None and self._must_take_over(session.progress):
            delivery_marks.append(owner_record(self._job, self._writer.sink, self._claim))
        producer.begin()
        for mark in (*delivery_marks, *marks):
            producer.mark(*mark)
        self._fault("after_tag")
        if marks:
            must_be_alone(producer, self._connection, len(delivery_marks) + len(marks))
        for n, (of, batches) in enumerate(epochs):
            if n:
                self._fault("between_epochs")
            for records in self._content.records(of, before, batches):
                producer.send(records)
            rows, before = rows + sum(batch.num_rows for batch in batches), of
        return (*delivery_marks, *marks), rows

    def _topic_marks(self, session: ProducerSession, tag: Tag) -> Sequence[Mark]:
        """Return what notes the topic, once. Raises Damaged if it is another one than the newest delivery was made to.

        After a rewind, which cannot take rows of a topic back, it may be: the user was told.
        """
        job, sink, progress = self._job, self._writer.sink, session.progress
        known, newest = progress.topic_of(job, sink), progress.newest(job, sink)
        if session.topic is None or session.topic == known:
            return ()
        if known is not None and newest is not None and newest.timeline == tag.timeline:
            raise rows_taken_back(self._where, newest, TOPIC_REPLACED)
        return [topic_record(job, sink, session.topic)]

    def _fenced(self, error: ProducerFenced) -> Unavailable:
        if isinstance(error, NotAlone):
            return Unavailable(
                f"{self._where}: another process began to deliver to the topic at the same moment, twice",
                not_done="nothing was delivered by this process",
                next_step=f"{RETRIES}, and is refused if the other process was first",
            )
        return Unavailable(
            f"{self._where}: the transaction was ended twice, by another process with the same transactional id or by "
            "its timeout",
            not_done="nothing was delivered by this process",
            next_step="nothing, if an older run of this job is about to end: delivery reads the tag and retries; else "
            "find the other process, such as a copy of this job, or give a larger transaction.timeout.ms in options=",
        )
