"""Requests: returned once, answered, removed after an hour, and none lost to an unreachable store."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import Damaged, Unavailable
from holdfast.runtime.job.requests import FOLDER, KEPT_US, UNREADABLE_AFTER, Inbox, answer_to, ask
from holdfast.storage.local import LocalObjects
from holdfast.storage.objects import MemoryObjects


class Refusing(MemoryObjects):
    """A store that refuses one object, as a folder does with a file of another user or a link that leads to itself."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.refused = path

    def get(self, path: str) -> bytes:
        self._look(path)
        return super().get(path)

    def put(self, path: str, data: bytes) -> None:
        self._look(path)
        super().put(path, data)

    def delete(self, path: str) -> None:
        self._look(path)
        super().delete(path)

    def _look(self, path: str) -> None:
        if path == self.refused:
            raise Unavailable(f"reading {path} failed: Permission denied", next_step="give this user access")


class Flaky(MemoryObjects):
    """A store whose next operations of a kind fail."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: set[str] = set()

    def get(self, path: str) -> bytes:
        self._fail("get")
        return super().get(path)

    def put(self, path: str, data: bytes) -> None:
        self._fail("put")
        super().put(path, data)

    def _fail(self, kind: str) -> None:
        if kind in self.failing:
            self.failing.discard(kind)
            raise Unavailable("the store is away", next_step="try again")


def made(store: MemoryObjects, name: str, age_us: int) -> None:
    body = {"kind": "stop", "args": {}, "generation": 1, "at": time.time_ns() // 1000 - age_us}
    store.put(f"{FOLDER}/{name}.json", json.dumps(body).encode())


class Interrupting(MemoryObjects):
    """A store that lets something happen while it deletes."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], None] = lambda: None

    def delete(self, path: str) -> None:
        self.meanwhile()
        super().delete(path)


