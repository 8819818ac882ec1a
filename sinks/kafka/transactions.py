"""The open transactions in a topic and its progress topic, and how those of a sink are ended.

The client library has no request that lists the transactions of a cluster, or says whose one is. So what can be seen is
what they do: between the last stable offset and the end of a partition, readers see nothing. Holdfast can end the
transactions of a known transactional id: a producer that initialises the id aborts what an older one left open, and
completes what it had begun to commit.

Source: KIP-98 (transactions), KIP-664 (requests that the library lacks); docs/decisions/0109-open-transactions.md.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

from holdfast.errors import HoldfastError, Unavailable
from holdfast.sinks.contract.transactions import Hidden, Transactions
from holdfast.sinks.kafka.progress import progress_topic
from holdfast.sinks.kafka.target import ProducerFenced
from holdfast.storage.kafka.place import KafkaPlace
from holdfast.storage.kafka.questions import Questions

NOT_ABORTED = "no transaction is known to be aborted"


class KafkaTransactions(Transactions):
    """See Transactions.

    Args:
        place: The topic of the rows.
        transactional_id: That of all writers of the sink.
    """

    def __init__(self, place: KafkaPlace, transactional_id: str) -> None:
        self._place, self.id = place, transactional_id

    def hidden(self) -> list[Hidden]:
        """A topic that does not exist hides nothing."""
        ranges = []
        for topic in (self._place.topic, progress_topic(self._place.topic)):
            with closing(Questions(replace(self._place, topic=topic))) as questions:
                if (known := questions.topic("nothing was looked at")) is None:
                    continue
                stable = questions.offsets(known.partitions, "end")
                written = questions.offsets(known.partitions, "written")
            ranges += [Hidden(topic, each, stable[each], end) for each, end in written.items() if stable[each] < end]
        return sorted(ranges)

    def abort(self) -> None:
        from holdfast.sinks.kafka.client import KafkaConnection

        producer = KafkaConnection(self._place, self.id).producer()
        try:
            producer.init()
        except ProducerFenced as error:
            raise Unavailable(
                f"{self._place.where}: another process took the transactional id {self.id} over just now: {error}",
                not_done=NOT_ABORTED,
                next_step="see whether the job was started: holdfast status JOB. A start ends what was left open",
            ) from None
        except HoldfastError as error:
            error.not_done = NOT_ABORTED
            raise
        finally:
            producer.destroy()
