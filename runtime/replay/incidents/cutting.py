"""The key group of a key, for an incident with its state alone: small, although the job's state is large.

Records are all kept: those of other keys move event time on, and close windows of the key.

Invariants
    - Every operator has all state that the key's group needs; clocks are kept for all key groups.
    - A job in which a later shuffle mixes keys is refused: the state of one group does not give its results.

Pure.
"""

from __future__ import annotations

from holdfast.checkpoint.manifest import Manifest, OperatorState
from holdfast.errors import ConfigError, Where
from holdfast.runtime.inspect import keys
from holdfast.runtime.inspect.view import view_of
from holdfast.runtime.operators.contract import is_part
from holdfast.runtime.plan.model import Plan
from holdfast.runtime.replay.incidents.container import OnlyKey
from holdfast.runtime.time.windows import CLOCK_KEY
from holdfast.state.keys.batch import KeyType

NOT_CUT = "no file was written, and the job was only read"


def only(plan: Plan, manifest: Manifest, key: str) -> OnlyKey:
    """Return a key with its key group.

    Args:
        manifest: That of the epoch.
        key: As a user types it.

    Raises:
        ConfigError: the key does not fit, operators have different keys, or a shuffle follows another.
    """
    _refuse_second_shuffle(plan)
    group = int(keys.parsed(key, _key_type(plan.app, manifest)).key_groups(manifest.key_groups)[0])
    return OnlyKey(key, group)


def _key_type(job: str, manifest: Manifest) -> KeyType:
    """Return the type of key that all operators have."""
    whole = (each for each in manifest.operators if not each.dropped and not is_part(each.name))
    kinds = {each.name: view_of(each).routed for each in whole}
    if not kinds:
        raise _refused(job, f"job {job!r} has no operator with state", "leave --key out")
    (first, kind), *others = kinds.items()
    for name, other in others:
        if other.types != kind.types:
            raise _refused(
                job,
                f"operators {first!r} and {name!r} have keys of different types, so one key is not enough for both",
                "leave --key out: the file then has all state",
            )
    return kind


def _refuse_second_shuffle(plan: Plan) -> None:
    keyed = {edge.to_fragment for edge in plan.edges if edge.key}
    behind = set(keyed)
    for edge in plan.edges:  # an edge leads to a fragment with a higher number
        if edge.from_fragment in behind:
            if edge.key:
                raise _refused(
                    plan.app,
                    f"{_operator_at(plan, edge.to_fragment)} takes rows of other keys by a second shuffle",
                    "leave --key out: the file then has all state",
                )
            behind.add(edge.to_fragment)


def _operator_at(plan: Plan, fragment: int) -> str:
    names = (spec.name for spec in plan.operators if spec.fragment == fragment and not is_part(spec.name))
    return f"operator {next(names, '')!r}"


def is_clock(operator: OperatorState) -> bool:
    """Return whether state has a row per key group, and not per key."""
    return is_part(operator.name) and [name for name, _ in operator.schema["key"]] == list(CLOCK_KEY.names)


def _refused(job: str, what: str, next_step: str) -> ConfigError:
    return ConfigError(what, not_done=NOT_CUT, next_step=next_step, where=Where(job=job))
