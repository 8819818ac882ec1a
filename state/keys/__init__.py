"""Keys: canonical bytes, hashes, key groups.

Functions over whole batches, all pure. What they return is part of the format of the state.
"""
