"""A rewind before and outside a run: its target, its plan, its effect on sources and sinks, its duration.

The commit of a rewind is decided in runtime/driver/rewinding.py and carried out by the driver's loop.
"""
