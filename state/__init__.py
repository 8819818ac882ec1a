"""Keyed state beside the computation: the store, its changelog, the cold copy and its marker.

RocksDB and folders are only in rocks.py and directory.py. No epoch is decided here.
"""
