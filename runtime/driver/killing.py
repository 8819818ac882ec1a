"""Functions that end their process: counts their deaths, narrows the place, and decides the response.

A worker can be lost for many reasons. A death counts only if the companion saw it during a call of a function, and only
until a completed epoch passes the place. After each death the function gets fewer rows at a time, so that the next
death shows a narrower place, until one place is proved to be deadly.

    - If offsets are known, the place is the range in which all deaths agree; one elsewhere begins a new count.
    - Three deaths at one place are proof. Behind a shuffle, the last two have to be at the same single row.
    - `UNPROVEN_MAX` deaths without progress are proof in any case: the job makes no progress.
    - Where the place is unknown, an epoch that moves a source is progress, but may end before the place: the last two
      deaths and the limit are kept for `LIMITED_EPOCHS` such epochs.
    - An epoch at the same offsets may be closed before the function is called again, so one such epoch proves nothing:
      only `QUIET_EPOCHS` of them in a row end a count.

A function that is proved to be at fault ends the run. If its on_error allows it, the search continues to a single row
at which the process has died twice; that row is left out from then on. `KILLERS_MAX` rows ahead end the run too.

The master's part comes last: which losses count, and how a run ends.

Invariants
    - At most one death is counted in a generation: workers that are lost together may be lost for the first one's sake.
    - Nothing is counted twice, and nothing that was seen before an epoch got past the place.
    - A row is left out only if the last two deaths were at this row alone, by its hash.
    - A row is left out for as long as it may be ahead.

Pure: no clock, thread or I/O. Part of runtime/driver/master.py.
Source: docs/decisions/0117-functions-that-kill.md, 0121-reads-that-kill.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING

from holdfast.errors import ErrorReport
from holdfast.frozen import replace
from holdfast.model import SourcePosition, Subtask
from holdfast.runtime.driver.state import Called, Death, Hosted, Kill, Kills, Master, Offsets
from holdfast.runtime.wire.messages import LIMITED_EPOCHS, Killer, Suspect
from holdfast.runtime.wire.vitals import FUNCTION, SOURCE, UNKNOWN, At, described

if TYPE_CHECKING:
    from holdfast.runtime.plan.model import Plan

DEATHS = 3
"""At the same place these are proof."""
UNPROVEN_MAX = 8
"""Deaths during calls of one function, without progress, which end the run wherever they were."""
QUIET_EPOCHS = 1_000
"""Completed without a death these end a count although no source moves, as with timers of processing time alone.

