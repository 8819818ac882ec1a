"""A manifest of a job that has a sink with one committer, as the first version with such sinks wrote it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import holdfast as hf
from holdfast.checkpoint.manifest import FORMAT_VERSION, Confirmed, Manifest, decode, encode, named_in
from holdfast.model import (
    Epoch,
    Generation,
    JobUuid,
    ObjectRef,
    Pending,
    SourcePosition,
    Staged,
    Subtask,
    Tag,
    Timeline,
    Uploaded,
    Writer,
)

GOLDEN = Path(__file__).parent / "manifest_v5.json"
REF = ObjectRef("manifests/00000002/000000000104-o.json", 0, "")
PARTS = tuple(ObjectRef(f"staged/00000002/000000000104/w{n}-log.arrow", 1_100_000 + n, f"{n:064x}") for n in range(2))
NAMED = '{"log":"u","segments":[{"partition":0,"base":0,"rows":3,"path":"data/uploaded/a","size":9,"xxh3":"0f"}]}'
COMMITTER, OTHER = Writer("log", Subtask(0)), Writer("log", Subtask(1))
MANIFEST = Manifest(
    JobUuid("0" * 32),
    Generation(2),
    Timeline(1),
    Epoch(104),
    Epoch(2),
    2,
    128,
    (SourcePosition("rows", 0, 7, subtask=Subtask(0)),),
    (),
    (Pending(COMMITTER, Tag(Timeline(1), Epoch(104)), Staged(PARTS, 6, (Uploaded(PARTS[1].path, NAMED),))),),
    (Confirmed(COMMITTER, Tag(Timeline(1), Epoch(2))), Confirmed(OTHER, Tag(Timeline(1), Epoch(1)))),
    (),
    committed_once=("log",),
)


class TestAManifestWithACommitter:
    def test_is_written_byte_for_byte_as_before(self) -> None:
        assert encode(MANIFEST) == GOLDEN.read_bytes()

    def test_is_read(self) -> None:
        found = decode(GOLDEN.read_bytes(), REF)
        assert (found.v, found.with_committer, found.pending) == (5, ("log",), MANIFEST.pending)

    def test_names_the_parts_but_not_the_objects_of_the_target(self) -> None:
        """A sweep of the job's root must not take those of the target for its own."""
        assert named_in(GOLDEN.read_bytes(), REF).paths == (REF.path, *(ref.path for ref in PARTS))

    def test_a_committer_manifest_of_a_later_version_is_refused(self) -> None:
        newer = GOLDEN.read_bytes().replace(b'"v":5', b'"v":%d' % (FORMAT_VERSION + 1), 1)
        with pytest.raises(hf.ConfigError, match="has format"):
            decode(newer, REF)

    def test_without_such_sinks_keeps_the_oldest_format_that_has_what_it_holds(self) -> None:
        """Earlier versions go on with jobs whose sinks commit per writer."""
        plain = msgspec.structs.replace(MANIFEST, pending=(), committed_once=msgspec.UNSET)
        assert b'"v":1' in encode(plain) and b"committed_once" not in encode(plain)
