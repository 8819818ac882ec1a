"""A real job under real faults: starts it, feeds it, strikes it, observes it, ends it.

It acts and writes the journal. What the run proves is decided in judge.
"""
