"""Maps an error of Redis to its meaning for a delivery: who acts.

The first word of a server's error is its code. redis-py takes the code away and raises a class for some of them; of an
error inside a script, some versions of the server put the code in the middle of the text. So class and text are
compared.

A login or a command that this user is not allowed is NotAdmitted: an administrator of the server may allow it again,
and nothing is lost until then.

Invariants
    - An error is Unavailable if and only if a retry may succeed.
    - No message shows a row, or the value of a secret.

Source: redis.io/docs, error codes of the protocol; redis.exceptions.
"""

from __future__ import annotations

import re

from redis import exceptions

from holdfast.errors import HoldfastError, Unavailable
from holdfast.sinks.contract.phrases import NOTHING, RETRIES, Meaning, full, not_admitted, refused, unavailable, unknown

_SCRIPT = re.compile(
    r"^Error running script \(call to f_\w+\): @user_script:\d+: (?:@user_script: \d+: )?-?|"
    r",? script: \w+, on @user_script:\d+\.?$"
)
"""Where in our script a command failed: some versions of the server put it before the useful text, others after it."""


def meaning_of(where: str, error: exceptions.RedisError) -> HoldfastError:
    """Return the error's meaning for a delivery."""
    message = _SCRIPT.sub("", " ".join(str(error).split())).rstrip(".")
    for kinds, words, meaning in _MEANINGS:
        if isinstance(error, kinds) or (words is not None and re.search(words, message)):
            return meaning(where, message)
    return _REFUSED(where, message)


def _busy(where: str, said: str) -> HoldfastError:
    return Unavailable(f"{where}: {said}", not_done=NOTHING, next_step=RETRIES)


_UNREACHABLE = unknown("check that the server runs, that this host reaches it, and that no other client blocks it")
_FULL = full("the memory of the server", "raise maxmemory, or delete other data there", NOTHING)
_DISK = unavailable(
    "the server cannot save to its disk, and takes no writes",
    "see the server's log, and free space on that disk; delivery retries automatically",
)
_READ_ONLY = unavailable(
    "the server takes no writes",
    "nothing, while a replica is promoted; else name the primary in the URL; delivery retries",
)
_LOGIN = not_admitted(
    "the server did not let this user in",
    "let this user in again (ACL SETUSER); else check the user in the URL, and the password where hf.secret(...) reads "
    "it. A file is read for each connection, a variable when the job is started",
)
_RIGHT = not_admitted(
    "this user lacks a right",
    "grant it: ACL SETUSER USER ~PREFIX* ~holdfast:PREFIX +eval +hgetall +hget +hlen +hset +hsetnx +mset +del +info "
    "+config|get +select",
)
_CLUSTER = refused(
    "this is a node of a Redis Cluster, which cannot change keys of several slots in one script",
    "name a server that is not a cluster",
)
_WRONG_TYPE = refused(
    "the key of Holdfast's hash holds something else", "delete that key, or give the sink another prefix"
)
_REFUSED = refused(
    "Redis refuses the delivery", "check the URL, the database's number and the server's version (6.0 or newer)"
)

Kinds = type[exceptions.RedisError] | tuple[type[exceptions.RedisError], ...]
_MEANINGS: tuple[tuple[Kinds, str | None, Meaning], ...] = (
    (exceptions.AuthenticationError, r"\b(NOAUTH|WRONGPASS)\b", _LOGIN),
    (exceptions.NoPermissionError, r"\bNOPERM\b|can't run this command|can't access at least one", _RIGHT),
    (exceptions.OutOfMemoryError, r"\bOOM\b", _FULL),
    (exceptions.ReadOnlyError, r"\b(READONLY|NOREPLICAS|MASTERDOWN)\b", _READ_ONLY),
    (exceptions.BusyLoadingError, r"\b(LOADING|BUSY|TRYAGAIN)\b", _busy),
    (exceptions.ClusterError, r"\b(MOVED|ASK|CROSSSLOT|CLUSTERDOWN)\b", _CLUSTER),
    ((), r"\bMISCONF\b", _DISK),
    ((), r"\bWRONGTYPE\b", _WRONG_TYPE),
    ((exceptions.ConnectionError, exceptions.TimeoutError), None, _UNREACHABLE),
)
"""The first that fits counts: a refused login is a kind of broken connection for redis-py."""
