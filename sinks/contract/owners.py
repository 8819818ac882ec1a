"""Who may write to a target: the owner token of the driver that last took it over.

A tag distinguishes two epochs of one history, but not two histories with the same job UUID and the same epoch numbers:
those of a root that was copied or restored from a backup. Every driver has a random token; its job log keeps those of
all starts. A target remembers, per job and sink, the token of the driver that last took it over. A driver takes over
from a token that its own log knows, or from no token; any other token belongs to another history.

Invariants
    - A delivery, a write, a repair and a drop of before-images compare the token in their own transaction.
    - A token that the job's log does not know changes nothing in the target, and is reported as `Fenced`.
    - A known token is taken over from only if no tag is beyond the epochs that its driver completed in the job's log:
      in another history, a driver that both have may have completed more. Numbers of later epochs prove nothing.
    - A delivery continues exactly the tag that its writer knows: a copy of the job may deliver until it is fenced.
    - A target without a token was written by an earlier version: it is taken over if its tags fit.

Pure: no clock, thread or I/O.
Source: PROTOCOL P1, P17, P24; docs/decisions/0021-owned-targets.md, 0057-what-owners-completed.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from holdfast.errors import ConfigError, Damaged, Fenced, Unavailable
from holdfast.model import NO_EPOCH, Epoch, Generation, Tag, Timeline
from holdfast.sinks.contract.phrases import NOTHING, READS_TAG

NEVER = Tag(Timeline(-1), NO_EPOCH)
"""The position of a writer that has not delivered yet."""


@dataclass(frozen=True)
class Held:
    """The driver that last took a target over."""

    owner: str
    generation: Generation


@dataclass(frozen=True)
class Rival:
    """Another sink, of this job or of another one, to which a target belongs.

    Args:
        job_uuid: Its job.
        sink: Its name.
        held: The driver that last took the target over for it.
        certain: False: the target has rows without an owner, and this is a sink that may have written them.
    """

    job_uuid: str
    sink: str
    held: Held | None
    certain: bool = True


@dataclass(frozen=True)
class Claim:
    """The right of one driver to write to the targets of its job.

    Args:
        owner: Its token.
        generation: The one it starts with; for people.
        known: Drivers of the same history from which it may take over; of each, the newest epoch that it completed.
        undone_after: A rewind undoes whatever the target has of later epochs, before anything is delivered.
        adopted: Drivers of other histories, jobs or sinks whose targets the user moves to this job.
    """

    owner: str
    generation: Generation
    known: Mapping[str, Tag] = field(default_factory=dict)
    undone_after: Epoch | None = None
    adopted: tuple[str, ...] = ()

    def displaces(self, rival: Rival) -> bool:
        """Return whether the user moves the target from that sink to this job."""
        return rival.held is not None and rival.held.owner in self.adopted

    def must_take_over(self, where: str, held: Held | None, newest: Callable[[], Tag | None]) -> bool:
        """Return whether the target has to note this claim before it is written to.

        Args:
            newest: Returns the newest tag of all writers of the sink, whose rows are in the target.

        Raises:
            Fenced: another history owns the target.
            Damaged: its owner is known, but delivered an epoch that it did not complete in this history.
        """
        if held is None:
            return True
        if held.owner == self.owner:
            return False
        if held.owner not in self.known:
            raise not_ours(where, held)
        reached, stands = self.known[held.owner], newest()
        if stands is not None and stands > reached and not self._undoes(reached, stands):
            raise went_on(where, held, stands, reached)
        return True

    def _undoes(self, reached: Tag, stands: Tag) -> bool:
        """Return whether a rewind of this driver undoes all that the owner delivered elsewhere.

        A rewind undoes older timelines. If the owner rewound elsewhere, too, its new timeline has this one's number.
        """
        undone = self.undone_after
        return undone is not None and undone <= reached.epoch and stands.timeline <= reached.timeline


@dataclass(frozen=True)
class Holding:
    """The target's entry for one sink of a job before it is written to."""

    held: Held | None
    newest: Tag | None
    """The newest tag of all its writers; None if none has delivered, or the target keeps no tags of epochs."""
    rival: Rival | None = None
    """Another sink to which the target belongs; only of a target that belongs to one sink."""
    taken_back: str | None = None
    """The action of another program that took back rows of the sink after the newest delivery, as a clause."""


class Ownership(ABC):
    """Knows to which job and which driver a target belongs (P1)."""

    @property
    def ownership(self) -> Ownership:
        """The object itself."""
        return self

    def check_owner(self, job_uuid: str | None, name: str) -> None:
        """After `prepare`: refuse a target with another job's output. By default there cannot be any.

        Args:
            job_uuid: The job; None if it is about to be created, so that no tag can be its own.
            name: The sink's name in the app.

        Raises:
            ConfigError: a writer of this sink name, but of another job, delivered here.
            Unavailable: the target is unreachable now.
        """

    @abstractmethod
    def holding(self, job_uuid: str, name: str) -> Holding:
        """After `prepare`: return the owner of the target and the newest tag of this sink's writers.

        A start compares that with the job log.

        Raises:
            Unavailable: the target is unreachable now; its first delivery then compares.
        """


