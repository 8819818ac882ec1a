"""Compiled loops over records and index; they know words and flags, neither keys' types nor epochs.

Importing a module other than `layout` imports Numba and loads the kernels, so only code that holds state does so.
"""
