"""Delta Lake as a target: one commit per epoch, which holds rows, tag and owner, and lands on exactly one version.

place.py, columns.py, book.py, target.py and rewind.py decide and are pure. Only client.py and
errors.py import deltalake.
"""
