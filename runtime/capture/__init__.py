"""Captures input that cannot be read again into an `hf.Log`, in a separate process: `holdfast capture`.

For webhooks `admission`, `keys` and `requests` decide, `appending` writes the log, `server` holds the sockets; the room
postgres has the changes of a table. Nothing here knows a job, its folder or Spark; a job reads the log.
"""
