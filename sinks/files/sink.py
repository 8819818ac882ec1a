"""A folder of Parquet files as a sink: `hf.Files` in a `.sink(...)`.

Source: API.md (sinks); docs/decisions/0083-files-sink.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.model import Writer
from holdfast.ports import TidyStore
from holdfast.sinks.contract.owners import Claim, Holding, Ownership
from holdfast.sinks.contract.sink import Repair, Repairs, Rewinding, Sink, check_key
from holdfast.sinks.contract.target import Fault, no_fault
from holdfast.sinks.files.commits import FolderCommits, create_folder, open_stores, read_meta
from holdfast.sinks.files.format import Meta
from holdfast.sinks.files.hive import NoFolder, Partitioning
from holdfast.sinks.files.repair import Size, plan_repair, repair
from holdfast.sinks.files.rolling import empty_file
from holdfast.sinks.files.target import FilesTarget, unfit
from holdfast.storage.bulk import get_each
from holdfast.storage.folders import open_folder
from holdfast.storage.log.format import describe_column
from holdfast.traits import SinkTraits, local

FILE_BYTES = 128 << 20
FILE_BYTES_MIN, FILE_BYTES_MAX = 1 << 10, 1 << 30
_DELTA_LOG = ("_delta_log/_last_checkpoint", f"_delta_log/{0:020}.json")
"""Objects of which every Delta table has at least one."""


@dataclass(frozen=True)
class FilesSink(Repairs, Ownership, Sink):
    """A folder as users configure it; see contract.Sink.

    Args:
        path: A folder or URL, absolute.
        partitioning: How rows are spread over folders.
        file_bytes: How large a file becomes before the next one of its epoch begins.
        expected: The columns that the user declared for the rows; None: those of the stream.
    """

    key = None
    path: str
    partitioning: Partitioning = field(default_factory=Partitioning)
    file_bytes: int = FILE_BYTES
    expected: pa.Schema | None = None

    def __repr__(self) -> str:
        return f"Files({self.path!r})"

    @property
    def where(self) -> str:
        """How messages name the target."""
        return f"files in {self.path}"

    @property
    def traits(self) -> SinkTraits:
        return SinkTraits(
            kind="Files",
            local_paths=local(self.path),
            place={"path": self.path},
            commits_once=True,
        )

    def check(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        if upsert_key is not None:
            raise ConfigError(
                f"{self.where}: the stream replaces rows by {list(upsert_key)}, but rows are only ever added to files",
                not_done="the job was not planned",
                next_step='use emit="each" or emit="final", or a sink with a key, such as hf.SQLite or hf.Log',
            )
        check_key(self.where, schema, upsert_key, None)
        if self.expected is not None and not _alike(self.expected, schema):
            raise self._differs("the schema given to hf.Files has", self.expected, schema)
        try:
            self.partitioning.refuse(schema)
            empty_file(self.partitioning.in_files(schema))
        except (NoFolder, pa.ArrowException, OSError) as error:  # Parquet's own errors are OSErrors
            raise ConfigError(
                f"{self.where}: {error}",
                not_done="the job was not planned",
                next_step="select or convert columns before the sink, or change partition_by or date_of",
            ) from error

    def prepare(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        self.check(schema, upsert_key)
        if (meta := self._found()) is not None:
            self._compare(meta, schema)
        data, own = open_stores(self.path, writable=True)
        if meta is None:
            self._compare(create_folder(own, schema, self.partitioning), schema)
        if isinstance(data, TidyStore):
            data.tidy(folders=False)  # of files that killed writers had begun; other folders may be the user's

    def probe(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> str:
        self.check(schema, upsert_key)
        if (meta := self._found()) is None:
            return "the first start creates the folder; files that are there already stay"
        self._compare(meta, schema)
        return "the folder exists and fits the stream"

    def check_owner(self, job_uuid: str | None, name: str) -> None:
        for tag in self._commits().refresh().tags:
            owner, _, rest = tag.writer.partition("/")
            if rest.rpartition("/")[0] == name and owner != job_uuid:
                raise ConfigError(
                    f"{self.where}: holds output of a sink {name!r} of another job, {owner}, up to epoch "
                    f"{tag.epoch} of timeline {tag.timeline}",
                    not_done="the job was not started, the folder was not changed",
                    next_step="if that job was deleted and recreated, its rows would be added twice: name another "
                    "folder. If both jobs are to write here, give this sink another name",
                )

    def accept(self, batch: pa.RecordBatch) -> None:
        try:
            self.partitioning.folders(batch)
        except NoFolder as error:
            raise unfit(self.where, error) from error

    def holding(self, job_uuid: str, name: str) -> Holding:
        tail = self._commits().refresh()
        return Holding(tail.held(job_uuid, name), tail.newest_of(job_uuid, name))

    def open(self, job_uuid: str, writer: Writer, claim: Claim | None = None) -> FilesTarget:
        return self.opened(job_uuid, writer, claim)

    def opened(self, job_uuid: str, writer: Writer, claim: Claim | None = None, fault: Fault = no_fault) -> FilesTarget:
        """Return a target that calls `fault` at every point of a delivery."""
        stores = lambda: open_stores(self.path)
        return FilesTarget(self.where, stores, job_uuid, writer, self.file_bytes, claim, fault)

    def plan_repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        return plan_repair(self.where, self._commits(), self._sizes(), rewinding)

    def repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        return repair(self.where, self._commits(), self._sizes(), rewinding)

    def _commits(self) -> FolderCommits:
        return FolderCommits(self.where, lambda: open_stores(self.path))

    def _sizes(self) -> Size:
        """Return the function that measures files of the folder, which is opened once for all of them."""
        folder = open_folder(self.path)

        def size_of(path: str) -> int | None:
            found = folder.look(path)
            return None if found is None else found.size

        return size_of

    def _found(self) -> Meta | None:
        """Return the folder's description; None if the folder is to be created.

        Raises:
            ConfigError: it is that of a Delta table, whose readers would not see the files of this sink.
        """
        data, own = open_stores(self.path)
        if (meta := read_meta(own)) is None and get_each(data, _DELTA_LOG):
            raise ConfigError(
                f"{self.where}: the folder holds a Delta table, whose VACUUM would delete the files of this sink",
                not_done="the job was not started, the folder was not changed",
                next_step="name another folder, or write to the table with hf.Delta",
            )
        return meta

    def _compare(self, meta: Meta, schema: pa.Schema) -> None:
        """Refuse rows that differ from those in the folder: readers would find both forms."""
        if not _alike(meta.columns, schema):
            raise self._differs("its files hold", meta.columns, schema)
        if meta.partitioning != self.partitioning:
            raise ConfigError(
                f"{self.where}: its files are spread by partition_by={list(meta.partition_by)}, "
                f"date_of={meta.date_of!r}; the sink has {list(self.partitioning.columns)} and "
                f"{self.partitioning.date_of!r}",
                not_done="the job was not started, the folder was not changed",
                next_step="use the former arguments, or name another folder",
            )

    def _differs(self, what: str, found: pa.Schema, stream: pa.Schema) -> ConfigError:
        columns = [", ".join(map(describe_column, each)) for each in (found, stream)]
        return ConfigError(
            f"{self.where}: {what} {columns[0]}; the stream has {columns[1]}",
            not_done="the job was not started, the folder was not changed",
            next_step="select columns that fit before the sink, or name another folder; a missing one is created",
        )


def _alike(one: pa.Schema, other: pa.Schema) -> bool:
    """Return whether names and types are equal. All columns of a file may be null."""
    return bool(one.names == other.names and one.types == other.types)
