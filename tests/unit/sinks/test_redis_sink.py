"""What only Redis has: keys and values, rights, memory, settings, and a server that ends and starts again.

The contracts of all targets run in tests/contract.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from redis_server import PASSWORD, RedisKeys, RedisServer

import holdfast as hf
from holdfast.errors import ConfigError, Damaged, Fenced, HoldfastError, NotAdmitted, Unavailable
from holdfast.model import Epoch, Generation, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract.owners import Claim, Held, Rival
from holdfast.sinks.contract.target import DELETE, OP, PUT, AlreadyDelivered, Delivered, EpochOutput, Fault, FaultPoint
from holdfast.sinks.redis import client
from holdfast.sinks.redis.book import SINK, RedisBook, owner_field, sink_value, tag_field, tag_value
from holdfast.sinks.redis.script import CHUNK_BYTES, BookChange, packed
from holdfast.sinks.redis.server import ServerFacts
from holdfast.sinks.redis.sink import Redis
from holdfast.sinks.redis.target import RedisTarget

JOB, LEFT, RIGHT = "6f9b0f6e-0000-4000-8000-000000000001", Writer("out", Subtask(0)), Writer("out", Subtask(1))
SCHEMA = pa.schema([pa.field("user", pa.int64()), pa.field("name", pa.string())])
OTHER_JOB = "6f9b0f6e-0000-4000-8000-000000000002"
KEY = ("user",)
ANN, BEA, CAT = (1, "ann"), (2, "bea"), (3, "cat")
FIRST = Claim("first", Generation(1))
SECOND = Claim("second", Generation(2), {"first": Tag(Timeline(1), Epoch(9))})


def tag(epoch: int, timeline: int = 1) -> Tag:
    return Tag(Timeline(timeline), Epoch(epoch))


def batch(*rows: tuple[int, str | None]) -> pa.RecordBatch:
    """Rows of an upsert stream; a name of None deletes."""
    columns = [pa.array([user for user, _ in rows], pa.int64()), pa.array([name for _, name in rows], pa.string())]
    ops = pa.array([DELETE if name is None else PUT for _, name in rows], pa.int8())
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA).append_column(OP, ops)


@pytest.fixture
def keys(redis: RedisServer) -> RedisKeys:
    found = redis.keys(KEY)
    found.sink.prepare(SCHEMA, KEY)
    return found


@pytest.fixture
def guarded(redis: RedisServer, keys: RedisKeys, monkeypatch: pytest.MonkeyPatch) -> Redis:
    """A sink of a user with a password, who may do everything until a test takes rights away."""
    monkeypatch.setenv("REDIS_PASSWORD", PASSWORD)
    redis.allow("~*", "+@all")
    return Redis(redis.guarded, keys.prefix, KEY, hf.secret("env:REDIS_PASSWORD"))


class Lost:
    """A connection whose requests do not arrive; a test makes them arrive later."""

    def __init__(self, connection: Any) -> None:
        self.connection, self.changes = connection, list[BookChange]()
        self.book = connection.book

    def apply(self, change: BookChange) -> bool:
        self.changes.append(change)
        raise Unavailable("the reply is lost", next_step="nothing")

    def close(self) -> None:
        self.connection.close()


class Hash:
    """A connection to a server in memory, which keeps the hash and no rows. It compares and sets as the script does."""

    def __init__(self) -> None:
        self.fields = dict[bytes, bytes]()

    def book(self) -> RedisBook:
        return RedisBook("Redis x", dict(self.fields))

    def apply(self, change: BookChange) -> bool:
        held = {name: self.fields.get(name, b"") for name in change.read}
        if held != change.read or change.fields not in (None, len(self.fields)):
            return False
        self.fields |= change.sets
        return True

    def close(self) -> None:
        """There is nothing to release."""


def at(point: FaultPoint, act: Callable[[], None]) -> Fault:
    """Return a fault that does something when the delivery reaches a point for the first time."""
    acts = [act]

    def fault(reached: FaultPoint) -> None:
        if reached == point and acts:
            acts.pop()()

    return fault


@pytest.mark.redis
class TestRows:
    def test_a_row_is_a_key_whose_value_has_all_columns(self, keys: RedisKeys) -> None:
        keys.sink.open(JOB, LEFT).deliver(tag(1), [batch(ANN, BEA), batch((1, None), CAT)])
        assert keys.values() == {"2": '{"user":2,"name":"bea"}', "3": '{"user":3,"name":"cat"}'}

    def test_a_text_is_the_key_as_it_is_and_several_columns_are_an_object(self, redis: RedisServer) -> None:
        schema = pa.schema([pa.field("shop", pa.string()), pa.field("at", pa.timestamp("us", "UTC"))])
        rows = pa.Table.from_pylist([{"shop": "a:b c", "at": datetime(2026, 1, 2, tzinfo=UTC)}], schema=schema)
        for key, name in (
            (("shop",), "a:b c"),
            (("shop", "at"), '{"shop":"a:b c","at":"2026-01-02T00:00:00.000000Z"}'),
        ):
            found = redis.keys(key)
            found.sink.prepare(schema, key)
            found.sink.open(JOB, LEFT).deliver(tag(1), rows.to_batches())
            assert found.values() == {name: '{"shop":"a:b c","at":"2026-01-02T00:00:00.000000Z"}'}

    def test_many_rows_are_one_delivery_in_several_chunks(self, redis: RedisServer, keys: RedisKeys) -> None:
        rows = [(n, f"name {n}") for n in range(50_000)]
        assert sum(1 for _ in packed((b"%d" % n, name.encode()) for n, name in rows)) == 2
        target = keys.sink.open(JOB, LEFT)
        assert target.deliver(tag(1), [batch(*rows)]) == Delivered(50_000)
        assert target.deliver(tag(2), [batch(*((n, None) for n, _ in rows[1:]))]) == Delivered(49_999)
        assert keys.rows() == [(0, "name 0")]

    def test_a_delivery_that_no_request_holds_is_refused_and_changes_nothing(
        self, keys: RedisKeys, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("holdfast.sinks.redis.target.REQUEST_BYTES_MAX", CHUNK_BYTES)
        rows = [batch(*((n, "x" * 1_000) for n in range(2_000)))]
        with pytest.raises(ConfigError, match="take more than 1,048,576 bytes, which is too much for one request"):
            keys.sink.open(JOB, LEFT).deliver(tag(1), rows)
        assert keys.rows() == [] and keys.sink.open(JOB, LEFT).delivered() is None

    def test_a_row_that_is_too_large_is_refused_before_it_is_staged(
        self, keys: RedisKeys, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("holdfast.sinks.redis.rows.VALUE_BYTES_MAX", 1_000)
        keys.sink.accept(batch((1, "x" * 900), (2, None)))
        with pytest.raises(ConfigError, match="a row takes 1,0.. bytes, the limit is 1,000"):
            keys.sink.accept(batch(ANN, (1, "x" * 1_000)))

    def test_values_without_a_form_are_refused(self, keys: RedisKeys) -> None:
        with pytest.raises(ConfigError, match="which JSON values cannot hold here"):
            keys.sink.check(SCHEMA.append(pa.field("list", pa.list_(pa.duration("s")))), KEY)
        schema = pa.schema([pa.field("user", pa.int64()), pa.field("x", pa.float64())])
        with pytest.raises(ConfigError, match="holds NaN or an infinity"):
            keys.sink.accept(pa.RecordBatch.from_pylist([{"user": 1, "x": float("nan")}], schema=schema))


@pytest.mark.redis
class TestColumns:
    def test_rows_with_other_columns_need_another_prefix_or_a_removed_note(
        self, redis: RedisServer, keys: RedisKeys
    ) -> None:
        other = SCHEMA.append(pa.field("more", pa.int64()))
        for look in (keys.sink.prepare, keys.sink.probe):
            with pytest.raises(ConfigError, match="other columns or another key than the stream") as error:
                look(other, KEY)
        command = error.value.next_step.partition("HDEL ")[2]
        book, field = command.split(" ")
        redis.ask("HDEL", book, field.strip("'"))
        keys.sink.prepare(other, KEY)
        assert keys.sink.probe(other, KEY) == "the rows under the prefix have the columns of the stream"

    def test_a_hash_that_this_version_cannot_read_is_damage(self, redis: RedisServer, keys: RedisKeys) -> None:
        for value in ("x", "7", '{"v":2,"timeline":1,"epoch":1}', '{"v":1,"timeline":1,"epoch":"1"}'):
            redis.ask("HSET", f"holdfast:{keys.prefix}", tag_field(JOB, LEFT), value)
            with pytest.raises(Damaged, match="holds a value that this version cannot read"):
                keys.sink.open(JOB, LEFT).delivered()
            with pytest.raises(Damaged, match="holds a value that this version cannot read"):
                keys.sink.holding(JOB, "out")

    def test_a_key_of_the_hash_that_holds_something_else_is_refused(self, redis: RedisServer) -> None:
        found = redis.keys(KEY)
        redis.ask("SET", f"holdfast:{found.prefix}", "mine")
        with pytest.raises(ConfigError, match="the key of Holdfast's hash holds something else"):
            found.sink.prepare(SCHEMA, KEY)


@pytest.mark.redis
class TestOtherJobs:
    OTHER = "6f9b0f6e-0000-4000-8000-000000000002"

    def test_jobs_that_delivered_under_the_name_of_the_sink_are_refused(self, keys: RedisKeys) -> None:
        keys.sink.open(JOB, LEFT).deliver(tag(1), [batch(ANN)])
        keys.sink.check_owner(JOB, "out")
        keys.sink.check_owner(self.OTHER, "other")
        for job in (self.OTHER, None):
            with pytest.raises(ConfigError, match=f"holds rows of a sink 'out' of another job, {JOB}") as refused:
                keys.sink.check_owner(job, "out")
            assert keys.sink.place.book in refused.value.next_step

    def test_are_found_among_fields_of_other_programs(self) -> None:
        fields = dict.fromkeys([b"x", b"[", b"1", b'["tag"]', b'["tag",1,"out",0]', b"\xff"], b"y")
        assert RedisBook("redis", fields).another_job(JOB, "out") is None
        book = RedisBook("redis", {**fields, tag_field(self.OTHER, RIGHT): tag_value(tag(1))})
        assert (book.another_job(JOB, "out"), book.another_job(self.OTHER, "out")) == (self.OTHER, None)


@pytest.mark.redis
class TestSinkOfThePrefix:
    """The rows under a prefix belong to one sink of one job: those of another one would be replaced."""

    THEIRS = Claim("other", Generation(1))

    @pytest.mark.parametrize(("job", "sink"), [(OTHER_JOB, "out"), (OTHER_JOB, "else"), (JOB, "else")])
    def test_any_other_sink_is_refused_and_changes_nothing(self, keys: RedisKeys, job: str, sink: str) -> None:
        keys.sink.open(JOB, LEFT, FIRST).deliver(tag(1), [batch(ANN)])
        other = keys.sink.open(job, Writer(sink, Subtask(0)), self.THEIRS)
        whose = "this job" if job == JOB else f"another job, {JOB}"
        for act in (other.delivered, lambda: other.deliver(tag(9), [batch(BEA)])):
            with pytest.raises(Fenced, match=f"belongs to sink 'out' of {whose}") as refused:
                act()
            assert "--adopt-targets" in refused.value.next_step
        assert keys.rows() == [ANN] and keys.sink.holding(job, sink).newest is None
        assert keys.sink.holding(job, sink).rival == Rival(JOB, "out", Held("first", Generation(1)))

    def test_its_own_sink_continues(self, keys: RedisKeys) -> None:
        keys.sink.open(JOB, LEFT, FIRST).deliver(tag(1), [batch(ANN)])
        assert keys.sink.open(JOB, RIGHT, FIRST).deliver(tag(1), [batch(BEA)]) == Delivered(1)
        assert keys.sink.open(JOB, LEFT, SECOND).deliver(tag(2), [batch(CAT)]) == Delivered(1)
        assert keys.sink.holding(JOB, "out").rival is None

    def test_one_of_two_simultaneous_first_deliveries_to_a_prefix_is_refused(self, keys: RedisKeys) -> None:
        first = at("before_commit", lambda: keys.sink.open(JOB, LEFT, FIRST).deliver(tag(1), [batch(ANN)]))
        with pytest.raises(Fenced, match="belongs to sink 'out'"):
            keys.sink.opened(JOB, Writer("else", Subtask(0)), self.THEIRS, first).deliver(tag(1), [batch(BEA)])
        assert keys.rows() == [ANN]

    def test_a_user_moves_it_from_the_driver_that_had_it_then(self, keys: RedisKeys) -> None:
        former = keys.sink.open(JOB, LEFT, FIRST)
        former.deliver(tag(1), [batch(ANN)])
        adopting = replace(self.THEIRS, adopted=("first",))
        keys.sink.open(JOB, Writer("else", Subtask(0)), adopting).deliver(tag(1), [batch(BEA)])
        with pytest.raises(Fenced, match="belongs to sink 'else' of this job"):
            former.deliver(tag(2), [batch(CAT)])
        assert sorted(keys.rows()) == [ANN, BEA]

    def test_it_is_not_moved_from_a_driver_that_took_it_over_since(self, keys: RedisKeys) -> None:
        keys.sink.open(JOB, LEFT, FIRST).deliver(tag(1), [batch(ANN)])
        adopting = replace(self.THEIRS, adopted=("first",))
        since = at("before_commit", lambda: keys.sink.open(JOB, RIGHT, SECOND).deliver(tag(2), []))
        with pytest.raises(Fenced, match="belongs to sink 'out'"):
            keys.sink.opened(JOB, Writer("else", Subtask(0)), adopting, since).deliver(tag(1), [batch(BEA)])
        assert keys.rows() == [ANN]

    def test_under_a_prefix_of_an_earlier_version_its_sink_continues(self, redis: RedisServer, keys: RedisKeys) -> None:
        keys.sink.open(JOB, LEFT, FIRST).deliver(tag(1), [batch(ANN)])
        redis.ask("HDEL", keys.sink.place.book, SINK)
        assert keys.sink.holding(JOB, "out").rival is None
        assert keys.sink.holding(OTHER_JOB, "else").rival == Rival(
            JOB, "out", Held("first", Generation(1)), certain=False
        )
        keys.sink.open(JOB, LEFT, FIRST).deliver(tag(2), [batch(BEA)])
        assert keys.sink.holding(OTHER_JOB, "else").rival == Rival(JOB, "out", Held("first", Generation(1)))


class TestScript:
    @pytest.mark.parametrize("owner", [None, FIRST])
    def test_a_request_that_runs_late_changes_nothing(self, keys: RedisKeys, owner: Claim | None) -> None:
        """Its reply was lost, and the next attempt, or the next owner, was faster."""
        held = Lost(keys.sink._connection())
        lost = RedisTarget("Redis x", held, keys.sink._rows().pairs, JOB, LEFT, owner)
        for row in (ANN, (1, "anna")):
            with pytest.raises(Unavailable, match="the reply is lost"):
                lost.deliver(tag(1), [batch(row)])
        first, second = held.changes
        assert held.connection.apply(second) is True and keys.rows() == [(1, "anna")]
        assert held.connection.apply(first) is False
        with pytest.raises(Unavailable, match="the reply is lost"):
            lost.deliver(tag(2), [batch(BEA)])
        keys.sink.open(JOB, RIGHT if owner else LEFT, owner and SECOND).deliver(tag(2), [])
        assert held.connection.apply(held.changes[-1]) is False and keys.rows() == [(1, "anna")]
        held.connection.close()

    @pytest.mark.parametrize("delivered", [False, True])
    def test_a_takeover_notices_a_writer_that_delivers_meanwhile(self, keys: RedisKeys, delivered: bool) -> None:
        """The old owner delivers beyond what the new one knows of it, by a writer with a tag or without one so far."""
        keys.sink.open(JOB, LEFT, FIRST).deliver(tag(1), [batch(ANN)])
        if delivered:
            keys.sink.open(JOB, RIGHT, FIRST).deliver(tag(1), [])
        claim = Claim("second", Generation(2), {"first": tag(1)})
        late = at("before_commit", lambda: keys.sink.open(JOB, RIGHT, FIRST).deliver(tag(2), [batch(BEA)]))
        with pytest.raises(Damaged, match="was copied or restored"):
            keys.sink.opened(JOB, LEFT, claim, late).deliver(tag(2), [batch(CAT)])
        assert sorted(keys.rows()) == [ANN, BEA]

    def test_an_owner_that_is_overtaken_before_its_request_is_fenced(self, keys: RedisKeys) -> None:
        keys.sink.open(JOB, LEFT, FIRST).deliver(tag(1), [batch(ANN)])
        taken = at("before_commit", lambda: keys.sink.open(JOB, RIGHT, SECOND).deliver(tag(1), []))
        with pytest.raises(Fenced, match="not in the log of this job"):
            keys.sink.opened(JOB, LEFT, FIRST, taken).deliver(tag(2), [batch(BEA)])
        assert keys.rows() == [ANN]

    def test_a_delivery_gives_up_if_others_are_always_faster(self, keys: RedisKeys) -> None:
        def busy(point: FaultPoint) -> None:
            if point == "before_commit":
                owner = Claim(f"owner {len(made)}", Generation(len(made)), {each: tag(99) for each in made})
                made.append(owner.owner)
                keys.sink.open(JOB, RIGHT, owner).deliver(tag(len(made)), [])

        made = ["first"]
        keys.sink.open(JOB, LEFT, FIRST).deliver(tag(1), [])
        known = {"first": tag(99), **{f"owner {n}": tag(99) for n in range(1, 99)}}
        with pytest.raises(Unavailable, match="changed tags or owner 5 times"):
            keys.sink.opened(JOB, LEFT, Claim("late", Generation(9), known), busy).deliver(tag(2), [batch(ANN)])
        assert keys.rows() == []

    def test_what_a_broken_script_left_is_made_whole_by_the_same_delivery(
        self, redis: RedisServer, keys: RedisKeys, guarded: Redis
    ) -> None:
        """Redis takes nothing back when a command fails in a script: the tag, which moves last, has not moved."""
        rows = [batch(ANN, (2, None), CAT)]
        redis.allow(f"~{keys.prefix}1", f"~holdfast:{keys.prefix}", "+@all")
        with pytest.raises(NotAdmitted):
            guarded.open(JOB, LEFT).deliver(tag(1), rows)
        assert keys.rows() == [ANN] and keys.sink.open(JOB, LEFT).delivered() is None
        redis.allow("~*", "+@all")
        assert guarded.open(JOB, LEFT).deliver(tag(1), rows) == Delivered(3)
        assert keys.rows() == [ANN, CAT]


class TestSeveralEpochs:
    def test_leave_the_tag_of_the_last_so_the_next_delivery_continues_there(self) -> None:
        """See Merges.deliver_together. Below the tag that the writer knows, a target counts as restored from a
        backup (P24)."""
        target = RedisTarget("Redis x", Hash(), lambda rows: [(b"key", b"value")], JOB, LEFT)
        epochs = [EpochOutput(tag(1), [batch(ANN)]), EpochOutput(tag(2), [batch(BEA)])]
        assert target.deliver_together(epochs) == Delivered(2)
        assert target.delivered() == tag(2)
        assert target.deliver(tag(3), [batch(CAT)], known=tag(2)) == Delivered(1)


@pytest.mark.redis
class TestRights:
    def test_the_rights_that_a_message_names_are_enough(
        self, redis: RedisServer, keys: RedisKeys, guarded: Redis
    ) -> None:
        redis.allow("-@all")
        with pytest.raises(NotAdmitted, match="this user lacks a right") as error:
            guarded.open(JOB, LEFT).delivered()
        rules = error.value.next_step.partition("ACL SETUSER USER ")[2].replace("PREFIX", keys.prefix).split()
        redis.allow(*rules)
        guarded.prepare(SCHEMA, KEY)
        guarded.open(JOB, LEFT).deliver(tag(1), [batch(ANN, BEA)])
        guarded.open(JOB, LEFT).deliver(tag(2), [batch((1, None))])
        assert guarded.holding(JOB, "out").newest == tag(2) and keys.rows() == [BEA]

    @pytest.mark.parametrize("rule", ["-eval", "-mset", "-del", "-hset", "-hsetnx", "-hget", "-hlen", "-hgetall"])
    def test_a_right_that_is_missing_is_found_before_anything_is_committed(
        self, redis: RedisServer, keys: RedisKeys, guarded: Redis, rule: str
    ) -> None:
        redis.ask("DEL", f"holdfast:{keys.prefix}")
        redis.allow("~*", "+@all", rule)
        with pytest.raises(NotAdmitted, match="this user lacks a right"):
            guarded.prepare(SCHEMA, KEY)
        if rule != "-hsetnx":  # only a start runs it
            with pytest.raises(NotAdmitted, match="this user lacks a right"):
                guarded.probe(SCHEMA, KEY)
        assert redis.ask("KEYS", f"*{keys.prefix}*") == []

    @pytest.mark.parametrize("begun", [False, True])
    def test_looking_for_them_changes_nothing(
        self, redis: RedisServer, keys: RedisKeys, guarded: Redis, begun: bool
    ) -> None:
        book = f"holdfast:{keys.prefix}"
        if begun:
            guarded.open(JOB, LEFT).deliver(tag(1), [batch(ANN)])
        else:
            redis.ask("DEL", book)
        before = keys.values(), redis.ask("HGETALL", book)
        guarded.probe(SCHEMA, KEY)
        assert (keys.values(), redis.ask("HGETALL", book)) == before

    @pytest.mark.parametrize("rule", ["-eval", "-mset", "-hset", "-hgetall"])
    def test_a_right_that_is_revoked_is_a_reason_to_wait(
        self, redis: RedisServer, keys: RedisKeys, guarded: Redis, rule: str
    ) -> None:
        target = guarded.open(JOB, LEFT)
        target.deliver(tag(1), [batch(ANN)])
        redis.allow("~*", "+@all", rule)
        with pytest.raises(NotAdmitted, match="this user lacks a right"):
            target.deliver(tag(2), [batch(BEA)])
        redis.allow("~*", "+@all")
        assert target.deliver(tag(2), [batch(BEA)]) == Delivered(1)
        assert sorted(keys.rows()) == [ANN, BEA]

    def test_a_login_that_is_refused_is_a_reason_to_wait(
        self, redis: RedisServer, keys: RedisKeys, guarded: Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        target = guarded.open(JOB, LEFT)
        target.deliver(tag(1), [batch(ANN)])
        redis.ask("ACL", "SETUSER", "app", "off")
        redis.ask("CLIENT", "KILL", "USER", "app")
        for _ in range(2):
            with pytest.raises(HoldfastError) as error:
                target.delivered()
            assert PASSWORD not in str(error.value)
        assert isinstance(error.value, NotAdmitted) and "did not let this user in" in error.value.what
        redis.allow("~*", "+@all")
        assert target.deliver(tag(2), [batch(BEA)]) == Delivered(1)
        monkeypatch.setenv("REDIS_PASSWORD", "another")
        with pytest.raises(NotAdmitted, match="did not let this user in"):
            guarded.open(JOB, LEFT).delivered()

    def test_a_server_that_asks_for_a_password_is_one_that_refuses_the_login(
        self, redis: RedisServer, keys: RedisKeys
    ) -> None:
        admitted = redis.client()  # it stays logged in
        admitted.execute_command("ACL", "SETUSER", "default", "resetpass", f">{PASSWORD}")
        try:
            with pytest.raises(NotAdmitted, match="did not let this user in: Authentication required"):
                keys.sink.open(JOB, LEFT).delivered()
        finally:
            admitted.execute_command("ACL", "SETUSER", "default", "nopass")
            admitted.close()

    def test_a_missing_secret_names_the_server(self, guarded: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("REDIS_PASSWORD")
        with pytest.raises(ConfigError, match=r"^Redis 127.0.0.1:.*, which a secret names, is not set"):
            guarded.prepare(SCHEMA, KEY)


@pytest.mark.redis
class TestFaults:
    @pytest.mark.parametrize("point", ["before_begin", "before_commit", "after_commit"])
    def test_a_server_that_is_killed_keeps_what_it_confirmed(
        self, redis: RedisServer, keys: RedisKeys, point: FaultPoint
    ) -> None:
        keys.sink.open(JOB, LEFT).deliver(tag(1), [batch(ANN)])
        target = keys.sink.opened(JOB, LEFT, fault=at(point, redis.kill))
        rows = [batch(BEA, (1, None))]
        if point == "after_commit":
            assert target.deliver(tag(2), rows) == Delivered(2)
        else:
            with pytest.raises(Unavailable, match="it is not known|Error|refused"):
                target.deliver(tag(2), rows)
        with pytest.raises(Unavailable):
            target.delivered()
        redis.start()
        if point == "after_commit":
            assert target.deliver(tag(2), rows, tag(1)) == AlreadyDelivered(tag(2))
        else:
            assert (keys.rows(), target.delivered()) == ([ANN], tag(1))
            assert target.deliver(tag(2), rows, tag(1)) == Delivered(2)
        assert keys.rows() == [BEA]

    def test_a_full_memory_is_a_reason_to_wait(self, redis: RedisServer, keys: RedisKeys) -> None:
        target = keys.sink.open(JOB, LEFT)
        target.deliver(tag(1), [batch(ANN)])
        redis.ask("CONFIG", "SET", "maxmemory", "1")
        try:
            for rows in ([batch(BEA, (1, None))], []):
                with pytest.raises(Unavailable, match="the memory of the server is full"):
                    target.deliver(tag(2), rows)
            assert (keys.rows(), target.delivered()) == ([ANN], tag(1))
        finally:
            redis.ask("CONFIG", "SET", "maxmemory", "0")
        assert target.deliver(tag(2), [batch(BEA)]) == Delivered(1)
        assert sorted(keys.rows()) == [ANN, BEA]

    def test_a_server_without_encryption_is_unavailable_to_a_url_that_asks_for_it(
        self, redis: RedisServer, keys: RedisKeys, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(client, "ANSWER_WITHIN_S", 2.0)  # the server waits for the rest of a command
        sink = Redis(redis.url.replace("redis:", "rediss:"), keys.prefix, KEY)
        with pytest.raises(Unavailable, match="Redis 127.0.0.1"):
            sink.open(JOB, LEFT).delivered()

    def test_an_emptied_server_is_noticed(self, redis: RedisServer, keys: RedisKeys) -> None:
        target = keys.sink.open(JOB, LEFT)
        target.deliver(tag(1), [batch(ANN)])
        redis.ask("FLUSHALL")
        with pytest.raises(Damaged, match="has no tag, but timeline 1, epoch 1 was delivered to it"):
            target.deliver(tag(2), [batch(BEA)], tag(1))
        assert keys.rows() == []

    def test_a_replica_takes_no_writes(self, redis: RedisServer, keys: RedisKeys) -> None:
        redis.ask("REPLICAOF", "127.0.0.1", "1")
        try:
            with pytest.raises(Unavailable, match="takes no writes"):
                keys.sink.open(JOB, LEFT).deliver(tag(1), [batch(ANN)])
            with pytest.raises(Unavailable, match="is a replica"):
                keys.sink.prepare(SCHEMA, KEY)
        finally:
            redis.ask("REPLICAOF", "NO", "ONE")


@pytest.mark.redis
class TestSettings:
    @pytest.fixture
    def configured(self, redis: RedisServer) -> Iterator[Callable[[str, str], Any]]:
        yield lambda name, value: redis.ask("CONFIG", "SET", name, value)
        for name, value in (
            ("appendonly", "yes"),
            ("appendfsync", "always"),
            ("maxmemory", "0"),
            ("maxmemory-policy", "noeviction"),
        ):
            redis.ask("CONFIG", "SET", name, value)

    def test_a_server_that_evicts_rows_is_refused(self, keys: RedisKeys, configured: Callable[[str, str], Any]) -> None:
        configured("maxmemory-policy", "allkeys-lru")
        keys.sink.prepare(SCHEMA, KEY)
        configured("maxmemory", "100mb")
        for look in (keys.sink.prepare, keys.sink.probe):
            with pytest.raises(ConfigError, match="maxmemory-policy allkeys-lru: when its memory is full, it deletes"):
                look(SCHEMA, KEY)
        configured("maxmemory-policy", "volatile-lru")  # evicts keys with a time to live, and rows have none
        keys.sink.prepare(SCHEMA, KEY)

    def test_a_server_that_is_told_to_evict_rows_later_is_a_reason_to_wait(
        self, keys: RedisKeys, configured: Callable[[str, str], Any]
    ) -> None:
        target = keys.sink.open(JOB, LEFT)
        target.deliver(tag(1), [batch(ANN)])
        configured("maxmemory", "100mb")
        configured("maxmemory-policy", "allkeys-lru")
        with pytest.raises(Unavailable, match="maxmemory-policy allkeys-lru: when its memory is full, it deletes rows"):
            target.deliver(tag(2), [batch(BEA)])
        assert (keys.rows(), target.delivered()) == ([ANN], tag(1))
        configured("maxmemory-policy", "noeviction")
        assert target.deliver(tag(2), [batch(BEA)]) == Delivered(1)

    def test_a_user_who_may_not_ask_delivers_and_is_refused_the_question_once(
        self, redis: RedisServer, keys: RedisKeys, guarded: Redis
    ) -> None:
        redis.allow("~*", "+@all", "-info")
        redis.ask("ACL", "LOG", "RESET")
        target = guarded.open(JOB, LEFT)
        for epoch in (1, 2):
            assert target.deliver(tag(epoch), [batch(ANN)]) == Delivered(1)
        assert [entry[1] for entry in redis.ask("ACL", "LOG")] == [1]

    def test_doctor_shows_settings_that_lose_confirmed_rows(
        self, keys: RedisKeys, configured: Callable[[str, str], Any]
    ) -> None:
        fits = keys.sink.probe(SCHEMA, KEY)
        configured("appendfsync", "everysec")
        assert keys.sink.probe(SCHEMA, KEY).startswith(
            f"{fits}; {keys.sink.where} has appendfsync everysec: after a power"
        )
        configured("appendonly", "no")
        assert "has appendonly no: after a crash, rows since its last" in keys.sink.probe(SCHEMA, KEY)

    def test_a_start_warns_of_settings_that_lose_confirmed_rows(
        self, keys: RedisKeys, configured: Callable[[str, str], Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        keys.sink.prepare(SCHEMA, KEY)
        assert not caplog.messages
        configured("appendfsync", "everysec")
        keys.sink.prepare(SCHEMA, KEY)
        configured("appendonly", "no")
        keys.sink.prepare(SCHEMA, KEY)
        always, only = caplog.messages
        assert "has appendfsync everysec" in always and "has appendonly no" in only

    def test_a_user_who_may_not_ask_is_told_what_was_not_checked(
        self, redis: RedisServer, guarded: Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        redis.allow("~*", "+@all", "-config")
        guarded.prepare(SCHEMA, KEY)
        redis.allow("~*", "+@all", "-info")
        guarded.prepare(SCHEMA, KEY)
        assert "may not ask for CONFIG GET appendfsync" in caplog.messages[0]
        assert "may not ask for INFO" in caplog.messages[1]


class TestServer:
    @pytest.mark.parametrize(
        ("facts", "kind", "said"),
        [
            ({"redis_version": "5.0.14"}, ConfigError, "has version 5.0.14, needed is 6.0 or newer"),
            ({"redis_version": "7.2.4", "cluster_enabled": 1}, ConfigError, "is a node of a Redis Cluster"),
            ({"role": "slave"}, Unavailable, "is a replica"),
        ],
    )
    def test_one_that_cannot_keep_the_promises_is_refused(
        self, facts: dict[str, Any], kind: type[HoldfastError], said: str
    ) -> None:
        with pytest.raises(kind, match=said):
            ServerFacts(facts).check("Redis x")

    @pytest.mark.parametrize(
        ("said", "kind", "what"),
        [
            ("MISCONF Redis is configured to save RDB snapshots, but", Unavailable, "cannot save to its disk"),
            (
                "OOM command not allowed when used memory > 'maxmemory'. script: 7b, on @user_script:19.",
                Unavailable,
                "is full (OOM command not allowed when used memory > 'maxmemory')",
            ),
            (
                "Error running script (call to f_596c): @user_script:17: @user_script: 17: -READONLY You can't write.",
                Unavailable,
                "takes no writes: READONLY You can't write",
            ),
            ("NOPERM User app has no permissions to run the 'set' command script: 7b", NotAdmitted, "lacks a right"),
            ("LOADING Redis is loading the dataset in memory", Unavailable, "loading"),
            ("BUSY Redis is busy running a script.", Unavailable, "busy"),
            ("MOVED 3999 127.0.0.1:6381", ConfigError, "is a node of a Redis Cluster"),
            ("ERR DB index is out of range", ConfigError, "Redis refuses the delivery"),
        ],
    )
    def test_its_words_decide_where_no_class_does(self, said: str, kind: type[HoldfastError], what: str) -> None:
        from redis.exceptions import ResponseError

        from holdfast.sinks.redis.errors import meaning_of

        found = meaning_of("Redis x", ResponseError(said))
        assert type(found) is kind and what in found.what and found.what.startswith("Redis x: ")


class TestPlace:
    def test_the_class_is_public_and_has_a_name(self) -> None:
        made = hf.connector("redis", "rediss://app%40x@redis.example/3", "hot:", key="auction")
        assert isinstance(made, hf.Redis) and made.key == ("auction",)
        assert made.where == "Redis redis.example:6379/3, prefix 'hot:'"
        assert (made.place.user, made.place.tls, made.place.book) == ("app@x", True, "holdfast:hot:")
        assert made.traits.place == {"server": "redis.example:6379/3", "prefix": "hot:"}

    def test_what_a_url_leaves_out_has_defaults(self) -> None:
        place = hf.Redis("redis://[::1]", "hot:", ["auction"]).place
        assert (place.server, place.user, place.tls) == ("[::1]:6379/0", None, False)

    @pytest.mark.parametrize(
        "url",
        [
            "redis://app:hunter2@redis.example:6379/0",
            "redis://:hunter2@redis.example",
            "http://hunter2@redis.example",
            "redis://redis.example?password=hunter2",
            "redis://redis.example:hunter2/0",
            "redis://redis.example/hunter2",
            "hunter2",
            "",
        ],
    )
    def test_a_url_that_holds_a_password_or_cannot_be_read_is_not_repeated(self, url: str) -> None:
        with pytest.raises(ConfigError, match=r"^hf\.Redis: ") as error:
            hf.Redis(url, "hot:", ["auction"])
        assert "hunter2" not in str(error.value)

    @pytest.mark.parametrize("prefix", ["", "x" * 513, "holdfast:hot:", "\udc80"])
    def test_a_prefix_that_cannot_be_one_is_refused(self, prefix: str) -> None:
        with pytest.raises(ConfigError, match=r"^hf\.Redis: the prefix"):
            hf.Redis("redis://redis.example", prefix, ["auction"])

    def test_a_password_is_a_secret_that_no_copy_holds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(ConfigError, match=r"^hf.Redis\(password=\) is not an hf.secret") as error:
            hf.Redis("redis://redis.example", "hot:", ["auction"], password="hunter2")  # type: ignore[arg-type]
        assert "hunter2" not in str(error.value)
        monkeypatch.setenv("REDIS_PASSWORD", "hunter2")
        made = hf.Redis("redis://app@redis.example", "hot:", ["auction"], hf.secret("env:REDIS_PASSWORD"))
        assert made.traits.secrets == (hf.secret("env:REDIS_PASSWORD"),)
        assert b"hunter2" not in pickle.dumps(made) and "hunter2" not in repr(made)

    def test_the_hash_has_these_fields_and_values(self) -> None:
        """They are read by later versions."""
        fields = {
            b'["tag","job","out",3]': b'{"v":1,"timeline":2,"epoch":7}',
            b'["tag","job","other",0]': b'{"v":1,"timeline":3,"epoch":1}',
            b'["owner","job","out"]': b'{"v":1,"owner":"a1","generation":5}',
            b'["sink"]': b'{"v":1,"job":"job","sink":"out"}',
        }
        book = RedisBook("Redis x", fields)
        assert book.tag_of("job", Writer("out", Subtask(3))) == book.newest("job", "out") == tag(7, 2)
        held = book.held("job", "out")
        assert held is not None and (held.owner, held.generation) == ("a1", 5)
        assert tag_value(tag(7, 2)) == fields[tag_field("job", Writer("out", Subtask(3)))]
        assert json.loads(owner_field("job", "out")) == ["owner", "job", "out"]
        assert sink_value("job", "out") == fields[SINK] and book.noted_rival("job", "other") is not None
