"""The Python daemon of an executor: loads what workers need before they are forked.

Spark starts one daemon per executor and forks every Python worker from it. Imports done here cost a
new worker nothing, which is most of the time that a failover takes. Import only: a library that has
started threads (a used Polars, an open RocksDB) would hang in the forked child.

Source: DESIGN section 3; measured there.
"""

from __future__ import annotations

import os
import sys
import warnings


def _prefer_installed_spark() -> None:
    """Import PySpark from where it is installed, if it is, not from the zip that Spark puts first.

    Sources in a zip are compiled anew by every daemon: about four seconds.
    """
    if any(os.path.isfile(os.path.join(path, "pyspark", "worker.py")) for path in sys.path if os.path.isdir(path)):
        sys.path[:] = [path for path in sys.path if not path.endswith(("pyspark.zip", "-src.zip"))]


_prefer_installed_spark()
# PySpark says so at every start of a daemon; nothing here converts through pandas.
warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")

import encodings.idna  # noqa: F401

import numpy
import polars_hash  # noqa: F401
import pyarrow.compute
import pyarrow.ipc
import pyspark.daemon
import pyspark.worker

import holdfast.runtime.spark.host  # noqa: F401


def main() -> None:
    """Run Spark's own daemon."""
    # The first conversion from NumPy imports pandas, a quarter of a second.
    pyarrow.array(numpy.zeros(1))
    pyspark.daemon.manager()


if __name__ == "__main__":
    main()
