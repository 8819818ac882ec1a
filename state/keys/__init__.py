"""Keys: canonical bytes, hashes, key groups.

Functions over whole batches, all pure. Their results are part of the format of the state.
"""
