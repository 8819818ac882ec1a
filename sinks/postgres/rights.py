"""Permissions of a user: those that deliveries need, asked for before any epoch is committed.

A statement that lacks one is refused only when it runs. The first delivery runs after the commit of its epoch, which
then waits for an administrator; so a start and `holdfast doctor` ask the server beforehand.

Source: postgresql.org/docs/current/functions-info.html (access privilege inquiry functions).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from holdfast.errors import NotAdmitted
from holdfast.sinks.contract.phrases import WAITS
from holdfast.sinks.sql.dialect import Connection

KEYED = ("SELECT", "INSERT", "UPDATE", "DELETE")
"""For rows that replace each other, and for Holdfast's own tables."""
NUMBERED = ("SELECT", "INSERT")
"""For rows that are only added, and read back by their numbers. A rewind needs DELETE too, and reports it."""
ADDED = ("INSERT",)

_LACKING = """\
SELECT CASE WHEN c.relname = $2 THEN 0 ELSE 1 END AS place, c.relname, p.privilege
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN unnest($4::text[]) WITH ORDINALITY AS p(privilege, rank)
WHERE n.nspname = $1 AND c.relkind = 'r'
AND (c.relname = $2 AND p.privilege = ANY ($3::text[]) OR c.relname = ANY ($5::text[]))
AND NOT CASE WHEN p.privilege = 'DELETE' THEN has_table_privilege(c.oid, p.privilege) ELSE (
    SELECT coalesce(bool_and(has_column_privilege(c.oid, a.attnum, p.privilege)), true)
    FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    AND (p.privilege = 'SELECT' OR a.attgenerated = '' AND a.attidentity <> 'a')
) END
ORDER BY place, c.relname, p.rank"""
_SESSION = "SELECT current_user, current_database(), has_database_privilege(current_database(), 'TEMPORARY')"


@dataclass(frozen=True)
class Grant:
    """A permission that is missing.

    Args:
        what: For messages: "INSERT on sales.orders".
        statement: Grants it.
    """

    what: str
    statement: str


def lacking(db: Connection, schema: str, table: str, needed: Sequence[str], own: Sequence[str]) -> list[Grant]:
    """Return the privileges that the user lacks: on the table, on Holdfast's tables beside it, and on the database.

    Args:
        needed: Privileges on the table that deliveries need.
        own: Holdfast's tables that they write. Others in the schema may be of other users' sinks.
    """
    user, database, temporary = db.execute(_SESSION).fetchone()
    privileges_by_table: dict[str, list[str]] = {}
    for _, name, privilege in db.execute(_LACKING, (schema, table, list(needed), list(KEYED), list(own))):
        privileges_by_table.setdefault(name, []).append(privilege)
    grants = [
        Grant(
            f"{', '.join(privileges)} on {schema}.{name}",
            f"GRANT {', '.join(privileges)} ON {_quoted(schema, name)} TO {_quoted(user)}",
        )
        for name, privileges in privileges_by_table.items()
    ]
    if not temporary:
        statement = f"GRANT TEMPORARY ON DATABASE {_quoted(database)} TO {_quoted(user)}"
        grants.append(Grant(f"TEMPORARY on the database {database}", statement))
    return grants


def refused(where: str, grants: list[Grant]) -> NotAdmitted:
    """Return the refusal of a user who lacks them."""
    return NotAdmitted(
        f"{where}: this user lacks a permission: {'; '.join(grant.what for grant in grants)}",
        not_done=WAITS,
        next_step=f"grant it: {'; '.join(grant.statement for grant in grants)}",
    )


def _quoted(*names: str) -> str:
    return sql.Identifier(*names).as_string(None)