class TestInbox:
    def test_a_request_is_returned_once(self) -> None:
        store = MemoryObjects()
        inbox, name = Inbox(store), ask(store, "savepoint", {"name": "v1"}, 3)
        (request,) = inbox.poll()
        assert (request.id, request.kind, request.args, request.generation) == (name, "savepoint", {"name": "v1"}, 3)
        assert inbox.poll() == []

    def test_an_answered_request_is_not_returned_to_the_next_driver(self) -> None:
        store = MemoryObjects()
        name, inbox = ask(store, "stop", {}, 1), Inbox(store)
        inbox.answer(inbox.poll()[0], {"accepted": True})
        assert answer_to(store, name) == {"accepted": True}
        assert Inbox(store).poll() == []

    def test_a_request_that_was_changed_after_it_was_written_is_refused(self) -> None:
        store = MemoryObjects()
        name, inbox = ask(store, "rewind", {"epoch": 12}, 1), Inbox(store)
        path = f"{FOLDER}/{name}.json"
        store.put(path, store.get(path).replace(b"12", b"13", 1))
        assert inbox.poll() == []
        reply = answer_to(store, name)
        assert reply is not None and not reply["accepted"]

    def test_an_answer_that_was_changed_after_it_was_written_is_ignored(self) -> None:
        store = MemoryObjects()
        name, inbox = ask(store, "stop", {}, 1), Inbox(store)
        inbox.answer(inbox.poll()[0], {"accepted": True})
        path = f"{FOLDER}/{name}.reply.json"
        store.put(path, store.get(path).replace(b"true", b"null"))
        with pytest.raises(Damaged, match="was changed after it was written"):
            answer_to(store, name)

    def test_a_request_that_was_put_back_is_returned_again(self) -> None:
        store = MemoryObjects()
        ask(store, "stop", {}, 1)
        inbox = Inbox(store)
        (request,) = inbox.poll()
        inbox.put_back(request)
        assert inbox.poll() == [request]

    def test_a_request_put_back_during_its_removal_is_removed(self) -> None:
        """Polls and the driver's loop are two threads."""
        store = Interrupting()
        made(store, "late", 0)
        inbox = Inbox(store)
        (request,) = inbox.poll()
        inbox._made_at[f"{FOLDER}/late"] -= KEPT_US + 1
        store.meanwhile = lambda: inbox.put_back(request)
        assert inbox.poll() == []
        assert store.list(FOLDER) == []

    def test_an_unreachable_store_loses_no_request(self) -> None:
        store = Flaky()
        names = {ask(store, "stop", {}, 1), ask(store, "stop", {}, 1)}
        inbox = Inbox(store)
        store.failing = {"get"}
        found = [*inbox.poll(), *inbox.poll()]
        assert {request.id for request in found} == names and len(found) == 2

    def test_an_answer_that_could_not_be_written_is_written_with_the_next_poll(self) -> None:
        store = Flaky()
        name, inbox = ask(store, "stop", {}, 1), Inbox(store)
        (request,) = inbox.poll()
        store.failing = {"put"}
        with pytest.raises(Unavailable):
            inbox.answer(request, {"accepted": True})
        assert inbox.poll() == []
        assert answer_to(store, name) == {"accepted": True}

    @pytest.mark.parametrize("data", [b"{", b"[]", b"7", b'{"kind":"stop"}', b'{"kind":1,"generation":1}'])
    def test_an_invalid_request_is_answered_and_not_returned(self, data: bytes) -> None:
        store = MemoryObjects()
        store.put(f"{FOLDER}/odd.json", data)
        assert Inbox(store).poll() == []
        reply = answer_to(store, "odd")
        assert reply is not None and not reply["accepted"]

    def test_request_and_answer_are_removed_after_an_hour(self) -> None:
        store = MemoryObjects()
        made(store, "old", KEPT_US + 60_000_000)
        made(store, "new", KEPT_US - 60_000_000)
        store.put(f"{FOLDER}/old.reply.json", b"{}")
        store.put(f"{FOLDER}/new.reply.json", b"{}")
        Inbox(store).poll()
        assert store.list(FOLDER) == [f"{FOLDER}/new.json", f"{FOLDER}/new.reply.json"]

    def test_a_request_older_than_an_hour_is_not_carried_out(self) -> None:
        store = MemoryObjects()
        made(store, "old", KEPT_US + 60_000_000)
        assert Inbox(store).poll() == []
        assert store.list(FOLDER) == []

    def test_an_answer_without_its_request_is_removed(self) -> None:
        store = MemoryObjects()
        store.put(f"{FOLDER}/gone.reply.json", b"{}")
        Inbox(store).poll()
        assert store.list(FOLDER) == []

    def test_nothing_is_kept_of_a_removed_request(self, monkeypatch: pytest.MonkeyPatch) -> None:
        store = MemoryObjects()
        inbox = Inbox(store)
        ask(store, "stop", {}, 1)
        (request,) = inbox.poll()
        inbox.answer(request, {"accepted": True})
        later = time.time_ns() + KEPT_US * 1000 + 10**9
        monkeypatch.setattr(time, "time_ns", lambda: later)
        assert inbox.poll() == [] and store.list("") == []
        assert (inbox._made_at, inbox._accepted, inbox._owed) == ({}, {}, {})

    def test_a_request_withdrawn_while_it_is_read_is_ignored(self) -> None:
        class Withdrawing(MemoryObjects):
            def get(self, path: str) -> bytes:
                self.delete(path)
                return super().get(path)

        store = Withdrawing()
        ask(store, "stop", {}, 1)
        assert Inbox(store).poll() == []


class TestEndOfARun:
    """Requests that were accepted and not carried out are answered again, as refused."""

    def test_only_requests_accepted_and_not_carried_out_are_refused(self) -> None:
        store = MemoryObjects()
        asked = {kind: ask(store, kind, {}, 1) for kind in ("savepoint", "stop", "rewind")}
        inbox = Inbox(store)
        for request in inbox.poll():
            reason = None if request.kind != "rewind" else "there is no checkpoint of epoch 1"
            inbox.answer(request, {"accepted": reason is None, "generation": 1, "reason": reason})
        inbox.close(lambda kind, args: "the run failed" if kind != "stop" else None)
        replies = {kind: answer_to(store, name) for kind, name in asked.items()}
        assert replies == {
            "savepoint": {"accepted": False, "generation": 1, "reason": "the run failed"},
            "stop": {"accepted": True, "generation": 1, "reason": None},
            "rewind": {"accepted": False, "generation": 1, "reason": "there is no checkpoint of epoch 1"},
        }

    def test_a_request_older_than_an_hour_is_not_answered_again(self) -> None:
        store = MemoryObjects()
        made(store, "old", KEPT_US + 1)
        inbox = Inbox(store)
        for request in inbox.poll():
            inbox.answer(request, {"accepted": True})
        inbox.poll()
        inbox.close(lambda kind, args: "the run failed")
        assert store.list(FOLDER) == []

    @pytest.mark.parametrize("place", range(3))
    def test_an_answer_that_cannot_be_written_does_not_block_other_refusals(self, place: int) -> None:
        store = Refusing("")
        for name in "abc":
            made(store, name, 0)
        inbox = Inbox(store)
        for request in inbox.poll():
            inbox.answer(request, {"accepted": True})
        store.refused = f"{FOLDER}/{'abc'[place]}.reply.json"
        inbox.close(lambda kind, args: "the run failed")
        replies = [answer_to(store, name) for name in "abc" if name != "abc"[place]]
        assert [reply is not None and reply["accepted"] for reply in replies] == [False, False]


