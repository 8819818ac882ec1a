"""Common code of the sinks of table formats: columns, book of tags, one commit on one version, plan of a rewind.

A format's own package, such as delta/, has the client of its library. Nothing here imports one; all of it is pure.
"""
