"""Changes of a keyed function that are allowed between two runs of a job, and the state that results from them.

Pure.
Source: docs/decisions/0038-schema-evolution.md, 0065-keyed-functions.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from holdfast.runtime.operators.differences import READ_UNCHANGED, Found
from holdfast.runtime.rows.state_types import change, shown, with_removed


def compare_states(found: Found, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Record the differences between the declared state and timers."""
    old, new = before["states"], now["states"]
    for name in old.keys() - new.keys():
        _part(found, name, old[name]).refuse(
            f"no longer declares {old[name]['kind']} {name!r}", ", whose state would be lost"
        )
    for name in new.keys() - old.keys():
        found.allow(f"declares {new[name]['kind']} {name!r}", "it is empty for every key")
    for name in sorted(old.keys() & new.keys()):
        _compare_state(found, name, old[name], new[name])


def parts_of(before: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the states that can each be given up alone: values in the operator's own table."""
    return tuple(name for name, each in before["states"].items() if _has_column(each))


def states_without(before: Mapping[str, Any], parts: Collection[str]) -> Mapping[str, Any]:
    """Return an identity without some of its states."""
    return {**before, "states": {name: each for name, each in before["states"].items() if name not in parts}}


def _compare_state(found: Found, name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    part = _part(found, name, old)
    if old["kind"] != new["kind"]:
        part.refuse(f"had {old['kind']} {name!r} and now has {new['kind']} {name!r}")
        return
    if old["clock"] != new["clock"]:
        part.refuse(f"had {old['kind']} {name!r} in {old['clock']} time and now has it in {new['clock']} time")
    if bool(old["ttl_us"]) != bool(new["ttl_us"]):
        part.refuse(f"had {name!r} {'with' if old['ttl_us'] else 'without'} ttl and now has it otherwise")
    elif old["ttl_us"] != new["ttl_us"]:
        found.allow(f"has another ttl for {name!r}", "values that are in the state keep the time of their end")
    for was, is_now in zip(old["types"], new["types"], strict=True):
        if (why := change(was, is_now)) is not None:
            part.refuse(f"had {name!r} of type {shown(was)}: {why}")
        elif was != with_removed(was, is_now):
            found.allow(f"has other fields in {shown(is_now)} of {name!r}", READ_UNCHANGED)


def _has_column(state: Mapping[str, Any]) -> bool:
    return state["kind"] == "Value" and not state["ttl_us"]


def _part(found: Found, name: str, state: Mapping[str, Any]) -> Found:
    return found.of(name) if _has_column(state) else found
