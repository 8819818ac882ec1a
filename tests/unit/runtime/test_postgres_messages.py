"""Messages of the replication stream, as a server of Postgres 18 sent them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Damaged
from holdfast.runtime.capture.postgres.messages import (
    Absent,
    Data,
    Delete,
    Insert,
    KeepAlive,
    Message,
    Other,
    Relation,
    TransactionBegin,
    TransactionCommit,
    Truncate,
    Update,
    decode,
    envelope,
    lsn_of,
    lsn_text,
    status,
)

T, F = 0x4003, 0x400B
AT = "00000000016f79a800000000016f79a80003042e139d6cf2"
FULL_RELATION = (
    "520000400b746573745f310066006600030169640000000017ffffffff016e616d650000000019ffffffff"
    "01707269636500000006a4000a0006"
)
RECORDED: list[tuple[str, Message]] = [
    ("4200000000016f7b080003042e139bbac8000002f8", TransactionBegin(0x16F7B08)),
    (
        "5200004003746573745f310074006400020169640000000017ffffffff006e616d650000000019ffffffff",
        Relation(T, "test_1", "t", "d", (("id", 23, -1), ("name", 25, -1))),
    ),
    (
        FULL_RELATION,
        Relation(F, "test_1", "f", "f", (("id", 23, -1), ("name", 25, -1), ("price", 1700, (10 << 16 | 2) + 4))),
    ),
    ("49000040034e00027400000001317400000002c3a4", Insert(T, (b"1", "ä".encode()))),
    ("49000040034e00027400000001326e", Insert(T, (b"2", None))),
    ("55000040034e0002740000000131740000000162", Update(T, None, (b"1", b"b"))),
    (
        "55000040034b00027400000001316e4e0002740000000133740000000162",
        Update(T, (b"1", None), (b"3", b"b")),
    ),
    ("44000040034b00027400000001326e", Delete(T, (b"2", None))),
    ("540000000200000040030000400b", Truncate((T, F))),
    (
        "430000000000016f7b0800000000016f7b380003042e139bbac8",
        TransactionCommit(0x16F7B08, 0x16F7B38),
    ),
]


@pytest.mark.parametrize(("recorded", "message"), RECORDED, ids=[type(message).__name__ for _, message in RECORDED])
def test_are_decoded(recorded: str, message: Message) -> None:
    assert envelope(bytes.fromhex(f"77{AT}{recorded}")) == Data(message)


def test_an_update_message_may_omit_a_long_value_and_include_the_whole_old_row() -> None:
    old = "4f0002" + "740000000131" + "740000000578787878" + "78"
    assert decode(bytes.fromhex(f"550000400b{old}4e000274000000013175")) == Update(
        F, (b"1", b"xxxxx"), (b"1", Absent.UNCHANGED)
    )


def test_without_meaning_are_passed_over() -> None:
    assert decode(b"Y\0\0\x40\x10test\0mood\0") == decode(b"O" + b"\0" * 8 + b"origin\0") == Other()


def test_a_keepalive_message_states_whether_a_reply_is_requested() -> None:
    assert envelope(bytes.fromhex("6b00000000016f79700003042e139d6b6600")) == KeepAlive(0x16F7970, False)
    assert envelope(bytes.fromhex("6b00000000016f79700003042e139d6b6601")) == KeepAlive(0x16F7970, True)


def test_to_the_server_report_one_position_as_written_flushed_and_applied() -> None:
    assert status(0x16F7970).hex() == "72" + "00000000016f7970" * 3 + "0" * 16 + "00"


@given(st.binary(max_size=40))
def test_arbitrary_bytes_are_decoded_or_refused(data: bytes) -> None:
    try:
        found = envelope(data)
    except Damaged as refused:
        assert "does not send" in refused.what
    else:
        assert data[:1] in b"wk" and isinstance(found, Data | KeepAlive)


@pytest.mark.parametrize("recorded", [each for each, _ in RECORDED])
def test_truncated_messages_are_refused(recorded: str) -> None:
    whole = bytes.fromhex(recorded)
    for length in range(len(whole)):
        with pytest.raises(Damaged):
            envelope(bytes.fromhex(f"77{AT}") + whole[:length])


@pytest.mark.parametrize(("text", "lsn"), [("0/0", 0), ("0/16F7970", 0x16F7970), ("16/B374D848", 0x16B374D848)])
def test_write_positions_as_the_server_does(text: str, lsn: int) -> None:
    assert (lsn_of(text), lsn_text(lsn)) == (lsn, text)
