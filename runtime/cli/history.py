"""What commands know of a job from outside: its log, its manifests, and `live.json` while somebody keeps it fresh.

The log is the truth. `live.json` adds what only the driver knows, and only while it is younger than
`status.STALE_AFTER_MS` and of the log's generation; a driver that failed says so in it for good. Ages are computed
at the time of reading.

Source: DESIGN section 13 (`live.json`); API.md, JSON `status`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint import joblog
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.repository import Repository, record_path
from holdfast.errors import ConfigError, Damaged, NotFound, Where
from holdfast.ports import ObjectStore
from holdfast.runtime import status
from holdfast.runtime.live import understood
from holdfast.runtime.presence import is_gone
from holdfast.storage.objects import LocalObjects, open_objects
from holdfast.storage.paths import join

NAMES_SHOWN_MAX = 20
FULL_BELOW_BYTES = 64 << 10
"""With less free space a disk counts as full; a `live.json` of many workers takes about as much."""
CHECK_DRIVER = "see whether the driver's process and host are alive; if not, run the job again: it goes on"
RUNNING = frozenset({"starting", "running", "recovering"})
_LAST_WORDS = frozenset({"failed", "stopped"})
"""What a driver leaves in `live.json` for good where the log says nothing: it failed, or was ended at once."""


@dataclass(frozen=True)
class Stored:
    """A job as its root holds it."""

    name: str
    folder: str
    """The job's own folder or URL below the root."""
    store: ObjectStore
    repository: Repository
    job: joblog.Job


def open_job(root: str, name: str) -> Stored:
    """Read a job's log.

    Raises:
        ConfigError: there is no such job; lists those that exist.
        Damaged: the log cannot be read.
    """
    if name and "/" not in name and name not in (".", ".."):
        folder = join(root, name)
        store = open_objects(folder, writable=False)
        repository = Repository(store)
        job = repository.read_log()
        if job is not None:
            return Stored(name, folder, store, repository, job)
    raise _unknown(root, name)


def job_names(root: str) -> list[str]:
    """Return the jobs under a root; none if the root does not exist."""
    store, first = open_objects(root, writable=False), record_path(1)
    if isinstance(store, LocalObjects):
        return sorted(path.parent.parent.name for path in store.root.glob(f"*/{first}"))
    found = (path.removesuffix(f"/{first}") for path in store.list("") if path.endswith(f"/{first}"))
    return sorted(name for name in found if "/" not in name)


def status_of(stored: Stored, now_us: int) -> dict[str, Any]:
    """Return the job's status in the form of API.md."""
    said = read_live(stored.store)
    job = stored.repository.read_log() or stored.job  # after live.json, which thus cannot be ahead of it
    shown = observed(job, stored.name, stored.folder, said, now_us)
    if not shown["sources"] and job.completed:
        try:
            manifest = stored.repository.load_manifest(job.completed[-1].body.manifest)
            _add_manifest(shown, manifest, ended=job.ended is not None)
        except Damaged as error:
            shown["problems"].append({"code": error.kind, "what": error.what, "next": error.next_step})
    return shown


def read_live(store: ObjectStore) -> Mapping[str, Any] | None:
    """Return what the driver last said, None if there is nothing that this version understands."""
    try:
        return understood(store.get("live.json"))
    except NotFound:
        return None


