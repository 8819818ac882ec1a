"""A table of Postgres, captured into a log and copied from there into another table of Postgres.

With BY_NAME the job reads the log itself, and then needs neither the server of the table nor its password.
"""

from __future__ import annotations

import os
from pathlib import Path

import holdfast as hf

folder, password = Path(os.environ["COUNTING_FOLDER"]), hf.secret("env:ACCOUNTS_PASSWORD")
log = hf.Log(str(folder / "captured"), partitions=int(os.environ["ACCOUNTS_PARTITIONS"]))
changes = hf.PostgresChanges(
    os.environ["ACCOUNTS_CAPTURE"], "bank.accounts", into=log, password=password, publication="accounts"
)
app = hf.App("accounts", root=str(folder / "root"), checkpoint_every="500ms")
accounts = app.table("accounts", log if os.environ.get("BY_NAME") else changes, key="id")
accounts.sink("copy-out", hf.Postgres(os.environ["ACCOUNTS_COPY"], "copy", ["id"], schema="bank", password=password))

if __name__ == "__main__":
    app.main()
