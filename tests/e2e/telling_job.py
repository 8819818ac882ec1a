"""The counting job, whose driver reports its run's secrets to a test, which then searches for them."""

from __future__ import annotations

import os
from pathlib import Path

from counting_job import app  # noqa: F401 - what is run

from holdfast.runtime.execution import resident as run
from holdfast.runtime.processes.tls import Credentials, make_credentials


def telling(encrypted: bool) -> Credentials:
    """Make the credentials of a run, and report them."""
    made = make_credentials(encrypted)
    lines = [made.secret.hex(), *([made.private_key.hex()] if made.private_key else [])]
    Path(os.environ["SECRETS_TOLD_TO"]).write_text("\n".join(lines))
    return made


vars(run)["make_credentials"] = telling
