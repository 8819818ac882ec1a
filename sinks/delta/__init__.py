"""Delta Lake as a target: one commit per epoch, which holds rows, tag and owner, and lands on exactly one version.

Only client.py and errors.py import deltalake. lakehouse/ decides: columns, the book of tags, commits, rewinds.
"""
