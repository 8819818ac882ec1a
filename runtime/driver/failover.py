"""Decides what the master does if a worker is lost or cannot exchange data: dismiss, count, avoid, start another.

A loss while subtasks run makes a recovery due: a new generation, in which survivors roll back in
place. Too many failures inside the window end the run with the first cause, not the last symptom. A few do if one
error of the job's code or of its packages caused each of them: no worker can run it, and a wait changes nothing.

A broken connection between workers that both reach the driver may be an accident: the generation is recovered in place,
and its channels connect again. A network may also be severed between two hosts and nowhere else, perhaps permanently
and perhaps in one direction only. Then each recovery in place would break in the same way. So one of the two workers is
replaced: immediately if a machine did not answer at all, else if the channels break again before an epoch is completed.

Spark decides where a task runs, and knows less than the driver: it needs a minute or two to notice a lost host, never
notices that two hosts are severed, and does not know which worker follows which. So a launch names hosts to avoid.
Local state plays no part here: if only the worker died, its host is as good as any.

Invariants
    - A recovery of broken channels waits as long as restarts do, so that a lasting cause does not keep the job busy.
    - A note about two hosts ends with an epoch that workers on both complete.
    - A host is avoided, never excluded: the report of a worker may be wrong, or the network mended.

Pure: no clock, thread or I/O. Part of runtime/driver/master.py.
Source: DESIGN section 3 (restart policy); PROTOCOL P2, P4; docs/decisions/0064-severed-hosts.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from msgspec import structs

from holdfast.checkpoint import append, joblog
from holdfast.errors import ErrorReport
from holdfast.frozen import changed, replace
from holdfast.model import WorkerId
from holdfast.runtime.driver import killing
from holdfast.runtime.driver.events import (
    Cancel,
    Dismiss,
    Effect,
    End,
    Launch,
    LaunchEnded,
    Moment,
    Send,
    Step,
    WorkerStreamClosed,
    append_record,
)
from holdfast.runtime.driver.killing import count_kill, explain_kills
from holdfast.runtime.driver.state import Deployed, Hosted, Interrupted, Master, Opening, Over, RunFailure, Site
from holdfast.runtime.wire import messages as m
from holdfast.runtime.wire import vitals

LAUNCH_DEADLINE_S = 60.0
"""How long a Spark job may take until its worker registers."""
ALIKE_MAX = 6
"""Failures in a row that end the run if the same error of code caused all of them and no epoch was completed between.

