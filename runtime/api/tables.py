"""Tables: checks the arguments of `.to_table`, `.lookup` and the methods of tables, and adds them to the graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Never

import pyarrow as pa

from holdfast.arguments import position
from holdfast.errors import ConfigError
from holdfast.runtime.functions.aggregation import (
    Aggregation,
    BoundAggregation,
    bound,
    check_former,
    refuse_unnamed,
)
from holdfast.runtime.operators.joins.join import OUTER
from holdfast.runtime.operators.tables.changes import TableChanges
from holdfast.runtime.operators.tables.foreign import ForeignJoin, Matches
from holdfast.runtime.operators.tables.group import PARTS, SUMMED, GroupAggregate
from holdfast.runtime.operators.tables.join import TableJoin
from holdfast.runtime.operators.tables.latest import LatestLookup
from holdfast.runtime.operators.tables.lookup import ROWS, TABLE, Lookup
from holdfast.runtime.operators.tables.retractions import WEIGHT, Retractions
from holdfast.runtime.operators.tables.search import HOLDS, Search, Term
from holdfast.runtime.operators.tables.upserts import Upserts
from holdfast.runtime.operators.tables.versioned import VALID_FROM, VersionedLookup
from holdfast.runtime.plan.graph import Graph, Node, check_name, refused
from holdfast.runtime.rows.expressions import unknown_column
from holdfast.runtime.rows.kept_columns import kept_column
from holdfast.runtime.time.join_bounds import LEFT, RIGHT
from holdfast.runtime.time.windows import TIME, WINDOW_END
from holdfast.state.keys.batch import KeyType
from holdfast.storage.log.changelog import DELETED

HOWS = ("inner", "left")
AS_OF = ("event_time", "latest")
RESERVED = (WINDOW_END, "row_number", VALID_FROM)
"""Names of key columns that the state of a look-up has of its own."""
CLOSED = {"both": (">=", "<="), "left": (">=", "<"), "right": (">", "<="), "none": (">", "<")}
"""How a range compares with its lower and its upper bound; the words are those of Polars."""
TERMS = 'give columns of the stream with those of the table: terms={"kind": "kind", "amount": ("least", "most")}'
ON = 'name the columns that the stream calls as the table does, on="customer", or pairs: on=[("buyer", "customer")]'


def table_of(graph: Graph, node: Node, name: str, key: object, deleted: str | None, where: str) -> Node:
    """Add the rows of an append stream as a table, of which the last one per key counts.

    Args:
        deleted: The column that marks rows which delete; None: `holdfast_deleted`, if the stream has it.

    Raises:
        ConfigError: a column is unknown or cannot be a key, or the mark is not boolean.
    """
    schema, keys = node.schema, _key_of(node.schema, key, where)
    if deleted is None and DELETED.name in schema.names:
        deleted = DELETED.name
    if deleted is not None and not isinstance(deleted, str):
        raise refused(
            f"{where}: deleted={deleted!r} is not the name of a column", "name a bool column, or leave it out"
        )
    if deleted is not None and deleted not in schema.names:
        raise unknown_column(deleted, schema.names, where)
    if deleted is not None and (schema.field(deleted).type != pa.bool_() or deleted in keys):
        raise refused(
            f"{where}: deleted={deleted!r} is {schema.field(deleted).type}" + (" and a key" if deleted in keys else ""),
            "name a bool column that is true in rows that delete",
        )
    plain = {*keys, node.event_time}
    fields = [
        field if deleted is None or field.name in plain else field.with_nullable(True)
        for field in schema
        if field.name != deleted
    ]
    step = Upserts(keys, node.event_time, deleted)
    return graph.add(step, node, name, pa.schema(fields), keys, event_time=node.event_time)


def converted(graph: Graph, node: Node, name: str, key: object) -> Node:
    """Add a stream as a table; see Stream.to_table. Raises ConfigError: its rows replace each other by another key."""
    check_name(name, "table")
    where = f"to_table {name!r} on stream {node.stream!r} at {position()}"
    keys = _key_of(node.schema, key, where)
    if node.upsert_key is None:
        table = table_of(graph, node, name, keys, None, where)
    elif set(node.upsert_key) != set(keys):
        raise refused(
            f"{where}: its rows replace each other by {', '.join(node.upsert_key)}, not by {', '.join(keys)}",
            f"give key={list(node.upsert_key)}; to_changes() returns the changes as rows that are never replaced",
        )
    else:
        table = node
    graph.claim(name, "table")
    return table


def changes_of(graph: Graph, node: Node) -> Node:
    """Add the changes of a table as rows; see Table.to_changes. Raises ConfigError: it has a column for the mark."""
    if DELETED.name in node.schema.names:
        raise refused(
            f"to_changes on table {node.stream!r} at {position()}: the table has a column {DELETED.name!r} already",
            "rename it with .select(...) before the table",
        )
    schema = pa.schema([DELETED, *node.schema])
    return graph.add(TableChanges(DELETED.name), node, node.stream, schema, event_time=node.event_time)


def looked_up(graph: Graph, nodes: tuple[Node, Node], name: str, on: object, as_of: str, how: str, suffix: str) -> Node:
    """Add a look-up to the graph; see Stream.lookup.

    Raises:
        ConfigError: a name is taken, a column is unknown, `on` is not the table's key, or an event time is missing.
    """
    check_name(name, "operator")
    where = f"lookup {name!r} on stream {nodes[ROWS].stream!r} at {position()}"
    if how not in HOWS:
        raise refused(f"{where}: how={how!r} is unknown", f"use one of {', '.join(map(repr, HOWS))}")
    if as_of not in AS_OF:
        raise refused(f"{where}: as_of={as_of!r} is unknown", f"use one of {', '.join(map(repr, AS_OF))}")
    rows, table = nodes
    if rows.upsert_key is not None:
        raise refused(
            f"{where}: the stream replaces rows by {', '.join(rows.upsert_key)}, and rows that were looked up are not "
            "replaced",
            "look rows up before their aggregate",
        )
    pairs = _pairs(nodes, on, where)
    names, fields = _columns(nodes, pairs, how, suffix, where)
    keys, table_keys = tuple(ours for ours, _ in pairs), tuple(theirs for _, theirs in pairs)
    step: Lookup
    if as_of == "latest":
        step = LatestLookup(graph.claim(name, "operator"), keys, table_keys, how, names)
    else:
        times = _time_of(rows, "stream", where), _time_of(table, "table", where)
        _check_waiting(rows.schema, keys, where)
        step = VersionedLookup(graph.claim(name, "operator"), keys, table_keys, how, names, times)
    return graph.add(step, rows, step.operator, pa.schema(fields), others=(table,), event_time=rows.event_time)


def searched(
    graph: Graph,
    nodes: tuple[Node, Node],
    name: str,
    on: object,
    terms: object,
    closed: str,
    suffix: str,
) -> Node:
    """Add a search to the graph; see Stream.search.

    Raises:
        ConfigError: a name is taken, a column is unknown, `on` is missing, or a term cannot be compared.
    """
    check_name(name, "operator")
    where = f"search {name!r} on stream {nodes[ROWS].stream!r} at {position()}"
    rows, table = nodes
    if rows.upsert_key is not None:
        raise refused(
            f"{where}: the stream replaces rows by {', '.join(rows.upsert_key)}, and queries that were found are not "
            "taken back",
            "search before the aggregate",
        )
    if closed not in CLOSED:
        raise refused(f"{where}: closed={closed!r} is unknown", f"use one of {', '.join(map(repr, CLOSED))}")
    if not on:
        raise refused(
            f"{where}: on= is empty, so every row would be compared with every query",
            "name a column that rows and queries have in common, by which they are distributed; rows that are searched "
            "by ranges alone need one too, for example a region",
        )
    pairs, key = _named_pairs(nodes, on, where), table.upsert_key or ()
    _check_pairs(nodes, pairs, where)
    names, fields = _columns(nodes, pairs, "inner", suffix, where)
    keys, table_keys = tuple(ours for ours, _ in pairs), tuple(theirs for _, theirs in pairs)
    _key_of(table.schema, table_keys, where)
    query_terms = tuple(_terms(nodes, terms, CLOSED[closed], {*key, *table_keys}, where))
    operator = graph.claim(name, "operator")
    changes = Retractions(graph.claim(f"{name}-queries", "operator"), key)
    weighed = graph.add(changes, table, table.stream, pa.schema([*table.schema, WEIGHT]))
    step = Search(operator, keys, table_keys, "inner", names, key, query_terms)
    return graph.add(step, rows, operator, pa.schema(fields), others=(weighed,), event_time=rows.event_time)


def grouped(
    graph: Graph,
    node: Node,
    keys: tuple[str, ...],
    name: str,
    unnamed: tuple[Never, ...],
    given: Mapping[str, Aggregation],
) -> Node:
    """Add aggregates over a table per group; see GroupedTable.agg.

    Raises:
        ConfigError: a name is taken, a column unknown, or an aggregate cannot take rows back.
    """
    check_name(name, "operator")
    where = f"agg {name!r} on table {node.stream!r} at {position()}"
    refuse_unnamed(unnamed, where)
    if not given:
        raise refused(f"{where}: no aggregate is given", "give at least one, for example rows=hf.count()")
    check_former(given, where)
    bounds = tuple(bound(column, each, node.schema, where) for column, each in given.items())
    for each in bounds:
        _check_taken_back(each, node.schema, where)
        if each.name in keys:
            raise refused(f"{where}: {each.name!r} is also a key column", "rename the aggregate")
    assert node.upsert_key is not None
    for column in {*keys, *(column for each in bounds for column in each.reads)} - {*node.upsert_key}:
        _check_kept(node.schema.field(column), "table", where)
    operator = graph.claim(name, "operator")
    rows = Retractions(graph.claim(f"{name}-rows", "operator"), node.upsert_key)
    retractions = graph.add(rows, node, node.stream, pa.schema([*node.schema, WEIGHT]))
    inputs = tuple(_summed(each, node.schema) for each in bounds)
    # Groups that become empty continue as deletes, with nothing but their key.
    fields = [*(node.schema.field(key) for key in keys), *(each.result.with_nullable(True) for each in bounds)]
    return graph.add(GroupAggregate(operator, keys, bounds, inputs), retractions, operator, pa.schema(fields), keys)


def joined_tables(graph: Graph, nodes: tuple[Node, Node], name: str, on: object, how: str, suffix: str) -> Node:
    """Add a join of two tables to the graph; see Table.join.

    Raises:
        ConfigError: a name is taken, `on` is not the key of the other table, or a column cannot be kept.
    """
    check_name(name, "operator")
    where = f"join {name!r} on table {nodes[LEFT].stream!r} at {position()}"
    if how not in OUTER:
        raise refused(f"{where}: how={how!r} is unknown", f"use one of {', '.join(map(repr, OUTER))}")
    pairs, key = _pairs(nodes, on, where), tuple(nodes[LEFT].upsert_key or ())
    names, fields = _columns(nodes, pairs, "left", suffix, where)
    _check_waiting(nodes[LEFT].schema, key, where, "table")
    ours = tuple((name, name) for name in nodes[LEFT].schema.names if name not in key)
    # Rows that leave the result continue as deletes, with nothing but their key.
    fields = [field.with_nullable(field.nullable if field.name in key else True) for field in fields]
    keys = tuple(ours for ours, _ in pairs), tuple(theirs for _, theirs in pairs)
    if set(keys[LEFT]) == set(key):
        step, right = TableJoin(graph.claim(name, "operator"), keys, how, (ours, names)), nodes[RIGHT]
    else:
        if how not in HOWS:
            raise refused(
                f"{where}: how={how!r}, and on={on!r} is not the key of the table {nodes[LEFT].stream!r}, which is "
                f"{', '.join(key)}; a row of the table {nodes[RIGHT].stream!r} to which none refers would have no key",
                f"use one of {', '.join(map(repr, HOWS))}; or join tables by the key of both",
            )
        operator = graph.claim(name, "operator")
        right = _matches(graph, nodes, name, keys, names, fields)
        shown = tuple((each, each) for _, each in names)
        step = ForeignJoin(operator, (key, key), how, (ours, shown), keys[LEFT])
    return graph.add(step, nodes[LEFT], step.operator, pa.schema(fields), key, others=(right,))


def _matches(
    graph: Graph,
    nodes: tuple[Node, Node],
    name: str,
    keys: tuple[tuple[str, ...], tuple[str, ...]],
    names: tuple[tuple[str, str], ...],
    fields: Sequence[pa.Field],
) -> Node:
    """Add a table by the key of the left one, with the row of the right one that each row refers to."""
    left, right = nodes
    key, output_names = left.upsert_key or (), {each for _, each in names}
    rows = Retractions(graph.claim(f"{name}-rows", "operator"), key)
    weighed = graph.add(rows, left, left.stream, pa.schema([*left.schema, WEIGHT]))
    matches = Matches(graph.claim(f"{name}-matches", "operator"), *keys, key, names)
    schema = pa.schema([*map(left.schema.field, key), *(field for field in fields if field.name in output_names)])
    return graph.add(matches, weighed, matches.operator, schema, key, others=(right,))


def group_keys(node: Node, columns: tuple[object, ...]) -> tuple[str, ...]:
    """Return the columns by which a table is grouped. Raises ConfigError: there are none, or one cannot be a key."""
    return _key_of(node.schema, columns, f"group_by on table {node.stream!r} at {position()}")


def _check_taken_back(each: BoundAggregation, schema: pa.Schema, where: str) -> None:
    decimals = bool(each.columns) and pa.types.is_decimal(schema.field(each.columns[0]).type)
    if each.kind.name in {*SUMMED, *PARTS} and not (each.kind.name == "mean" and decimals):
        return
    if decimals and each.kind.name == "mean":
        reason = "means of decimals are not kept exactly"
        instead = f'cast it: .with_columns({each.columns[0]}=pl.col("{each.columns[0]}").cast(pl.Float64))'
    else:
        reason = "a value that is taken back leaves it only if all rows of the group are kept"
        instead = (
            f"use one of {', '.join((*SUMMED, *PARTS))}; or aggregate all that the table ever held: "
            ".to_changes().key_by(...).agg(...)"
        )
    raise refused(f"{where}: {each.name} = {each} cannot follow a table whose rows change: {reason}", instead)


def _summed(each: BoundAggregation, schema: pa.Schema) -> pa.Field:
    """Return the column that an aggregate reads, in the type in which it is summed, if it is."""
    if not each.columns:
        return WEIGHT
    field = schema.field(each.columns[0])
    if each.kind.name in PARTS:
        return field
    if pa.types.is_integer(field.type):
        return field.with_type(pa.int64())
    return field.with_type(pa.float64()) if pa.types.is_floating(field.type) else field


def _key_of(schema: pa.Schema, key: object, where: str) -> tuple[str, ...]:
    keys = (key,) if isinstance(key, str) else tuple(key) if isinstance(key, Sequence) else ()
    if not keys or not all(isinstance(each, str) for each in keys) or len(set(keys)) < len(keys):
        raise refused(f"{where}: key={key!r} names no columns, each once", 'name the key of a row: key="customer"')
    for each in keys:
        if each not in schema.names:
            raise unknown_column(each, schema.names, where)
    try:
        KeyType.of(schema.field(each) for each in keys)
    except ConfigError as error:
        raise refused(f"{where}: {error.what}", error.next_step) from error
    return keys


def _terms(
    nodes: tuple[Node, Node], terms: object, ranges: tuple[str, str], keys: AbstractSet[str], where: str
) -> Iterator[Term]:
    """Return the conditions of every query, those of equality first: they leave the fewest pairs."""
    if not isinstance(terms, Mapping) or not all(isinstance(each, str) for each in terms):
        raise refused(f"{where}: terms={terms!r} is not a mapping of columns", TERMS)
    bounds = [(column, operand) for column, operand in terms.items() if not isinstance(operand, str)]
    for column, operand in terms.items():
        if isinstance(operand, str):
            yield _term(nodes, column, "==", operand, keys, where)
    for column, operand in bounds:
        fits = isinstance(operand, Sequence) and len(operand) == 2 and any(each is not None for each in operand)
        if not fits or not all(each is None or isinstance(each, str) for each in operand):
            raise refused(f"{where}: the term {column!r}: {operand!r} names no column and no two bounds", TERMS)
        for compares, bound_by in zip(ranges, operand, strict=True):
            if bound_by is not None:
                yield _term(nodes, column, compares, bound_by, keys, where)


def _term(nodes: tuple[Node, Node], column: str, compares: str, query: str, keys: AbstractSet[str], where: str) -> Term:
    for called, node, name in zip(("stream", "table"), nodes, (column, query), strict=True):
        if name not in node.schema.names:
            raise unknown_column(name, node.schema.names, f"{where}, {called} {node.stream!r}")
    if query in keys:
        raise refused(
            f"{where}: the term {column!r} compares with {query!r}, which identifies queries or is in on=",
            "compare with another column of the table, or leave the term out",
        )
    ours, theirs = nodes[ROWS].schema.field(column).type, nodes[TABLE].schema.field(query).type
    if _large(ours) != _large(theirs):
        raise refused(
            f"{where}: {column!r} is {ours} in the stream, and {query!r} is {theirs} in the table",
            f'cast one: .with_columns({column}=pl.col("{column}").cast(...))',
        )
    try:
        HOLDS[compares](pa.array([], ours), pa.array([], ours))
    except pa.ArrowNotImplementedError as error:
        raise refused(
            f"{where}: values of type {ours}, {column!r}, cannot be compared with {compares}",
            f'cast both, for example .with_columns({column}=pl.col("{column}").cast(pl.Int64)), or leave the term out',
        ) from error
    return Term(column, compares, query, ours)


def _named_pairs(nodes: tuple[Node, Node], on: object, where: str) -> list[tuple[str, str]]:
    """Return the columns of the stream and of the table that have to be equal."""
    given = [on] if isinstance(on, str) else list(on) if isinstance(on, Sequence) else []
    pairs = [
        (each, each) if isinstance(each, str) else tuple(each) if isinstance(each, Sequence) else () for each in given
    ]
    if not pairs or any(len(each) != 2 or not all(isinstance(name, str) for name in each) for each in pairs):
        raise refused(f"{where}: on={on!r} names no columns", ON)
    for pair in pairs:
        for called, node, name in zip(("stream", "table"), nodes, pair, strict=True):
            if name not in node.schema.names:
                raise unknown_column(name, node.schema.names, f"{where}, {called} {node.stream!r}")
    return [(ours, theirs) for ours, theirs in pairs]


def _pairs(nodes: tuple[Node, Node], on: object, where: str) -> list[tuple[str, str]]:
    """Return the columns of the stream and of the table that have to be equal, in the order of the table's key."""
    pairs = _named_pairs(nodes, on, where)
    ours = {theirs: name for name, theirs in pairs}
    key = nodes[TABLE].upsert_key or ()
    if set(ours) != set(key) or len(pairs) != len(key):
        raise refused(
            f"{where}: on={on!r} is not the key of the table {nodes[TABLE].stream!r}, which is {', '.join(key)}; "
            "by other columns a row would find many",
            f"{ON}; or join streams: .join(name, other, on=..., within=...)",
        )
    _check_pairs(nodes, pairs, where)
    return [(ours[theirs], theirs) for theirs in key]


