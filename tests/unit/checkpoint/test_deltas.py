"""Manifests stored as differences: what is read is what was written, and what it needs is kept."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from control_plane import completed, manifest_of, master_of
from counted import BulkObjects
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint import deltas, joblog
from holdfast.checkpoint.catalogue import ObjectCatalogue
from holdfast.checkpoint.manifest import Manifest, base_of, objects
from holdfast.checkpoint.repository import Repository
from holdfast.errors import Damaged, Unavailable
from holdfast.model import Epoch, ObjectRef
from holdfast.storage.objects import MemoryObjects

WORKERS, OWNER = 12, "a" * 32
pytestmark = pytest.mark.thorough
PIECES = st.lists(st.sampled_from([b"a", b"b", b"},", b"}", b",", b"abc},", b""]), max_size=30).map(b"".join)


class TestDifference:
    @given(PIECES, PIECES)
    def test_rebuilds_any_bytes_from_any_others(self, base: bytes, data: bytes) -> None:
        assert deltas.rebuilt(base, deltas.difference(base, data)) == data

    @pytest.mark.parametrize("step", [[-1, 1], [0, 0], [0, 3], [2, 1], [0, -1]])
    def test_refuses_pieces_that_the_base_does_not_have(self, step: list[int]) -> None:
        with pytest.raises(ValueError, match="copies"):
            deltas.rebuilt(b"one},two", msgspec.msgpack.encode([step]))


def manifest(epoch: int, follows: int | None = None) -> Manifest:
    made = msgspec.structs.replace(manifest_of(epoch, WORKERS), v=1)
    return made if follows is None else msgspec.structs.replace(made, follows=Epoch(follows))


def stored(repository: Repository, epochs: range) -> dict[int, ObjectRef]:
    return {epoch: repository.store_manifest(manifest(epoch), OWNER) for epoch in epochs}


def is_delta(repository: Repository, ref: ObjectRef) -> bool:
    return base_of(repository.read(ref), ref) is not None


class TestARepository:
    def test_stores_most_manifests_as_differences_from_a_whole_one(self) -> None:
        repository = Repository(MemoryObjects())
        refs = stored(repository, range(60, 100))
        whole = [epoch for epoch, ref in refs.items() if not is_delta(repository, ref)]
        assert whole[0] == 60 and 3 <= len(whole) <= 14
        assert sum(ref.size for ref in refs.values()) * 2 < 40 * refs[60].size
        for epoch, ref in refs.items():
            assert Repository(repository._store).load_manifest(ref) == manifest(epoch)

    def test_a_difference_is_never_from_a_difference(self) -> None:
        repository = Repository(MemoryObjects())
        for ref in stored(repository, range(60, 100)).values():
            base = base_of(repository.read(ref), ref)
            assert base is None or not is_delta(repository, base)

    def test_a_manifest_that_follows_another_one_is_stored_whole(self) -> None:
        """After a rewind, or if the last one was not completed: nothing would keep what it needs."""
        repository = Repository(MemoryObjects())
        stored(repository, range(60, 63))
        assert not is_delta(repository, repository.store_manifest(manifest(63, follows=61), OWNER))
        assert is_delta(repository, repository.store_manifest(manifest(64, follows=63), OWNER))

    def test_a_new_driver_stores_the_first_one_whole(self) -> None:
        store = MemoryObjects()
        stored(Repository(store), range(60, 63))
        repository = Repository(store)
        assert not is_delta(repository, repository.store_manifest(manifest(63), OWNER))

    def test_a_manifest_that_is_stored_again_is_the_same_object(self) -> None:
        """Otherwise the whole one would become the base, though no record names it."""
        repository = Repository(MemoryObjects())
        refs = stored(repository, range(60, 63))
        assert repository.store_manifest(manifest(62), OWNER) == refs[62]
        assert len(repository.names("manifests")) == 3

    def test_a_failed_attempt_is_repeated_byte_for_byte(self) -> None:
        class Ambiguous(MemoryObjects):
            fails = False

            def create(self, path: str, data: bytes) -> None:
                super().create(path, data)
                if self.fails:
                    raise Unavailable("no reply", next_step="none")

        store = Ambiguous()
        repository = Repository(store)
        stored(repository, range(60, 63))
        store.fails = True
        with pytest.raises(Unavailable):
            repository.store_manifest(manifest(63), OWNER)
        (path,) = (path for path in store.list("manifests") if "/000000000063" in path)
        before, store.fails = store.get(path), False
        assert repository.store_manifest(manifest(63), OWNER).path == path and store.get(path) == before

    def test_small_manifests_are_stored_whole(self) -> None:
        repository = Repository(MemoryObjects())
        for epoch in range(60, 63):
            ref = repository.store_manifest(manifest_of(epoch, workers=2), OWNER)
            assert repository.read(ref).startswith(b'{"job_uuid"')

    @pytest.mark.parametrize("damage", ["lost", "changed", "another"])
    def test_a_damaged_base_is_reported_by_its_name(self, damage: str) -> None:
        """As a damaged manifest is: commands name an intact checkpoint, and nothing is restored."""
        store = MemoryObjects()
        refs = stored(Repository(store), range(60, 63))
        if damage == "lost":
            store.delete(refs[60].path)
        else:
            other = Repository(MemoryObjects())
            data = other.read(other.store_manifest(manifest(59), OWNER)) if damage == "another" else b"1"
            store.put(refs[60].path, data)
        with pytest.raises(Damaged, match=refs[60].path):
            Repository(store).load_manifest(refs[62])
        with pytest.raises(Damaged, match=refs[60].path):
            list(Repository(store).named_in([refs[62]]))


class TestTheSweep:
    def job(self, refs: dict[int, ObjectRef], since: int) -> joblog.Job:
        done = []
        for epoch, ref in refs.items():
            body = msgspec.structs.replace(completed(epoch).body, manifest=ref)
            done.append(joblog.Completed(body, completed(epoch).generation, completed(epoch).timeline, 0))
        job = master_of(1, manifest_of(2, 1)).job
        return replace(
            job, completed=tuple(each for each in done if each.body.epoch >= since), expired_through=Epoch(since - 1)
        )

    def test_keeps_the_whole_manifest_of_every_difference(self) -> None:
        """Its own checkpoint has expired."""
        store = BulkObjects()
        repository = Repository(store)
        refs = stored(repository, range(60, 63))
        assert is_delta(repository, refs[62]), "not vacuous"
        catalogue, job = ObjectCatalogue(), self.job(refs, since=60)
        for named in repository.named_in([each.body.manifest for each in catalogue.unread(job)]):
            catalogue.add(named)
        expired = self.job(refs, since=62)
        gone = [*catalogue.expire(expired), *catalogue.garbage(expired, repository.names("manifests"))]
        assert refs[61].path in gone and refs[60].path not in gone
        for path in gone:
            store.delete(path)
        assert Repository(store).load_manifest(refs[62]) == manifest(62)

    def test_reads_the_base_of_many_differences_once(self) -> None:
        store = BulkObjects()
        refs = stored(Repository(store), range(60, 63))
        store.requests.clear()
        found = list(Repository(store).named_in(list(refs.values())))
        assert store.requests["get"] == 4
        for named, epoch in zip(found, refs, strict=True):
            assert {ref.path for ref in objects(manifest(epoch))} <= set(named.paths)