With the default backoff they take about 10 s: packages that are just being replaced on a host are waited for.
"""
_OF_CODE = re.compile(
    r"\b(?:ConfigError|ModuleNotFoundError|ImportError|AttributeError|NameError|SyntaxError|TypeError): .+"
)
_VARIES = re.compile(r"(?<=0x)[0-9a-f]+|(?: at \S+:\d+)?\)?$")
"""Addresses of objects, and text that is appended to an error on its way here."""
_CODE_LENGTH_MAX = 150


def stream_closed(state: Master, event: WorkerStreamClosed, at: Moment) -> Step:
    """Handle a lost worker."""
    return lose(state, event.worker, event.why, None, at.now) if event.worker in state.workers else (state, [])


def spoken_for(state: Master, message: m.Vitals, at: Moment) -> Step:
    """Take a companion's report: its worker's interpreter is held, the worker is ended for that, or it has ended."""
    now = at.now
    if message.worker not in state.workers:
        return state, []
    worker_entry = replace(state.workers[message.worker], last_words=message)
    match message.state:
        case "held":
            held_by = (message.mark or vitals.INTERPRETER,)
            progress = structs.replace(worker_entry.heartbeat.progress, held_by=held_by)
            worker_entry = replace(
                worker_entry, seen=now, heartbeat=structs.replace(worker_entry.heartbeat, progress=progress)
            )
        case "hung":
            state = replace(state, workers=changed(state.workers, message.worker, worker_entry))
            cause = (
                f"worker {message.worker} (pid {worker_entry.pid} on {worker_entry.host}) was ended: it held "
                "its interpreter"
            )
            cause += f" for {message.for_ms / 1000:.0f} s"
            return lose(state, message.worker, cause, None, now)
        case _:
            pass  # the end of its stream follows, and counts as the loss
    return replace(state, workers=changed(state.workers, message.worker, worker_entry)), []


def is_held(state: Master) -> bool:
    """Return whether a function holds the interpreter of a worker with a subtask, which reads no messages meanwhile.

    The state does not last: the worker sends heartbeats again, or it is lost, as hung or because its companion falls
    silent too.
    """
    words = [hosted.last_words for hosted in state.workers.values() if hosted.subtask is not None]
    return any(each is not None and each.state == "held" for each in words)


def launch_ended(state: Master, event: LaunchEnded, at: Moment) -> Step:
    """Handle the end of the Spark job that hosts a worker, for any reason."""
    number, error, now = event.number, event.error, at.now
    for worker, hosted in state.workers.items():
        if hosted.launch == number:
            return lose(state, worker, f"worker process on {hosted.host} ended ({error or 'no error'})", None, now)
    if number not in state.launching:
        return _end_if_hopeless(_explain(explain_kills(state, number, error), number, error))
    return _not_started(state, number, f"a worker could not be started: {error}", now)


def _not_started(state: Master, number: int, what: str, now: float) -> Step:
    """Handle a launch without a worker. Where every subtask has a worker, only a standby is missing."""
    state = replace(state, launching={n: at for n, at in state.launching.items() if n != number})
    if state.all_hosted:
        return standby_failed(state, what, now), []
    return count_failure(state, now, number, what, kind="unavailable")


def standby_failed(state: Master, cause: str, now: float) -> Master:
    """Note that a standby was lost or not started. It delays the next one, and counts for nothing else."""
    failures = state.standby_failures + 1
    return replace(state, standby_failures=failures, standby_failed_at=now, standby_error=cause)


def recover(state: Master, cause: str, at_us: int) -> Step:
    """Append the start of a new generation; its base is the last completed epoch in the log before it (P5)."""
    if not isinstance(state.log, append.Quiet):
        assert state.deployed is not None, "a record in flight is the start of a generation, or one is deployed"
        return replace(state, phase=Interrupted(state.deployed, cause)), []
    host = state.rules.host

    def start(job: joblog.Job) -> joblog.Body:
        return joblog.GenerationStarted(joblog.next_first_epoch(job), job.base_epoch, host, cause)

    return append_record(replace(state, phase=Opening(cause)), start, at_us)


def lose(state: Master, worker: WorkerId, cause: str, error: ErrorReport | None, now: float) -> Step:
    worker_entry = state.workers[worker]
    words = worker_entry.last_words
    if error is None and words is not None and (words.mark is not None or words.state == "hung"):
        cause, error = _explained(cause, words)
    workers = {w: h for w, h in state.workers.items() if w != worker}
    before = state.kills
    state, guilty = count_kill(state, worker_entry)
    state = doubt(replace(state, workers=workers), worker_entry, now)
    effects: list[Effect] = [Dismiss(worker, worker_entry.launch)]
    if guilty is not None:
        state, ending = end(state, "failed", guilty)
        return state, effects + ending
    row_launches = killing.found_by(before, state.kills)
    if row_launches is not None:  # the next worker gets past the row, so its losses no longer count as failures
        failures = tuple(each for each in state.failures if each.launch not in row_launches)
        state = replace(state, failures_in_a_row=0, failures=failures)
    if isinstance(worker_entry.role, m.Standby) or (
        worker_entry.role is None and state.rules.standbys and state.all_hosted
    ):
        return standby_failed(state, cause if error is None else error.what, now), effects
    if state.deployed is not None and worker_entry.subtask is not None:
        since = state.recovering_since if state.recovering_since is not None else now
        state = replace(state, phase=Interrupted(state.deployed, cause), recovering_since=since)
    state, more = count_failure(state, now, worker_entry.launch, cause, error)
    if row_launches is not None:
        state = replace(state, failures=tuple(each for each in state.failures if each.launch != worker_entry.launch))
    return state, effects + more


def _explained(cause: str, words: m.Vitals) -> tuple[str, ErrorReport]:
    """Add the function that the worker was running to the cause of its loss; return the cause and the error."""
    cause = f"{cause}, while it ran {vitals.described(words.mark)}"
    if words.memory:
        cause += "; at that time the system killed a process on that machine because it ran out of memory"
    return cause, ErrorReport(
        kind="failed",
        what=cause,
        not_done="the epoch in progress was not completed; everything up to the last one is kept",
        next=f"{vitals.advice_for(words.state)}; the worker is replaced",
    )


def count_failure(
    state: Master,
    now: float,
    launch: int | None,
    what: str,
    error: ErrorReport | None = None,
    kind: str = "failed",
) -> Step:
    """Count a failure, once for workers lost together; too many within the window end the run with the first cause.

    A lost executor ends all its workers: if each counted, more workers would mean a longer backoff.
    """
    if launch is not None and launch <= state.struck:
        return state, []
    default_report = ErrorReport(
        kind=kind,
        what=what,
        not_done="the epoch in progress was not completed; everything up to the last one is kept",
        next="remove the cause, then run the job again: it resumes from there",
    )
    failure = RunFailure(now, launch, error or default_report, code_of((error or default_report).what))
    recent = (*(each for each in state.failures if now - each.at < state.rules.restart_window), failure)
    state = replace(state, failures=recent, failures_in_a_row=state.failures_in_a_row + 1, struck=state.launches)
    if len(recent) > state.rules.restart_failures_max:
        return end(state, "failed", recent[0].error)
    return _end_if_hopeless(state)


def code_of(what: str) -> str | None:
    """Return the error of code that a text names, in a form that can be compared; None if it names none."""
    found = _OF_CODE.search(what)
    return None if found is None else _VARIES.sub("", found[0])[:_CODE_LENGTH_MAX]


def _end_if_hopeless(state: Master) -> Step:
    """End the run if the last failures show that no worker can run the job's code."""
    alike = state.failures[-ALIKE_MAX:]
    code = alike[0].code if len(alike) == ALIKE_MAX <= state.failures_in_a_row else None
    if code is None or any(each.code != code for each in alike):
        return state, []
    first = alike[0].error
    return end(
        state,
        "failed",
        replace(
            first,
            kind="failed",
            what=f"{first.what}; {ALIKE_MAX} workers in a row ended with this error",
            next="correct the code; or, if it runs here and not there, give all workers the same code and packages "
            "(spark-submit --py-files, or install them on every host); then run the job again: it resumes from there",
        ),
    )