More than a function needs to be called again: an idle source holds event time back over many epochs.
"""
PORTION = 64
"""After a death the function gets this part of the rows that it had got together."""
KILLERS_MAX = 64
"""Rows ahead that are left out, per function and subtask (and partition, if offsets are known)."""


def died(kills: Kills, first: Kill, death: Death, leaves_out: bool) -> tuple[Kills, Kill | None]:
    """Count a death.

    Args:
        first: An entry without deaths, in case it is the first death of this function.
        leaves_out: Whether a row is left out for which the function ends its process.

    Returns:
        The new entries, and one for which the run has to end.
    """
    if any(each.generation == death.generation for kill in kills for each in kill.deaths):
        return kills, None
    known = next((kill for kill in kills if _key(kill) == _key(first)), first)
    others = tuple(each for each in kills if each is not known)
    kill = known if known.deaths else replace(known, positions=first.positions)
    kill = replace(kill, deaths=(*kill.deaths, death), launches=(*kill.launches, death.launch), epochs=0, quiet=0)
    if kill.partition != UNKNOWN and place(kill) is None:
        kill = replace(kill, deaths=(death,), launches=(death.launch,), older=0, rows_max=0)
    has_proof = is_proved(kill)
    if has_proof and leaves_out and at_one_row(kill):
        if is_full(kill):
            return (*others, kill), kill
        kill = _left_out(kill)
    elif _unproven(kill, leaves_out) >= UNPROVEN_MAX or (has_proof and not (leaves_out and death.at.rows)):
        return (*others, kill), kill
    elif death.at.rows:
        kill = replace(kill, rows_max=_portion(death.at))
    return (*others, kill), None


def is_proved(kill: Kill) -> bool:
    """Return whether the deaths show that the function itself ends the process, at this place."""
    if len(kill.deaths) < DEATHS:
        return False
    return place(kill) is not None or at_one_row(kill)


def at_one_row(kill: Kill) -> bool:
    """Return whether the last two deaths were at the same row, which was given to the function alone."""
    before, last = (death.at for death in kill.deaths[-2:])
    return last.rows == before.rows == 1 and last.digest == before.digest != 0


def is_full(kill: Kill) -> bool:
    """Return whether no other row can be left out: as many are that may be ahead."""
    return len(kill.killers) >= KILLERS_MAX and _oldest_passed(kill) is None


def _oldest_passed(kill: Kill) -> Killer | None:
    """Return a row that need not be left out any longer. Those with offsets go when an epoch is past them."""
    old = kill.killers[: len(kill.killers) - kill.recent]
    return next((killer for killer in old if killer.partition == UNKNOWN), None)


def _left_out(kill: Kill) -> Kill:
    """Leave out the row at which the process has died, and begin to count for the next one."""
    gone = _oldest_passed(kill) if len(kill.killers) >= KILLERS_MAX else None
    killers = (*(each for each in kill.killers if each is not gone), _killer(kill))
    return replace(_forgotten(kill), killers=killers, recent=kill.recent + 1)


def _unproven(kill: Kill, leaves_out: bool) -> int:
    """Return how many deaths show that the job makes no progress.

    A search for a row has not ended while the function gets more rows than its limit: such deaths do not count.
    """
    if not leaves_out:
        return len(kill.deaths) - kill.older
    limited = [after.at.rows <= _portion(before.at) for before, after in pairwise(kill.deaths)]
    return 1 + sum(limited) - kill.older


def _portion(at: At) -> int:
    return max(1, at.rows // PORTION)


def _killer(kill: Kill) -> Killer:
    at = kill.deaths[-1].at
    exact = at.partition != UNKNOWN and at.following == at.offset + 1
    return Killer(at.digest, how(kill), *((at.partition, at.offset) if exact else ()))


def _key(kill: Kill) -> tuple[str, Subtask, int]:
    return kill.operator, kill.subtask, kill.partition


def place(kill: Kill) -> tuple[int, int, int] | None:
    """Return the partition and the range of offsets in which all deaths were; None if there is none."""
    places = [death.at for death in kill.deaths]
    partitions = {at.partition if at.rows else UNKNOWN for at in places}
    if len(partitions) != 1 or UNKNOWN in partitions:
        return None
    first, following = max(at.offset for at in places), min(at.following for at in places)
    return (places[0].partition, first, following) if first < following else None


def found_by(before: Kills, now: Kills) -> tuple[int, ...] | None:
    """Return the launches that have died for the row that was found now, but for the last; None: none was found."""
    known = {_key(kill): kill for kill in before}
    for kill in now:
        old = known.get(_key(kill))
        if old is not None and kill.killers and kill.killers[-1:] != old.killers[-1:]:
            return old.launches
    return None


def explained(kills: Kills, launch: int, what: str) -> Kills:
    """Note how the process of a launch ended: its worker is lost before that is known."""

    def known(death: Death) -> Death:
        return replace(death, how=what) if death.launch == launch and not death.how else death

    if not any(death.launch == launch for kill in kills for death in kill.deaths):
        return kills
    return tuple(replace(kill, deaths=tuple(map(known, kill.deaths))) for kill in kills)


def passed(kills: Kills, positions: Iterable[SourcePosition]) -> Kills:
    """An epoch was completed: forget the places that it has passed.

    One that moves no source may have been closed before the function was called again.
    """
    if not kills:
        return kills
    now = offsets(positions)
    return tuple(after for kill in kills if (after := _left(kill, now)).deaths or after.killers)


def _left(kill: Kill, now: Offsets) -> Kill:
    at = {(source, partition): offset for source, partition, offset in now}
    if kill.source is not None:
        here = {partition: offset for (source, partition), offset in at.items() if source == kill.source}
        ahead = [k for k in kill.killers if k.partition == UNKNOWN or here.get(k.partition, 0) <= k.offset]
        kill = replace(kill, killers=tuple(ahead), recent=min(kill.recent, len(ahead)))
        if (found := place(kill)) is not None:
            return kill if here.get(found[0], 0) <= found[1] else _forgotten(kill)
    before = {(source, partition): offset for source, partition, offset in kill.positions}
    if not any(offset > before.get(where, 0) for where, offset in at.items()):
        kill = replace(kill, quiet=kill.quiet + 1)
        return kill if kill.quiet < QUIET_EPOCHS else replace(_forgotten(kill), recent=0)
    kept = kill.deaths[-2:]
    kill = replace(kill, positions=now, deaths=kept, older=len(kept), epochs=kill.epochs + 1)
    return kill if kill.epochs < LIMITED_EPOCHS else replace(_forgotten(kill), recent=0)


def _forgotten(kill: Kill) -> Kill:
    return replace(kill, deaths=(), launches=(), older=0, rows_max=0)


def suspects(kills: Kills, subtask: Subtask) -> tuple[Suspect, ...]:
    """Return the suspected functions of a subtask."""
    return tuple(_suspect(kill) for kill in kills if kill.subtask == subtask)


def _suspect(kill: Kill) -> Suspect:
    where = (UNKNOWN, 0, 0) if (found := place(kill)) is None else found
    return Suspect(kill.operator, kill.rows_max, *where, kill.killers)


def how(kill: Kill) -> str:
    """Return how the process ended, as far as it is known."""
    return next((death.how for death in reversed(kill.deaths) if death.how), "the cause of its end is unknown")


def offsets(positions: Iterable[SourcePosition]) -> Offsets:
    """Return source, partition and offset of positions."""
    return tuple((at.source, at.partition, max(at.offset, 0)) for at in positions)


def where_text(kill: Kill, reached: Offsets) -> str:
    """Return in words which records the function was called for.

    Args:
        reached: How far the sources are known to have been read.
    """
    if (found := place(kill)) is not None:
        return _range_text(kill.source or "", *found)
    to = {(source, partition): offset for source, partition, offset in reached}
    begins = kill.positions or tuple((source, partition, 0) for source, partition, _ in reached)
    ranges = [(*each, max(to.get(each[:2], 0), each[2])) for each in begins]
    read = [each for each in ranges if each[3] > each[2]] or ranges
    named = [_range_text(*each) for each in read[:SHOWN_MAX]]
    more = f" and {len(read) - SHOWN_MAX} other partitions" if len(read) > SHOWN_MAX else ""
    return (", ".join(named) + more) or "the first records of the job"


SHOWN_MAX = 4


def _range_text(source: str, partition: int, first: int, following: int) -> str:
    where = f"source {source!r}, partition {partition}"
    if following <= first:
        return f"{where}, offset {first} on"
    return f"{where}, offset {first}" if following == first + 1 else f"{where}, offsets {first} to {following - 1}"


NO_ROWS = At(0)
MEMORY = "the system killed a process on that machine because memory ran out"


def functions_of(plan: Plan) -> dict[str, Called]:
    """Return the Python functions of a plan, by operator."""
    return {
        name: Called(fragment.source, placed.step.leaves_out())
        for fragment in plan.fragments
        for placed in fragment.steps
        for name in placed.step.busy_with()
    }


def count_kill(state: Master, hosted: Hosted) -> tuple[Master, ErrorReport | None]:
    """Count the loss of this worker, if a function or a read has ended its process.

    Returns:
        The new state, and why the run has to end for it.
    """
    words, phase, subtask = hosted.last_words, state.deployed, hosted.subtask
    if words is None or words.state != "ended" or phase is None or subtask is None:
        return state, None
    mark, at = words.mark or "", words.at or NO_ROWS
    base_offsets = () if phase.last is None else offsets(phase.last.positions)
    death = Death(state.job.generation, hosted.launch, at, MEMORY if words.memory else words.how)
    before = next((last for each, last in state.unexplained if each == subtask), None)
    others = tuple(each for each in state.unexplained if each[0] != subtask)
    state = replace(state, unexplained=(*others, (subtask, death)))
    kills, guilty = state.kills, None
    if mark.startswith(FUNCTION):
        operator = mark.removeprefix(FUNCTION)
        called = state.rules.functions.get(operator, Called(None, leaves_out=False))
        partition = at.partition if at.rows and called.source is not None else UNKNOWN
        first = Kill(operator, subtask, partition, called.source, base_offsets)
        kills, guilty = died(kills, first, death, called.leaves_out)
    elif mark.startswith(SOURCE) and at.rows:
        first = Kill(mark, subtask, at.partition, mark.removeprefix(SOURCE), base_offsets)
        if before is not None and not before.at.rows:  # the reads of that process were not alone: this one may be it
            kills, _ = died(kills, first, replace(before, at=at), leaves_out=False)
        kills, guilty = died(kills, first, death, leaves_out=False)
    state = replace(state, kills=kills)
    return state, None if guilty is None else _report(state, guilty)


def reads_alone(state: Master, subtask: Subtask) -> bool:
    """Return whether a worker has to read nothing ahead, so that a read that ends its process is found."""
    counted = any(kill.deaths and kill.subtask == subtask and is_read(kill) for kill in state.kills)
    return counted or any(each == subtask for each, _ in state.unexplained)


def is_read(kill: Kill) -> bool:
    """Return whether a source's read has ended the process, not a function."""
    return kill.operator.startswith(SOURCE)


