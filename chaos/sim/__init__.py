"""The simulated world: one store, the targets, the processes of drivers and workers; one thread, virtual time.

The loops are the production ones. No real clock, thread, file or socket.
"""
