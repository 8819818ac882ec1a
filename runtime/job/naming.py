"""Name the last completed checkpoint of a job from outside its driver, whether or not a driver runs.

Any process may append the record `SavepointNamed` at any time (P6). By then the number that it read from the log may be
taken or pruned; then it reads the log again. No reader sees a record that fell into a hole (P7).

Invariants
    - Once sent, the record is sent again unchanged until its number is read (P4).
    - A name is given once, and its checkpoint never expires (P16).

Source: DESIGN section 4; PROTOCOL P4, P6, P7, P16.
"""

from __future__ import annotations

from holdfast.checkpoint import joblog
from holdfast.checkpoint.repository import Repository
from holdfast.errors import ConfigError, Fenced, Unavailable, Where


class Naming:
    """One name on its way into the log: call `look`, then `append`, until `look` returns the job."""

    def __init__(self, repository: Repository, name: str, owner: str, at_us: int) -> None:
        self._repository, self._name, self._owner, self._at_us = repository, name, owner, at_us
        self._record: joblog.Record | None = None
        self._pruned: joblog.SavepointNamed | None = None
        """The record that was in flight when the log was pruned above it: the new start may include it."""

    def look(self) -> joblog.Job | None:
        """Read the log, unless a record is in flight; return the job if it already has the name.

        Raises:
            ConfigError: the job or a checkpoint does not exist, or the name is taken.
            Unavailable: the log cannot be read now.
        """
        if self._record is not None:
            return None
        job = self._repository.read_log()
        if job is None:
            raise ConfigError("no job exists here yet", not_done="nothing was named", next_step="run the job first")
        if self._pruned is not None and job.savepoint(self._name) == joblog.Savepoint(self._name, self._pruned.epoch):
            return job
        check_name(job, self._name)
        if not job.completed:
            raise ConfigError(
                f"job {job.name!r} has not completed a checkpoint yet",
                not_done="nothing was named",
                next_step=f"run it until it completes one; see holdfast status {job.name}",
                where=Where(job=job.name),
            )
        body = joblog.SavepointNamed(job.base_epoch, self._name)
        self._record = joblog.Record(
            job.next_seq, job.uuid, job.generation, job.timeline, self._owner, self._at_us, body, prev=job.head
        )
        return None

    def append(self) -> bool:
        """Send the record; return whether the log holds it now. If not, call `look`, then `append` again."""
        record = self._record
        assert record is not None and isinstance(record.body, joblog.SavepointNamed)
        try:
            stored_record = self._repository.create_record(record)
        except Unavailable:
            return False  # sent again unchanged, until its number is read (P4)
        except Fenced:
            self._record, self._pruned = None, record.body
            return False
        if stored_record.owner == self._owner:
            return True
        self._record = None  # another writer's record took the number
        return False


def check_name(job: joblog.Job, name: str) -> None:
    """Refuse an invalid name, and a name that a checkpoint already has."""
    if joblog.SAVEPOINT_NAME.fullmatch(name) is None or name == "latest":
        what = f"{name!r} is not a valid name for a savepoint"
        next_step = "begin with a letter; use letters, digits, . _ -"
    elif (found := job.savepoint(name)) is not None:
        what = f"job {job.name!r} already has a savepoint {name!r}: epoch {found.epoch}"
        next_step = "choose another name; a name stays with its checkpoint"
    else:
        return
    raise ConfigError(what, not_done="nothing was named", next_step=next_step, where=Where(job=job.name))