def _explain(state: Master, launch: int, error: str | None) -> Master:
    """Add Spark's error to a counted failure: the stream closes before Spark reports the cause."""
    if error is None:
        return state

    def explained(failure: RunFailure) -> RunFailure:
        if failure.launch != launch:
            return failure
        both = replace(failure.error, what=f"{failure.error.what} ({error})")
        return replace(failure, error=both, code=failure.code or code_of(error))

    return replace(state, failures=tuple(explained(each) for each in state.failures))


def forgive_own_pause(state: Master, now: float) -> Master:
    """Ignore the workers' silence for the time in which this process itself was stopped."""
    if state.looked_at == now:
        return state
    gap = 0.0 if state.looked_at is None else now - state.looked_at
    state = replace(state, looked_at=now)
    if gap <= state.rules.silent_after / 2:
        return state
    workers = {worker: replace(hosted, seen=hosted.seen + gap) for worker, hosted in state.workers.items()}
    return replace(state, workers=workers)


SEVERED_WAIT_S = 20.0
"""Wait between failures while severed hosts keep epochs from completing: the default restart limit is not reached."""


def launch_allowed_at(state: Master) -> float:
    """Return when launches may resume: immediately after the first failure since a completed epoch, then with growing
    delays, which are longer while hosts are severed."""
    if state.failures_in_a_row < 2:
        return 0.0
    delay = state.rules.restart_backoff_first * 2.0 ** min(state.failures_in_a_row - 2, 32)
    delay = min(delay, state.rules.restart_backoff_max)
    first = state.failures[-min(state.failures_in_a_row, len(state.failures))]
    if any(at >= first.at for at in state.severed.values()):
        delay = max(delay, SEVERED_WAIT_S)
    return state.failures[-1].at + delay


def standby_allowed_at(state: Master) -> float:
    """Return when the next standby may be launched: immediately, or after growing delays while they fail."""
    if not state.standby_failures:
        return 0.0
    delay = state.rules.restart_backoff_first * 2.0 ** min(state.standby_failures - 1, 32)
    return state.standby_failed_at + min(delay, state.rules.restart_backoff_max)


def launch_missing(state: Master, now: float) -> Step:
    """Start the missing workers, unless none is needed any longer or the backoff has not passed."""
    if state.ends_repaired:
        return state, []
    late = [number for number, at in state.launching.items() if now - at > LAUNCH_DEADLINE_S]
    effects: list[Effect] = [Cancel(number) for number in late]
    for number in late:
        state, more = _not_started(state, number, f"a worker did not start within {LAUNCH_DEADLINE_S:.0f} s", now)
        if more:
            return state, effects + more
    for _ in range(_missing(state, now)):
        number, standby = state.launches + 1, len(state.workers) + len(state.launching) >= state.rules.parallelism
        state = replace(state, launches=number, launching={**state.launching, number: now})
        effects.append(Launch(number, avoided(state, standby)))
    return state, effects


