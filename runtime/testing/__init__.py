"""The test driver: a whole job in one thread, with in-memory ports and a virtual clock.

The loops of driver and worker are the production ones; only their ports are replaced.
"""
