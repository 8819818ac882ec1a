"""The Python daemon of an executor: imports the modules of workers and tasks before they are forked.

Spark starts one daemon per executor and forks every Python worker from it. Imports in the daemon cost a
new worker nothing; they are most of the time of a failover. The kernels of the state are loaded here, or compiled by
the first daemon of an installation (state/compiled/cache.py). Import only: a library that has started
threads (Polars in use, an open RocksDB) would hang in the forked child.

Source: DESIGN section 3; measured there.
"""

from __future__ import annotations

import os
import sys
import warnings


def _prefer_installed_spark() -> None:
    """Import PySpark from its installation, if it has one, not from the zip that Spark puts first.

    Every daemon compiles the sources in a zip again, which takes about four seconds.
    """
    if any(os.path.isfile(os.path.join(path, "pyspark", "worker.py")) for path in sys.path if os.path.isdir(path)):
        sys.path[:] = [path for path in sys.path if not path.endswith(("pyspark.zip", "-src.zip"))]


_prefer_installed_spark()
# PySpark warns at every start of a daemon; nothing here converts through pandas.
warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")

import encodings.idna  # noqa: F401

import numpy
import polars_hash  # noqa: F401
import pyarrow.compute
import pyarrow.ipc
import pyspark.daemon
import pyspark.worker

import holdfast.runtime.processes.host
import holdfast.runtime.spark.batch_jobs
import holdfast.state.compiled.planes
import holdfast.state.keys.hashing
import holdfast.state.keys.ordering
import holdfast.state.tables.kernels.index
import holdfast.state.tables.kernels.merging
import holdfast.state.tables.kernels.reordering
import holdfast.state.tables.kernels.rows
import holdfast.state.tables.kernels.slots
import holdfast.state.tables.kernels.tree  # noqa: F401

# The first conversion from NumPy imports pandas, which takes a quarter of a second.
pyarrow.array(numpy.zeros(1))


def main() -> None:
    """Run Spark's own daemon. It ends without taking down its imports, which takes seconds and saves nothing."""
    try:
        pyspark.daemon.manager()
    except SystemExit as ended:
        sys.stderr.flush()
        os._exit(ended.code if isinstance(ended.code, int) else 1)


if __name__ == "__main__":
    main()
