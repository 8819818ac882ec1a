"""The wrong functions themselves, a module for each subject of the protocol.

Each takes the right function and returns the wrong one. chaos/mutants/mutants.py says which rule it negates and what it
replaces; nothing else lives here.
"""