def _called(kill: Kill) -> str:
    return described(kill.operator if is_read(kill) else FUNCTION + kill.operator)


def explain_kills(state: Master, launch: int, error: str | None) -> Master:
    """Note how the process of a launch ended."""
    return state if error is None else replace(state, kills=explained(state.kills, launch, error))


def noted(state: Master, before: Kills) -> str | None:
    """Return a line about the newest death, if one was counted since; None if not."""
    new = [kill for kill in state.kills if kill.deaths and kill not in before]
    grown = [k for k in new if k.deaths[-1] not in [each for old in before for each in old.deaths]]
    if not grown:
        return None
    kill = grown[-1]
    return (
        f"a worker ended while it ran {_called(kill)}, at "
        f"{where_text(kill, _reached(state))}; this is death {len(kill.deaths) - kill.older} without progress"
    )


def _report(state: Master, kill: Kill) -> ErrorReport:
    count, read_offsets = len(kill.deaths), _reached(state)
    function = _called(kill)
    what = f"{function} ended its process {count} times at the same records, and no epoch got past them"
    if not kill.deaths[-1].at.rows:
        what = f"{function} ended its process {count} times without progress, in a timer, a window or an aggregate"
    not_done = "the epoch was not completed"
    if is_full(kill) and is_proved(kill) and at_one_row(kill):
        what = (
            f"{KILLERS_MAX} rows were left out because {function} ended its process at each, the most that are "
            "left out at a time; it ended its process at another one"
        )
        not_done = "this row was not left out, and the epoch was not completed"
    advice = "correct the function: look for os._exit, crashes of native code and memory that it does not give back"
    if is_read(kill):
        advice = (
            "check the records there, and the library that decodes them: crashes of native code, and memory that runs "
            "out. Repair or remove these records, or update the library"
        )
    called = state.rules.functions.get(kill.operator)
    if called is not None and not called.leaves_out and kill.deaths[-1].at.rows:
        advice += '; or leave such records out with on_error="dlq" or on_error="drop"'
    partition, offset = (None, None) if (found := place(kill)) is None else found[:2]
    return ErrorReport(
        kind="failed",
        job=state.rules.name,
        operator=None if is_read(kill) else kill.operator,
        source=kill.source,
        partition=partition,
        offset=offset,
        what=f"{what}: {where_text(kill, read_offsets)}; cause: {how(kill)}",
        not_done=f"{not_done}; state and output stay as of the last checkpoint",
        next=f"{advice}; then run the job again, which resumes from the last checkpoint",
    )


def _reached(state: Master) -> Offsets:
    """Return how far sources were read, as far as workers have reported it."""
    return offsets(at for hosted in state.workers.values() for at in hosted.heartbeat.progress.positions)
