"""Files as a source: what is sent to the workers, and how a job gets its catalogue.

Source: runtime/plan/source.py; docs/decisions/0080-files-source.md.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.runtime.plan.source import Source
from holdfast.runtime.sources.files.catalogue import FileCatalogue, FileCatalogueHead, read_head
from holdfast.runtime.sources.files.formats import Format
from holdfast.runtime.sources.files.reading import OpenFiles, is_left_out
from holdfast.runtime.sources.objects import HEAD_PATH, remove, write_head
from holdfast.storage.bulk import read_together
from holdfast.storage.folders import open_folder
from holdfast.storage.objects import open_objects
from holdfast.storage.paths import below, is_same_place, real
from holdfast.traits import SourceTraits, local

_FOLDERS = ("path", "warehouse", "progress")
"""The parts of a sink's place that are a folder or a file."""
LOOK_EVERY_S, LOOK_REMOTELY_EVERY_S = 0.1, 1.0
"""How often a worker that has read all files looks for more of the catalogue; in a bucket each look costs money."""


@dataclass(frozen=True)
class FilesSource(Source):
    """Files to list and read.

    Args:
        path: The folder or URL that holds them.
        form: How they are written.
        partitions: How many files are read side by side.
        bounded: Whether only the files of the first start are read.
        folder: Where the catalogue is; None until the job's folder is known.
        head: The catalogue that is read; None: the one that the folder names.
        lists: Whether a connection lists files when it is asked for its partitions: those of a run do.
    """

    path: str
    form: Format
    partitions: int
    bounded: bool
    row_type: type | None = None
    folder: str | None = None
    head: FileCatalogueHead | None = None
    lists: bool = False

    def __repr__(self) -> str:
        return f"Files({self.path!r}, {self.form.name!r})"

    @property
    def schema(self) -> pa.Schema:
        return self.form.schema

    @property
    def where(self) -> str:
        """How messages name it."""
        return f"folder {self.path}"

    @property
    def traits(self) -> SourceTraits:
        """Files that were read may be deleted."""
        paths = (self.path,) if self.folder is None else (self.path, self.folder)
        return SourceTraits(
            kind="Files",
            local_paths=local(*paths),
            place={"path": self.path},
            finds=True,
            copied=True,
            copies="list of files",
            counts_bytes=self.form.is_text,
        )

    def check(self) -> None:
        """Refuse a folder that does not exist."""
        open_folder(self.path).check()

    def would_read(self, target: Mapping[str, str]) -> bool:
        """Compares paths as they are given, and without links."""
        written = [target[part] for part in _FOLDERS if target.get(part)]
        return any(
            _holds(self.path, path) or _holds(real(self.path), real(path)) or is_same_place(self.path, path)
            for path in written
        )

    def in_folder(self, folder: str) -> FilesSource:
        return replace(self, folder=folder)

    def copied(self, *, again: bool) -> FilesSource:
        """Copy the list of files."""
        store = open_objects(self._folder)
        before = read_head(store)
        if before is not None and not again:
            self._check_same(before)
            # No start that makes a catalogue can be under way: the job has a checkpoint.
            remove(store, lambda path: path != HEAD_PATH and not path.startswith(f"{before.folder}/"))
            return replace(self, head=before, lists=True)
        head = self._new_head()
        source = replace(self, head=head, lists=True)
        source.list_first()
        write_head(store, head)
        if before is not None:
            remove(store, lambda path: path.startswith(f"{before.folder}/"))
        return source

    def list_first(self) -> None:
        """List the files for the first time.

        Raises:
            ConfigError: the source is bounded, and there is none.
            Damaged, Unavailable: see OpenFiles.list_files.
        """
        open_files = self.open()
        try:
            count = open_files.list_files()
        finally:
            open_files.close()
        if self.bounded and not count:
            raise ConfigError(
                f"{self.where} holds no files, and a source with bounded=True would read nothing",
                not_done="the job was not started",
                next_step="correct the path; or, to read files that appear later, leave bounded=True out. Empty files, "
                "and names that begin with . or _ or end with .tmp or .crc, do not count",
            )

    def open(self) -> OpenFiles:
        store = open_objects(self._folder, writable=self.lists)
        head = self.head or read_head(store)
        if head is None:
            raise ConfigError(
                f"the files of {self.where} were not listed yet",
                not_done="the source was not opened",
                next_step="run the job: its first start lists them",
            )
        self._check_same(head)
        return OpenFiles(
            open_folder(self.path),
            self.where,
            FileCatalogue(store, head),
            self.form,
            partitions=head.partitions,
            bounded=head.bounded,
            lists=self.lists,
            every_s=LOOK_REMOTELY_EVERY_S if read_together(store) > 1 else LOOK_EVERY_S,
        )

    @property
    def _folder(self) -> str:
        assert self.folder is not None, "the job's folder is known when a job starts"
        return self.folder

    def _new_head(self) -> FileCatalogueHead:
        return FileCatalogueHead(
            folder=f"files-{uuid.uuid4().hex[:12]}",
            path=self.path,
            format=self.form.name,
            partitions=self.partitions,
            bounded=self.bounded,
        )

    def _check_same(self, head: FileCatalogueHead) -> None:
        """Refuse other arguments than those of the catalogue: they decide what a position names."""
        pairs = {
            "path": (head.path, self.path),
            "format": (head.format, self.form.name),
            "partitions": (head.partitions, self.partitions),
            "bounded": (head.bounded, self.bounded),
        }
        differ = [f"{name} was {was!r} and is {now!r}" for name, (was, now) in pairs.items() if was != now]
        if differ:
            raise ConfigError(
                f"the job has read {head.path} with other arguments of hf.Files: {', '.join(differ)}",
                not_done="the source was not opened",
                next_step="use the former arguments; or give the job another name, to read all files again",
            )


def _holds(read: str, written: str) -> bool:
    """Return whether a source of one folder reads what is written to another one."""
    if (inner := below(read, written)) is not None and not is_left_out(inner):
        return True
    outer = below(written, read)
    return (
        outer is not None and outer != () and all("=" in name for name in outer)
    )  # folders of values, such as date=2026-11-27
