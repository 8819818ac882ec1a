"""The master's view of functions that end their process (killing.py): which losses count, and how a run ends of one.

Pure: no clock, thread or I/O. Part of runtime/driver/master.py.
Source: docs/design/0117-functions-that-kill.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import ErrorReport
from holdfast.frozen import replace
from holdfast.runtime.driver import killing
from holdfast.runtime.driver.state import Called, Hosted, Master
from holdfast.runtime.wire.vitals import FUNCTION, UNKNOWN, At, described

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
    """Count the loss of this worker, if a function has ended its process; return why the run has to end for it."""
    words, running, subtask = hosted.last_words, state.running, hosted.subtask
    if words is None or words.state != "ended" or not (words.mark or "").startswith(FUNCTION):
        return state, None
    if running is None or subtask is None:
        return state, None
    assert words.mark is not None
    operator, at = words.mark.removeprefix(FUNCTION), words.at or NO_ROWS
    called = state.rules.functions.get(operator, Called(None, leaves_out=False))
    completed = () if running.last is None else killing.offsets(running.last.positions)
    partition = at.partition if at.rows and called.source is not None else UNKNOWN
    first = killing.Kill(operator, subtask, partition, called.source, completed)
    death = killing.Death(state.job.generation, hosted.launch, at, MEMORY if words.memory else words.how)
    kills, guilty = killing.died(state.kills, first, death, called.leaves_out)
    state = replace(state, kills=kills)
    return state, None if guilty is None else _report(state, guilty)


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
        f"a worker ended while it ran {described(FUNCTION + kill.operator)}, at "
        f"{killing.where_text(kill, _reached(state))}; this is death {len(kill.deaths) - kill.older} without progress"
    )


def _report(state: Master, kill: killing.Kill) -> ErrorReport:
    count, reached = len(kill.deaths), _reached(state)
    function = described(FUNCTION + kill.operator)
    what = f"{function} ended its process {count} times at the same records, and no epoch got past them"
    not_done = "the epoch was not completed"
    if killing.is_full(kill) and killing.is_proved(kill) and killing.at_one_row(kill):
        what = (
            f"{killing.KILLERS_MAX} rows were left out because {function} ended its process at each, the most that are "
            "left out at a time; it ended its process at another one"
        )
        not_done = "this row was not left out, and the epoch was not completed"
    advice = "correct the function: look for os._exit, crashes of native code and memory that it does not give back"
    called = state.rules.functions.get(kill.operator)
    if called is not None and not called.leaves_out and kill.deaths[-1].at.rows:
        advice += '; or leave such records out with on_error="dlq" or on_error="drop"'
    partition, offset = (None, None) if (found := killing.place(kill)) is None else found[:2]
    return ErrorReport(
        kind="failed",
        job=state.rules.name,
        operator=kill.operator,
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
