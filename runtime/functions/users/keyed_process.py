"""The class of keyed functions that users write, and the state and timers that they declare in it.

    class Fraud(hf.KeyedProcess[Payment, Alert]):
        last = hf.Value(float, ttl="1h")
        quiet = hf.Timer("event")

        def on_record(self, ctx, r): ...

        @quiet.fires
        def forget(self, ctx): ...

The attributes of a class are only declarations: at run time the operator gives each copy of the object its own state,
under the same attributes (runtime/operators/process/operator.py). Outside a running function every access is refused.

Pure.
Source: API.md; docs/decisions/0065-keyed-functions.md.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import numpy as np

from holdfast.errors import ConfigError
from holdfast.runtime.config.durations import Duration, duration_ms
from holdfast.runtime.rows.state_types import MAP_KEYS, misfit
from holdfast.runtime.time.windows import LENGTH_MAX_US
from holdfast.state.tables.spec import RESERVED_NAMES

In = TypeVar("In")
Out = TypeVar("Out")
V = TypeVar("V")
K = TypeVar("K")
D = TypeVar("D")
F = TypeVar("F", bound=Callable[..., Any])

EVENT, PROCESSING = "event", "processing"
NOT_PLANNED = "the job was not planned"
_TAKES = {"on_record": "r", "on_batch": "batch"}
_RESERVED = RESERVED_NAMES | {"clock"}
_MUTABLE = (list, dict, set, bytearray, np.ndarray)


class Context(Protocol):
    """Values and actions available to a keyed function while it handles a record or a timer."""

    @property
    def key(self) -> Any:
        """The key: its value, or an `hf.Row` if it has several columns."""

    @property
    def event_time(self) -> datetime | None:
        """The event time of the record, or the time of a timer of event time; None if there is none."""

    @property
    def watermark(self) -> datetime | None:
        """Event time has reached this point for the key; None before the first watermark."""

    def now(self) -> datetime:
        """Return the processing time: the worker's clock. It never goes back, also if the key moves to another host.

        A rewind takes back the times that it undoes. A record that is handled again after a failure sees the time of
        the new attempt.
        """

    def random(self) -> float:
        """Return a number in [0, 1) that depends only on operator, key and how often its function asked."""

    def emit(self, row: Any) -> None:
        """Emit a row of `to`."""

    def side(self, name: str, row: Any) -> None:
        """Emit a row on one of `sides`."""


class Declared:
    """State or a timer that a keyed function declares as an attribute of its class."""

    what = "state"
    clock = EVENT
    """The clock of its time to live, or of a timer."""
    ttl: Duration | None = None

    @property
    def ttl_us(self) -> int:
        """Its time to live in microseconds, 0 if it has none."""
        return 0 if self.ttl is None else 1_000 * duration_ms(self.ttl, f"ttl of {self.what}", NOT_PLANNED)

    def types(self) -> tuple[Any, ...]:
        """Return the types of its values."""
        return ()

    def refusal(self) -> str | None:
        """Return why it cannot be kept; None if it can."""
        why = next((why for each in self.types() if (why := misfit(each)) is not None), None)
        if why is None and self.clock not in (EVENT, PROCESSING):
            why = f'its clock is {self.clock!r}, not "event" or "processing"'
        if why is None and self.ttl is not None and not 0 < self.ttl_us <= LENGTH_MAX_US:
            why = f"ttl={self.ttl!r} is not above 0 and at most 1,000 years"
        return why


def _outside() -> NoReturn:
    raise ConfigError(
        "state and timers of a keyed function belong to a key, and no record is being handled",
        not_done="nothing was read or stored",
        next_step="use them in on_record and in handlers of timers; in tests, run the job with hf.testing.TestDriver",
    )


class Value(Declared, Generic[V]):
    """One value per key."""

    what = "Value"

    def __init__(self, type: type[V], ttl: Duration | None = None, *, clock: str = EVENT) -> None:
        """Declare a value.

        Args:
            type: bool, int, float, str, bytes, a dataclass, or another type that MessagePack can hold.
            ttl: How long after it was set the value is forgotten, such as "1h"; None: never.
            clock: "event" or "processing": the time that `ttl` counts.
        """
        self.type, self.ttl, self.clock = type, ttl, clock

    def types(self) -> tuple[Any, ...]:
        return (self.type,)

    def get(self, default: D = None) -> V | D:  # type: ignore[assignment]
        """Return the value of the key, `default` if there is none. A changed object is stored by `set` only."""
        _outside()

    def set(self, value: V) -> None:
        """Store a value for the key."""
        _outside()

    def clear(self) -> None:
        """Forget the value of the key."""
        _outside()


class List(Declared, Generic[V]):
    """A list per key; it is read as a whole."""

    what = "List"

    def __init__(self, type: type[V], ttl: Duration | None = None, *, clock: str = EVENT) -> None:
        """Declare a list of values of a type. `ttl` counts for each element from when it was appended."""
        self.type, self.ttl, self.clock = type, ttl, clock

    def types(self) -> tuple[Any, ...]:
        return (self.type,)

    def get(self) -> list[V]:
        """Return the elements, in the order in which they were appended."""
        _outside()

    def append(self, value: V) -> None:
        """Store another element after the others."""
        _outside()

    def pop_first(self) -> V | None:
        """Remove the first element and return it; None if there is none."""
        _outside()

    def clear(self) -> None:
        """Remove all elements."""
        _outside()

    def __len__(self) -> int:
        return int(_outside())

    def __iter__(self) -> Iterator[V]:
        _outside()


class Map(Declared, Generic[K, V]):
    """A map per key; it is read as a whole, in the order of its map keys."""

    what = "Map"

    def __init__(self, key: type[K], type: type[V], ttl: Duration | None = None, *, clock: str = EVENT) -> None:
        """Declare a map from int, str, bytes or bool to values of a type. `ttl` counts for each entry."""
        self.key, self.type, self.ttl, self.clock = key, type, ttl, clock

    def types(self) -> tuple[Any, ...]:
        return (self.key, self.type)

    def refusal(self) -> str | None:
        if not any(self.key is kind for kind in MAP_KEYS):
            return f"its map key is {self.key!r}; a map key is int, str, bytes or bool"
        return super().refusal()

    def get(self, key: K, default: D = None) -> V | D:  # type: ignore[assignment]
        """Return the value at a map key, `default` if there is none."""
        _outside()

    def set(self, key: K, value: V) -> None:
        """Store the value at a map key."""
        _outside()

    def remove(self, key: K) -> None:
        """Remove a map key, which need not exist."""
        _outside()

    def items(self) -> list[tuple[K, V]]:
        """Return all entries, in the order of their map keys."""
        _outside()

    def clear(self) -> None:
        """Remove all entries."""
        _outside()

    def __len__(self) -> int:
        return int(_outside())

    def __contains__(self, key: K) -> bool:
        _outside()


class Timer(Declared):
    """A time per key at which the function is called; setting it again replaces the time.

    A timer of processing time fires soon after the worker's clock has reached its time, in microbatch mode with the
    batch that follows. A handler of one clock may set timers of both.
    """

    what = "Timer"

    def __init__(self, clock: str) -> None:
        """Declare a timer of "event" time or of "processing" time."""
        self.clock = clock
        self.handlers: tuple[str, ...] = ()

    def fires(self, handler: F) -> F:
        """Have a method `handler(self, ctx)` called when the timer fires."""
        self.handlers += (getattr(handler, "__name__", repr(handler)),)
        return handler

    def refusal(self) -> str | None:
        if len(self.handlers) != 1:
            return f"it has {len(self.handlers)} handlers; a timer has one method under its `.fires`"
        if not self.handlers[0].isidentifier():
            return f"its handler is {self.handlers[0]}; give it a method"
        return super().refusal()

    def set(self, at: datetime) -> None:
        """Fire once the clock has reached this time; replaces the time that was set before.

        A time that has passed fires when time next advances. A handler sets timers of its own clock for later times
        only.
        """
        _outside()

    def clear(self) -> None:
        """Do not fire."""
        _outside()


class _Body(dict[str, Any]):
    """The body of a class while it is executed; notes state that is declared twice under one name."""

    def __init__(self) -> None:
        super().__init__()
        self.twice: list[str] = []

    def __setitem__(self, name: str, value: Any) -> None:
        if isinstance(self.get(name), Declared):
            self.twice.append(name)
        super().__setitem__(name, value)


class _Kind(type):
    """The class of KeyedProcess classes."""

    @classmethod
    def __prepare__(cls, name: str, bases: tuple[type, ...], /, **_: Any) -> _Body:
        return _Body()

    def __new__(cls, name: str, bases: tuple[type, ...], body: Any, /, **given: Any) -> _Kind:
        made = super().__new__(cls, name, bases, dict(body), **given)
        made._declared_twice = tuple(getattr(body, "twice", ()))  # type: ignore[attr-defined]
        return made


class KeyedProcess(Generic[In, Out], metaclass=_Kind):
    """A function of the records of a key, with state and timers: `.key_by(...).process(name, P(), to=Out)`.

    `In` is the type of a record in `on_record`, as in other functions of the stream; `Out` is a row of `to`. Arguments
    of the constructor are configuration: they are the same for every key, and nothing that is assigned to `self` later
    is kept, so that is refused.
    """

    def on_record(self, ctx: Context, r: In) -> None:
        """Handle a record of the key `ctx.key`."""
        _outside()

    def on_batch(self, ctx: Any, batch: Any) -> None:
        """Handle a pyarrow.RecordBatch of records of many keys, for `.process_batches(...)`."""
        _outside()


@dataclass(frozen=True)
class Declaration:
    """State and timers that a keyed function declares."""

    values: Mapping[str, Value[Any]] = field(default_factory=dict)
    lists: Mapping[str, List[Any]] = field(default_factory=dict)
    maps: Mapping[str, Map[Any, Any]] = field(default_factory=dict)
    timers: Mapping[str, Timer] = field(default_factory=dict)

    def all(self) -> dict[str, Declared]:
        """Return all state and timers by name."""
        return {**self.values, **self.lists, **self.maps, **self.timers}


def declared_by(process: KeyedProcess[Any, Any]) -> Declaration:
    """Return the declarations of a function's class."""
    declarations: dict[str, Declared] = {}
    for owner in reversed(type(process).__mro__):
        declarations |= {name: each for name, each in vars(owner).items() if isinstance(each, Declared)}

    def of(kind: Any) -> Any:
        return {name: each for name, each in declarations.items() if isinstance(each, kind)}

    return Declaration(of(Value), of(List), of(Map), of(Timer))


