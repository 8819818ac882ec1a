"""Compiles all kernels before tests start, unless another checkout of this user has compiled the same ones.

The name of a compiled file holds a hash of everything that its content depends on (state/compiled/cache.py). So copies
in a folder of the user, outside the checkouts, fit wherever a file of that name is missing.

    python tools/kernels.py FOLDER
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from importlib import import_module
from pathlib import Path

from holdfast.state.compiled.cache import cache_folder

ROOT = Path(__file__).resolve().parents[1]
_MARK, _ENDS = "@kernel(", "*.kernel"
_UNUSED_S = 30 * 86_400


def main(kept: Path) -> None:
    """Bring files, compile missing kernels, keep these too; drop files that no checkout has used for a month."""
    kept.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = cache_folder()
    assert folder is not None, "the checkout is read-only, and so is the user's folder; kernels cannot be kept"
    _copy(kept, folder)
    for room in sorted((ROOT / "src/holdfast").iterdir()):
        for path in sorted(room.resolve().rglob("*.py")):  # rooms are links
            if _MARK in path.read_text():
                name = Path("holdfast", path.relative_to(ROOT)).with_suffix("")
                import_module(".".join(name.parts))
    _copy(folder, kept)
    for file in kept.glob(_ENDS):
        if file.stat().st_mtime < time.time() - _UNUSED_S:
            file.unlink(missing_ok=True)


def _copy(source: Path, target: Path) -> None:
    for file in source.glob(_ENDS):
        own = target / file.name
        if own.exists():
            os.utime(own)
        else:
            part = own.with_suffix(f".{os.getpid()}")
            shutil.copyfile(file, part)
            part.replace(own)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
