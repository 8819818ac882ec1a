"""Hashes, key groups and canonical bytes of keys, as every version must compute them.

State is located by these values: a change here makes every existing checkpoint unreadable.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa

from holdfast.state.keys.batch import KeyType

UTC_US = pa.timestamp("us", "UTC")
INT = KeyType(("k",), (pa.int64(),))
NULLABLE_INT = KeyType(("k",), (pa.int64(),), (True,))
UNSIGNED = KeyType(("k",), (pa.uint64(),))
INSTANT = KeyType(("k",), (UTC_US,))
TEXT = KeyType(("k",), (pa.utf8(),), (True,))
MIXED = KeyType(("a", "b", "c", "d"), (pa.utf8(), pa.int32(), pa.bool_(), pa.date32()), (True, True, True, True))


def golden(kind: KeyType, *columns: list[Any]) -> list[tuple[int, int, str]]:
    """Return (hash, key group of 128, canonical bytes in hex) of every key."""
    keys = kind.encode([pa.array(column, type_) for column, type_ in zip(columns, kind.types, strict=True)])
    written = [key.hex() for key in keys.canonical().to_pylist()]
    return list(zip(keys.hashes.tolist(), keys.key_groups(128).tolist(), written, strict=True))


class TestKeyFormat:
    def test_an_integer_key_has_its_golden_bytes(self) -> None:
        assert golden(INT, [0, 1, -1, 1 << 62]) == [
            (0xE220A8397B1DCDAF, 113, "018000000000000000"),
            (0x910A2DEC89025CC1, 72, "018000000000000001"),
            (0xE4D971771B652C20, 114, "017fffffffffffffff"),
            (0x00AA50EA8E0FA9EB, 0, "01c000000000000000"),
        ]

    def test_a_nullable_integer_key_has_its_golden_bytes(self) -> None:
        assert golden(NULLABLE_INT, [1, None]) == [
            (0x910A2DEC89025CC1, 72, "018000000000000001"),
            (0x34499569F0391857, 26, "000000000000000000"),
        ]

    def test_an_unsigned_integer_key_has_its_golden_bytes(self) -> None:
        assert golden(UNSIGNED, [0, 1, (1 << 64) - 1]) == [
            (0xE220A8397B1DCDAF, 113, "010000000000000000"),
            (0x910A2DEC89025CC1, 72, "010000000000000001"),
            (0xE4D971771B652C20, 114, "01ffffffffffffffff"),
        ]

    def test_an_instant_key_has_its_golden_bytes(self) -> None:
        assert golden(INSTANT, [dt.datetime(1970, 1, 1, tzinfo=dt.UTC)]) == [
            (0xE220A8397B1DCDAF, 113, "018000000000000000")
        ]

    def test_a_text_key_has_its_golden_bytes(self) -> None:
        assert golden(TEXT, ["", "holdfast", "a\x00b", None]) == [
            (0xAB94AC0ACE7276C0, 85, "0100"),
            (0xA601060CB347604F, 83, "01686f6c646661737400"),
            (0xD6E79A3BDFFFC12E, 107, "016100ff6200"),
            (0x3325230E1F285505, 25, "0000"),
        ]

    def test_a_key_of_several_columns_has_its_golden_bytes(self) -> None:
        assert golden(MIXED, ["x", None], [7, None], [True, None], [dt.date(2026, 11, 20), None]) == [
            (0x4255A9660E192E15, 33, "0178000180000000000000070101018000000000005129"),
            (0x416655D91873F97A, 32, "0000" + "00" * 9 + "00" * 2 + "00" * 9),
        ]
