"""Handles the requests in a run's inbox: check the requirements of each, let the loop decide, answer.

Before the loop decides on a rewind, a separate lane checks it against the code and the targets of this run; that
reads manifests and may take a while.

Invariants
    - A request that this run cannot judge yet, or that is for a newer run, is put back unanswered.

Source: DESIGN section 13 (requests).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from holdfast.checkpoint.joblog import Job
from holdfast.errors import HoldfastError, Unavailable
from holdfast.model import Generation
from holdfast.ports import Lane
from holdfast.runtime.driver.loop import DriverLoop
from holdfast.runtime.execution.prepare import Prepared
from holdfast.runtime.job.requests import Inbox, JobRequest
from holdfast.runtime.rewind.plan import granted
from holdfast.runtime.rewind.sources import missing_records
from holdfast.runtime.rewind.target import while_it_goes_on


class Asking:
    """The requests of one run; used by the thread of the loop."""

    def __init__(self, inbox: Inbox, loop: DriverLoop, lane: Callable[[str], Lane], prepared: Prepared) -> None:
        self._inbox, self._loop, self._lane, self._prepared = inbox, loop, lane, prepared
        job = prepared.folder.job
        self._first = Generation(1 if job is None else job.generation + 1)
        """The first generation of this run."""

    def found(self, result: object) -> None:
        """Take the result of a poll of the inbox."""
        if isinstance(result, Unavailable):
            return  # the store is unreachable; polled again in a second
        if isinstance(result, BaseException):
            raise result
        assert isinstance(result, list)
        for request in result:
            job = self._loop.state.log.job
            if job is None or not self._loop.judges(request.generation, self._first):
                self._inbox.put_back(request)
            elif request.kind == "rewind":
                look = partial(self._looked_at, job, request.args)
                self._lane("targets").submit(look, partial(self._carry_out, request))
            else:
                self._carry_out(request, request.args)

    def _looked_at(self, job: Job, args: Mapping[str, Any]) -> Mapping[str, Any] | str:
        """Return the allowed rewind, or why none is allowed."""

        prepared_run, repository = self._prepared, self._prepared.folder.repository

        def look(now: Job) -> Mapping[str, Any] | str:
            missing = missing_records(repository, now, args.get("epoch", 0), prepared_run.plan)
            return missing or granted(
                repository, now, args, prepared_run.outputs, operators=prepared_run.state.operators
            )

        return while_it_goes_on(repository, job, look)

    def _carry_out(self, request: JobRequest, found: object) -> None:
        """Let the loop carry out a request that passed its check, and answer it; else answer with the reason."""
        why = found.what if isinstance(found, HoldfastError) else found
        if isinstance(why, BaseException):
            raise why
        reply: Mapping[str, Any] | None = {"accepted": False, "generation": request.generation, "reason": why}
        if isinstance(found, Mapping):
            reply = self._loop.asked(request.kind, found, request.generation, self._first)
        if reply is None:
            self._inbox.put_back(request)
            return
        self._lane("requests").submit(
            lambda: self._inbox.answer(request, reply),
            lambda _: None,  # an answer that could not be written is written with the next poll
        )
