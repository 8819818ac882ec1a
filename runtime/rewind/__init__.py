"""A rewind before it starts, and the rewind of a stopped job: target, plan, effect on sources and sinks, duration.

The commit of a rewind is decided in runtime/driver/requests.py and carried out by the driver's loop.
"""