def refusal_of(process: Any, keys: tuple[str, ...], method: str) -> str | None:
    """Return why a function cannot be planned; None if it can.

    Args:
        method: "on_record" or "on_batch".
    """
    if not isinstance(process, KeyedProcess):
        given = f"the class {process.__name__}" if isinstance(process, type) else repr(process)
        return f"{given:.80} is not an instance of a class that derives from hf.KeyedProcess"
    kind = type(process)
    if getattr(kind, method) is getattr(KeyedProcess, method):
        return f"{kind.__name__} has no {method}(self, ctx, {_TAKES[method]})"
    own = [owner for owner in kind.__mro__ if owner not in (KeyedProcess, Generic, object)]
    where: dict[int, str] = {}
    names: set[str] = set()
    for owner in own:
        for name, value in vars(owner).items():
            if isinstance(value, Declared):
                why = value.refusal() or _name_refused(name, keys)
                if name in names or name in getattr(owner, "_declared_twice", ()):
                    why = "it is declared twice"
                if (other := where.setdefault(id(value), name)) != name:
                    why = f"it is the same object as {other!r}"
                if why is not None:
                    return f"{kind.__name__}.{name}: {why}"
                names.add(name)
            elif isinstance(value, _MUTABLE) and not name.startswith("__"):
                return (
                    f"{kind.__name__}.{name} is a {type(value).__name__}, which all keys share and no checkpoint keeps"
                )
    return _handlers_refused(process, method)


