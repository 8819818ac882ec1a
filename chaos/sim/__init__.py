"""The simulated world: one store, the targets, the processes of drivers and workers; one thread, virtual time.

The loops are those of production. No real clock, thread, file or socket.
"""
