"""Webhooks over real HTTP, on free ports of the loopback interface."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from socket import create_server
from typing import Any

import aiohttp
import pyarrow as pa
import pytest
from patience import WALL_S

import holdfast as hf
from holdfast.errors import NotAdmitted, Unavailable
from holdfast.runtime.capture.admission import AdmissionLimits
from holdfast.runtime.capture.appending import Appending
from holdfast.runtime.capture.server import ANSWER_WITHIN_S, SECRETS_EVERY_S, Listening, SecretValues, Server
from holdfast.runtime.sources.webhook.connector import Receiving
from holdfast.secrets import Secret
from holdfast.storage.log.log import LogReader, LogWriter
from holdfast.storage.objects import MemoryObjects

SCHEMA = pa.schema([pa.field("id", pa.utf8(), nullable=False), pa.field("cents", pa.int64(), nullable=False)])
STORED, REPEATED = (200, {"status": "stored"}), (200, {"status": "repeated"})
USUAL = AdmissionLimits(linger_ms=5)
TRIES_MAX = 10_000
Reply = tuple[int, Any]


def receiving(**given: Any) -> Receiving:
    made = {"path": "/in", "key": "body:id", **given}
    return hf.Webhook("127.0.0.1:0", hf.Log("data/log", partitions=1), SCHEMA, **made).receiving


def payment(name: str) -> bytes:
    return json.dumps({"id": name, "cents": 1}).encode()


class Client:
    """A sender."""

    def __init__(self, server: Server, session: aiohttp.ClientSession, url: str, stop: asyncio.Event) -> None:
        self.server, self.session, self.url, self.stop = server, session, url, stop

    async def send(self, body: Any, **given: Any) -> Reply:
        async with self.session.post(given.pop("url", self.url), data=body, **given) as answer:
            return answer.status, await answer.json()

    async def headers_of(self, body: Any) -> tuple[int, Any]:
        async with self.session.post(self.url, data=body) as answer:
            return answer.status, answer.headers

    def raw_address(self) -> tuple[str, int]:
        host, port = self.url.removeprefix("http://").partition("/")[0].split(":")
        return host, int(port)


def served(
    work: Callable[[Client], Awaitable[None]],
    store: MemoryObjects | None = None,
    of: Receiving | None = None,
    limits: AdmissionLimits = USUAL,
    connections_max: int | None = None,
) -> Server:
    """Run a server and what a test does with it; return the server when it has stopped."""
    of = of or receiving()
    server = Server(of, Appending(store or MemoryObjects(), of, pause=lambda _: None), limits, connections_max)
    asyncio.run(_both(server, work))
    return server


async def _both(server: Server, work: Callable[[Client], Awaitable[None]]) -> None:
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    running: asyncio.Future[Any] = asyncio.ensure_future(server.run(stop, ready.set_result))
    await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        await running
    listening: Listening = ready.result()
    try:
        async with aiohttp.ClientSession() as session:
            await work(Client(server, session, listening.url, stop))
    finally:
        stop.set()
        await running


def ids(store: MemoryObjects) -> list[str]:
    reader, found, offset = LogReader(store), list[str](), 0
    while offset < reader.end_offset(0):
        batch, offset = reader.read(0, offset, 1 << 20)
        assert batch is not None
        found += batch.column("id").to_pylist()
    return found


class Gated(MemoryObjects):
    """Objects whose commits wait while the gate is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.reached = threading.Event(), threading.Event()
        self.gate.set()

    def close(self) -> None:
        self.gate.clear()
        self.reached.clear()

    def create(self, path: str, data: bytes) -> None:
        if path.startswith("commits/"):
            self.reached.set()
            assert self.gate.wait(WALL_S)
        super().create(path, data)

    async def until_reached(self) -> None:
        assert await asyncio.get_running_loop().run_in_executor(None, self.reached.wait, WALL_S)


