"""Jobs on real data, each with a check of its result.

They import what users import. The oracles share no code with the runtime.
"""
