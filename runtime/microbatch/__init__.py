"""Microbatch mode: every epoch is one Spark job, and no worker stays.

The driver is that of continuous mode. `host.py` answers the master in place of workers: one for each subtask. A barrier
starts a Spark job, whose tasks run the fragments of the plan layer by layer (`layers.py`, `task.py`). They send frames
to each other in blocks through Spark's shuffle (`blocks.py`). Their results become the acks of the epoch. All decisions
are pure (`machine.py`).
"""
