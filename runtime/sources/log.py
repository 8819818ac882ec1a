"""`hf.Log`: the embedded log as a source.

Only the path and the expected columns travel to the workers; each opens the log for itself. A log that is missing or
has other columns is refused at plan time.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.runtime.schema import describe_difference, schema_of
from holdfast.storage.log import LogReader, read_meta
from holdfast.storage.logformat import LogMeta, describe_column
from holdfast.storage.objects import open_objects


class Log:
    """A partitioned, append-only log on a folder or an object store.

    Args:
        path: A folder or URL. A relative path is taken from the working directory of the program that creates this.
        schema: A dataclass or pyarrow.Schema that the log must have; None takes the log's own.
        key: Columns by which rows are partitioned when a log is created.
        partitions: Number of partitions when a log is created.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        schema: type | pa.Schema | None = None,
        key: Sequence[str] | None = None,
        partitions: int = 4,
    ) -> None:
        text = os.fspath(path)
        self.path = text if "://" in text else os.path.abspath(text)
        self.row_type = schema if isinstance(schema, type) else None
        self._expected = None if schema is None else schema_of(schema)
        self.key = None if key is None else (key,) if isinstance(key, str) else tuple(key)
        self.partitions = partitions

    def __repr__(self) -> str:
        return f"Log({self.path!r})"

    @property
    def schema(self) -> pa.Schema:
        """The expected columns, else those of the log itself. Raises ConfigError if there is no log."""
        return self._meta().schema if self._expected is None else self._expected

    def check(self) -> None:
        """Raise ConfigError unless the log exists with the expected columns."""
        self._check_schema(self._meta())

    def open(self) -> OpenLog:
        meta = self._meta()
        self._check_schema(meta)
        return OpenLog(LogReader(open_objects(self.path, writable=False)))

    def _meta(self) -> LogMeta:
        meta = read_meta(open_objects(self.path, writable=False))
        if meta is None:
            columns = ",".join(map(describe_column, self._expected)) if self._expected is not None else "name:int64"
            key = f" --key {','.join(self.key)}" if self.key else ""
            raise ConfigError(
                f"there is no log at {self.path}",
                not_done="the source was not opened",
                next_step=f'create it: holdfast log create {self.path} --schema "{columns}" '
                f"--partitions {self.partitions}{key}",
            )
        return meta

    def _check_schema(self, meta: LogMeta) -> None:
        if self._expected is None:
            return
        if difference := describe_difference(self._expected, meta.schema):
            raise ConfigError(
                f"the log at {self.path} does not have the columns that the job expects: {difference}",
                not_done="the source was not opened",
                next_step="correct the job's schema, or create another log and copy the rows into it",
            )


class OpenLog:
    """The log as one worker reads it; at the end of what is known it looks for new commits."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader

    def identity(self) -> str:
        return self._reader.meta.uuid

    def partitions(self) -> list[int]:
        return list(range(self._reader.meta.partitions))

    def end_offsets(self) -> dict[int, int]:
        self._reader.refresh()
        return self._reader.end_offsets()

    def retention_start(self, partition: int) -> int:
        return self._reader.retention_start(partition)

    def read(self, partition: int, offset: int, max_bytes: int) -> tuple[pa.RecordBatch | None, int]:
        if offset >= self._reader.end_offset(partition):
            self._reader.refresh()
        return self._reader.read(partition, offset, max_bytes)

    def ended(self, partition: int, offset: int) -> bool:
        return self._reader.sealed and offset >= self._reader.end_offset(partition)

    def close(self) -> None:
        self._reader.close()
