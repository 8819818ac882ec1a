"""Receives requests over HTTP, carries out the decisions of `Admission`, and answers.

aiohttp parses HTTP; one thread writes the log. The port speaks plain HTTP: TLS, and limits per client, are for a proxy
before it.

| status | when |
|---|---|
| 200 | the request is in the log: stored now, or its key was stored before |
| 400 | the body does not fit the schema, or the idempotency key is missing |
| 401 | the signature is wrong, or its time is too far from now |
| 404, 405, 415 | another path, another method than POST, a compressed body |
| 408, 413 | the body arrives too slowly, or is too large |
| 429 | too many requests wait; with Retry-After |
| 503 | the log or a secret is unreachable, or the process is stopping; with Retry-After |

Source: RFC 9110; docs/decisions/0085-webhooks.md.
"""

from __future__ import annotations

import asyncio
import logging
import math
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from aiohttp import web

from holdfast.errors import ConfigError, HoldfastError, Unavailable
from holdfast.runtime.capture.admission import Admission, AdmissionLimits, Answer, CommitRequests, Effect, Verdict
from holdfast.runtime.capture.appending import Appending
from holdfast.runtime.capture.keys import RecentKeys, digest_of
from holdfast.runtime.capture.requests import Accepted, Echo, RefusedRequest, Requests
from holdfast.runtime.sources.webhook.connector import Receiving
from holdfast.secrets import Secret

BODY_WITHIN_S = 20.0
BODY_FIRST = 16 * 1024
"""Bytes of a body for which there is room before it is read: a sender that announces much and stalls holds no more."""
ANSWER_WITHIN_S = 30.0
"""Senders give up earlier; a request that waits longer is answered 503, and may be stored anyway."""
STOP_WITHIN_S = 30.0
"""How long a stop waits for the requests that were admitted."""
CLOSE_WITHIN_S = 5.0
KEEP_ALIVE_S = 75.0
CONNECTIONS_MAX = 4_000
_CROWDED = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
KEYS_AT_START = 2
"""How many times as many keys as are accepted may be in the log at a start, with a longer horizon than before."""
SECRETS_EVERY_S = 5.0
"""How long a secret that was read is used."""
RETRY_AFTER_S = {Verdict.OVERLOADED: 1, Verdict.FULL: 60, Verdict.UNREACHABLE: 5, Verdict.STOPPING: 5}
REASONS = {
    Verdict.OVERLOADED: (429, "too many requests wait to be stored; send it again"),
    Verdict.FULL: (429, "too many idempotency keys are known; send it again when older ones have expired"),
    Verdict.UNREACHABLE: (503, "the log could not be written in time: the request may be stored or not; send it again"),
    Verdict.STOPPING: (503, "the receiving process is stopping; nothing was stored; send it again"),
}
COUNTED = ("stored", "repeated", "refused", "overloaded", "full", "unreachable", "stopping")

_log = logging.getLogger("holdfast.capture")


@dataclass(frozen=True)
class Listening:
    """The report of a process that begins to receive."""

    url: str
    keys: int
    """How many idempotency keys it found in the log."""


class _Refusal(Exception):
    """A request that is answered with an error of this status."""

    def __init__(self, status: int, reason: str, **headers: str) -> None:
        super().__init__(reason)
        self.status, self.reason, self.headers = status, reason, headers