class Down(MemoryObjects):
    """Objects that cannot be written while they are down."""

    down = False

    def put(self, path: str, data: bytes) -> None:
        if self.down:
            raise Unavailable("the disk is full", next_step="free space")
        super().put(path, data)


class Defective(MemoryObjects):
    """Objects that fail in a way that nothing expects."""

    def put(self, path: str, data: bytes) -> None:
        raise RuntimeError("a defect")


class TestAnswers:
    def test_a_request_is_in_the_log_when_it_is_answered(self) -> None:
        store = MemoryObjects()

        async def work(client: Client) -> None:
            assert await client.send(payment("a")) == STORED and ids(store) == ["a"]
            assert await client.send(payment("a")) == REPEATED and ids(store) == ["a"]

        assert served(work, store).counts == {"stored": 1, "repeated": 1}

    def test_a_key_is_known_to_the_next_process(self) -> None:
        store = MemoryObjects()

        async def first(client: Client) -> None:
            assert await client.send(payment("a")) == STORED

        async def second(client: Client) -> None:
            assert await client.send(payment("a")) == REPEATED
            assert await client.send(payment("b")) == STORED

        served(first, store)
        served(second, store)
        assert ids(store) == ["a", "b"]

    def test_a_body_that_does_not_fit_is_refused_with_the_reason_and_not_stored(self) -> None:
        store = MemoryObjects()

        async def work(client: Client) -> None:
            reason = {"error": "column 'cents' is missing, which the job's schema does not allow"}
            assert await client.send(b'{"id":"a"}') == (400, reason)
            assert (await client.send(b"no json"))[0] == 400
            assert await client.send(payment("a")) == STORED, "a refused request leaves its key unused"

        served(work, store)
        assert ids(store) == ["a"]

    def test_a_wrong_signature_is_401(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WEBHOOK_SECRET", "hush")
        of = receiving(signature="github", secret=hf.secret("env:WEBHOOK_SECRET"))
        signed = hmac.new(b"hush", payment("a"), hashlib.sha256).hexdigest()

        async def work(client: Client) -> None:
            wrong = {"error": "the signature is not that of this body with the secret"}
            headers = {"X-Hub-Signature-256": f"sha256={signed}"}
            assert await client.send(payment("b"), headers=headers) == (401, wrong)
            assert (await client.send(payment("a")))[0] == 401
            assert await client.send(payment("a"), headers=headers) == STORED

        served(work, of=of)

    def test_a_large_body_is_413_whether_its_size_is_announced_or_not(self) -> None:
        async def chunks(size: int) -> Any:
            yield payment("a").ljust(size)

        async def work(client: Client) -> None:
            large = (413, {"error": "the body is larger than 1,000 bytes"})
            assert await client.send(payment("a").ljust(1_001)) == large
            assert await client.send(chunks(1_001)) == large
            assert await client.send(chunks(1_000)) == STORED
            assert await client.send(payment("b").ljust(1_000)) == STORED

        served(work, of=receiving(body_max=1_000))

    def test_a_body_that_is_nested_too_deeply_is_400(self) -> None:
        nested = b'{"id":"a","x":%s%s}' % (b"[" * 100_000, b"]" * 100_000)

        async def work(client: Client) -> None:
            refused = (400, {"error": "it is nested too deeply"})
            assert await client.send(nested, headers={"k": "a"}) == refused

        served(work, of=receiving(key="header:K"))

    def test_other_paths_methods_and_compressed_bodies_are_refused(self) -> None:
        async def work(client: Client) -> None:
            assert (await client.send(payment("a"), url=client.url + "x"))[0] == 404
            assert (await client.send(payment("a"), headers={"Content-Encoding": "gzip"}))[0] == 415
            async with client.session.get(client.url) as answer:
                assert (answer.status, answer.headers["Allow"]) == (405, "POST")

        assert served(work).counts == {"refused": 3}

    def test_a_log_that_cannot_be_written_is_503_and_the_retry_is_stored(self) -> None:
        store = Down()

        async def work(client: Client) -> None:
            store.down = True
            status, headers = await client.headers_of(payment("a"))
            assert (status, headers["Retry-After"]) == (503, "5")
            store.down = False
            assert await client.send(payment("a")) == STORED

        served(work, store)
        assert ids(store) == ["a"]


class TestLoad:
    def test_requests_that_arrive_during_a_commit_share_the_next(self) -> None:
        store = Gated()

        async def work(client: Client) -> None:
            store.close()
            first = asyncio.ensure_future(client.send(payment("first")))
            await store.until_reached()
            others = [asyncio.ensure_future(client.send(payment(f"{n}"))) for n in range(20)]
            while client.server.held < 21:
                await asyncio.sleep(0)
            store.gate.set()
            assert await asyncio.gather(first, *others) == [STORED] * 21

        served(work, store)
        assert len(store.list("commits")) == 2 and sorted(ids(store)) == sorted(["first", *map(str, range(20))])

    def test_requests_beyond_the_limit_are_429_and_taken_later(self) -> None:
        store = Gated()

        async def work(client: Client) -> None:
            store.close()
            first = asyncio.ensure_future(client.send(payment("a")))
            await store.until_reached()
            status, headers = await client.headers_of(payment("b"))
            assert (status, headers["Retry-After"]) == (429, "1")
            store.gate.set()
            assert await first == STORED
            assert await client.send(payment("b")) == STORED

        counts = served(work, store, limits=replace(USUAL, requests_max=1)).counts
        assert counts == {"stored": 2, "overloaded": 1}

    def test_senders_that_announce_much_and_stall_leave_room_for_others(self) -> None:
        async def work(client: Client) -> None:
            stalled = [await asyncio.open_connection(*client.raw_address()) for _ in range(4)]
            for _, writer in stalled:
                writer.write(b"POST /in HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{")
            while client.server.held + client.server.counts["overloaded"] < len(stalled):
                await asyncio.sleep(0)
            assert await client.send(payment("a")) == STORED
            for _, writer in stalled:
                writer.close()

        served(work, limits=replace(USUAL, bytes_max=100_000))

    def test_a_body_for_which_there_is_no_room_is_429_while_it_is_read(self) -> None:
        store = Gated()

        async def work(client: Client) -> None:
            store.close()
            first = asyncio.ensure_future(client.send(payment("a").ljust(60_000)))
            await store.until_reached()
            status, headers = await client.headers_of(payment("b").ljust(60_000))
            assert (status, headers["Retry-After"]) == (429, "1")
            store.gate.set()
            assert await first == STORED
            assert await client.send(payment("b").ljust(60_000)) == STORED

        counts = served(work, store, limits=replace(USUAL, bytes_max=100_000)).counts
        assert counts == {"stored": 2, "overloaded": 1}

    def test_connections_beyond_the_limit_are_503_until_others_end(self) -> None:
        async def raw(client: Client) -> bytes:
            reader, writer = await asyncio.open_connection(*client.raw_address())
            body = payment("b")
            writer.write(b"POST /in HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            try:
                return await reader.readline()
            finally:
                writer.close()

        async def work(client: Client) -> None:
            assert await client.send(payment("a")) == STORED, "its connection stays open"
            assert await raw(client) == b"HTTP/1.1 503 Service Unavailable\r\n"
            await client.session.close()
            for _ in range(TRIES_MAX):
                if (answer := await raw(client)) == b"HTTP/1.1 200 OK\r\n":
                    return
                assert b" 503 " in answer
            raise AssertionError("its place was never free")

        served(work, connections_max=1)

    def test_a_sender_that_breaks_off_leaves_its_place(self) -> None:
        async def work(client: Client) -> None:
            _, writer = await asyncio.open_connection(*client.raw_address())
            writer.write(b"POST /in HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            await writer.drain()
            while not client.server.held:
                await asyncio.sleep(0)
            writer.close()
            await writer.wait_closed()
            for _ in range(TRIES_MAX):
                if (answer := await client.send(payment("a"))) == STORED:
                    return
                assert answer[0] == 429
            raise AssertionError("its place was never free")

        served(work, limits=replace(USUAL, requests_max=1))


class TestEnds:
    def test_a_stop_answers_what_was_admitted_and_admits_nothing(self) -> None:
        store = Gated()

        async def work(client: Client) -> None:
            idle = await asyncio.gather(*(client.send(payment(name)) for name in "ab"))
            assert idle == [STORED, STORED], "two connections are open now"
            store.close()
            waiting = asyncio.ensure_future(client.send(payment("c")))
            await store.until_reached()
            client.stop.set()
            for _ in range(TRIES_MAX):
                status, headers = await client.headers_of(payment("a"))
                if status == 503:
                    break
            assert (status, headers["Retry-After"], headers["Connection"]) == (503, "5", "close")
            with pytest.raises(aiohttp.ClientConnectorError):
                await client.headers_of(payment("d"))
            store.gate.set()
            assert await waiting == STORED

        served(work, store)
        assert sorted(ids(store)) == ["a", "b", "c"]

    def test_a_log_that_was_sealed_ends_the_process_and_no_request_is_answered_200(self) -> None:
        store = MemoryObjects()

        async def work(client: Client) -> None:
            LogWriter(store).seal()
            assert (await client.send(payment("a")))[0] == 503

        with pytest.raises(hf.ConfigError, match="is sealed"):
            served(work, store)
        assert ids(store) == []

    def test_an_unexpected_error_ends_the_process_and_leaves_no_request_without_an_answer(self) -> None:
        answers = list[int]()

        async def work(client: Client) -> None:
            async with asyncio.timeout(ANSWER_WITHIN_S / 2):
                answers.append((await client.send(payment("a")))[0])

        with pytest.raises(RuntimeError, match="a defect"):
            served(work, Defective())
        assert answers == [503]

    def test_more_keys_than_memory_is_meant_for_are_refused_at_a_start(self) -> None:
        store, few = MemoryObjects(), replace(USUAL, keys_max=2)

        async def work(client: Client) -> None:
            for number in range(2 * few.keys_max + 1):
                assert (await client.send(payment(f"{number}")))[0] == 200

        served(work, store)
        with pytest.raises(hf.ConfigError, match="more than 4 idempotency keys") as caught:
            served(work, store, limits=few)
        assert "shorter horizon" in caught.value.next_step

    def test_a_port_that_is_taken_is_refused(self) -> None:
        async def work(client: Client) -> None:
            raise AssertionError("nothing listens")

        with closing(create_server(("127.0.0.1", 0))) as taken:
            of = replace(receiving(), port=taken.getsockname()[1])
            with pytest.raises(hf.ConfigError, match="cannot be listened on: .*[Aa]ddress already in use"):
                served(work, of=of)

    def test_a_secret_that_is_missing_is_refused_before_anything_is_received(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("WEBHOOK_SECRET", raising=False)

        async def work(client: Client) -> None:
            raise AssertionError("nothing listens")

        with pytest.raises(hf.ConfigError, match="WEBHOOK_SECRET"):
            served(work, of=receiving(signature="github", secret=hf.secret("env:WEBHOOK_SECRET")))


class TestSecrets:
    def test_a_secret_file_that_is_replaced_is_read_again(self, tmp_path: Path) -> None:
        file, now = tmp_path / "secret", [0.0]
        file.write_text("old\n")
        values = SecretValues([Secret(f"file:{file}")], lambda: now[0])
        assert values.values() == (b"old",)
        file.write_text("new\n")
        now[0] = SECRETS_EVERY_S / 2
        assert values.values() == (b"old",)
        now[0] = SECRETS_EVERY_S
        assert values.values() == (b"new",)
        file.unlink()
        now[0] = 2 * SECRETS_EVERY_S
        with pytest.raises(NotAdmitted):
            values.values()
