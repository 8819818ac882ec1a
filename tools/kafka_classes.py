"""Write an archive of the classes that a Kafka broker loads, from which tests start one in half of the time.

    python tools/kafka_classes.py .venv/kafka-classes.jsa

As tools/spark_classes.py does for Spark. Needs a broker's jars (tools/bootstrap.sh kafka).
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("src", "tests/bench", "tests/shared")]


def write(archive: Path) -> None:
    """Start a broker, use it once, and end its JVM, which writes the archive."""
    from kafka_server import running

    writing = archive.with_suffix(".writing")
    with running(f"-XX:ArchiveClassesAtExit={writing}", "-Xlog:disable") as server:
        server.produce(server.topic(), [b"record"])
        server.stop()
    if writing.exists():
        writing.replace(archive)
    else:
        print(f"{archive}: this Java wrote no archive; tests start brokers without one", file=sys.stderr)
        archive.touch()


if __name__ == "__main__":
    write(Path(sys.argv[1]).resolve())
