"""Incident files as bytes: whatever was changed in one is found before anything is replayed."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable

import pyarrow as pa
import pytest

from holdfast.errors import ConfigError, Damaged
from holdfast.runtime.replay.incidents import container
from holdfast.runtime.replay.incidents.container import (
    CONTENTS,
    IncidentContents,
    IncidentWriter,
    PackedCheckpoint,
    Unpacked,
)

ROWS = pa.record_batch({"k": ["north", "south"], "n": [1, 2]})


def written() -> bytes:
    into = io.BytesIO()
    file = IncidentWriter(into)
    manifest, rows = file.add("end/manifest.json", b"{}"), file.add_batches("rows/out.arrow", ROWS.schema, [ROWS])
    end = PackedCheckpoint(1, manifest, {})
    file.finish(
        lambda members: IncidentContents(
            1, "sales", 7, None, end, (), {"out": rows}, None, (), {}, {}, {}, (), dict(members)
        )
    )
    return into.getvalue()


def read(data: bytes) -> Unpacked:
    return Unpacked(io.BytesIO(data), "a file")


def changed(data: bytes, change: Callable[[dict[str, bytes]], None]) -> bytes:
    """Pack the members of an archive again, with a change."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    return into.getvalue()


def in_contents(data: bytes, change: Callable[[dict[str, object]], None]) -> bytes:
    def apply(members: dict[str, bytes]) -> None:
        contents = json.loads(members[CONTENTS])
        change(contents)
        members[CONTENTS] = json.dumps(contents).encode()

    return changed(data, apply)


class TestFile:
    def test_holds_what_was_written(self) -> None:
        file = read(written())
        assert file.contents.job == "sales" and file.get("end/manifest.json") == b"{}"
        assert file.batches("rows/out.arrow") == [ROWS]

    def test_the_same_content_has_the_same_bytes(self) -> None:
        assert written() == written()

    def test_another_file_is_refused(self) -> None:
        def leave_out(members: dict[str, bytes]) -> None:
            del members[CONTENTS]

        for data in (b"", b"{}", written()[:100], changed(written(), leave_out)):
            with pytest.raises(ConfigError, match="is not an incident file"):
                read(data)

    def test_a_later_version_is_refused_with_the_next_step(self) -> None:
        later = in_contents(written(), lambda contents: contents.update(v=2, more="x"))
        with pytest.raises(ConfigError, match="version 2") as refused:
            read(later)
        assert "newer" in refused.value.next_step

    @pytest.mark.parametrize(
        "change",
        [
            lambda contents: contents.pop("end"),
            lambda contents: contents.update(input=[{"source": "x"}]),
            lambda contents: contents["members"]["rows/out.arrow"].update(size=-1),
            lambda contents: contents["members"]["rows/out.arrow"].update(size=1 << 40),
        ],
    )
    def test_contents_that_are_not_of_this_form_are_damaged(self, change: Callable[[dict[str, object]], None]) -> None:
        with pytest.raises(Damaged, match="cannot be read"):
            read(in_contents(written(), change))

    def test_other_bytes_in_a_member_are_damaged(self) -> None:
        def change(members: dict[str, bytes]) -> None:
            members["rows/out.arrow"] = members["rows/out.arrow"].replace(b"north", b"morth")

        with pytest.raises(Damaged, match="rows/out.arrow differs from what was written"):
            read(changed(written(), change)).get("rows/out.arrow")

    def test_a_missing_member_and_one_without_a_name_are_damaged(self) -> None:
        def add(members: dict[str, bytes]) -> None:
            members["rows/other.arrow"] = members.pop("rows/out.arrow")

        file = read(changed(written(), add))
        with pytest.raises(Damaged, match="cannot be unpacked"):
            file.get("rows/out.arrow")
        with pytest.raises(Damaged, match="does not name rows/other.arrow"):
            file.get("rows/other.arrow")

    def test_a_member_larger_than_it_says_is_not_unpacked_whole(self) -> None:
        def grow(members: dict[str, bytes]) -> None:
            members["rows/out.arrow"] += b"\0" * (64 << 20)

        with pytest.raises(Damaged, match="has more than"):
            read(changed(written(), grow)).get("rows/out.arrow")

    def test_larger_contents_than_the_limit_are_damaged(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(container, "CONTENTS_BYTES_MAX", 10)
        with pytest.raises(Damaged, match="has more than 10 bytes"):
            read(written())

    def test_a_file_cut_off_anywhere_is_refused(self) -> None:
        data = written()
        for size in range(0, len(data), 7):
            with pytest.raises((ConfigError, Damaged)):
                file = read(data[:size])
                for path in file.contents.members:
                    file.get(path)

    def test_any_changed_byte_gives_the_same_content_or_is_refused(self) -> None:
        data = written()

        def content(file: Unpacked) -> tuple[object, ...]:
            return file.contents, *(file.get(path) for path in sorted(file.contents.members))

        whole = content(read(data))
        for at in range(len(data)):
            other = bytearray(data)
            other[at] ^= 0xFF
            try:
                assert content(read(bytes(other))) == whole, at
            except (ConfigError, Damaged):
                continue