def _missing(state: Master, now: float) -> int:
    """Return how many workers to launch now. Standbys come last: they may not take the slot of a subtask."""
    rules, coming = state.rules, len(state.workers) + len(state.launching)
    if coming < rules.parallelism:
        return rules.parallelism - coming if now >= launch_allowed_at(state) else 0
    wanted = isinstance(state.phase, Deployed) and state.all_hosted and now >= standby_allowed_at(state)
    return max(0, rules.parallelism + rules.standbys - coming) if wanted else 0


def end(state: Master, outcome: str, error: ErrorReport | None) -> Step:
    """End the run with this outcome: finished, stopped, fenced, refused or failed."""
    leaving: list[Effect] = [Send(w, m.Exit(outcome)) for w in state.workers]
    return replace(state, phase=Over(outcome, error)), [*leaving, End(outcome, error)]


def all_run(state: Master, now: float) -> Master:
    """Count further losses as new failures, and note how long the recovery took: every subtask takes records now."""
    state = replace(state, struck=0)
    if state.recovering_since is None:
        return state
    done = replace(state.restarts[-1], ready_after=now - state.recovering_since)
    return replace(state, restarts=(*state.restarts[:-1], done), recovering_since=None)


BROKEN_GRACE_S = 1.0
"""How long the loss of a worker may lag behind its peers' reports of broken channels."""


@dataclass(frozen=True)
class Break:
    """Channels broke between two workers with subtasks."""

    workers: tuple[WorkerId, WorkerId]
    """The first has reported it."""
    why: str
    silent: bool
    """As in `BrokenLink`."""


def broken_channels_are_due(state: Master, phase: Deployed, now: float) -> bool:
    """Return whether broken channels are to be recovered now.

    The cause may persist, so recoveries are paced: not one per second. A recovery that has to wait for a held worker
    would break in the same way.
    """
    broken = phase.broken_since is not None and now - phase.broken_since > BROKEN_GRACE_S
    return broken and now >= launch_allowed_at(state) and not is_held(state)


def recover_channels(state: Master, phase: Deployed, at: Moment) -> Step:
    """Start a generation because channels broke between live workers: in place, or with one of them replaced."""
    found, now = breaks(state), at.now
    cause, victim = cause_of(state, found), to_replace(state, found, now)
    state = replace(noted(state, found, now), recovering_since=phase.broken_since)
    if victim is not None:
        return lose(state, victim, f"{cause}; the worker on {state.workers[victim].host} was replaced", None, now)
    state = replace(state, broken_in_a_row=state.broken_in_a_row + 1)
    state, ending = count_failure(state, now, None, cause)
    return (state, ending) if isinstance(state.phase, Over) else recover(state, cause, at.at_us)


def breaks(state: Master) -> list[Break]:
    """Return the workers' reports of broken channels, silence first."""
    runs = {
        worker_entry.subtask: worker
        for worker, worker_entry in state.workers.items()
        if worker_entry.subtask is not None
    }
    channel_breaks = [
        Break((worker, runs[link.peer]), link.why, link.silent)
        for worker, worker_entry in state.workers.items()
        for link in worker_entry.heartbeat.broken_to
        if worker_entry.subtask is not None and link.peer in runs
    ]
    return sorted(channel_breaks, key=lambda each: not each.silent)


def cause_of(state: Master, found: list[Break]) -> str:
    """Return the cause, for users."""
    if not found:
        return "a data channel broke between live workers"
    here, there = (_named(state, worker) for worker in found[0].workers)
    return f"a data channel broke between {here} and {there}, which both reach the driver: {found[0].why}"


