"""The master's view of functions and reads that end their process (killing.py): which losses count, how a run ends.

Pure: no clock, thread or I/O. Part of runtime/driver/master.py.
Source: docs/design/0117-functions-that-kill.md, 0121-reads-that-kill.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import ErrorReport
from holdfast.frozen import replace
from holdfast.model import Subtask
from holdfast.runtime.driver import killing
from holdfast.runtime.driver.state import Called, Hosted, Master
from holdfast.runtime.wire.vitals import FUNCTION, SOURCE, UNKNOWN, At, described

if TYPE_CHECKING:
    from holdfast.runtime.plan.model import Plan

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
    words, running, subtask = hosted.last_words, state.running, hosted.subtask
    if words is None or words.state != "ended" or running is None or subtask is None:
        return state, None
    mark, at = words.mark or "", words.at or NO_ROWS
    completed = () if running.last is None else killing.offsets(running.last.positions)
    death = killing.Death(state.job.generation, hosted.launch, at, MEMORY if words.memory else words.how)
    before = next((last for each, last in state.unexplained if each == subtask), None)
    others = tuple(each for each in state.unexplained if each[0] != subtask)
    state = replace(state, unexplained=(*others, (subtask, death)))
    kills, guilty = state.kills, None
    if mark.startswith(FUNCTION):
        operator = mark.removeprefix(FUNCTION)
        called = state.rules.functions.get(operator, Called(None, leaves_out=False))
        partition = at.partition if at.rows and called.source is not None else UNKNOWN
        first = killing.Kill(operator, subtask, partition, called.source, completed)
        kills, guilty = killing.died(kills, first, death, called.leaves_out)
    elif mark.startswith(SOURCE) and at.rows:
        first = killing.Kill(mark, subtask, at.partition, mark.removeprefix(SOURCE), completed)
        if before is not None and not before.at.rows:  # the reads of that process were not alone: this one may be it
            kills, _ = killing.died(kills, first, replace(before, at=at), leaves_out=False)
        kills, guilty = killing.died(kills, first, death, leaves_out=False)
    state = replace(state, kills=kills)
    return state, None if guilty is None else _report(state, guilty)


def reads_alone(state: Master, subtask: Subtask) -> bool:
    """Return whether a worker has to read nothing ahead, so that a read that ends its process is found."""
    counted = any(kill.deaths and kill.subtask == subtask and is_read(kill) for kill in state.kills)
    return counted or any(each == subtask for each, _ in state.unexplained)


def is_read(kill: killing.Kill) -> bool:
    """Return whether a source's read has ended the process, not a function."""
    return kill.operator.startswith(SOURCE)


def _called(kill: killing.Kill) -> str:
    return described(kill.operator if is_read(kill) else FUNCTION + kill.operator)


def explain_kills(state: Master, launch: int, error: str | None) -> Master:
    """Note how the process of a launch ended."""
    return state if error is None else replace(state, kills=killing.explained(state.kills, launch, error))


def noted(state: Master, before: killing.Kills) -> str | None:
    """Return a line about the newest death, if one was counted since; None if not."""
    new = [kill for kill in state.kills if kill.deaths and kill not in before]
    grown = [k for k in new if k.deaths[-1] not in [each for old in before for each in old.deaths]]
    if not grown:
        return None
    kill = grown[-1]
    return (
        f"a worker ended while it ran {_called(kill)}, at "
        f"{killing.where_text(kill, _reached(state))}; this is death {len(kill.deaths) - kill.older} without progress"
    )


def _report(state: Master, kill: killing.Kill) -> ErrorReport:
    count, reached = len(kill.deaths), _reached(state)
    function = _called(kill)
    what = f"{function} ended its process {count} times at the same records, and no epoch got past them"
    if not kill.deaths[-1].at.rows:
        what = f"{function} ended its process {count} times without progress, in a timer, a window or an aggregate"
    not_done = "the epoch was not completed"
    if killing.is_full(kill) and killing.is_proved(kill) and killing.at_one_row(kill):
        what = (
            f"{killing.KILLERS_MAX} rows were left out because {function} ended its process at each, the most that are "
            "left out at a time; it ended its process at another one"
        )
        not_done = "this row was not left out, and the epoch was not completed"
    advice = "correct the function: look for os._exit, crashes of native code and memory that it does not give back"
    if is_read(kill):
        advice = (
            "look at what is there, and at the library that decodes it: crashes of native code, and memory that runs "
            "out. Repair or remove what is there, or update the library"
        )
    called = state.rules.functions.get(kill.operator)
    if called is not None and not called.leaves_out and kill.deaths[-1].at.rows:
        advice += '; or leave such records out with on_error="dlq" or on_error="drop"'
    partition, offset = (None, None) if (found := killing.place(kill)) is None else found[:2]
    return ErrorReport(
        kind="failed",
        job=state.rules.name,
        operator=None if is_read(kill) else kill.operator,
        source=kill.source,
        partition=partition,
        offset=offset,
        what=f"{what}: {killing.where_text(kill, reached)}; cause: {killing.how(kill)}",
        not_done=f"{not_done}; state and output stay as of the last checkpoint",
        next=f"{advice}; then run the job again, which resumes from the last checkpoint",
    )


def _reached(state: Master) -> killing.Offsets:
    """Return how far sources were read, as far as workers have reported it."""
    return killing.offsets(at for hosted in state.workers.values() for at in hosted.progress.positions)
