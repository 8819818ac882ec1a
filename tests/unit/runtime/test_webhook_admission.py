"""Admission of requests, and how they become batches: the pure machine, without sockets or a log."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.capture.admission import Admission, AdmissionLimits, Answer, CommitRequests, Effect, Verdict
from holdfast.runtime.capture.keys import SLICES, RecentKeys, digest_of

STORED, REPEATED, OVERLOADED = Verdict.STORED, Verdict.REPEATED, Verdict.OVERLOADED
UNREACHABLE, STOPPING = Verdict.UNREACHABLE, Verdict.STOPPING
FULL = Verdict.FULL
USUAL = AdmissionLimits(linger_ms=5)
HORIZON_US = 16_000_000
AT_US = 1_000_000_000
NONE: frozenset[bytes] = frozenset()
A, B, C = digest_of("a"), digest_of("b"), digest_of("c")


def machine(limits: AdmissionLimits = USUAL, *known: bytes) -> Admission:
    keys = RecentKeys(HORIZON_US)
    for key in known:
        keys.add(key, AT_US)
    return Admission(limits, keys)


def send(of: Admission, request: int, key: bytes | None = None, size: int = 10, now_ms: int = 0) -> list[Effect]:
    assert of.admit(size) is None
    return of.arrived(request, key, size, now_ms)


def committed(of: Admission, now_ms: int = 0, *, repeated: frozenset[bytes] = NONE, seen: bytes = b"") -> list[Effect]:
    return of.committed(AT_US, repeated, [(seen, AT_US)] if seen else [], now_ms)


class TestBatches:
    def test_a_request_waits_for_others_until_it_has_lingered(self) -> None:
        of = machine()
        assert send(of, 1, now_ms=100) == [] and of.wake_ms() == 105
        assert send(of, 2, now_ms=103) == [] and of.due(104) == []
        assert of.due(105) == [CommitRequests((1, 2))] and of.wake_ms() is None

    def test_a_full_batch_does_not_linger(self) -> None:
        of = machine(replace(USUAL, batch_requests=2))
        assert send(of, 1) == []
        assert send(of, 2) == [CommitRequests((1, 2))]

    def test_a_batch_is_full_by_its_bytes_too(self) -> None:
        of = machine(replace(USUAL, batch_bytes=100))
        assert send(of, 1, size=60) == []
        assert send(of, 2, size=60) == [CommitRequests((1,))]
        assert committed(of, 5) == [Answer(1, STORED), CommitRequests((2,))]

    def test_a_body_larger_than_a_batch_is_a_batch(self) -> None:
        assert send(machine(replace(USUAL, batch_bytes=100)), 1, size=1_000) == [CommitRequests((1,))]

    def test_what_arrives_during_a_commit_is_the_next_batch(self) -> None:
        of = machine(replace(USUAL, linger_ms=0))
        assert send(of, 1) == [CommitRequests((1,))]
        assert send(of, 2, now_ms=1) == send(of, 3, now_ms=9) == [] and of.wake_ms() is None
        assert committed(of, 9) == [Answer(1, STORED), CommitRequests((2, 3))]
        assert committed(of, 10) == [Answer(2, STORED), Answer(3, STORED)] and of.held == 0

    def test_a_failed_commit_ends_its_requests_and_not_those_behind_it(self) -> None:
        of = machine(replace(USUAL, linger_ms=0))
        send(of, 1, A)
        send(of, 2)
        assert of.failed(9) == [Answer(1, UNREACHABLE), CommitRequests((2,))]
        committed(of)
        assert send(of, 3, A) == [CommitRequests((3,))], "whether the key was stored is unknown: the log decides"


class TestKeys:
    def test_a_stored_key_is_repeated_at_once(self) -> None:
        of = machine(replace(USUAL, linger_ms=0))
        send(of, 1, A)
        committed(of)
        assert send(of, 2, A) == [Answer(2, REPEATED)] and of.held == 0

    def test_a_key_of_the_log_is_repeated(self) -> None:
        assert send(machine(USUAL, A), 1, A) == [Answer(1, REPEATED)]

    def test_a_repeated_key_waits_for_the_request_that_is_stored(self) -> None:
        of = machine(replace(USUAL, linger_ms=0))
        assert send(of, 1, A) == [CommitRequests((1,))]
        assert send(of, 2, A) == []
        assert committed(of) == [Answer(1, STORED), Answer(2, REPEATED)] and of.held == 0

    def test_a_repeated_key_shares_the_failure(self) -> None:
        of = machine()
        send(of, 1, A)
        send(of, 2, A)
        assert of.due(5) == [CommitRequests((1,))]
        assert of.failed(6) == [Answer(1, UNREACHABLE), Answer(2, UNREACHABLE)] and of.held == 0

    def test_requests_without_keys_are_never_repeated(self) -> None:
        of = machine()
        send(of, 1)
        send(of, 2)
        assert of.due(5) == [CommitRequests((1, 2))]

    def test_keys_that_another_process_stored_are_repeated(self) -> None:
        of = machine(replace(USUAL, linger_ms=0))
        send(of, 1, A)
        send(of, 2, B)
        send(of, 3, C)
        effects = committed(of, 1, repeated=frozenset({A}), seen=B)
        assert effects == [Answer(1, REPEATED), Answer(2, REPEATED), CommitRequests((3,))]

    def test_a_batch_of_repeated_keys_alone_needs_no_commit(self) -> None:
        of = machine(replace(USUAL, linger_ms=0))
        send(of, 1, A)
        send(of, 2, B)
        assert committed(of, 1, seen=B) == [Answer(1, STORED), Answer(2, REPEATED)] and of.held == 0

    def test_a_key_is_known_for_the_horizon_and_at_most_a_slice_longer(self) -> None:
        keys = RecentKeys(HORIZON_US)
        keys.add(A, AT_US)
        keys.forget(AT_US + HORIZON_US)
        assert A in keys and len(keys) == 1
        keys.forget(AT_US + HORIZON_US + HORIZON_US // SLICES)
        assert A not in keys and len(keys) == 0

    def test_keys_are_forgotten_when_nothing_is_stored_too(self) -> None:
        of = machine(replace(USUAL, keys_max=1), A)
        assert send(of, 1, B) == [Answer(1, FULL)]
        of.forget((AT_US + 2 * HORIZON_US) // 1_000)
        assert send(of, 2, B) == [] and of.known == 0

    @pytest.mark.parametrize("jump_us", [10**15, -(10**15)])
    def test_a_key_is_known_for_the_horizon_whatever_the_time_of_its_row(self, jump_us: int) -> None:
        """A clock was far ahead once: all rows have that time from then on, and the wall clock is behind it."""
        of = machine(replace(USUAL, linger_ms=0, keys_max=3))
        for request, key, at_us in ((1, A, AT_US), (2, B, AT_US + jump_us)):
            send(of, request, key)
            of.committed(at_us, NONE, [(C, at_us)], 1_000)
        of.forget((1_000_000 + HORIZON_US) // 1_000)
        assert of.known == 3
        assert send(of, 3, A) == [Answer(3, REPEATED)] and send(of, 4, B) == [Answer(4, REPEATED)]
        of.forget((1_000_000 + 2 * HORIZON_US) // 1_000)
        assert of.known == 0

    def test_a_key_that_another_process_stored_some_time_ago_is_known_that_much_shorter(self) -> None:
        of = machine(replace(USUAL, linger_ms=0))
        send(of, 1, A)
        of.committed(AT_US, NONE, [(B, AT_US - HORIZON_US // 2)], 100_000)
        of.forget((100_000_000 + HORIZON_US // 2 + HORIZON_US // SLICES) // 1_000 + 1)
        assert of.known == 1 and send(of, 2, A) == [Answer(2, REPEATED)]


class TestLimits:
    @pytest.mark.parametrize("limits", [replace(USUAL, requests_max=2), replace(USUAL, bytes_max=25)])
    def test_requests_beyond_them_are_refused_before_their_bodies_are_read(self, limits: AdmissionLimits) -> None:
        of = machine(limits)
        assert of.admit(10) is None
        send(of, 1)
        assert of.admit(10) is OVERLOADED
        of.withdraw(10)
        assert of.admit(10) is None

    def test_what_is_being_stored_counts_until_it_is_answered(self) -> None:
        of = machine(replace(USUAL, requests_max=1, linger_ms=0))
        send(of, 1)
        assert of.admit(10) is OVERLOADED
        committed(of)
        assert of.admit(10) is None

    def test_those_that_wait_for_the_same_key_count(self) -> None:
        of = machine(replace(USUAL, requests_max=2))
        send(of, 1, A)
        send(of, 2, A)
        assert of.admit(10) is OVERLOADED

    def test_a_body_of_unknown_size_is_counted_by_what_was_read(self) -> None:
        of = machine(replace(USUAL, bytes_max=100))
        assert of.admit(100) is None and of.admit(1) is OVERLOADED
        of.shrink(100, 40)
        assert of.admit(60) is None and of.admit(1) is OVERLOADED

    def test_a_body_takes_room_as_it_arrives(self) -> None:
        of = machine(replace(USUAL, bytes_max=100))
        assert of.admit(40) is None and of.admit(40) is None
        assert of.grow(20) and not of.grow(1)
        of.withdraw(60)
        assert of.grow(200), "alone, a body of any accepted size fits"
        of.withdraw(240)
        assert of.held == 0

    def test_a_body_larger_than_all_of_them_is_taken_alone(self) -> None:
        of = machine(replace(USUAL, bytes_max=100))
        assert of.admit(1_000) is None and of.admit(1) is OVERLOADED


class TestStop:
    def test_stores_at_once_what_waits_and_admits_nothing(self) -> None:
        of = machine()
        send(of, 1)
        assert of.stop(1) == [CommitRequests((1,))]
        assert of.admit(10) is STOPPING
        assert committed(of) == [Answer(1, STORED)] and of.held == 0

    def test_stores_what_was_admitted_when_it_arrives(self) -> None:
        of = machine()
        assert of.admit(10) is None
        assert of.stop(1) == [] and of.held == 1
        assert of.arrived(1, A, 10, 2) == [CommitRequests((1,))]


Step = tuple[str, int, int]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 4), st.integers(1, 60)),
        st.tuples(st.sampled_from(["committed", "overtaken", "failed", "wait"]), st.integers(0, 4), st.integers(0, 9)),
    ),
    max_size=60,
)
SMALL = AdmissionLimits(requests_max=8, bytes_max=200, batch_requests=3, batch_bytes=100, linger_ms=5, keys_max=100)


class Played:
    """A machine with a log: a set of keys and a count of rows without one."""

    def __init__(self) -> None:
        self.of, self.log, self.answers = machine(SMALL), Counter[int](), dict[int, Verdict]()
        self.key_of, self.running, self.now_ms, self.sent = dict[int, int](), list[int](), 0, 0

    def play(self, step: Step) -> None:
        kind, number, amount = step
        if kind == "send":
            self.send(number, amount)
        elif kind == "wait":
            self.now_ms += amount
            self.take(self.of.due(self.now_ms))
        elif self.running:
            self.end(kind, number)

    def send(self, key: int, size: int) -> None:
        """Send a request; key 0 is none."""
        if self.of.admit(size) is None:
            self.sent += 1
            self.key_of[self.sent] = key
            digest = digest_of(str(key)) if key else None
            self.take(self.of.arrived(self.sent, digest, size, self.now_ms))

    def end(self, kind: str, number: int) -> None:
        """End the running commit; "overtaken": another process stores a key before it."""
        batch, self.running = self.running, []
        if kind == "failed":
            self.take(self.of.failed(self.now_ms))
            return
        seen = {number} if kind == "overtaken" and number and not self.log[number] else set[int]()
        self.log.update(seen)
        repeated = seen & {self.key_of[each] for each in batch}
        self.log.update(self.key_of[each] for each in batch if self.key_of[each] not in repeated)
        found = [(digest_of(str(each)), AT_US) for each in seen]
        self.take(self.of.committed(AT_US, frozenset(digest_of(str(k)) for k in repeated), found, self.now_ms))

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, CommitRequests):
                assert not self.running and 0 < len(effect.requests) <= SMALL.batch_requests
                self.running = list(effect.requests)
            else:
                assert effect.request not in self.answers, "a request is answered once"
                self.answers[effect.request] = effect.verdict
                if effect.verdict in (STORED, REPEATED):
                    assert self.log[self.key_of[effect.request]], "what is answered 200 is in the log"


class TestAnyOrder:
    @given(STEPS)
    def test_each_request_is_answered_once_and_each_key_stored_once(self, steps: list[Step]) -> None:
        played = Played()
        for step in steps:
            played.play(step)
        played.take(played.of.stop(played.now_ms))
        while played.running:
            played.end("committed", 0)
        assert played.of.held == 0 and len(played.answers) == played.sent
        assert all(stored == 1 for key, stored in played.log.items() if key)
        stored = Counter(played.key_of[each] for each, verdict in played.answers.items() if verdict is STORED)
        assert stored[0] == played.log[0]
