"""Options with which Spark's JVM starts in less time: an archive of the classes of a start, and later optimization.

The second JVM that this user starts with the same Java and the same Spark stores the classes that it has loaded when it
exits, which takes some seconds, once; later ones map them. The first only notes its start: a container, whose home is
new with every start, never stores anything. Options for the compiler postpone full optimization until a method has run
ten times as often as by default: a start compiles thousands of methods that matter for seconds only, and hot code of a
long job is optimized all the same.

Invariants
    - An archive is code. It is loaded only from a folder and a file that no other user can write.
    - The JVM decides whether an archive fits: it compares its own version, and path, size and time of each jar. It
      ignores one that does not fit, is damaged or missing, without a word.
    - An archive gets its name when it is complete: after the JVM that wrote it has exited with status 0.
    - One process at a time stores an archive of a name, and after STARTS_MAX starts none tries it for a day.
    - Options that the user gave win. With any of them about archives, nothing is said about archives here.

Source: JDK, "Application Class-Data Sharing", -XX:ArchiveClassesAtExit; docs/decisions/0129-start-on-spark.md.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import shutil
import stat
import time
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from holdfast.caches import is_private, user_caches

SUBMIT = "SPARK_SUBMIT_OPTS"
"""The variable in which Spark's scripts find options for its JVM."""
FOLDER = "holdfast-spark"
STARTS_MAX = 4
"""A JVM that was killed stores nothing; from the second start to this one, each tries it, then none for a day."""
DAY_S = 86_400
UNUSED_S = 30 * DAY_S
"""Archives that were not used for so long are removed when another one is stored."""
SPACE_BYTES = 512 * 1024**2
"""Free disk space without which no archive is stored; it takes about 70 MB."""
LATER_OPTIMIZED = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
"""Ten times the defaults. Measured: decision 0129."""
_SILENT = "-Xlog:cds=off,cds+dynamic=off"
_JAVA_OPTIONS = (SUBMIT, "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "PYSPARK_SUBMIT_ARGS")
_USERS_OWN = (
    *("Xshare", "SharedArchive", "ArchiveClasses", "DynamicDump", "AOT", "-XX:Flags", "VMOptionsFile", "-javaagent"),
    *("-agentlib", "-agentpath", "-module", "classpath", "class-path", "properties-file"),
)
"""In options in any case: those of an archive of the user, and those with which no archive can be stored."""
_ON_CLASS_PATH = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH", "SPARK_PREPEND_CLASSES", "SPARK_TESTING")
"""Variables that put folders on the class path. The JVM stores no archive if one of them has files."""


@dataclass
class Boost:
    """Options for one start of the JVM.

    Args:
        archive: The archive that this JVM stores when it exits; None if it stores none.
        worthwhile: The JVM has loaded what a job needs; one whose start failed on the way has not.
    """

    options: str = ""
    archive: Path | None = None
    worthwhile: bool = False
    _part: Path | None = None
    _lock: int | None = None

    @contextmanager
    def applied(self, environment: MutableMapping[str, str]) -> Iterator[None]:
        """Let Spark's scripts see the options, in front of the user's."""
        if not self.options:
            yield
            return
        before = environment.get(SUBMIT)
        environment[SUBMIT] = f"{self.options} {before or ''}".strip()
        try:
            yield
        finally:
            if before is None:
                del environment[SUBMIT]
            else:
                environment[SUBMIT] = before

    def stored(self, status: int | None) -> bool:
        """Take the exit status of the JVM; return whether it has stored the archive, which later starts use."""
        part, archive, lock = self._part, self.archive, self._lock
        self._part = self.archive = self._lock = None
        if part is None or archive is None:
            return False
        try:
            if status == 0 and self.worthwhile and part.stat().st_size:
                part.replace(archive)
                return True
            return False
        except OSError:
            return False
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            if lock is not None:
                os.close(lock)


def boost(environment: Mapping[str, str], spark_home: Path) -> Boost:
    """Return the options for a start of Spark's JVM; none for a JVM or an installation of an unknown kind."""
    java = _java_home(environment)
    if java is None or not (spark_home / "jars").is_dir():
        return Boost()
    folder = user_caches() / FOLDER
    if not _can_be_archived(environment, spark_home) or not _plain(folder) or not is_private(folder):
        return Boost(LATER_OPTIMIZED)
    try:
        archive = folder / f"{key_of(environment, java, spark_home)}.jsa"
        if _is_trusted(archive):
            os.utime(archive, follow_symlinks=False)
            return Boost(f'{LATER_OPTIMIZED} "-XX:SharedArchiveFile={archive}" {_SILENT}')
        lock = _turn(archive)
        if lock is None:
            return Boost(LATER_OPTIMIZED)
        _remove_unused(folder)
        part = archive.with_suffix(f".{os.getpid()}.part")
        return Boost(f'{LATER_OPTIMIZED} "-XX:ArchiveClassesAtExit={part}" {_SILENT}', archive, _part=part, _lock=lock)
    except (OSError, ValueError):  # a disk that is full or gone, options that are no words
        return Boost(LATER_OPTIMIZED)


def key_of(environment: Mapping[str, str], java: Path, spark_home: Path) -> str:
    """Return the name of an archive: a hash of the Java, Spark's jars, and the options that the user gave to Java.

    Raises:
        OSError: a file cannot be read.
        ValueError: a quote in the options does not end.
    """
    jvm = [_identity(java / name) for name in ("lib/server/libjvm.so", "lib/server/classes.jsa", "lib/modules")]
    jars = sorted(_identity(jar) for jar in (spark_home / "jars").iterdir())
    options = [
        word
        for name in (*_JAVA_OPTIONS, "SPARK_DRIVER_MEMORY")
        for word in shlex.split(environment.get(name, ""))
        if not word.startswith("-D")  # a property does not change classes, and the path of a log is another every time
    ]
    return hashlib.sha256(repr((1, jvm, jars, options)).encode()).hexdigest()[:32]


def _identity(file: Path) -> tuple[str, int, int]:
    found = file.stat()
    return str(file), found.st_size, found.st_mtime_ns


def _java_home(environment: Mapping[str, str]) -> Path | None:
    """Return the home of the Java that Spark's scripts would take; None unless it is a HotSpot that has an archive."""
    home = environment.get("JAVA_HOME")
    found = shutil.which(str(Path(home) / "bin/java") if home else "java", path=environment.get("PATH"))
    if found is None:
        return None
    java = Path(found).resolve().parent.parent
    return java if (java / "lib/server/classes.jsa").is_file() else None


def _can_be_archived(environment: Mapping[str, str], spark_home: Path) -> bool:
    """Return whether the JVM can store what it loads: there is no folder with files on its class path."""
    options = " ".join(environment.get(name, "") for name in _JAVA_OPTIONS).lower()
    if any(word.lower() in options for word in _USERS_OWN) or any(environment.get(name) for name in _ON_CLASS_PATH):
        return False
    configured = Path(environment.get("SPARK_CONF_DIR") or spark_home / "conf")
    try:
        return not any(configured.iterdir())
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _plain(folder: Path) -> bool:
    """Return whether Spark's scripts pass the path on as it is."""
    return folder.is_absolute() and str(folder).isprintable() and not set(str(folder)) & set("\"'\\")


def _is_trusted(archive: Path) -> bool:
    try:
        found = os.lstat(archive)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _turn(archive: Path) -> int | None:
    """Note a start without the archive; return a lock if it is this process's turn to store it."""
    lock = os.open(archive.with_suffix(".starts"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        noted = os.fstat(lock)
        starts = noted.st_size + 1
        if starts > STARTS_MAX and noted.st_mtime < time.time() - DAY_S:
            starts = STARTS_MAX
        if starts <= STARTS_MAX:
            os.pwrite(lock, b".", starts - 1)
        if 1 < starts <= STARTS_MAX and shutil.disk_usage(archive.parent).free >= SPACE_BYTES:
            return lock
    except OSError:  # another process stores it now, the disk is full, or this file system has no locks
        pass
    os.close(lock)
    return None


def _remove_unused(folder: Path) -> None:
    """Remove archives that nothing has started from for a month, and parts of JVMs whose driver was killed."""
    now = time.time()
    for file in folder.iterdir():
        with suppress(OSError):
            if file.stat().st_mtime < now - (DAY_S if file.suffix == ".part" else UNUSED_S):
                file.unlink()
