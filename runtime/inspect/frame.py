"""`hf.state`: the state of an operator as a Polars frame."""

from __future__ import annotations

import os

import polars as pl
import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.runtime.config.settings import root_given
from holdfast.runtime.inspect.reading import reading_of
from holdfast.runtime.inspect.stored import open_job


def state(job: str, operator: str, epoch: int | str | None = None, root: str | None = None) -> pl.DataFrame:
    """Read the committed state of an operator, also of a running job.

    Args:
        job: Name of the job under the root.
        operator: Name of the operator, as in `.agg(name, ...)`.
        epoch: Epoch of a checkpoint, or name of a savepoint; by default the newest checkpoint.
        root: Folder or URL that holds the jobs; by default HOLDFAST_ROOT, else `./.holdfast`.

    Returns:
        One row per key, in the order of key groups: the columns of the key, for windows `window_start` and
        `window_end`, and the results by their names.

    Raises:
        ConfigError: there is no such job, operator or checkpoint, or the checkpoint has expired; the message names the
            nearest ones.
        Damaged: a stored object differs from what was written.
        Unavailable: the root is unreachable.
    """
    if isinstance(epoch, bool) or not isinstance(epoch, int | str | None):
        raise ConfigError(
            f"epoch is {epoch!r}",
            not_done="no state was read",
            next_step="give the number of an epoch or the name of a savepoint",
        )
    stored = open_job(root_given(root, "root", os.environ), job)
    reading = reading_of(stored, operator, None if epoch is None else str(epoch))
    frame = pl.from_arrow(pa.Table.from_batches(reading.batches(), schema=reading.view.schema))
    assert isinstance(frame, pl.DataFrame)
    return frame
