"""Apache Iceberg as a target: one commit per epoch, which holds rows, tag and owner, on exactly the metadata compared.

Only client.py and errors.py import pyiceberg. lakehouse/ decides: columns, the book of tags, commits, rewinds.
"""
