"""How kernels are compiled and cached, and how they read Arrow memory.

Nothing here knows tables or keys. Numba is imported by `jit` and `memory` only, so importing this package imports no
compiler.
"""
