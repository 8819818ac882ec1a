"""Manifests of jobs with many workers, compressed or as a difference, stay readable; small ones stay plain JSON."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from control_plane import manifest_of

from holdfast.checkpoint.manifest import (
    COMPRESSED_FROM_BYTES,
    COMPRESSED_VERSION,
    FORMAT_VERSION,
    base_of,
    decode,
    encode,
    named_in,
    objects,
    plain,
    stored_delta,
)
from holdfast.errors import ConfigError, Damaged
from holdfast.model import ObjectRef

GOLDEN = Path(__file__).with_name("manifest_v6.json")
REF = ObjectRef("manifests/00000001/000000000060-a.json", 1, "")
PLAIN = msgspec.structs.replace(manifest_of(60, workers=12), v=1)


class TestFormatSixOfTheManifest:
    def test_is_read_as_the_manifest_that_was_written(self) -> None:
        assert decode(GOLDEN.read_bytes(), REF) == PLAIN

    def test_is_what_a_large_manifest_is_written_as(self) -> None:
        data, plain = encode(PLAIN), msgspec.json.encode(PLAIN)
        assert len(plain) >= COMPRESSED_FROM_BYTES and len(data) * 3 < len(plain)
        assert decode(data, REF) == PLAIN

    def test_names_the_same_objects(self) -> None:
        named = named_in(GOLDEN.read_bytes(), REF)
        assert sorted(named.paths) == sorted([REF.path, *(ref.path for ref in objects(PLAIN))])

    def test_small_manifests_are_plain(self) -> None:
        assert encode(manifest_of(60, workers=2)).startswith(b'{"job_uuid"')

    @pytest.mark.parametrize("change", [{"size": 9}, {"size": -1}, {"size": 1 << 60}, {"zstd": "AAAA"}, {"zstd": 5}])
    def test_a_frame_that_cannot_be_read_is_damaged(self, change: dict[str, object]) -> None:
        data = msgspec.json.encode(msgspec.json.decode(GOLDEN.read_bytes()) | change)
        with pytest.raises(Damaged, match="cannot be read"):
            decode(data, REF)

    def test_a_newer_version_within_is_refused_by_its_number(self) -> None:
        newer = msgspec.json.encode(msgspec.structs.replace(PLAIN, v=FORMAT_VERSION + 1))
        frame = pa.Codec("zstd").compress(newer, asbytes=True)
        data = msgspec.json.encode({"size": len(newer), "zstd": frame, "v": COMPRESSED_VERSION})
        with pytest.raises(ConfigError, match=f"has format {FORMAT_VERSION + 1}"):
            decode(data, REF)

    def test_a_newer_version_is_refused_by_its_number(self) -> None:
        data = msgspec.json.encode(msgspec.json.decode(GOLDEN.read_bytes()) | {"v": FORMAT_VERSION + 1})
        with pytest.raises(ConfigError, match=f"has format {FORMAT_VERSION + 1}"):
            decode(data, REF)


DELTA = Path(__file__).with_name("manifest_v7.json")
BASE = ObjectRef(REF.path, len(GOLDEN.read_bytes()), hashlib.sha256(GOLDEN.read_bytes()).hexdigest())
NEXT = msgspec.structs.replace(manifest_of(61, workers=12), v=1)
NEXT_REF = ObjectRef("manifests/00000001/000000000061-a-delta.json", 1, "")


class TestFormatSevenOfTheManifest:
    def test_is_read_as_the_manifest_that_was_written(self) -> None:
        assert base_of(DELTA.read_bytes(), NEXT_REF) == BASE
        assert decode(DELTA.read_bytes(), NEXT_REF, GOLDEN.read_bytes()) == NEXT

    def test_is_a_fraction_of_the_whole(self) -> None:
        data = stored_delta(plain(NEXT), BASE, plain(PLAIN))
        assert data is not None and len(data) * 3 <= len(encode(NEXT))
        assert decode(data, NEXT_REF, encode(PLAIN)) == NEXT

    def test_names_the_same_objects_and_its_base(self) -> None:
        """The sweep keeps what is named."""
        named = named_in(DELTA.read_bytes(), NEXT_REF, GOLDEN.read_bytes())
        assert sorted(named.paths) == sorted([NEXT_REF.path, REF.path, *(ref.path for ref in objects(NEXT))])

    def test_is_not_written_if_too_much_has_changed(self) -> None:
        assert stored_delta(plain(manifest_of(95, workers=12)), BASE, plain(PLAIN)) is None

    def test_is_not_written_for_small_manifests(self) -> None:
        assert stored_delta(plain(NEXT), BASE, plain(manifest_of(60, workers=2))) is None

    @pytest.mark.parametrize("base", [None, encode(manifest_of(59, workers=12)), DELTA.read_bytes(), plain(PLAIN)])
    def test_another_base_is_refused(self, base: bytes | None) -> None:
        """A difference from another manifest of the same shape is good JSON that names wrong segments."""
        with pytest.raises(Damaged, match="cannot be read"):
            decode(DELTA.read_bytes(), NEXT_REF, base)

    @pytest.mark.parametrize("change", [{"size": 9}, {"sha256": "0" * 64}, {"zstd": "AAAA"}, {"base": None}])
    def test_a_difference_that_cannot_be_read_is_damaged(self, change: dict[str, object]) -> None:
        data = msgspec.json.encode(msgspec.json.decode(DELTA.read_bytes()) | change)
        with pytest.raises(Damaged, match="cannot be read"):
            decode(data, NEXT_REF, GOLDEN.read_bytes())

    def test_an_older_release_refuses_it(self) -> None:
        """It looks at `v` before anything else, as this one does."""
        data = msgspec.json.encode(msgspec.json.decode(DELTA.read_bytes()) | {"v": FORMAT_VERSION + 1})
        with pytest.raises(ConfigError, match=f"has format {FORMAT_VERSION + 1}; this version"):
            decode(data, NEXT_REF, GOLDEN.read_bytes())
