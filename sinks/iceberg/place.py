"""Where an Iceberg table is: its catalogue, which is a database, its warehouse, and the options of its object store.

Invariants
    - No value of this module but the results of `url` and `settings` holds a secret.
    - The catalogue compares and sets the table's metadata in one statement, as SQLite and Postgres do.

Source: py.iceberg.apache.org/configuration; docs/decisions/0099-iceberg-sink.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from holdfast.secrets import Secret, secret_argument
from holdfast.sinks.lakehouse.options import Option, Options, check_option, refused, revealed, secrets_of
from holdfast.sinks.lakehouse.options import without_secrets as without
from holdfast.storage.paths import refuse_password

SINK = "hf.Iceberg"
_NAME = re.compile(r"[^\s./]+(\.[^\s./]+)+")
_CATALOGUE = re.compile(r"(sqlite|postgresql)(\+psycopg)?://")
_MEMORY = re.compile(r"sqlite:///?(:memory:)?(\?.*)?")
_MISREAD = re.compile(r"[#?%\x00-\x1f\x7f]")
"""Characters that pyiceberg treats as a part of a URL, or may read as another character."""
_SCHEMES = ("s3://", "s3a://", "gs://", "abfs://", "abfss://")
_OWN = ("uri", "type", "warehouse", "init_catalog_tables", "echo")
"""Properties of a catalogue that have their own arguments, or none."""


@dataclass(frozen=True)
class IcebergPlace:
    """A table.

    Args:
        table: Its namespace and name, with dots.
        catalog: A URL of SQLAlchemy without a password.
        warehouse: An absolute path, or a URL.
        catalog_name: The name under which the catalogue keeps its tables.
        options: Options of the object store, sorted by name.
        password: The password of the catalogue's database.
    """

    table: str
    catalog: str
    warehouse: str
    catalog_name: str
    options: Options = ()
    password: Secret | None = None

    @property
    def where(self) -> str:
        """How messages name it."""
        return f"Iceberg table {self.table} in {self.warehouse}"

    @property
    def sqlite(self) -> str | None:
        """The file of the catalogue; None: it is a server."""
        return self.catalog.partition(":///")[2].partition("?")[0] if self.catalog.startswith("sqlite") else None

    @property
    def paths(self) -> tuple[str, ...]:
        """The places that may be local: the warehouse, and the file of the catalogue."""
        return (self.warehouse,) if self.sqlite is None else (self.warehouse, self.sqlite)

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """The secrets that the arguments name."""
        return (*secrets_of(self.options), *([] if self.password is None else [self.password]))

    def url(self) -> str:
        """Return the URL that the catalogue is opened with. Raises ConfigError or NotAdmitted."""
        url = self.catalog.replace("postgresql://", "postgresql+psycopg://", 1)
        if self.password is None:
            return url
        scheme, _, rest = url.partition("://")
        user, _, host = rest.rpartition("@")
        return f"{scheme}://{user}:{quote(self.password.value(), safe='')}@{host}"

    def settings(self) -> dict[str, str]:
        """Return the properties of the catalogue besides its URL. Raises ConfigError or NotAdmitted."""
        warehouse = self.warehouse if "://" in self.warehouse else f"file://{self.warehouse}"
        return {**revealed(self.options), "warehouse": warehouse}

    def without_secrets(self, text: str) -> str:
        """Return a text of a library without the values of this place's secrets."""
        return without(text, self.secrets)


def place_of(
    table: str,
    catalog: str,
    warehouse: str,
    catalog_name: str,
    options: Mapping[str, Option] | None,
    password: Secret | None,
) -> IcebergPlace:
    """Return the place that a job gives.

    Args:
        warehouse: An absolute path, or a URL.

    Raises:
        ConfigError: it is malformed, or holds a secret.
    """
    if not _NAME.fullmatch(table):
        raise refused(SINK, f"{table!r} is not the name of a table", 'give a namespace and a name: "shop.sales"')
    refuse_password(catalog, "the catalogue of hf.Iceberg")
    if not _CATALOGUE.match(catalog) or _MEMORY.fullmatch(catalog):
        raise refused(
            SINK,
            f"{catalog.partition('://')[0]!r} is not a catalogue that a sink can commit to exactly once",
            'give a database: catalog="sqlite:///lake/catalog.db", or "postgresql://USER@HOST/DATABASE"',
        )
    if password is not None and "@" not in catalog:
        raise refused(SINK, "the catalogue has a password but no user", 'give "postgresql://USER@HOST/DATABASE"')
    if "://" in warehouse and not warehouse.startswith(_SCHEMES):
        raise refused(
            SINK,
            f"{warehouse.partition('://')[0]}:// is not a place for tables",
            f"give a path, or a URL that begins with {', '.join(_SCHEMES)}",
        )
    refuse_password(warehouse, "the warehouse of hf.Iceberg")
    if found := _MISREAD.search(warehouse):
        raise refused(SINK, f"the warehouse contains {found[0]!r}, which pyiceberg misreads", "rename the folder")
    option_values = {} if options is None else dict(options)
    for name, value in option_values.items():
        if name in _OWN:
            raise refused(SINK, f"the option {name!r} is none of an object store", "leave it out")
        check_option(SINK, name, value)
    password = secret_argument(password, "hf.Iceberg(password=)")
    return IcebergPlace(
        table, catalog, warehouse.rstrip("/") or warehouse, catalog_name, tuple(sorted(option_values.items())), password
    )
