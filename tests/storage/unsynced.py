"""Simulates a loss of power: synced files and folders survive, anything may happen to the rest.

`Unsynced` records, outside the folder, the file operations of a process, and keeps a copy of every file that it syncs.
After the process was killed, `cut_power` changes the folder into a state that a machine might find after losing power
then: a name that was not synced with its folder may exist or not; unsynced bytes may be present, partly present, zeros,
or missing. An unsynced removal may not have happened.

Invariants
    - Synced data is left as it was synced.
    - The same seed gives the same loss.

I/O: local files.
Source: Pillai et al., All File Systems Are Not Created Equal, 2014 (what POSIX promises: fsync of file and folder).
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = -1
"""Marks a folder where a number would mark a file."""
Names = dict[str, int]


class Unsynced:
    """Records what happens to files. Create it before the functions of `os` are replaced.

    Args:
        folder: The folder whose files count.
        notes: A folder elsewhere, for the records.
        parts: Relative paths of subfolders whose files count; other files are not simulated.
    """

    def __init__(self, folder: Path, notes: Path, parts: tuple[str, ...]) -> None:
        self._folder, self._notes, self._parts, self._copies = folder, notes, parts, 0
        notes.mkdir(exist_ok=True)
        self._open = open  # the original, before it is replaced
        self._file = os.open(notes / "steps", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, name: str, path: str, to: str) -> None:
        """A step succeeded."""
        if not path.startswith(self._parts):
            return
        copy = ""
        if name == "fsync" and not os.path.isdir(self._folder / path):
            self._copies += 1
            copy = f"{self._copies:08d}"
            with self._open(self._folder / path, "rb") as source, self._open(self._notes / copy, "wb") as target:
                target.write(source.read())
        os.write(self._file, json.dumps([name, path, to or copy]).encode() + b"\n")


@dataclass
class _Disk:
    """The present names and the durable names, by folder; the files behind them by number."""

    now: dict[str, Names] = field(default_factory=dict)
    kept: dict[str, Names] = field(default_factory=dict)
    copies: dict[int, str] = field(default_factory=dict)
    files: int = 0

    def play(self, name: str, path: str, other: str) -> None:
        """Replay the next recorded step."""
        parent, _, own = path.rpartition("/")
        names = self.now.setdefault(parent, {})
        match name:
            case "create":
                self.files += 1
                names[own] = self.files
            case "mkdir":
                names[own] = FOLDER
            case "link" | "replace" | "rename":
                folder, _, new = other.rpartition("/")
                self.now.setdefault(folder, {})[new] = names[own] if name == "link" else names.pop(own)
            case "unlink" | "remove" | "rmdir":
                names.pop(own, None)
            case "fsync" if other:
                self.copies[names[own]] = other
            case "fsync":
                self.kept[path] = dict(self.now.get(path, {}))

    def begin(self, root: Path, parts: tuple[str, ...], keep: Callable[[bytes], str]) -> None:
        """Treat the initial contents as synced."""
        for part in parts:
            for folder, folders, files in os.walk(root / part):
                names = self.now.setdefault(os.path.relpath(folder, root), {})
                names |= dict.fromkeys(folders, FOLDER)
                for name in files:
                    self.files += 1
                    names[name] = self.files
                    self.copies[self.files] = keep(Path(folder, name).read_bytes())
        self.kept = {folder: dict(names) for folder, names in self.now.items()}


def begin(folder: Path, notes: Path, parts: tuple[str, ...]) -> None:
    """Record the contents before the process starts."""
    notes.mkdir()
    disk, count = _Disk(), 0

    def keep(data: bytes) -> str:
        nonlocal count
        count += 1
        (notes / f"begin-{count}").write_bytes(data)
        return f"begin-{count}"

    disk.begin(folder, parts, keep)
    (notes / "begin.json").write_text(json.dumps([disk.now, disk.copies, disk.files]))


def cut_power(folder: Path, notes: Path, parts: tuple[str, ...], seed: int) -> int:
    """Change the folder into such a state; return how many names or files were lost or changed."""
    rng = random.Random(f"{seed}/power")
    disk = _Disk()
    disk.now, copies, disk.files = json.loads(_text(notes / "begin.json"))
    disk.copies = {int(number): copy for number, copy in copies.items()}
    disk.kept = {path: dict(names) for path, names in disk.now.items()}
    for line in _text(notes / "steps").splitlines():
        disk.play(*json.loads(line))
    strict = rng.random() < 0.5
    lost = 0
    for part in parts:
        if (folder / part).is_dir():
            lost += _cut(folder, part, disk, notes, rng, strict)
    return lost


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _cut(root: Path, folder: str, disk: _Disk, notes: Path, rng: random.Random, strict: bool) -> int:
    now, kept = disk.now.get(folder, {}), disk.kept.get(folder, {})
    lost = 0
    contents = {number: (root / folder / name).read_bytes() for name, number in now.items() if number != FOLDER}
    for name in sorted({*now, *kept}):
        was, is_ = kept.get(name), now.get(name)
        stays = was if was == is_ or strict or rng.random() < 0.5 else is_
        place = root / folder / name
        lost += was != is_ and stays == was
        if stays == FOLDER:
            place.mkdir(exist_ok=True)
            lost += _cut(root, f"{folder}/{name}", disk, notes, rng, strict)
        elif stays is None:
            _remove(place)
        else:
            data = (notes / disk.copies[stays]).read_bytes() if stays in disk.copies else None
            lost += data is None
            place.write_bytes(_torn(contents.get(stays, b""), rng) if data is None else data)
    return lost


def _remove(place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def _torn(data: bytes, rng: random.Random) -> bytes:
    """Return what may be left of bytes that were never synced."""
    choices: list[Any] = [b"", data[: rng.randint(0, len(data))], bytes(len(data)), data]
    chosen: bytes = rng.choice(choices)
    return chosen
