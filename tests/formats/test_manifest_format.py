"""Compressed manifests, of jobs with many workers, stay readable; small ones stay plain JSON."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from control_plane import manifest_of

from holdfast.checkpoint.manifest import COMPRESSED_FROM_BYTES, FORMAT_VERSION, decode, encode, named_in, objects
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
        data = msgspec.json.encode({"size": len(newer), "zstd": frame, "v": FORMAT_VERSION})
        with pytest.raises(ConfigError, match=f"has format {FORMAT_VERSION + 1}"):
            decode(data, REF)

    def test_a_newer_version_is_refused_by_its_number(self) -> None:
        data = msgspec.json.encode(msgspec.json.decode(GOLDEN.read_bytes()) | {"v": FORMAT_VERSION + 1})
        with pytest.raises(ConfigError, match=f"has format {FORMAT_VERSION + 1}"):
            decode(data, REF)
