"""A job as commands see it from outside: its log, its manifests, and `live.json` while a driver keeps it fresh.

The log is the truth. `live.json` adds facts that only the driver knows, and counts only while it is younger than
`status.STALE_AFTER_MS` and of the log's generation; the failure of a driver stays in it. Ages are computed at the time
of reading.

Source: DESIGN section 13 (`live.json`); API.md, JSON `status`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from msgspec import UNSET
from msgspec.structs import replace

from holdfast.checkpoint import joblog
from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import Damaged, NotFound
from holdfast.model import DriverProcess
from holdfast.ports import ObjectStore
from holdfast.runtime.inspect.stored import Stored, read_live
from holdfast.runtime.job import status
from holdfast.runtime.job.live import Number, Problem, RestartRow, SinkRow, SourceRow, State, Status
from holdfast.runtime.plan.units import units_of
from holdfast.runtime.wire.presence import is_gone, is_running

FULL_BELOW_BYTES = 64 << 10
"""With less free space a disk counts as full; a `live.json` of many workers takes about as much."""
CHECK_DRIVER = "see whether the driver's process and host are alive; if not, run the job again: it resumes"
RUNNING = frozenset({"starting", "running", "recovering"})
_LAST_WORDS = frozenset({"failed", "stopped"})
"""States that only `live.json` records: the driver failed, or ended without a last checkpoint."""


def status_of(stored: Stored, now_us: int) -> Status:
    """Return the job's status in the form of API.md."""
    said = last_report(stored.store)
    job = stored.repository.read_log() or stored.job  # after live.json, so that this is the newer
    job_status = observed(job, stored.name, stored.folder, said, now_us)
    if not job_status.sources and job.completed:
        try:
            manifest = stored.repository.load_manifest(job.completed[-1].body.manifest)
            return _with_manifest(job_status, manifest, ended=job.ended is not None)
        except Damaged as error:
            return replace(job_status, problems=(*job_status.problems, status.refused(error)))
    return job_status


def last_report(store: ObjectStore) -> Status | None:
    """Return the driver's last report; None if there is none that this version understands."""
    try:
        return read_live(store)
    except NotFound:
        return None