NO_CLAIM = Claim("", Generation(0))
"""A claim that owns nothing, and has no predecessor."""


class NotOurs(Fenced):
    """Another history of the job owns the target: no recovery of this run changes that."""


def not_ours(where: str, held: Held) -> NotOurs:
    """Return the error for a target that another history of the job has taken over."""
    return NotOurs(
        f"{where}: another run took it over, in generation {held.generation} (owner {held.owner[:12]}). That run, or "
        "its epochs, are not in the log of this job: the job's folder was copied or restored, and both write here",
        not_done="nothing was written to the target",
        next_step="run one of the two jobs, or give the other a target of its own; to move the target to this job: "
        "holdfast run JOB.py --adopt-targets SINK, or holdfast rewind JOB.py ... --adopt-targets SINK",
    )


def belongs_to(where: str, job_uuid: str | None, rival: Rival) -> NotOurs:
    """Return the error for a target that belongs to another sink.

    Args:
        job_uuid: This job; None if it is about to be created.
    """
    whose = f"sink {rival.sink!r} of {'this job' if rival.job_uuid == job_uuid else f'another job, {rival.job_uuid}'}"
    move = "holdfast run JOB.py --adopt-targets SINK"
    if rival.certain:
        return NotOurs(
            f"{where}: belongs to {whose}; rows of one would be replaced or undone by the other",
            not_done="nothing was written to the target",
            next_step=f"give this sink a target of its own; or, if that sink has delivered for the last time, {move}",
        )
    return NotOurs(
        f"{where}: has rows, and does not say whose: they may belong to {whose}, which an earlier version wrote",
        not_done="nothing was written to the target",
        next_step=f"run that job once, which then notes its targets; or, if the rows are not its own, {move}",
    )


def at_start(error: NotOurs) -> ConfigError:
    """Return the error as a start reports it, before anything runs."""
    not_done = "the job was not started; state and output are untouched"
    return ConfigError(error.what, not_done=not_done, next_step=error.next_step)


def went_on(where: str, held: Held, standing: Tag, reached: Tag) -> Damaged:
    """Return the error for a target to which a known driver delivered in another history of the job."""
    return Damaged(
        f"{where}: the target is at timeline {standing.timeline}, epoch {standing.epoch}, but the job log ends at "
        f"timeline {reached.timeline}, epoch {reached.epoch} for the run that delivered this (generation "
        f"{held.generation}, owner {held.owner[:12]}): the log was cut short, or the job's folder was copied or "
        "restored while that run continued",
        not_done="nothing was written to the target",
        next_step="bring the job folder of that run back, or give the sink another target, or take the target back: "
        f"holdfast rewind JOB.py --to-epoch {reached.epoch} --adopt-targets SINK",
    )


def check_continues(where: str, standing: Tag | None, known: Tag) -> None:
    """Refuse a delivery that would not continue the target as its writer knows it.

    Raises:
        Damaged: the target is below it.
        Unavailable: it is above; reading the tag shows whether that was output of this history.
    """
    stands = standing or NEVER
    if stands < known:
        raise went_back(where, standing, known)
    if stands > known:
        raise Unavailable(
            f"{where}: the target is at timeline {stands.timeline}, epoch {stands.epoch}, which another process "
            "delivered since the tag was read",
            not_done=NOTHING,
            next_step=READS_TAG,
        )


def went_back(where: str, standing: Tag | None, known: Tag) -> Damaged:
    """Return the error for a target that no longer holds delivered rows."""
    stands = "has no tag" if standing is None else f"is at timeline {standing.timeline}, epoch {standing.epoch}"
    return Damaged(
        f"{where}: the target {stands}, but timeline {known.timeline}, epoch {known.epoch} was delivered to it: it was "
        "restored from a backup, replaced or emptied",
        not_done="nothing more was delivered to it",
        next_step="bring the newer target back, or rewind the job to a checkpoint that the target still covers",
    )


def rows_taken_back(where: str, newest: Tag, by: str) -> Damaged:
    """Return the error for a target that has the tag of a delivery, but not all of its rows any longer.

    Args:
        by: The action of the other program, as a clause.
    """
    return Damaged(
        f"{where}: timeline {newest.timeline}, epoch {newest.epoch} was delivered to it, but another program took rows "
        f"back: {by}",
        not_done="nothing more was delivered to it",
        next_step="restore the version with these rows, and start the job: it continues. Or rewind the job to a "
        "checkpoint before them, so that they are delivered again, or to its last one, to leave them out: holdfast "
        "rewind JOB.py --to-epoch N --accept SINK:impossible",
    )


def stands_beyond(where: str, standing: Tag, completed: Tag) -> Damaged:
    """Return the error for a target that holds output of an epoch that the job never completed."""
    return Damaged(
        f"{where}: the target is at timeline {standing.timeline}, epoch {standing.epoch}, but the job log ends at "
        f"timeline {completed.timeline}, epoch {completed.epoch}: the log was cut short, or its folder was restored "
        "from a backup that is older than the target",
        not_done="nothing was written to the target",
        next_step="bring the newer job folder back, or restore the target from a backup of the same time as the "
        "folder, or take the target back: holdfast rewind JOB.py "
        f"--to-epoch {completed.epoch} --adopt-targets SINK",
    )
