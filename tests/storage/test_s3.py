"""The object store contract on a real S3 server, and what its refusals say."""

from __future__ import annotations

import datetime
import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.auth  # type: ignore[import-untyped]
import fsspec.asyn
import pyarrow as pa
import pytest
import s3fs
from s3_store import BUCKET, OWNER, SECRET, S3Store, s3_store

from holdfast.errors import AlreadyExists, ConfigError, NotFound, Unavailable
from holdfast.ports import ObjectStore
from holdfast.storage.bulk import delete_each, get_each, list_behind
from holdfast.storage.log.log import LogReader, LogWriter, create_log
from holdfast.storage.log.packs import pack_path
from holdfast.storage.objects import open_objects, writing
from holdfast.storage.once import NameTaken, create_each_same, write_same
from holdfast.storage.probe import prove
from holdfast.storage.uploading import PART_BYTES

pytestmark = [pytest.mark.s3, pytest.mark.toxiproxy]
USER = "user"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Store]:
    with s3_store(tmp_path_factory.mktemp("s3")) as running:
        running.account(USER, f"{USER}-secret")
        yield running


@pytest.fixture
def store(server: S3Store, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ObjectStore:
    use(server, monkeypatch)
    return open_objects(server.url(request.node.name))


def use(server: S3Store, monkeypatch: pytest.MonkeyPatch, access: str = OWNER, secret: str = SECRET) -> None:
    """Give this process these credentials."""
    for name, value in server.environment(access, secret).items():
        monkeypatch.setenv(name, value)


class TestObjects:
    def test_only_one_of_many_creates_succeeds(self, store: ObjectStore) -> None:
        won, lost = list[int](), list[int]()
        together = threading.Barrier(8)

        def create(number: int) -> None:
            together.wait()
            try:
                store.create("log/1", b"%d" % number)
                won.append(number)
            except AlreadyExists:
                lost.append(number)

        threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert len(won) == 1 and len(lost) == 7
        assert store.get("log/1") == b"%d" % won[0]

    @pytest.mark.parametrize("parts", [0.1, 2.5], ids=["small", "in parts"])
    def test_an_object_that_exists_is_never_replaced(self, store: ObjectStore, parts: float) -> None:
        ours = b"o" * int(parts * PART_BYTES)
        for _ in range(2):  # the second time as after a lost reply
            write_same(store, "a", lambda into: into.write(ours))
        with pytest.raises(NameTaken):
            write_same(store, "a", lambda into: into.write(b"t" + ours))
        assert store.get("a") == ours

    def test_a_bulk_create_never_replaces_existing_objects(self, store: ObjectStore) -> None:
        objects = {f"o/{number}": b"%d" % number for number in range(40)}
        for _ in range(2):
            create_each_same(store, objects)
        with pytest.raises(NameTaken, match="object o/7 exists"):
            create_each_same(store, {"o/7": b"theirs", "o/new": b"new"})
        assert get_each(store, list(objects)) == objects

    def test_an_object_of_several_parts_appears_at_its_end(self, store: ObjectStore, server: S3Store) -> None:
        part = bytes(range(256)) * (PART_BYTES // 512)
        before = server.requests()
        with writing(store, "large") as file:
            for _ in range(5):
                file.write(part)
            assert store.list("") == []
        assert store.get("large") == part * 5
        assert (server.requests() - before)["UploadPart"] == 3

    def test_an_upload_that_fails_leaves_no_part(self, store: ObjectStore, server: S3Store) -> None:
        before = server.requests()
        with pytest.raises(KeyError), writing(store, "large") as file:
            file.write(b"x" * (2 * PART_BYTES))
            raise KeyError("something else failed")
        assert store.list("") == []
        assert (server.requests() - before)["AbortMultipartUpload"] == 1

    def test_lists_and_deletes_more_than_a_page(self, store: ObjectStore, server: S3Store) -> None:
        paths = [f"many/{number:05d}" for number in range(1_030)]
        folder = server.files / str(store).rpartition("/")[2] / "many"
        folder.mkdir(parents=True)
        for path in paths:
            (folder / path.rpartition("/")[2]).write_bytes(b"x")
        assert store.list("many") == paths
        assert list_behind(store, "many", paths[500]) == paths[501:]
        assert get_each(store, [*paths[:3], "many/missing"]) == dict.fromkeys(paths[:3], b"x")
        before = server.requests()
        delete_each(store, paths)
        assert store.list("many") == []
        assert (server.requests() - before)["DeleteObjects"] == 2

    def test_a_log_is_packed_and_a_suspended_writer_loses_nothing(self, store: ObjectStore) -> None:
        create_log(store, pa.schema([("n", pa.int64())]), 1)
        suspended, log = LogWriter(store, block=3), LogWriter(store, block=3)
        for n in range(5):
            suspended.append({0: pa.table({"n": [n]})})
        for n in range(5, 12):
            log.append({0: pa.table({"n": [n]})})
        assert store.list("packs") == [pack_path(6), pack_path(9)]
        assert suspended.append({0: pa.table({"n": [12]})}) == {0: 12}
        rows, _ = LogReader(store).read(0, 5, 1 << 20)
        assert rows is not None and rows.to_pylist() == [{"n": 5}]
        assert LogReader(store).end_offsets() == {0: 13}

    def test_a_missing_object_is_not_found(self, store: ObjectStore) -> None:
        with pytest.raises(NotFound):
            store.get("missing")
        assert store.list("missing") == []
        store.delete("missing")


class TestFaults:
    def test_a_create_whose_answer_is_lost_may_have_succeeded(self, store: ObjectStore, server: S3Store) -> None:
        server.toxic("limit_data", bytes=30)  # passes "100 Continue", so the server receives the object
        try:
            with pytest.raises((Unavailable, AlreadyExists)):
                store.create("log/1", b"mine")
        finally:
            server.untoxic("limit_data")
        assert store.get("log/1") == b"mine"

    def test_an_unreachable_store_is_unavailable(self, store: ObjectStore, server: S3Store) -> None:
        server.reachable(False)
        try:
            with pytest.raises(Unavailable, match="is reachable|Could not connect"):
                store.get("anything")
        finally:
            server.reachable(True)
        assert store.list("") == []

    def test_a_lost_connection_leaves_no_traceback_on_the_terminal(
        self, store: ObjectStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        store.create("object", b"x")  # the loop runs
        loop = fsspec.asyn.get_loop()
        for error in (ConnectionResetError("Cannot write"), KeyError("a fault of a program")):
            context = {"message": "Task exception was never retrieved", "exception": error}
            loop.call_soon_threadsafe(loop.call_exception_handler, context)
        assert store.get("object") == b"x"  # the loop has run since
        shown = [each for each in caplog.records if each.levelno >= logging.WARNING]
        assert [type(each.exc_info[1]) for each in shown if each.exc_info] == [KeyError]


class TestRefusals:
    """A start says what is missing, before anything is changed."""

    def refused(self, url: str) -> ConfigError:
        with pytest.raises(ConfigError) as caught:
            prove(open_objects(url), url)
        return caught.value

    def permit(self, server: S3Store, *actions: str) -> None:
        """Let the account do this, and nothing else."""
        resources = [f"arn:aws:s3:::{BUCKET}", f"arn:aws:s3:::{BUCKET}/*"]
        on = {action: resources[:1] if action == "s3:ListBucket" else resources[1:] for action in actions}
        allow = {"Effect": "Allow", "Principal": {"AWS": [USER]}}
        rules: list[dict[str, Any]] = [{**allow, "Action": [action], "Resource": on[action]} for action in actions]
        policy = json.dumps({"Version": "2012-10-17", "Statement": rules})
        owner = s3fs.S3FileSystem(key=OWNER, secret=SECRET, endpoint_url=f"http://{server.address}")
        owner.call_s3("put_bucket_policy", Bucket=BUCKET, Policy=policy)

    EVERYTHING = ("s3:PutObject", "s3:ListBucket", "s3:GetObject", "s3:DeleteObject")

    @pytest.mark.parametrize("missing", EVERYTHING)
    def test_names_the_missing_permission(self, server: S3Store, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
        self.permit(server, *(each for each in self.EVERYTHING if each != missing))
        use(server, monkeypatch, USER, f"{USER}-secret")
        error = self.refused(server.url("denied"))
        assert error.what.endswith(f"the store refused {missing} to these credentials")
        assert f"grant {missing} on the bucket" in error.next_step

    def test_permits_a_job_with_these_four(self, server: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.permit(server, *self.EVERYTHING)
        use(server, monkeypatch, USER, f"{USER}-secret")
        store = open_objects(server.url("permitted"))
        prove(store, "the root")
        assert store.list("") == []

    def test_names_a_missing_bucket(self, store: ObjectStore) -> None:
        assert "the bucket does not exist" in self.refused("s3://holdfast-missing/root").what
        missing = open_objects("s3://holdfast-missing/root")
        for ask in (lambda: missing.list("log"), lambda: missing.get("log/1"), lambda: get_each(missing, ["log/1"])):
            with pytest.raises(Unavailable, match="the bucket does not exist"):
                ask()  # never "no objects": the job would begin again

    @pytest.mark.parametrize(
        ("access", "secret", "why"),
        [
            ("unknown", "secret", "the store does not know the access key"),
            (OWNER, "wrong", "the secret key does not belong to the access key"),
        ],
    )
    def test_names_wrong_credentials(
        self, server: S3Store, monkeypatch: pytest.MonkeyPatch, access: str, secret: str, why: str
    ) -> None:
        use(server, monkeypatch, access, secret)
        error = self.refused(server.url("root"))
        assert why in error.what and "AWS_ACCESS_KEY_ID" in error.next_step
        assert secret not in str(error)

    def test_names_a_clock_that_is_off(self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
        now = datetime.datetime.now(datetime.UTC)
        monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda **_: now - datetime.timedelta(hours=1))
        assert "the clock of this machine differs" in self.refused(str(store)).what


def test_credentials_that_expire_are_renewed(server: S3Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the usual chain: here a program named in a profile. Keys are renewed ten minutes before they expire."""
    use(server, monkeypatch)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    asked = tmp_path / "asked"
    program = tmp_path / "credentials.sh"
    keys = json.dumps({"Version": 1, "AccessKeyId": OWNER, "SecretAccessKey": SECRET, "Expiration": "@@"})
    program.write_text(
        f"#!/bin/sh\necho >> {asked}\necho '{keys}' | sed s/@@/$(date -u -d '+1 minute' +%Y-%m-%dT%H:%M:%SZ)/\n"
    )
    program.chmod(0o700)
    (tmp_path / "config").write_text(f"[default]\ncredential_process = {program}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    store = open_objects(server.url("renewed"))
    for number in range(3):
        store.create(f"{number}", b"x")
    assert store.list("") == ["0", "1", "2"]
    assert len(asked.read_text().splitlines()) > 2
