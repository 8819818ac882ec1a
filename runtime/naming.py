"""Gives the last completed checkpoint of a job a name, from outside: whether a driver runs or not.

The record `SavepointNamed` may come from anybody at any time (P6). Whoever names has read the log a while ago, so its
number may be taken meanwhile, or pruned: then the log is looked at again. A record that fell into a hole is read by
nobody (P7).

Invariants
    - Once sent, the record is sent again as it is until its number is read (P4).
    - A name is given once; the checkpoint it is given to is never expired (P16).

Source: DESIGN section 4; PROTOCOL P4, P6, P7, P16.
"""

from __future__ import annotations

from holdfast.checkpoint import joblog
from holdfast.checkpoint.repository import Repository
from holdfast.errors import ConfigError, Fenced, Unavailable, Where


class Naming:
    """One name on its way into the log: `look`, then `append`, and again until that returns the job."""

    def __init__(self, repository: Repository, name: str, owner: str, at_us: int) -> None:
        self._repository, self._name, self._owner, self._at_us = repository, name, owner, at_us
        self._record: joblog.Record | None = None
        self._pruned: joblog.SavepointNamed | None = None
        """What was sent when the log began anew above it: it may be part of that."""

    def look(self) -> joblog.Job | None:
        """Read the log, unless a record is under way; return the job if it has the name already.

        Raises:
            ConfigError: there is no job or no checkpoint, or the name is taken.
            Unavailable: the log cannot be read now.
        """
        if self._record is not None:
            return None
        job = self._repository.read_log()
        if job is None:
            raise ConfigError("there is no job here yet", not_done="nothing was named", next_step="run the job first")
        if self._pruned is not None and job.savepoint(self._name) == joblog.Savepoint(self._name, self._pruned.epoch):
            return job
        check_name(job, self._name)
        if not job.completed:
            raise ConfigError(
                f"job {job.name!r} has not completed a checkpoint yet",
                not_done="nothing was named",
                next_step=f"run it until it has; see holdfast status {job.name}",
                where=Where(job=job.name),
            )
        body = joblog.SavepointNamed(job.base_epoch, self._name)
        self._record = joblog.Record(
            job.next_seq, job.uuid, job.generation, job.timeline, self._owner, self._at_us, body, prev=job.head
        )
        return None

    def append(self) -> bool:
        """Send the record; return whether it is in the log now. If not, look again, and then send again."""
        record = self._record
        assert record is not None and isinstance(record.body, joblog.SavepointNamed)
        try:
            found = self._repository.create_record(record)
        except Unavailable:
            return False  # sent again as it is, until its number is read (P4)
        except Fenced:
            self._record, self._pruned = None, record.body
            return False
        if found.owner == self._owner:
            return True
        self._record = None  # somebody else's came first
        return False


def check_name(job: joblog.Job, name: str) -> None:
    """Refuse what is no name, and a name that a checkpoint has."""
    if joblog.SAVEPOINT_NAME.fullmatch(name) is None or name == "latest":
        what, next_step = f"{name!r} is no name for a savepoint", "begin with a letter; use letters, digits, . _ -"
    elif (found := job.savepoint(name)) is not None:
        what = f"job {job.name!r} has a savepoint {name!r} already: epoch {found.epoch}"
        next_step = "give another name; a name stays with its checkpoint"
    else:
        return
    raise ConfigError(what, not_done="nothing was named", next_step=next_step, where=Where(job=job.name))
