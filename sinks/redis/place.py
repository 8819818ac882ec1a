"""Where the keys of a Redis target are: server, database and prefix, without a password.

A URL travels to the workers, appears in plans and messages, and is recorded with the shape of a job. So a password in
it is refused, and a URL that cannot be read is never repeated.

Pure: no clock, thread or I/O. Source: docs/decisions/0081-redis-sink.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from holdfast.errors import ConfigError

PORT = 6379
PREFIX_MAX = 512
"""Bytes of a prefix."""
OWN = "holdfast:"
"""How the names of Holdfast's own keys begin."""


@dataclass(frozen=True)
class RedisPlace:
    """A server, one of its databases, and a prefix of keys.

    Args:
        user: None: the server's default user.
        tls: Whether connections are encrypted, and the server's certificate is checked.
    """

    host: str
    port: int
    database: int
    prefix: str
    user: str | None = None
    tls: bool = False

    @property
    def server(self) -> str:
        """The server and the database, as messages and plans name them: "redis.example:6379/0"."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}/{self.database}"

    @property
    def where(self) -> str:
        """How messages name the target."""
        return f"Redis {self.server}, prefix {self.prefix!r}"

    @property
    def book(self) -> str:
        """The key of the hash with tags, owners and columns."""
        return f"{OWN}{self.prefix}"


def place_of(url: str, prefix: str) -> RedisPlace:
    """Return the place that a job gives.

    Raises:
        ConfigError: the URL is malformed or holds a password, or the prefix cannot be one.
    """
    _check_prefix(prefix)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or PORT
    except ValueError:
        raise _no_url() from None
    name = parts.path.removeprefix("/") or "0"
    if parts.password is not None:
        raise ConfigError(
            "hf.Redis: the URL holds a password, which a plan or a pickled job would expose",
            not_done="nothing was opened and no job was started",
            next_step='leave it out, and name its place: password=hf.secret("env:REDIS_PASSWORD"); then change this '
            "password, as plans, process lists or a shell history may have exposed it",
        )
    if not host or not _is_plain(parts) or not (name.isascii() and name.isdigit()):
        raise _no_url()
    user = unquote(parts.username) if parts.username else None
    return RedisPlace(host, port, int(name), prefix, user, parts.scheme == "rediss")


def _is_plain(parts: SplitResult) -> bool:
    return parts.scheme in ("redis", "rediss") and not parts.query and not parts.fragment


def _no_url() -> ConfigError:
    return ConfigError(
        "hf.Redis: this is not the URL of a Redis server; it is not repeated here, as it may hold a password",
        not_done="the job was not planned",
        next_step='write "redis://USER@HOST:6379/0", or "rediss://..." for an encrypted connection',
    )


def _check_prefix(prefix: str) -> None:
    prefix_bytes = prefix.encode(errors="replace")
    if prefix.startswith(OWN):
        fault = f"begins with {OWN!r}, as Holdfast's own keys do"
    elif not 1 <= len(prefix_bytes) <= PREFIX_MAX:
        fault = f"has {len(prefix_bytes)} bytes"
    elif prefix_bytes.decode() != prefix:
        fault = "is not text in UTF-8"
    else:
        return
    raise ConfigError(
        f"hf.Redis: the prefix {fault}",
        not_done="the job was not planned",
        next_step=f'give one of 1 to {PREFIX_MAX} bytes that no other sink uses, such as "hot:"',
    )
