"""A folder of files as a target: the files of an epoch and the writer's tag in one commit.

Invariants
    - A commit follows the one that was read, so the tag and the owner that were compared are those that it replaces.
    - A delivery returns only after its files are published, and a tag is reported only then: the job's output is
      confirmed when readers can see it.

Source: PROTOCOL P1, P4, P17, P24; docs/decisions/0021-owned-targets.md, 0083-files-sink.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from holdfast.errors import ConfigError, Unavailable
from holdfast.model import Tag, Writer
from holdfast.sinks.contract.owners import Claim, check_continues
from holdfast.sinks.contract.phrases import NOTHING, RETRIES
from holdfast.sinks.contract.target import AlreadyDelivered, Delivered, Fault, Outcome, Target, already, no_fault
from holdfast.sinks.files.commits import FolderCommits, Stores, new_id
from holdfast.sinks.files.format import (
    Claimed,
    FolderCommit,
    FolderTag,
    StagedFile,
    delivery,
    staged_path,
    writer_name,
)
from holdfast.sinks.files.hive import NoFolder
from holdfast.sinks.files.rolling import FinishedFile, Rolling

ATTEMPTS_MAX = 20
"""How often a delivery tries the next sequence because other writers were faster."""


class FilesTarget(Target):
    """One writer's access to the folder. See contract.Target.

    Args:
        where: How messages name the folder.
        stores: Opens it, at the first use.
        file_bytes: How large a file becomes.
        claim: See Sink.open.
        fault: Called at every fault point of a delivery; for tests.
    """

    def __init__(
        self,
        where: str,
        stores: Callable[[], Stores],
        job_uuid: str,
        writer: Writer,
        file_bytes: int,
        claim: Claim | None = None,
        fault: Fault = no_fault,
    ) -> None:
        self._where = f"{where}, sink {writer.sink!r}, writer {writer.subtask}"
        self._job, self._writer, self._file_bytes, self._fault = job_uuid, writer, file_bytes, fault
        self._by = Claimed(job_uuid, writer.sink, claim)
        self._name = writer_name(job_uuid, writer)
        self._commits = FolderCommits(self._where, stores)
        self._staged: list[str] = []
        """Files of deliveries that were not completed, which a commit in doubt may name."""

    def delivered(self) -> Tag | None:
        """First completes a commit that a crash interrupted."""
        tail = self._commits.refresh()
        admit(self._where, tail, self._by)
        self._commits.settle()
        return tail.tag_of(self._name)

    def deliver(self, tag: Tag, batches: Iterable[pa.RecordBatch], known: Tag | None = None) -> Outcome:
        self._commits.refresh()
        if (prior_outcome := self._covered(tag, known)) is not None:
            return prior_outcome
        id = new_id()
        staged_files = list(self._stage(tag, id, batches))
        self._fault("before_begin")
        for _ in range(ATTEMPTS_MAX):
            tail = self._commits.refresh()
            if (prior_outcome := self._covered(tag, known)) is not None:
                return prior_outcome
            self._fault("after_tag")  # Files and tag are one commit, so there is one point for both.
            self._fault("before_commit")
            commit = delivery(tail, id, FolderTag(self._name, tag.timeline, tag.epoch), staged_files, self._by)
            if self._commits.append(commit):
                self._commits.publish(commit.files)
                self._discard()
                self._fault("after_commit")
                return Delivered(sum(each.rows for each in staged_files))
        raise Unavailable(
            f"{self._where}: other sinks committed to the folder {ATTEMPTS_MAX} times while this delivery was made",
            not_done=NOTHING,
            next_step=RETRIES,
        )

    def forget(self, through: Tag) -> None:
        """No row is replaced, so there are no before-images."""

    def close(self) -> None:
        """A commit in doubt stays in doubt; the next target finds it or does not."""
        self._commits.close()

    def _covered(self, tag: Tag, known: Tag | None) -> AlreadyDelivered | None:
        """Return the tag if it covers the delivery; else make the folder ready for it.

        Raises:
            Fenced, Damaged, Unavailable: see Target.deliver.
        """
        tail = self._commits.tail
        admit(self._where, tail, self._by)
        standing = tail.tag_of(self._name)
        if standing is None or standing < tag:
            if known is not None:
                check_continues(self._where, standing, known)
            self._commits.settle()
            return None
        outcome = already(self._where, tag, standing)
        self._commits.settle()
        self._discard()
        return outcome

    def _discard(self) -> None:
        """Delete staged files that are not needed, because the tag covers them."""
        named = {file.staged for file in self._commits.tail.files}
        self._commits.discard(path for path in self._staged if path not in named)
        self._staged = []

    def _stage(self, tag: Tag, id: str, batches: Iterable[pa.RecordBatch]) -> Iterator[StagedFile]:
        """Store the rows as files that no reader sees; yield them."""
        for number, file in enumerate(self._files(batches)):
            path = staged_path(self._job, self._writer, tag, id, number)
            self._staged.append(path)
            self._commits.stores.own.put(path, file.data)
            yield StagedFile(file.folder, file.rows, len(file.data), path)

    def _files(self, batches: Iterable[pa.RecordBatch]) -> Iterator[FinishedFile]:
        meta = self._commits.meta
        partitioning, rolling = meta.partitioning, Rolling(meta.partitioning.in_files(meta.columns), self._file_bytes)
        for batch in batches:
            try:
                for folder, rows in partitioning.split(batch):
                    yield from rolling.add(folder, rows)
            except NoFolder as error:
                raise unfit(self._where, error) from error
        yield from rolling.rest()


def admit(where: str, tail: FolderCommit, by: Claimed) -> None:
    """Refuse to write after a commit that shows that another history owns the folder. Raises Fenced, Damaged."""
    if by.claim is not None:
        held = tail.held(by.job_uuid, by.sink)
        by.claim.must_take_over(where, held, lambda: tail.newest_of(by.job_uuid, by.sink))


def unfit(where: str, error: NoFolder) -> ConfigError:
    """Return the error for rows that no folder can take."""
    return ConfigError(
        f"{where}: {error}",
        not_done="the rows were not written",
        next_step="before the sink, leave these rows out with .filter(...), or partition by another column",
    )
