"""An S3 server on this machine, versitygw, whose connections pass through Toxiproxy.

It keeps objects as files, so tests can measure and damage them without asking it. `make servers` builds both programs;
HOLDFAST_S3_SERVER may name another versitygw.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from patience import WALL_S, wait
from proxied import Proxied, free_address

from holdfast.chaos.live.faults.proxy import Toxiproxy

VARIABLE, BUCKET = "HOLDFAST_S3_SERVER", "holdfast-tests"
OWNER, SECRET = "owner", "owner-secret"
_OPERATION = re.compile(rb" s3_(\w+) ")


def find_server() -> Path:
    """Return the program: at HOLDFAST_S3_SERVER, on the PATH, or where tools/bootstrap.sh installs it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast" / "bin" / "versitygw"
    named = os.environ.get(VARIABLE) or shutil.which("versitygw") or str(cache)
    assert Path(named).is_file(), f"there is no S3 server at {named}; build one with: tools/bootstrap.sh s3"
    return Path(named)


@dataclass
class S3Store:
    """A running server with one bucket.

    Args:
        folder: Holds the server's files.
        address: Where the server listens.
        link: The connections of clients.
    """

    folder: Path
    address: str
    link: Proxied
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def files(self) -> Path:
        """The folder of the bucket, with its objects as files."""
        return self.folder / "objects" / BUCKET

    def url(self, path: str) -> str:
        """Return the URL of a prefix."""
        return f"s3://{BUCKET}/{path}"

    def environment(self, access: str = OWNER, secret: str = SECRET) -> dict[str, str]:
        """Return what processes need to reach the store through the proxy."""
        endpoint = f"http://{self.link.address}"
        return {"AWS_ACCESS_KEY_ID": access, "AWS_SECRET_ACCESS_KEY": secret, "AWS_ENDPOINT_URL": endpoint}

    def start(self) -> None:
        """Start the server, again at the same address."""
        own = {"ROOT_ACCESS_KEY": OWNER, "ROOT_SECRET_KEY": SECRET}
        options: list[str | Path] = [
            "--quiet",
            "--keep-alive",
            "--iam-dir",
            self.folder / "accounts",
            "--iam-cache-disable",
        ]
        options += ["--access-log", self.folder / "requests.log", "--port", self.address]
        folders = ("--sidecar", self.folder / "about", self.folder / "objects")
        with (self.folder / "s3.log").open("ab") as log:
            self._process = subprocess.Popen(
                # The kernel ends the server if the test process is killed.
                [*("setpriv", "--pdeathsig", "KILL"), find_server(), *options, "posix", *folders],
                env={**os.environ, **own},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        wait(lambda: _listens(self.address), "the S3 server")

    def stop(self) -> None:
        """End the server; requests in flight are lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(WALL_S)
            self._process = None

    def toxic(self, kind: str, stream: str = "downstream", **attributes: int) -> None:
        """See Proxied.toxic."""
        self.link.toxic(kind, stream, **attributes)

    def untoxic(self, kind: str) -> None:
        """See Proxied.untoxic."""
        self.link.untoxic(kind)

    def reachable(self, reachable: bool) -> None:
        """See Proxied.reachable."""
        self.link.reachable(reachable)

    def account(self, access: str, secret: str) -> None:
        """Create an account without any permission."""
        owner = ("--access", OWNER, "--secret", SECRET, "--endpoint-url", f"http://{self.address}")
        new = ("create-user", "--access", access, "--secret", secret, "--role", "user")
        subprocess.run([find_server(), "admin", *owner, *new], check=True, capture_output=True)

    def requests(self, about: str = "") -> Counter[str]:
        """Return how many requests of each kind the server has answered, about objects with this in their names."""
        lines = (self.folder / "requests.log").read_bytes().splitlines()
        found = [_OPERATION.search(line) for line in lines if about.encode() in line]
        return Counter(each[1].decode() for each in found if each)


@contextlib.contextmanager
def s3_store(folder: Path) -> Iterator[S3Store]:
    """Run a server, and Toxiproxy in front of it, until the block ends."""
    for each in ("objects", "about", "accounts"):
        (folder / each).mkdir(parents=True)
    (folder / "objects" / BUCKET).mkdir()
    with contextlib.closing(Toxiproxy(folder / "toxiproxy.log")) as proxies:
        address = free_address()
        store = S3Store(folder, address, Proxied("s3", address, proxies))
        try:
            store.start()
            store.link.create()
            yield store
        finally:
            store.stop()


def _listens(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as tried:
        return tried.connect_ex((host, int(port))) == 0