def observed(
    job: joblog.Job, name: str, folder: str, live: Mapping[str, Any] | None, now_us: int
) -> dict[str, Any]:
    """Put together what log and `live.json` say at this moment."""
    shown = status.of_log(job, name, folder)
    shown["restarts"] = _restarts(job, ())
    if live is None or live["generation"] != job.generation or live.get("job_uuid", job.uuid) != job.uuid:
        if job.ended is None and live is not None and live["driver"].get("owner") == job.owner:
            shown["driver"] = {**live["driver"], "seen_ms": max(0, (now_us - live["driver"]["at"]) // 1000)}
        if job.ended is None:
            # What owns this generation may not have shown itself in it yet; its earlier word tells who it is.
            shown |= _lost(shown["driver"]) if _is_known_gone(shown["driver"]) else _unseen(job, live, now_us)
    else:
        driver = {**live["driver"], "seen_ms": max(0, (now_us - live["driver"]["at"]) // 1000)}
        shown["driver"], shown["mode"] = driver, live["mode"]
        if job.ended is not None:
            shown["restarts"] = _restarts(job, live["restarts"])
        elif live["state"] in _LAST_WORDS or (driver["seen_ms"] <= status.STALE_AFTER_MS and not is_gone(driver)):
            told = ("checkpoint", "epochs", "rewind_horizon")
            from_log: dict[str, Any] = {key: shown[key] for key in told if key in shown}
            shown = {**shown, **live, **from_log, "driver": driver, "restarts": _restarts(job, live["restarts"])}
            if live["state"] in _LAST_WORDS:
                shown["workers"] = []  # they have left
            else:
                shown["problems"] = [*shown["problems"], *_ahead(driver, now_us)]
        else:
            shown |= _lost(driver)
    if shown["state"] == "unreachable" and not _is_known_gone(shown["driver"]):
        free = free_bytes(folder)
        shown |= _full(folder, free) if free is not None and free < FULL_BELOW_BYTES else {}
    if shown["checkpoint"] is not None:
        shown["checkpoint"]["age_ms"] = max(0, (now_us - shown["checkpoint"]["at"]) // 1000)
    return shown


def _unseen(job: joblog.Job, live: Mapping[str, Any] | None, now_us: int) -> dict[str, Any]:
    """The newest generation has not shown itself: it may have started just now, or died at once."""
    last = job.starts[-1] if job.starts else None
    since = last.at if last is not None else job.created_at
    if now_us - since <= status.STALE_AFTER_MS * 1000:
        recovering = live is not None and last is not None and last.generation > 1
        return {"state": "recovering" if recovering else "starting", "reason": None if last is None else last.cause}
    age_s = (now_us - since) // 1_000_000
    return _unreachable(f"no driver of generation {job.generation} was seen; it started {age_s:,} s ago", CHECK_DRIVER)


def _lost(driver: Mapping[str, Any]) -> dict[str, Any]:
    where = f"the driver (pid {driver['pid']} on {driver['host']})"
    if is_gone(driver):
        return _unreachable(f"{where} is gone", "run the job again: it goes on from its last checkpoint")
    return _unreachable(f"{where} was last seen {driver['seen_ms'] / 1000:,.0f} s ago", CHECK_DRIVER)


def free_bytes(folder: str) -> int | None:
    """Return the free space on the disk of a local folder; None for other stores, or if it cannot be asked."""
    try:
        found = os.statvfs(folder)
    except (OSError, ValueError):
        return None
    return found.f_bavail * found.f_frsize


def _full(folder: str, free: int) -> dict[str, Any]:
    """Say why a driver may be silent though it lives: `live.json` has no room."""
    reason = f"the disk of {folder} is full ({free:,} bytes are free): a driver that runs cannot report there"
    next_step = f"free space on the disk of {folder}; a driver that runs goes on by itself, else run the job again"
    problem = {"code": status.ROOT_REFUSED, "what": reason, "next": next_step}
    return {"state": "unreachable", "reason": reason, "problems": [problem]}


def _ahead(driver: Mapping[str, Any], now_us: int) -> list[dict[str, Any]]:
    """A time in the future does not tell how long ago the driver was alive."""
    ahead_ms = (driver["at"] - now_us) // 1000
    if ahead_ms <= status.STALE_AFTER_MS:
        return []
    what = (
        f"the driver on {driver['host']} (pid {driver['pid']}) was last seen {ahead_ms / 1000:,.0f} s in the future by "
        "this machine's clock, so it is not known whether it still runs"
    )
    next_step = "synchronise the clocks; holdfast run finds out within 5 s, and refuses to start beside a live driver"
    return [{"code": "clock_ahead", "what": what, "next": next_step}]


def _is_known_gone(driver: Mapping[str, Any] | None) -> bool:
    return driver is not None and is_gone(driver)


def _unreachable(reason: str, next_step: str) -> dict[str, Any]:
    problem = {"code": "unreachable", "what": reason, "next": next_step}
    return {"state": "unreachable", "reason": reason, "problems": [problem]}


def _restarts(job: joblog.Job, live: Any) -> list[dict[str, Any]]:
    """Return every recovery that the log holds; how long it took is known from the driver alone."""
    took = {restart["generation"]: restart["recovery_ms"] for restart in live}
    rewinds = {rewind.first_epoch for rewind in job.rewinds}
    return [
        {"at": s.at, "cause": s.cause, "generation": s.generation, "rewind": s.first_epoch in rewinds,
         "recovery_ms": took.get(s.generation)}
        for s in job.starts
        if s.generation in took or not s.cause.startswith(("started", "rewound"))
    ]  # fmt: skip


def _add_manifest(shown: dict[str, Any], manifest: Manifest, *, ended: bool) -> None:
    """Fill in what the last checkpoint knows of sources and sinks when no driver tells.

    Args:
        ended: The log holds the end of the run, which is appended only when everything is delivered (PROTOCOL P13).
    """
    unknown = dict.fromkeys(("end_offset", "lag", "oldest_offset", "idle_ms", "holds_time"))
    shown["sources"] = [
        {"name": at.source, "partition": at.partition, "offset": at.offset, "watermark": at.watermark, **unknown}
        for at in manifest.positions
    ]
    delivered: dict[str, int] = {}
    staged: dict[str, int] = {}
    for done in manifest.confirmed:
        delivered[done.writer.sink] = max(delivered.get(done.writer.sink, 0), done.tag.epoch)
    for item in manifest.pending:
        staged[item.writer.sink] = max(staged.get(item.writer.sink, 0), item.tag.epoch)
    if ended:
        delivered |= {name: max(epoch, delivered.get(name, 0)) for name, epoch in staged.items()}
    shown["late"] = status.late_of(manifest)
    shown["sinks"] = [
        {"name": name, "staged_epoch": staged.get(name), "delivered_epoch": delivered.get(name), "error": None}
        for name in sorted({*delivered, *staged})
    ]


def _unknown(root: str, name: str) -> ConfigError:
    names = job_names(root)
    listed = ", ".join(names[:NAMES_SHOWN_MAX])
    if len(names) > NAMES_SHOWN_MAX:
        listed += f" and {len(names) - NAMES_SHOWN_MAX} more"
    if name.endswith(".py"):
        next_step = "give the job's name, the first argument of hf.App, not its file"
    else:
        next_step = "correct the name" if names else "check where the job keeps its history"
    return ConfigError(
        f"there is no job {name!r} under {root}",
        not_done="nothing was read or changed",
        next_step=f"{next_step}, or give another --root; "
        + (f"jobs here: {listed}" if names else "there are no jobs here"),
        where=Where(job=name),
    )