def _check_pairs(nodes: tuple[Node, Node], pairs: Sequence[tuple[str, str]], where: str) -> None:
    for name, theirs in pairs:
        left, right = nodes[ROWS].schema.field(name).type, nodes[TABLE].schema.field(theirs).type
        if _large(left) != _large(right):
            raise refused(
                f"{where}: {name!r} is {left} in the stream, and {theirs!r} is {right} in the table",
                f'cast one: .with_columns({name}=pl.col("{name}").cast(...))',
            )
        if reserved := [each for each in (name, theirs) if each in RESERVED]:
            raise refused(f"{where}: {reserved[0]!r} is a key column, and the state has one of that name", "rename it")


def _columns(
    nodes: tuple[Node, Node], pairs: Sequence[tuple[str, str]], how: str, suffix: str, where: str
) -> tuple[tuple[tuple[str, str], ...], list[pa.Field]]:
    """Return the names of the table's columns in the result; and the result's columns."""
    rows, table = (node.schema for node in nodes)
    if not isinstance(suffix, str) or not suffix:
        raise refused(f"{where}: suffix={suffix!r} is not a suffix", 'leave it out, or give for example "_right"')
    keys, fields, names = {theirs for _, theirs in pairs}, list(rows), []
    for field in table:
        if field.name in keys:
            continue
        _check_kept(field, "table", where)
        shown = field.name if field.name not in rows.names else f"{field.name}{suffix}"
        names.append((field.name, shown))
        fields.append(pa.field(shown, field.type, field.nullable or how == "left"))
    taken = [field.name for field in fields]
    if twice := [each for each in taken if taken.count(each) > 1]:
        raise refused(f"{where}: the result would have two columns {twice[0]!r}", "rename one, or give another suffix")
    return tuple(names), fields


def _check_waiting(schema: pa.Schema, keys: Sequence[str], where: str, called: str = "stream") -> None:
    for field in schema:
        if field.name not in keys:
            _check_kept(field, called, where)


def _check_kept(field: pa.Field, called: str, where: str) -> None:
    if kept_column(field, f"row.{field.name}") is None:
        raise refused(
            f"{where}: the look-up cannot keep {field.name!r} of the {called}, {field.type}",
            "leave it out with .select(...), or make it text or columns of their own before the look-up",
        )


def _time_of(node: Node, called: str, where: str) -> str:
    if node.event_time is not None and node.schema.field(node.event_time).type == TIME:
        return node.event_time
    source = "app.table" if called == "table" else "app.source"
    raise refused(
        f"{where}: as_of='event_time', and the {called} {node.stream!r} has no event time",
        f'name it, {source}(..., event_time="at"), and keep that column up to here; or take the row that the table has '
        'when a row arrives: as_of="latest"',
    )


def _large(kind: pa.DataType) -> pa.DataType:
    return {pa.utf8(): pa.large_utf8(), pa.binary(): pa.large_binary()}.get(kind, kind)
