"""Many seeds: playing, replaying and shrinking them, reports and coverage.

The checks in sim decide what counts as a failure; this package states no rule of the protocol.
"""