def to_replace(state: Master, found: list[Break], now: float) -> WorkerId | None:
    """Return the worker to replace; None if all stay.

    One that the driver has not heard for two heartbeats, and a second at least, is probably lost. One with broken
    channels to several hosts is severed from all of them. Otherwise it is one whose copy is on a third host, where that
    exists.
    """
    decisive = [each for each in found if (each.silent and _apart(state, each)) or state.broken_in_a_row > 0]
    if not decisive:
        return None
    unheard_for = max(BROKEN_GRACE_S, 2 * state.rules.heartbeat_every)
    peers: dict[WorkerId, set[WorkerId]] = {}
    for each in decisive:
        for worker, other in (each.workers, each.workers[::-1]):
            peers.setdefault(worker, set()).add(other)

    def likely(worker: WorkerId) -> tuple[bool, int, bool, int]:
        hosted = state.workers[worker]
        others = {state.workers[other].host for other in peers[worker]}
        assert hosted.subtask is not None
        return now - hosted.seen > unheard_for, len(peers[worker]), _covered(state, hosted, others), hosted.subtask

    return max(peers, key=likely)


def noted(state: Master, found: list[Break], now: float) -> Master:
    """Note the pairs of hosts, to avoid them."""
    pairs = {**state.severed}
    for each in found:
        if _apart(state, each) and (each.silent or state.broken_in_a_row > 0):
            pairs[frozenset(state.workers[worker].site for worker in each.workers)] = now
    return replace(state, severed=pairs)


def proved(state: Master) -> Master:
    """Forget the pairs of hosts whose workers have completed an epoch: every channel carried its barrier."""
    return replace(state, severed={pair: at for pair, at in state.severed.items() if not _both_run(state, pair)})


def in_the_way(state: Master) -> list[tuple[Site, Site]]:
    """Return the severed pairs of hosts that keep the job from completing epochs now."""
    pairs = [(min(pair), max(pair)) for pair in state.severed if state.failures_in_a_row > 0 and _both_run(state, pair)]
    return sorted(pairs)


def _both_run(state: Master, pair: frozenset[Site]) -> bool:
    return pair <= {hosted.site for hosted in state.workers.values() if hosted.subtask is not None}


def _apart(state: Master, each: Break) -> bool:
    return len({state.workers[worker].host for worker in each.workers}) > 1


def _covered(state: Master, hosted: Hosted, others: set[str]) -> bool:
    """Return whether a standby has a copy of the worker's state on a host that is not one of these."""
    assert hosted.subtask is not None
    spare = (each for each in state.workers.values() if each.subtask is None and each.host not in others)
    return any(each.copied(hosted.subtask) > 0 for each in spare)


def _named(state: Master, worker: WorkerId) -> str:
    hosted = state.workers[worker]
    return f"subtask {hosted.subtask} on {hosted.host}"


SILENT_S = 2.0
"""A worker not heard for so long before its loss was not just ended: its host may be gone or unreachable."""
DOUBTED_FOR_S = 120.0
"""How long a host is avoided afterwards, unless a worker registers from it: until Spark itself has noticed."""
SEVERED_FOR_S = 600.0
"""How long two hosts count as severed after the last report."""


def doubt(state: Master, lost: Hosted, now: float) -> Master:
    """Note that a worker was lost, after a silence or not."""
    if now - lost.seen <= SILENT_S:
        return state
    return replace(state, doubted={**state.doubted, lost.host: (lost.site, now)})


def trust(state: Master, host: str) -> Master:
    """Note that a worker has registered from this host."""
    return replace(state, doubted={name: each for name, each in state.doubted.items() if name != host})


def forget_old(state: Master, now: float) -> Master:
    """Drop notes on hosts that are too old to count."""
    recent_doubts = {name: each for name, each in state.doubted.items() if now - each[1] < DOUBTED_FOR_S}
    severed = {pair: at for pair, at in state.severed.items() if now - at < SEVERED_FOR_S}
    if len(recent_doubts) == len(state.doubted) and len(severed) == len(state.severed):
        return state
    return replace(state, doubted=recent_doubts, severed=severed)


def avoided(state: Master, standby: bool) -> tuple[Site, ...]:
    """Return where the next worker should rather not start, the worst first.

    Args:
        standby: It will be one: it is to survive the hosts of the workers that it follows.
    """
    doubted = [site for site, _ in state.doubted.values()]
    active = [hosted.site for hosted in state.workers.values() if hosted.subtask is not None]
    severed = [site for pair in state.severed for site in sorted(pair) if pair - {site} & set(active)]
    return tuple(dict.fromkeys((*doubted, *(active if standby else ()), *severed)))


def conflicts(state: Master, site: Site) -> int:
    """Return how many workers with a subtask are where data from this site does not arrive, or the reverse."""
    active = (hosted.site for hosted in state.workers.values() if hosted.subtask is not None)
    return sum(frozenset((site, other)) in state.severed for other in active)
