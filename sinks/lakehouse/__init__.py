"""Common code of the sinks of table formats: columns, the book of tags, one commit on one version, the plan of a
rewind.

A format's own package, such as delta/, has the client of its library. Nothing here imports one; all of it is pure.
"""
