"""Keyed state beside the computation: the store, its changelog, the cold copy and its marker.

Only rocks.py and directory.py use RocksDB and folders. Nothing here decides about epochs.
"""
