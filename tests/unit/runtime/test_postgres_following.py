"""What is appended of a replication stream, whatever order, size, repetition and crashes do to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.runtime.capture.postgres.changes import Changes
from holdfast.runtime.capture.postgres.following import Append, CaptureLimits, Effect, Following, StageChanges, Stop
from holdfast.runtime.capture.postgres.messages import (
    Absent,
    Change,
    Data,
    Delete,
    Insert,
    KeepAlive,
    Message,
    Relation,
    Row,
    TransactionBegin,
    TransactionCommit,
    Truncate,
    Update,
)
from holdfast.runtime.sources.postgres.columns import PgColumn
from holdfast.runtime.sources.postgres.table import SourceTable

OID, OTHER = 4711, 4712
INT8, TEXT = 20, 25
COLUMNS = (PgColumn("id", INT8, -1), PgColumn("name", TEXT, -1))
TABLE = SourceTable("public", "t", OID, COLUMNS, ("id",), full=False)
FULL_TABLE = SourceTable("public", "t", OID, COLUMNS, ("id",), full=True)
RELATION = Relation(OID, "public", "t", "d", (("id", INT8, -1), ("name", TEXT, -1)))
FULL_RELATION = Relation(OID, "public", "t", "f", RELATION.columns)
START = 1_000
PUT, DELETED = False, True


def row(key: int, name: str | None = "x") -> Row:
    return (str(key).encode(), None if name is None else name.encode())


def transaction(at: int, *changes: Message) -> list[Message]:
    """Return the messages of a transaction whose commit begins at a position, and ends 8 behind it."""
    return [TransactionBegin(at), *changes, TransactionCommit(at, at + 8)]


def records(changes: Changes) -> list[tuple[Any, ...]]:
    return [tuple(each.values()) for each in changes.records().to_pylist()]


def raw(changes: Changes) -> list[tuple[Any, ...]]:
    """Return the records as they were collected, which is quicker."""
    return list(zip(changes._deleted, *changes._columns, strict=True))


def following(table: SourceTable = TABLE, limits: CaptureLimits | None = None) -> Following:
    return Following(table, START, limits or CaptureLimits(linger_ms=0))


def taken(machine: Following, *messages: Message | KeepAlive, now_ms: int = 0) -> Following:
    for message in messages:
        machine.take(message if isinstance(message, KeepAlive) else Data(message), now_ms)
    return machine


def appended(effect: Effect | None) -> tuple[int, list[tuple[Any, ...]]]:
    assert isinstance(effect, Append)
    return effect.lsn, records(effect.changes)


class TestTransactions:
    def test_become_records_with_the_end_of_the_commit_as_position(self) -> None:
        machine = taken(following(), RELATION, *transaction(1_000, Insert(OID, row(1, "a"))))
        assert appended(machine.due(0)) == (1_008, [(PUT, 1, "a")])

    def test_unfinished_transactions_are_not_appended(self) -> None:
        machine = taken(following(), RELATION, TransactionBegin(1_000), Insert(OID, row(1)))
        assert machine.due(0) is None

    def test_whose_commit_lies_before_the_start_are_left_out(self) -> None:
        machine = taken(
            following(),
            RELATION,
            *transaction(992, Insert(OID, row(1))),
            *transaction(1_000, Insert(OID, row(2))),
        )
        assert appended(machine.due(0)) == (1_008, [(PUT, 2, "x")])

    def test_wait_for_others_but_not_for_long(self) -> None:
        machine = taken(following(limits=CaptureLimits(linger_ms=100)), RELATION)
        taken(machine, *transaction(1_000, Insert(OID, row(1))), now_ms=50)
        assert (machine.due(149), machine.wake_ms()) == (None, 150)
        taken(machine, *transaction(1_010, Insert(OID, row(2))), now_ms=149)
        assert appended(machine.due(150)) == (1_018, [(PUT, 1, "x"), (PUT, 2, "x")])

    def test_transactions_that_fill_a_batch_do_not_wait(self) -> None:
        machine = taken(following(limits=CaptureLimits(linger_ms=100, batch_bytes=10)), RELATION)
        taken(machine, *transaction(1_000, Insert(OID, row(1))))
        assert isinstance(machine.due(0), Append)

    def test_transactions_on_other_tables_are_not_appended(self) -> None:
        other = Relation(OTHER, "public", "u", "d", RELATION.columns)
        machine = taken(following(), other, *transaction(1_000, Insert(OTHER, row(1)), Truncate((OTHER,))))
        assert machine.due(0) is None

    def test_oversized_transactions_are_staged_before_they_end(self) -> None:
        machine = taken(following(limits=CaptureLimits(linger_ms=0, stage_bytes=10)), RELATION)
        taken(machine, TransactionBegin(1_000), Insert(OID, row(1)))
        effect = machine.due(0)
        assert isinstance(effect, StageChanges) and records(effect.changes) == [(PUT, 1, "x")]
        assert machine.due(0) is None
        taken(machine, TransactionCommit(1_000, 1_008))
        assert appended(machine.due(0)) == (1_008, [])

    def test_before_one_that_is_staged_are_appended_first(self) -> None:
        machine = taken(following(limits=CaptureLimits(linger_ms=100, batch_bytes=10, stage_bytes=10)), RELATION)
        taken(machine, *transaction(1_000, Insert(OID, row(1))), TransactionBegin(1_010), Insert(OID, row(2)))
        assert appended(machine.due(0)) == (1_008, [(PUT, 1, "x")])
        machine.appended(1_008)
        assert isinstance(machine.due(0), StageChanges)


class TestChanges:
    def test_an_update_of_a_key_deletes_the_old_key(self) -> None:
        update = Update(OID, row(1, None), row(2, "a"))
        assert appended(taken(following(), RELATION, *transaction(1_000, update)).due(0))[1] == [
            (DELETED, 1, None),
            (PUT, 2, "a"),
        ]

    def test_with_full_old_rows_delete_only_keys_that_changed(self) -> None:
        machine = taken(following(FULL_TABLE), FULL_RELATION)
        taken(machine, *transaction(1_000, Update(OID, row(1, "a"), row(1, "b")), Delete(OID, row(3, "c"))))
        assert appended(machine.due(0))[1] == [(PUT, 1, "b"), (DELETED, 3, None)]

    @pytest.mark.parametrize(
        ("new", "deletes"),
        [(row(1, "b"), [(DELETED, 1, "a")]), (row(2, "a"), [(DELETED, 1, "a")]), (row(1, "a"), [])],
        ids=["its last column", "its first column", "none"],
    )
    def test_an_update_of_any_key_column_deletes_the_old_key(self, new: Row, deletes: list[Any]) -> None:
        table = SourceTable("public", "t", OID, COLUMNS, ("id", "name"), full=False)
        machine = taken(following(table), RELATION, *transaction(1_000, Update(OID, row(1, "a"), new)))
        assert appended(machine.due(0))[1] == [*deletes, (PUT, int(new[0] or 0), str(new[1], "ascii"))]  # type: ignore[arg-type]

    def test_take_long_values_that_were_left_from_the_old_row(self) -> None:
        machine = taken(following(FULL_TABLE), FULL_RELATION)
        taken(machine, *transaction(1_000, Update(OID, row(1, "long"), (b"1", Absent.UNCHANGED))))
        assert appended(machine.due(0))[1] == [(PUT, 1, "long")]

    def test_are_found_by_name_wherever_the_columns_are(self) -> None:
        turned = Relation(OID, "public", "t", "d", RELATION.columns[::-1])
        machine = taken(following(), turned, *transaction(1_000, Insert(OID, (b"a", b"1"))))
        assert appended(machine.due(0))[1] == [(PUT, 1, "a")]


CHANGED = {
    "a column more": Relation(OID, "public", "t", "d", (*RELATION.columns, ("more", TEXT, -1))),
    "a column less": Relation(OID, "public", "t", "d", RELATION.columns[:1]),
    "another type": Relation(OID, "public", "t", "d", (("id", INT8, -1), ("name", 1043, 24))),
    "another name": Relation(OID, "public", "renamed", "d", RELATION.columns),
    "another table": Relation(OTHER, "public", "t", "d", RELATION.columns),
}


class TestWhatCannotBeCaptured:
    @pytest.mark.parametrize("changed", CHANGED)
    def test_stops_before_the_first_change_and_after_everything_else(self, changed: str) -> None:
        machine = taken(following(limits=CaptureLimits(linger_ms=100)), RELATION)
        taken(machine, *transaction(1_000, Insert(OID, row(1))), CHANGED[changed])
        assert machine.due(0) is None
        relation = CHANGED[changed]
        new = tuple(b"2" for _ in relation.columns)
        taken(machine, *transaction(1_010, Insert(relation.oid, new)), *transaction(1_020, Insert(OID, row(3))))
        assert appended(machine.due(0)) == (1_008, [(PUT, 1, "x")])
        machine.appended(1_008)
        effect = machine.due(0)
        assert isinstance(effect, Stop) and "has changed while it was captured" in str(effect.error)

    def test_is_no_error_in_a_transaction_that_is_in_the_log(self) -> None:
        relation = CHANGED["a column more"]
        machine = taken(following(), relation, *transaction(990, Insert(OID, (b"1", b"a", b"b")), Truncate((OID,))))
        assert machine.due(0) is None
        taken(machine, RELATION, *transaction(1_000, Insert(OID, row(2))))
        assert appended(machine.due(0)) == (1_008, [(PUT, 2, "x")])

    def test_includes_a_truncation(self) -> None:
        effect = taken(following(), RELATION, TransactionBegin(1_000), Truncate((OTHER, OID))).due(0)
        assert isinstance(effect, Stop) and "was truncated" in effect.error.what

    def test_includes_a_long_value_that_was_not_sent(self) -> None:
        effect = taken(following(), RELATION, TransactionBegin(1_000), Update(OID, None, (b"1", Absent.UNCHANGED))).due(
            0
        )
        assert isinstance(effect, Stop) and "REPLICA IDENTITY FULL" in effect.error.next_step

    def test_includes_old_rows_that_are_no_longer_full(self) -> None:
        machine = taken(following(FULL_TABLE), RELATION, TransactionBegin(1_000), Insert(OID, row(1)))
        effect = machine.due(0)
        assert isinstance(effect, Stop) and "no longer FULL" in effect.error.what


class TestPosition:
    def test_follows_the_server_while_the_table_is_idle(self) -> None:
        machine = taken(following(limits=CaptureLimits(idle_bytes=100)), KeepAlive(1_099, False))
        assert machine.due(0) is None
        assert appended(taken(machine, KeepAlive(1_100, False)).due(0)) == (1_100, [])
        machine.appended(1_100)
        assert (machine.confirmed, machine.due(0)) == (1_100, None)

    def test_follows_a_server_that_asks_as_one_does_that_shuts_down(self) -> None:
        machine = taken(following(), KeepAlive(1_001, True))
        assert appended(machine.due(0)) == (1_001, [])
        machine.appended(1_001)
        assert taken(machine, KeepAlive(1_001, True)).due(0) is None

    def test_does_not_follow_inside_a_transaction(self) -> None:
        machine = taken(
            following(limits=CaptureLimits(idle_bytes=1)), RELATION, TransactionBegin(1_000), KeepAlive(1_500, True)
        )
        assert machine.due(0) is None

    def test_does_not_follow_inside_a_transaction_whatever_came_before_it(self) -> None:
        limits = CaptureLimits(linger_ms=0, stage_bytes=1, idle_bytes=1_000_000)
        machine = taken(following(limits=limits), RELATION, KeepAlive(1_050, False), TransactionBegin(1_100))
        taken(machine, Insert(OID, row(1)))
        assert isinstance(machine.due(0), StageChanges)
        assert taken(machine, KeepAlive(1_050, True)).due(0) is None, "half a transaction is staged"
        assert appended(taken(machine, Insert(OID, row(2)), TransactionCommit(1_100, 1_108)).due(0))[0] == 1_108

    def test_a_position_inside_a_transaction_says_nothing_of_those_behind_it(self) -> None:
        machine = taken(following(limits=CaptureLimits(linger_ms=0, idle_bytes=1)), RELATION, TransactionBegin(1_000))
        taken(machine, KeepAlive(1_500, True), Insert(OID, row(1)), TransactionCommit(1_000, 1_008))
        assert appended(machine.due(0))[0] == 1_008
        machine.appended(1_008)
        assert machine.due(0) is None, "transactions before 1,500 have yet to arrive"
        assert appended(taken(machine, *transaction(1_200, Insert(OID, row(2)))).due(0))[0] == 1_208

    def test_is_confirmed_only_once_it_was_appended(self) -> None:
        machine = taken(following(), RELATION, *transaction(1_000, Insert(OID, row(1))))
        assert (isinstance(machine.due(0), Append), machine.confirmed) == (True, START)
        machine.appended(1_008)
        assert machine.confirmed == 1_008


@dataclass
class World:
    """A server, and a log that several processes append to with the position as tag, as `Target` does."""

    sent: list[list[Message]]
    confirmed: int = START
    tag: int = START
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    tags: list[int] = field(default_factory=list)

    def append(self, expected: int, lsn: int, rows: list[tuple[Any, ...]]) -> bool:
        if self.tag != expected:
            return False
        assert lsn > self.tag
        self.tag = lsn
        self.rows += rows
        self.tags.append(lsn)
        return True

    def stream(self) -> list[Message]:
        """Return what a connection gets: everything whose commit does not lie before what was confirmed."""
        found: list[Message] = [RELATION]
        for messages in self.sent:
            begin = messages[0]
            assert isinstance(begin, TransactionBegin)
            if begin.commit_lsn >= self.confirmed:
                found += messages
        return found


@dataclass
class Process:
    """A process with a connection; each step is one of: a message arrives, an effect is performed."""

    world: World
    limits: CaptureLimits

    def __post_init__(self) -> None:
        self.tag = self.world.tag
        self.machine = Following(TABLE, self.tag, self.limits)
        self.stream = iter(self.world.stream())
        self.staged: list[tuple[Any, ...]] = []
        self.alive = True

    def step(self, reply_lost: bool, confirm_lost: bool) -> bool:
        """Return whether the process can go on."""
        match self.machine.due(0):
            case StageChanges(changes):
                self.staged += raw(changes)
            case Append(changes, lsn):
                if not self.world.append(self.tag, lsn, self.staged + raw(changes)) or reply_lost:
                    return False  # it starts again from the tag
                self.machine.appended(lsn)
                self.tag, self.staged = lsn, []
                if not confirm_lost:
                    self.world.confirmed = max(self.world.confirmed, self.machine.confirmed)
            case Stop(error):
                raise error
            case None:
                if (message := next(self.stream, None)) is None:
                    return False
                self.machine.take(Data(message), 0)
        return True


@st.composite
def histories(draw: st.DrawFn) -> list[list[Message]]:
    """Transactions with growing commits; keys are inserted, updated, renamed, deleted."""
    at, found = START, []
    for _ in range(draw(st.integers(1, 12))):
        changes: list[Change] = []
        for _ in range(draw(st.integers(0, 4))):
            key = draw(st.integers(0, 4))
            kinds: list[Change] = [
                Insert(OID, row(key, f"at {at}")),
                Update(OID, None, row(key, f"at {at}")),
                Update(OID, row(key, None), row(key + 1, f"at {at}")),
                Delete(OID, row(key, None)),
                Insert(OTHER, row(key)),
            ]
            changes.append(draw(st.sampled_from(kinds)))
        found.append(transaction(at, *changes))
        at += draw(st.integers(8, 40))
    return found


@settings(max_examples=25, deadline=None)
@given(st.data(), histories())
def test_every_change_is_in_the_log_once_and_in_order_over_crashes_and_lost_replies(
    data: st.DataObject, history: list[list[Message]]
) -> None:
    world = World(history)
    limits = CaptureLimits(0, *data.draw(st.sampled_from([(1, 1), (40, 60), (10_000, 10_000)])), 10_000)
    processes = [Process(world, limits)]
    for _ in range(data.draw(st.integers(0, 80))):
        act = data.draw(
            st.sampled_from(["step", "step", "step", "crash", "join", "lose the reply", "lose the confirm"])
        )
        if act == "join" and len(processes) < 3:
            processes.append(Process(world, limits))
        place = data.draw(st.integers(0, len(processes) - 1))
        if act == "crash" or not processes[place].step(act == "lose the reply", act == "lose the confirm"):
            processes[place] = Process(world, limits)
        assert world.confirmed <= world.tag, "nothing is confirmed before it is in the log"
    last = Process(world, limits)
    while last.step(False, False):
        pass
    assert world.rows == expected(history)
    ends = {message.end_lsn for messages in history for message in messages if isinstance(message, TransactionCommit)}
    assert set(world.tags) <= ends and world.tags == sorted(set(world.tags))


def expected(history: list[list[Message]]) -> list[tuple[Any, ...]]:
    """Return the records of a history, by other means."""
    found: list[tuple[Any, ...]] = []
    for message in (each for messages in history for each in messages):
        if isinstance(message, Delete):
            found.append((DELETED, message.old[0], None))
        elif isinstance(message, Insert | Update) and message.oid == OID:
            if isinstance(message, Update) and message.old is not None:
                found.append((DELETED, message.old[0], None))
            found.append((PUT, *message.new))
    return found
