"""Positions of checkpoints as the offsets of a consumer group, where tools of Kafka compute a lag from them.

The job never reads them: its positions are those of its checkpoints. A consumer that is a member of no group stores
them. The administrator's request for the same ends the process where a broker goes away meanwhile (librdkafka 2.x).

Invariants
    - Every wait for an answer is bounded.
    - One request is under way: while its answer is still to come, also after the wait for it, no other one is sent.

Source: docs/decisions/0075-kafka-source.md.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.errors import ConfigError, HoldfastError
from holdfast.runtime.plan.source import OffsetPublisher
from holdfast.storage.kafka.errors import COORDINATOR_STARTS, GROUP_IN_USE, NO_RIGHT, no_client, translated, unavailable
from holdfast.storage.kafka.place import KafkaPlace
from holdfast.storage.kafka.questions import ANSWER_WITHIN_S, FIRST_ANSWER_WITHIN_S, LOOK_EVERY_S, Reported, log

GIVEN_UP_AFTER_MS = 6_000
"""How long librdkafka looks for the broker of a group: as long as the session of a member lasts."""
Named = Callable[[Mapping[int, int]], list[tuple[str, int, int]]]


class GroupOffsets(OffsetPublisher):
    """See OffsetPublisher.

    Args:
        named: Returns topic, partition and offset for offsets by number of a partition, without those that no topic has
            any more; None: numbers are partitions of the place's topic.
    """

    def __init__(self, place: KafkaPlace, group: str, named: Named | None = None) -> None:
        self._place, self._group = place, group
        self._named = self._of_topic if named is None else named
        self._not_done = f"the offsets of consumer group {group!r} were not stored"
        self._consumer: Any = None
        self._reported = Reported()
        self._answers = deque[tuple[Any, Any]]()
        self._awaited = self._answered = False
        """Whether an answer is still to come, and whether one ever came."""

    def publish(self, offsets: Mapping[int, int]) -> None:
        """Raises:
        ConfigError: the group has members, or the options are wrong.
        NotAdmitted: the credentials are refused, or the user has no right to the group.
        Unavailable: no broker answers.
        """
        until = time.monotonic() + (ANSWER_WITHIN_S if self._answered else FIRST_ANSWER_WITHIN_S)
        if self._awaited:
            self._answer(until)
        while (refused := self._stored(offsets, until)) is not None:
            if refused.name() not in COORDINATOR_STARTS or time.monotonic() > until:
                raise self._meaning(refused)
            time.sleep(LOOK_EVERY_S)

    def close(self) -> None:
        """While an answer is still to come, it waits for that, `GIVEN_UP_AFTER_MS` at most."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _stored(self, offsets: Mapping[int, int], until: float) -> Any:
        """Store the offsets; return the error of a partition, None if all are stored."""
        from confluent_kafka import KafkaException, TopicPartition

        consumer = self._opened()
        places = [TopicPartition(*named) for named in self._named(offsets)]
        if not places:
            return None
        try:
            consumer.commit(offsets=places, asynchronous=True)
        except KafkaException as error:
            return error.args[0]
        self._awaited = True
        return self._answer(until)

    def _of_topic(self, offsets: Mapping[int, int]) -> list[tuple[str, int, int]]:
        return [(self._place.topic, partition, offset) for partition, offset in sorted(offsets.items())]

    def _answer(self, until: float) -> Any:
        """Wait for the answer to the request that is under way; return its error."""
        while not self._answers:
            found = self._consumer.poll(LOOK_EVERY_S)
            if found is not None and found.error() is not None and found.error().name() in NO_RIGHT:
                raise self._meaning(found.error())  # the client goes on to ask for the broker that keeps the group
            if not self._answers and time.monotonic() > until:
                why = "it gives no answer" if self._reported.error is None else self._reported.error.str()
                raise unavailable(self._place, self._place.without_secrets(why), self._not_done)
        failed, stored = self._answers.popleft()
        self._awaited, self._answered, self._reported.error = False, True, None
        return failed or next((each.error for each in stored if each.error is not None), None)

    def _meaning(self, refused: Any) -> HoldfastError:
        if refused.name() not in GROUP_IN_USE:
            return translated(refused, self._place, self._not_done)
        return ConfigError(
            f"{self._place.where}: consumer group {self._group!r} has members, so its offsets are theirs",
            not_done=self._not_done,
            next_step="give hf.Kafka(group=...) the name of a group that nothing else uses",
        )

    def _opened(self) -> Any:
        if self._consumer is None:
            try:
                from confluent_kafka import Consumer, KafkaException
            except ImportError as error:
                raise no_client(error) from error
            self._reported = Reported()
            self._answers.clear()
            settings = self._place.settings(
                group_id=self._group, enable_auto_commit=False, session_timeout_ms=GIVEN_UP_AFTER_MS
            )
            own = {"on_commit": lambda failed, stored: self._answers.append((failed, stored))}
            try:
                self._consumer = Consumer({**settings, **own, "error_cb": self._reported}, logger=log)
            except KafkaException as error:
                raise translated(error.args[0], self._place, self._not_done) from None
        return self._consumer
