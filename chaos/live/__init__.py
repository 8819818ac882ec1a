"""A real job under real faults: start it, feed it, strike it, observe it, end it.

This package acts and writes the journal; the package judge decides what the run proves.
"""