class _Crowded(asyncio.Protocol):
    """A connection beyond the limit: it is answered 503, and closed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(_CROWDED)
        transport.close()


@dataclass
class _Held:
    """How many bytes a request is admitted with."""

    size: int


@dataclass(frozen=True)
class _PendingRequest:
    accepted: Accepted
    verdict: asyncio.Future[Verdict]


class Server:
    """One port and one log.

    Args:
        receiving: Configuration of the requests to receive.
        appending: The log.
        limits: How much is held, and stored together; None: the usual limits.
        connections_max: How many connections are open together; None: as many as leave files to the log.

    Raises:
        ConfigError: the log has too many keys.
        Damaged, Unavailable: it cannot be read.
    """

    def __init__(
        self,
        receiving: Receiving,
        appending: Appending,
        limits: AdmissionLimits | None = None,
        connections_max: int | None = None,
    ) -> None:
        self._of, self._appending = receiving, appending
        self._connections_max = connections_max or _connections_max()
        self._requests, self._secrets = Requests(receiving), SecretValues(receiving.secrets)
        limits = limits or AdmissionLimits(receiving.linger_ms)
        self._admission = Admission(limits, _known_keys(receiving, appending, limits))
        self._waiting: dict[int, _PendingRequest] = {}
        self._numbers = count()
        self._thread = ThreadPoolExecutor(1, "append")
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = set[asyncio.Task[None]]()
        self._full_reported = False
        self.counts = Counter[str]()
        """Answers by kind: see COUNTED."""

    @property
    def held(self) -> int:
        """How many requests were admitted and have no answer yet."""
        return self._admission.held

    async def run(self, stop: asyncio.Event, listening: Callable[[Listening], None]) -> None:
        """Receive until `stop` is set; then store and answer the admitted requests.

        Raises:
            ConfigError: the address cannot be listened on, or the log was sealed.
            Damaged: the log was deleted or restored meanwhile.
            NotAdmitted: a secret cannot be read.
        """
        self._loop = asyncio.get_running_loop()
        self._failure: asyncio.Future[None] = self._loop.create_future()
        self._drained = asyncio.Event()
        self._secrets.values()
        app = web.Application(client_max_size=self._of.body_max)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(
            app,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=KEEP_ALIVE_S,
            shutdown_timeout=CLOSE_WITHIN_S,
        )
        await runner.setup()
        try:
            port = await self._listen(runner)
            try:
                number = port.sockets[0].getsockname()[1]
                listening(Listening(_url(self._of.host, number, self._of.path), self._admission.known))
                await self._until(stop)
            finally:
                port.close()
            await self._drain()
            if self._failure.done():
                self._failure.result()
        finally:
            await runner.cleanup()
            self._thread.shutdown(wait=False)

    async def _listen(self, runner: web.AppRunner) -> asyncio.Server:
        assert runner.server is not None, "it is set up"
        accept = partial(self._accepted, runner.server)
        try:
            return await self._loop.create_server(accept, self._of.host, self._of.port)
        except OSError as error:
            raise ConfigError(
                f"{self._of.host}:{self._of.port} cannot be listened on: {error.strerror or error}",
                not_done="nothing was received",
                next_step="give hf.Webhook another port or host; or end the process that has this one",
            ) from error

    def _accepted(self, server: web.Server) -> asyncio.Protocol:
        """Return the handler of a new connection."""
        return _Crowded() if len(server.connections) >= self._connections_max else server()

    async def _until(self, stop: asyncio.Event) -> None:
        """Wait for the request to stop, or for an error that ends the process."""
        asked: asyncio.Future[Any] = asyncio.ensure_future(stop.wait())
        await asyncio.wait({asked, self._failure}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()

    async def _drain(self) -> None:
        self._perform(self._admission.stop(self._now_ms()))
        drained = asyncio.ensure_future(self._drained.wait())
        done, _ = await asyncio.wait({drained}, timeout=STOP_WITHIN_S)
        drained.cancel()
        if not done:
            _log.warning("requests that were admitted are not answered: the log did not take them in time")

    async def _handle(self, request: web.Request) -> web.Response:
        try:
            return await self._take(request)
        except _Refusal as refused:
            self.counts["unreachable" if refused.status == 503 else "refused"] += 1
            return web.json_response({"error": refused.reason}, status=refused.status, headers=refused.headers)

    async def _take(self, request: web.Request) -> web.Response:
        size = min(self._check(request), BODY_FIRST)
        self._admission.forget(self._now_ms())
        if (verdict := self._admission.admit(size)) is not None:
            return self._answer(verdict)
        reservation, waiting = _Held(size), None
        try:
            outcome = await self._read(request, reservation)
            if isinstance(outcome, Accepted):
                waiting = self._submit(outcome, reservation.size)
        finally:
            if waiting is None:
                self._admission.withdraw(reservation.size)
                self._note_drained()
        match outcome:
            case Verdict():
                return self._answer(outcome)
            case RefusedRequest(status, reason):
                raise _Refusal(status, reason)
            case Echo(text):
                return web.Response(text=text)
        assert waiting is not None
        done, _ = await asyncio.wait({waiting}, timeout=ANSWER_WITHIN_S)
        return self._answer(waiting.result() if done else Verdict.UNREACHABLE)

    def _check(self, request: web.Request) -> int:
        """Refuse a request that can be refused without its body; return the largest size that the body can have."""
        if request.path != self._of.path:
            raise _Refusal(404, "requests are received at another path")
        if request.method != "POST":
            raise _Refusal(405, "requests are received by POST", Allow="POST")
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise _Refusal(415, "bodies are received without compression")
        size = self._of.body_max if request.content_length is None else request.content_length
        if size > self._of.body_max:
            raise self._too_large()
        return size

    async def _read(self, request: web.Request, held: _Held) -> Accepted | RefusedRequest | Echo | Verdict:
        """Read a request; return its content, or why its body was not read to its end."""
        try:
            async with asyncio.timeout(BODY_WITHIN_S):
                body = await self._body(request, held)
        except TimeoutError:
            raise _Refusal(408, f"the body did not arrive within {BODY_WITHIN_S:.0f} s") from None
        if body is None:
            return Verdict.OVERLOADED
        headers: dict[str, str] = {}
        for name, value in request.headers.items():
            headers.setdefault(name.lower(), value)
        try:
            secrets = self._secrets.values()
        except HoldfastError as error:
            _log.error("%s", error)
            raise _Refusal(503, "the secret of the signatures cannot be read", **{"Retry-After": "5"}) from None
        return self._requests.read(headers, body, secrets, time.time())

    async def _body(self, request: web.Request, held: _Held) -> bytes | None:
        """Read a body; return None if there is no room for it. Bytes take room only once they have arrived."""
        body = bytearray()
        while chunk := await request.content.readany():
            body += chunk
            if len(body) > self._of.body_max:
                raise self._too_large()
            if (more := len(body) - held.size) > 0:
                if not self._admission.grow(more):
                    return None
                held.size += more
        self._admission.shrink(held.size, len(body))
        held.size = len(body)
        return bytes(body)

    def _submit(self, accepted: Accepted, size: int) -> asyncio.Future[Verdict]:
        number, verdict = next(self._numbers), self._loop.create_future()
        self._waiting[number] = _PendingRequest(accepted, verdict)
        key = None if accepted.key is None else digest_of(accepted.key)
        self._perform(self._admission.arrived(number, key, size, self._now_ms()))
        return verdict

    def _perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Answer(request, verdict):
                    self._waiting.pop(request).verdict.set_result(verdict)
                case CommitRequests(requests):
                    task = self._loop.create_task(self._commit([self._waiting[each].accepted for each in requests]))
                    self._tasks.add(task)
                    task.add_done_callback(self._ended)
        if self._timer is not None:
            self._timer.cancel()
        wake_ms = self._admission.wake_ms()
        self._timer = None if wake_ms is None else self._loop.call_at(wake_ms / 1_000, self._wake)
        self._note_drained()

    def _wake(self) -> None:
        self._perform(self._admission.due(self._now_ms()))

    def _note_drained(self) -> None:
        if self.held:
            self._drained.clear()
        else:
            self._drained.set()

    async def _commit(self, batch: Sequence[Accepted]) -> None:
        try:
            append_result = await self._loop.run_in_executor(self._thread, self._appending.append, batch)
        except Unavailable as error:
            _log.warning("%d requests were answered 503: %s", len(batch), error.what)
            self._perform(self._admission.failed(self._now_ms()))
        else:
            self._perform(self._admission.committed(*append_result, self._now_ms()))

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Answer the batch and end the process if a commit ended with an error that no retry can cure, of any kind."""
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if not self._failure.done():
            self._failure.set_exception(error)
        self._perform(self._admission.failed(self._now_ms()))

    def _answer(self, verdict: Verdict) -> web.Response:
        self.counts[verdict.value] += 1
        if verdict not in REASONS:
            return web.json_response({"status": verdict.value})
        if verdict is Verdict.FULL and not self._full_reported:
            self._full_reported = True
            _log.error("%d idempotency keys are known, so new ones are refused: shorten horizon", self._admission.known)
        status, reason = REASONS[verdict]
        headers: Mapping[str, str] = {"Retry-After": str(RETRY_AFTER_S[verdict])}
        response = web.json_response({"error": reason}, status=status, headers=headers)
        if verdict is Verdict.STOPPING:
            response.force_close()
        return response

    def _too_large(self) -> _Refusal:
        return _Refusal(413, f"the body is larger than {self._of.body_max:,} bytes")

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1_000)


