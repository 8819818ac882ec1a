"""The embedded log: segments, commits, reading, compaction, void ranges.

It is built on conditional create alone. It knows neither sources nor sinks.
"""
