"""Requests to a running job: found once, whatever lies beside them and whenever the store is away."""

from __future__ import annotations

import pytest

from holdfast.errors import Unavailable
from holdfast.runtime.requests import Inbox, answer_to, ask
from holdfast.storage.objects import MemoryObjects


class Flaky(MemoryObjects):
    """Fails every get while told to."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False

    def get(self, path: str) -> bytes:
        if self.away:
            raise Unavailable("the store is away", next_step="wait")
        return super().get(path)


class TestInbox:
    def test_finds_a_request_once_and_answers_it(self) -> None:
        store = MemoryObjects()
        inbox, name = Inbox(store), ask(store, "stop", {}, 3)
        (request,) = inbox.poll()
        assert (request.id, request.kind, request.generation) == (name, "stop", 3)
        assert inbox.poll() == []
        inbox.answer(request, {"accepted": True})
        assert answer_to(store, name) == {"accepted": True}
        assert Inbox(store).poll() == []

    def test_loses_no_request_to_a_store_that_is_away_for_a_moment(self) -> None:
        store = Flaky()
        inbox, name = Inbox(store), ask(store, "stop", {}, 3)
        store.away = True
        with pytest.raises(Unavailable):
            inbox.poll()
        store.away = False
        assert [request.id for request in inbox.poll()] == [name]

    @pytest.mark.parametrize("data", [b"[]", b"{", b'{"kind": "stop", "generation": "x"}', b'{"kind": 1}'])
    def test_passes_over_what_is_no_request(self, data: bytes) -> None:
        store = MemoryObjects()
        store.put("requests/odd.json", data)
        inbox, name = Inbox(store), ask(store, "stop", {}, 1)
        assert [request.id for request in inbox.poll()] == [name]