class TestUnreadableRequest:
    """The driver receives all other requests."""

    FIRST = f"{FOLDER}/0.json"

    def store(self) -> Refusing:
        store = Refusing("none")
        made(store, "0", 0)
        store.refused = self.FIRST
        return store

    def test_does_not_block_later_requests(self) -> None:
        store = self.store()
        inbox, name = Inbox(store), ask(store, "stop", {}, 1)
        assert [request.id for request in inbox.poll()] == [name]

    def test_is_returned_once_it_can_be_read(self) -> None:
        store = self.store()
        inbox = Inbox(store)
        assert inbox.poll() == []
        store.refused = ""
        assert [request.id for request in inbox.poll()] == ["0"]
        assert inbox.poll() == [] and inbox.unreadable == {}

    def test_is_named_if_it_stays_unreadable(self) -> None:
        inbox = Inbox(self.store())
        for _ in range(UNREADABLE_AFTER - 1):
            inbox.poll()
        assert inbox.unreadable == {}
        inbox.poll()
        assert inbox.unreadable == {self.FIRST: f"reading {self.FIRST} failed: Permission denied"}

    def test_whose_answer_cannot_be_written_does_not_block_other_requests(self) -> None:
        store = Refusing(f"{FOLDER}/0.reply.json")
        store.put(self.FIRST, b"{")
        inbox, name = Inbox(store), ask(store, "stop", {}, 1)
        assert [request.id for request in inbox.poll()] == [name]
        later = ask(store, "stop", {}, 1)
        assert [request.id for request in inbox.poll()] == [later]

    def test_an_old_unreadable_request_that_cannot_be_removed_does_not_block_others(self) -> None:
        store = Refusing(f"{FOLDER}/0.reply.json")
        made(store, "0", KEPT_US + 60_000_000)
        inbox, name = Inbox(store), ask(store, "stop", {}, 1)
        assert [request.id for request in inbox.poll()] == [name]

    @pytest.mark.parametrize("data", [b"[" * 100_000, b'{"kind":"stop","args":' + b'{"a":' * 100_000, b"\xff\xfe"])
    def test_nested_too_deeply_to_be_parsed_is_answered(self, data: bytes) -> None:
        store = MemoryObjects()
        store.put(self.FIRST, data)
        inbox, name = Inbox(store), ask(store, "stop", {}, 1)
        assert [request.id for request in inbox.poll()] == [name]
        reply = answer_to(store, "0")
        assert reply is not None and not reply["accepted"]

    @pytest.mark.parametrize("name", ["0/0", ".tmp-0/0", "a b", "\udcff", "0.json.json", "." * 3])
    def test_with_a_foreign_name_is_ignored(self, name: str) -> None:
        class Odd(MemoryObjects):
            def list(self, prefix: str) -> list[str]:
                return sorted([*super().list(prefix), f"{FOLDER}/{name}.json"])

        store = Odd()
        inbox, asked = Inbox(store), ask(store, "stop", {}, 1)
        assert [request.id for request in inbox.poll()] == [asked]

    def test_includes_a_link_to_itself(self, tmp_path: Path) -> None:
        store = LocalObjects(tmp_path)
        (tmp_path / FOLDER).mkdir()
        (tmp_path / self.FIRST).symlink_to(tmp_path / self.FIRST)
        inbox, name = Inbox(store), ask(store, "stop", {}, 1)
        assert [request.id for request in inbox.poll()] == [name]
