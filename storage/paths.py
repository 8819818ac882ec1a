"""Checks the paths of objects: relative, with slashes, never leaving the root.

Names that start with `.tmp-` are reserved for writes in progress in the local store.
"""

from __future__ import annotations

import os
import posixpath
import re
from contextlib import suppress

from holdfast.errors import ConfigError

TEMPORARY = ".tmp-"
# The user name has no slash, or any path with a colon and an @ would match; a password may have one, as S3's often do.
_PASSWORD = re.compile(r"^(s3a?://[^/@:]*:|[\w.+-]+://[^/@:]*:(?!\d*/))[^@]+@")
_PARAMETER = re.compile(r"^[\w.+-]+://.*[?&;][\w-]*(password|passwd|pwd|secret|token)[\w-]*=", re.IGNORECASE)


def refuse_password(url: str, called: str) -> None:
    """Refuse a URL that holds a password, without repeating it: URLs appear in output, logs and process lists.

    Raises:
        ConfigError: the URL holds a password.
    """
    if _PASSWORD.match(url) or _PARAMETER.match(url):
        raise ConfigError(
            f"{called} is a {url.partition('://')[0]}:// URL that holds a password",
            not_done="nothing was opened and no job was started",
            next_step="give credentials through the environment or a profile instead, and change this password: "
            "process lists or the shell history may have exposed it",
        )


def local_path(path: str) -> str | None:
    """Return the path on this machine that a path or a `file://` URL names; None for the URL of a store.

    Raises:
        ConfigError: a `file://` URL names another host, or a relative path, which begins like one (RFC 8089).
    """
    scheme, separator, rest = path.partition("://")
    if not separator:
        return path
    if scheme.lower() != "file":
        return None
    host, slash, below_it = rest.partition("/")
    if slash and host.lower() in ("", "localhost"):
        return f"/{below_it}"
    raise ConfigError(
        f"{path!r} names a file on the host {host!r}",
        not_done="nothing was opened",
        next_step="name a file of this machine by its path, or by file:///absolute/path",
    )


def checked_path(path: str) -> str:
    """Return the path without a final slash; a path that could leave the root is a broken invariant."""
    assert not path.startswith("/"), f"{path!r}: paths are relative"
    parts = path.rstrip("/").split("/")
    assert all(_is_name(part) for part in parts), path
    return "/".join(parts)


def is_object_in(folder: str, path: str) -> bool:
    """Return whether a path that another process wrote names an object below this folder, and nothing else."""
    first, *rest = path.split("/")
    return first == folder and bool(rest) and all(_is_name(part) for part in rest)


def _is_name(part: str) -> bool:
    return part not in ("", ".", "..") and "\0" not in part and not part.startswith(TEMPORARY)


def checked_folder(prefix: str) -> str:
    """Return the folder without a final slash; the root is the empty string."""
    return checked_path(prefix) if prefix.strip("/") else ""


def below(folder: str, path: str) -> tuple[str, ...] | None:
    """Return the names that lead from one folder to a path in it, none for the folder itself; None if it is not there.

    Args:
        folder: An absolute path or a URL, as `path`. Links are not followed.
    """
    (scheme, outer), (other, inner) = _located(folder), _located(path)
    return inner[len(outer) :] if scheme == other and inner[: len(outer)] == outer else None


def real(path: str) -> str:
    """Return a path on this machine without links, and a URL as it is."""
    try:
        found = local_path(path)
    except ConfigError:
        return path
    return path if found is None else os.path.realpath(found)


def is_same_place(one: str, other: str) -> bool:
    """Return whether two paths or URLs lead to the same file or folder: through links and mounts, in any spelling."""
    first, second = real(one), real(other)
    if _located(first) == _located(second):
        return True
    if "://" in first or "://" in second:
        return False
    try:
        return os.path.samefile(first, second)
    except OSError:
        return False


def _located(path: str) -> tuple[str, tuple[str, ...]]:
    scheme, _, rest = path.partition("://")
    with suppress(ConfigError):  # of another host, it is as it was given
        if (local := local_path(path)) is not None:
            scheme, rest = "file", local
    scheme = scheme.lower()
    scheme = "s3" if scheme == "s3a" else scheme
    return scheme, tuple(part for part in posixpath.normpath(f"/{rest}").split("/") if part)


def join(root: str, name: str) -> str:
    """Return the folder with this name below a root, which is a path or a URL; a path becomes absolute."""
    return f"{root.rstrip('/')}/{name}" if "://" in root else os.path.join(os.path.abspath(root), name)