def observed(job: joblog.Job, name: str, folder: str, live: Status | None, now_us: int) -> Status:
    """Combine the log and `live.json` into the status at this moment."""
    job_status = replace(status.of_log(job, name, folder), restarts=_restarts(job, ()))
    if live is None or live.generation != job.generation or (live.job_uuid or job.uuid) != job.uuid:
        job_status = _of_another_generation(job_status, job, live, now_us)
    else:
        job_status = _of_this_generation(job_status, job, live, now_us)
    if job_status.state == "unreachable" and not _is_known_gone(job_status.driver):
        free = free_bytes(folder)
        job_status = _full(job_status, folder, free) if free is not None and free < FULL_BELOW_BYTES else job_status
    if job_status.checkpoint is not None:
        age_ms = max(0, (now_us - job_status.checkpoint.at) // 1000)
        job_status = replace(job_status, checkpoint=replace(job_status.checkpoint, age_ms=age_ms))
    return job_status


def _of_another_generation(shown: Status, job: joblog.Job, live: Status | None, now_us: int) -> Status:
    if job.ended is not None:
        return shown
    if live is not None and live.driver is not None and live.driver.owner == job.owner:
        shown = replace(shown, driver=_seen(live.driver, now_us))
    # The owner of this generation may not have reported in it yet; its earlier report identifies it.
    if shown.driver is not None and is_gone(shown.driver):
        return _lost(shown, shown.driver)
    return _unseen(shown, job, live, now_us)


def _of_this_generation(shown: Status, job: joblog.Job, live: Status, now_us: int) -> Status:
    assert live.driver is not None, "a file without a driver is not understood"
    driver, last_words = _seen(live.driver, now_us), live.state in _LAST_WORDS
    shown = replace(shown, driver=driver, mode=live.mode)
    if job.ended is not None:
        return replace(shown, restarts=_restarts(job, live.restarts))
    if not last_words and (driver.seen_ms > status.STALE_AFTER_MS or is_gone(driver)):
        return _lost(shown, driver)
    shown = replace(
        live,
        checkpoint=shown.checkpoint,
        epochs=live.epochs if shown.epochs is None else shown.epochs,
        rewind_horizon=shown.rewind_horizon,
        driver=driver,
        restarts=_restarts(job, live.restarts),
        job_uuid=shown.job_uuid,
        key_groups=shown.key_groups,
    )
    if last_words:
        return replace(shown, workers=())  # they have left
    return replace(shown, problems=(*shown.problems, *_ahead(driver, now_us)))


def _seen(driver: DriverProcess, now_us: int) -> DriverProcess:
    return replace(driver, seen_ms=max(0, (now_us - driver.at) // 1000))


def _unseen(shown: Status, job: joblog.Job, live: Status | None, now_us: int) -> Status:
    """Return the state of a generation that has not reported: it may have just started, or died immediately."""
    last = job.starts[-1] if job.starts else None
    since = last.at if last is not None else job.created_at
    if now_us - since <= status.STALE_AFTER_MS * 1000:
        state: State = "recovering" if live is not None and last is not None and last.generation > 1 else "starting"
        return replace(shown, state=state, reason=None if last is None else last.cause)
    age_s = (now_us - since) // 1_000_000
    reason = f"the driver of generation {job.generation}, started {age_s:,} s ago, has not reported"
    return _unreachable(shown, reason, CHECK_DRIVER)


def _lost(shown: Status, driver: DriverProcess) -> Status:
    where = f"the driver (pid {driver.pid} on {driver.host})"
    if is_gone(driver):
        return _unreachable(shown, f"{where} no longer runs", "run the job again: it resumes from its last checkpoint")
    ago = f"{driver.seen_ms / 1000:,.0f} s"
    if is_running(driver):
        reason = f"{where} runs, but has not been able to report to {shown.root} for {ago}"
        next_step = (
            "make sure that the root takes writes from there; the driver then continues. If it takes them, the process "
            "is stopped or hangs, or is a notebook that no longer runs the job: end that run, and run the job again"
        )
        return _root_refused(shown, reason, next_step)
    return _unreachable(shown, f"{where} was last seen {ago} ago", CHECK_DRIVER)


def free_bytes(folder: str) -> int | None:
    """Return the free space on the disk of a local folder; None for other stores, or if it cannot be read."""
    try:
        found = os.statvfs(folder)
    except (OSError, ValueError):
        return None
    return found.f_bavail * found.f_frsize


def _full(shown: Status, folder: str, free: int) -> Status:
    """Explain why a live driver may be silent: the disk has no room for `live.json`."""
    reason = f"the disk of {folder} is full ({free:,} bytes are free): a running driver cannot report there"
    next_step = f"free space on the disk of {folder}; a running driver then continues, otherwise run the job again"
    return _root_refused(shown, reason, next_step)


def _ahead(driver: DriverProcess, now_us: int) -> list[Problem]:
    """Report a driver last seen in the future: how long ago it was alive is unknown."""
    ahead_ms = (driver.at - now_us) // 1000
    if ahead_ms <= status.STALE_AFTER_MS:
        return []
    what = (
        f"the driver on {driver.host} (pid {driver.pid}) was last seen {ahead_ms / 1000:,.0f} s in the future by "
        "this machine's clock, so whether it still runs is unknown"
    )
    next_step = "synchronise the clocks; holdfast run finds out within 5 s, and refuses to start beside a live driver"
    return [Problem(code="clock_ahead", what=what, next=next_step)]


def _is_known_gone(driver: DriverProcess | None) -> bool:
    return driver is not None and is_gone(driver)


def _unreachable(shown: Status, reason: str, next_step: str) -> Status:
    problem = Problem(code="unreachable", what=reason, next=next_step)
    return replace(shown, state="unreachable", reason=reason, problems=(problem,))


def _root_refused(shown: Status, reason: str, next_step: str) -> Status:
    problem = Problem(code=status.ROOT_REFUSED, what=reason, next=next_step)
    return replace(shown, state="unreachable", reason=reason, problems=(problem,))


def _restarts(job: joblog.Job, live: Iterable[RestartRow]) -> tuple[RestartRow, ...]:
    """Return every recovery that the log holds; only the driver knows how long each took."""
    took: dict[int, Number | None] = {restart.generation: restart.recovery_ms for restart in live}
    rewinds = {rewind.first_epoch for rewind in job.rewinds}
    return tuple(
        RestartRow(s.at, s.cause, s.generation, s.first_epoch in rewinds, took.get(s.generation))
        for s in job.starts
        if s.generation in took or not s.cause.startswith(("started", "rewound"))
    )


def _with_manifest(shown: Status, manifest: Manifest, *, ended: bool) -> Status:
    """Fill in sources and sinks from the last checkpoint when no driver reports them.

    Args:
        ended: The log holds the end of the run, which is appended only when everything is delivered (PROTOCOL P13).
    """
    delivered_epochs: dict[str, int] = {}
    staged_epochs: dict[str, int] = {}
    for done in manifest.confirmed:
        delivered_epochs[done.writer.sink] = max(delivered_epochs.get(done.writer.sink, 0), done.tag.epoch)
    for item in manifest.pending:
        staged_epochs[item.writer.sink] = max(staged_epochs.get(item.writer.sink, 0), item.tag.epoch)
    if ended:
        delivered_epochs |= {name: max(epoch, delivered_epochs.get(name, 0)) for name, epoch in staged_epochs.items()}
    units = {} if manifest.shape is UNSET else units_of(manifest.shape)
    return replace(
        shown,
        sources=tuple(
            SourceRow(
                at.source, at.partition, at.offset, watermark=at.watermark, lost=at.lost, unit=units.get(at.source)
            )
            for at in manifest.positions
        ),
        late=status.late_of(manifest),
        sinks=tuple(
            SinkRow(name, staged_epochs.get(name), delivered_epochs.get(name))
            for name in sorted({*delivered_epochs, *staged_epochs})
        ),
    )
