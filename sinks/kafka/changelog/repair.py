"""The repair of a rewind: one transaction that moves the tags of all writers, and ends the former timeline.

Records of abandoned epochs stay: readers leave them out by their tags. Only the fence counts: after the init, no
older producer commits, so nothing of an older timeline comes behind the new tags.

Pure: no clock, thread or I/O of its own. Source: PROTOCOL P21; docs/decisions/0111-changelogs-in-kafka.md.
"""

from __future__ import annotations

from holdfast.errors import HoldfastError, Unavailable
from holdfast.model import Tag, Writer
from holdfast.sinks.contract.sink import Repair, Rewinding
from holdfast.sinks.kafka.changelog.reading import COMMITTER
from holdfast.sinks.kafka.progress import Progress, owner_record, tag_record
from holdfast.sinks.kafka.target import BrokerConnection, Content, ProducerFenced, TransactionalProducer, must_be_alone
from holdfast.sinks.protocol.undo import impossible, overtaken, refused, untouched


def plan_repair(where: str, progress: Progress, rewinding: Rewinding) -> Repair:
    """See Repairs.plan_repair."""
    _must_take_over(where, progress, rewinding)
    if (lost := _lost(progress, rewinding)) is not None and _moving(where, progress, rewinding):
        return impossible(lost, takes_more=False)
    return _planned(progress, rewinding) if _moving(where, progress, rewinding) else untouched("truncate", rewinding)


def repair(where: str, connection: BrokerConnection, content: Content, rewinding: Rewinding) -> Repair:
    """See Repairs.repair."""
    producer = connection.producer()
    try:
        producer.init()
        progress = connection.progress()
        takes_over = _must_take_over(where, progress, rewinding)
        if not _moving(where, progress, rewinding):
            return untouched("truncate", rewinding)
        if (lost := _lost(progress, rewinding)) is not None:
            raise refused(where, lost)
        first = list(content.marks(progress))
        marks = [*_tags(rewinding), *first]
        if takes_over and rewinding.claim is not None:
            marks.append(owner_record(rewinding.job_uuid, rewinding.sink, rewinding.claim))
        before = progress.tag_of(rewinding.job_uuid, Writer(rewinding.sink, COMMITTER))
        producer.begin()
        for mark in marks:
            producer.mark(*mark)
        if first:
            must_be_alone(producer, connection, len(marks))
        for records in content.records(rewinding.to, before, ()):
            producer.send(records)
        _commit(producer)
        return _planned(progress, rewinding)
    except ProducerFenced as error:
        raise Unavailable(
            f"{where}: another process took its transactional id over during the repair, or delivered too",
            not_done="no tag was moved",
            next_step="no action needed: the repair is repeated",
        ) from error
    finally:
        producer.destroy()
        connection.close()


def _commit(producer: TransactionalProducer) -> None:
    """Commit. After an error the outcome is unknown, and the repeated repair reads it."""
    try:
        producer.flush()
    except HoldfastError:
        producer.abort()
        raise
    producer.commit()


def _tags(rewinding: Rewinding) -> list[tuple[bytes, bytes]]:
    writers = {writer.subtask: writer for writer in (Writer(rewinding.sink, COMMITTER), *rewinding.writers)}
    return [tag_record(rewinding.job_uuid, writer, rewinding.to) for writer in writers.values()]


def _must_take_over(where: str, progress: Progress, rewinding: Rewinding) -> bool:
    job, sink, claim = rewinding.job_uuid, rewinding.sink, rewinding.claim
    if claim is None:
        return False
    return claim.must_take_over(where, progress.held(job, sink), lambda: progress.newest(job, sink))


def _lost(progress: Progress, rewinding: Rewinding) -> str | None:
    """Return why the state as of the base epoch is no longer in the topic; None if it is."""
    base = progress.base_of(rewinding.job_uuid, rewinding.sink)
    if base is None or base.through.epoch <= rewinding.to.epoch:
        return None
    return f"the topic is compacted through epoch {base.through.epoch}"


def _moving(where: str, progress: Progress, rewinding: Rewinding) -> bool:
    """Return whether a tag has to move. Raises Fenced."""
    tags = progress.tags_of(rewinding.job_uuid, rewinding.sink)
    newest = max(tags.values(), default=None)
    if newest is not None and newest.timeline > rewinding.to.timeline:
        raise overtaken(where, newest, rewinding)
    return any(_behind(tags.get(writer.subtask), rewinding.to) for writer in rewinding.writers)


def _behind(standing: Tag | None, to: Tag) -> bool:
    return standing is None or standing < to


def _planned(progress: Progress, rewinding: Rewinding) -> Repair:
    stands = progress.newest(rewinding.job_uuid, rewinding.sink)
    until = "" if stands is None else f" through epoch {stands.epoch}"
    reason = f"records after epoch {rewinding.to.epoch}{until} no longer count; readers leave them out by their tags"
    return Repair("truncate", 0, 0, 0, (), reason)
