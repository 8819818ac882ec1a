"""The plan of a job: the graph of the code, its compiled form, the identity of its state, the contract of a source.

It describes what will run, never how: no open source, no operator, no process. Pure.
"""
