"""Finds the newest commit of a log without listing all commits, where the store can list from a name on.

Whether any commit follows a sequence is true up to the newest and false from there, also if commits in between are
missing. So galloping and bisection find the same commit as a listing of all, in requests that grow with the logarithm
of the log's length.

Pure: the store does the I/O.
Source: Bentley, Yao, An Almost Optimal Algorithm for Unbounded Searching, 1976; docs/decisions/0053.
"""

from __future__ import annotations

from holdfast.ports import ObjectStore
from holdfast.storage.bulk import OrderedStore
from holdfast.storage.log.format import COMMITS_FOLDER, commit_path, sequence_of


def newest_sequence(store: ObjectStore, after: int = 0) -> int:
    """Return the sequence of the newest commit; 0 if there is none.

    Args:
        after: The sequence of a commit that exists; the search begins there.
    """
    if not isinstance(store, OrderedStore):
        paths = store.list(COMMITS_FOLDER)
        return sequence_of(paths[-1]) if paths else 0
    newest, probe, beyond = after, after, None
    while True:
        page = store.list_after(COMMITS_FOLDER, commit_path(probe))
        if page.paths:
            newest = max(newest, sequence_of(page.paths[-1]))
            size = len(page.paths)
        if not page.more and (page.paths or probe <= newest):
            return newest
        if not page.paths:
            beyond = probe  # no commit follows it, and one follows `newest`
        if beyond is None:
            probe = after + 2 * (newest - after)
        else:
            probe = newest if beyond - newest <= size else (newest + beyond) // 2