class SecretValues:
    """The values of secrets, read again every few seconds: a replaced file takes effect."""

    def __init__(self, secrets: Sequence[Secret], clock: Callable[[], float] = time.monotonic) -> None:
        self._secrets, self._clock, self._values = secrets, clock, tuple[bytes, ...]()
        self._until_s = -math.inf

    def values(self) -> tuple[bytes, ...]:
        """Return the values. Raises ConfigError, NotAdmitted."""
        if (now_s := self._clock()) >= self._until_s:
            self._values = tuple(each.value().encode() for each in self._secrets)
            self._until_s = now_s + SECRETS_EVERY_S
        return self._values


def receive(receiving: Receiving, appending: Appending, listening: Callable[[Listening], None]) -> Mapping[str, int]:
    """Receive until SIGINT or SIGTERM; return how many requests were answered, by kind. Raises: see Server.run."""
    server = Server(receiving, appending)

    async def until_signal() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        await server.run(stop, listening)

    asyncio.run(until_signal())
    return {kind: server.counts[kind] for kind in COUNTED}


def _known_keys(receiving: Receiving, appending: Appending, limits: AdmissionLimits) -> RecentKeys:
    """Return the keys that are in the log, with their times by the monotonic clock of this process.

    Raises:
        ConfigError: there are more than memory is meant for.
    """
    keys, most = RecentKeys(receiving.horizon_us), KEYS_AT_START * limits.keys_max
    now_us = time.monotonic_ns() // 1_000  # by the clock of asyncio, too
    for number, (key, at_us) in enumerate(appending.recover()):
        if number >= most:
            raise ConfigError(
                f"the log at {receiving.log} has more than {most:,} idempotency keys within the horizon",
                not_done="nothing was received",
                next_step="give hf.Webhook a shorter horizon, or another log",
            )
        keys.add(key, now_us - appending.age_us(at_us))
    return keys


def _connections_max() -> int:
    """Return half of the files that this process may have open, up to a limit: the log needs the other half."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS_MAX if files == resource.RLIM_INFINITY else max(1, min(CONNECTIONS_MAX, files // 2))


def _url(host: str, port: int, path: str) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{path}"
