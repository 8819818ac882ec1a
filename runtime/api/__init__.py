"""The API for users: the app, its streams, keyed and windowed streams.

A method refuses invalid calls and adds a node to the graph. No logic of the data plane, no I/O.
"""