def _name_refused(name: str, keys: tuple[str, ...]) -> str | None:
    if name in _RESERVED or name.startswith("_"):
        return f"state cannot be called so; not {', '.join(sorted(_RESERVED))}, and nothing that begins with _"
    return f"{name!r} is also a key column" if name in keys else None


def _handlers_refused(process: Any, method_name: str) -> str | None:
    kind = type(process).__name__
    called: dict[str, tuple[str, ...]] = {method_name: ("ctx", _TAKES[method_name])} | {
        timer.handlers[0]: ("ctx",) for timer in declared_by(process).timers.values()
    }
    for name, arguments in called.items():
        method = getattr(process, name, None)
        if not callable(method):
            return f"{kind} has no method {name!r} for its timer"
        if inspect.iscoroutinefunction(method) or inspect.isgeneratorfunction(method):
            return f"{kind}.{name} is asynchronous or yields rows; emit rows with ctx.emit(row)"
        try:
            inspect.signature(method).bind(*arguments)
        except TypeError as error:
            return f"{kind}.{name} cannot be called with ({', '.join(arguments)}): {error}"
    return None


def bound_to(process: KeyedProcess[In, Out], cells: Mapping[str, Any]) -> KeyedProcess[In, Out]:
    """Return a copy of a function whose state and timers are these; it refuses other assignments to `self`."""
    kind = type(process)
    locked = _Kind(kind.__name__, (kind,), {"__setattr__": _refuse_assignment, "__module__": kind.__module__})
    bound = copy.copy(process)
    vars(bound).update(cells)
    object.__setattr__(bound, "__class__", locked)
    return bound


def _refuse_assignment(self: Any, name: str, value: Any) -> NoReturn:
    raise AttributeError(
        f"{name!r} was assigned to self while the job runs; no checkpoint keeps it. "
        "Keep it in a hf.Value, hf.List or hf.Map"
    )
