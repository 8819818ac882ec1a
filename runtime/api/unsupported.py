"""Names of the API that this version lacks, each with a replacement.

Using one raises `NotInThisVersion`, which is also an AttributeError, so that `hasattr` and the tools that rely on it
work. A name that the API does not have raises a plain AttributeError with the closest existing name.

Pure.
Source: API.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from holdfast.errors import ConfigError

STREAM: Mapping[str, str] = {
    "side": "only the result of .process(..., sides=...) has sides; use it there, before any other step",
    "sessionize": "use .key_by(...).window(hf.session(gap)).agg(...)",
}
KEYED_STREAM: Mapping[str, str] = {}
APP: Mapping[str, str] = {}
ELSEWHERE: Mapping[str, str] = {
    "print": "to see rows, use .sink(name, hf.Console()), or t.rows(sink) of hf.testing.TestDriver",
    "show": "to see rows, use .sink(name, hf.Console()), or t.rows(sink) of hf.testing.TestDriver",
    "group_by": "use .key_by(...)",
    "groupby": "use .key_by(...)",
    "to": "use .sink(name, sink)",
    "write": "use .sink(name, sink)",
    "apply": "use .map(...)",
    "where": "use .filter(...)",
    "reduce": "use .agg(...)",
    "drop_duplicates": 'use .key_by("column").dedup(name, within="10m")',
    "dropDuplicates": 'use .key_by("column").dedup(name, within="10m")',
    "unique": 'use .key_by("column").dedup(name, within="10m")',
    "distinct": 'use .key_by("column").dedup(name, within="10m")',
    "collect": "to see rows, use .sink(name, hf.Collect()) and app.run(once=True)",
    "to_pandas": "to see rows, use .sink(name, hf.Collect()) and app.run(once=True)",
    "start": "use .run() in a notebook or script, .main() at the end of a job's file",
    "execute": "use .run() in a notebook or script, .main() at the end of a job's file",
    "count": "use .agg(name, n=hf.count())",
    "sum": 'use .agg(name, total=hf.sum("column"))',
}
"""Names from other libraries, with their equivalents."""
OF_A_RESULT = ("filter", "late", "map", "select", "sink", "union", "with_columns")
"""Names of a stream that a stream grouped by key or window lacks before it is aggregated."""
OF_A_GROUP = ("agg", "dedup", "process", "process_batches")
"""Names that a stream has only after it is grouped by key."""


class NotInThisVersion(ConfigError, AttributeError):
    """A name of the API that this version lacks."""


def no_attribute(owner: str, name: str, lacking: Mapping[str, str], known: Iterable[str]) -> AttributeError:
    """Return the error for a name that an object does not have.

    Args:
        owner: The object's name in messages, such as "hf" or "a stream".
        lacking: Names that the API has and this version lacks, with their replacements.
        known: Names that the object has.
    """
    if name in lacking:
        return NotInThisVersion(
            f"{owner}.{name} is not in this version", not_done="the job was not planned", next_step=lacking[name]
        )
    hint = "" if owner == "hf" else ELSEWHERE.get(name, "")
    if owner in ("Keyed", "Windowed") and name in OF_A_RESULT:
        hint = f"aggregate first: .agg(name, n=hf.count()).{name}"
    if owner == "Stream" and name in OF_A_GROUP:
        hint = f'group the rows first: .key_by("column").{name}'
    if not hint and (close := get_close_matches(name, [each for each in known if not each.startswith("_")], 1)):
        hint = f"did you mean {close[0]!r}?"
    return AttributeError(f"{owner} has no attribute {name!r}" + (f"; {hint}" if hint else ""))
