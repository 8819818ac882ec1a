"""Jobs on real data, each with a check of its result.

They import only modules for users. The oracles share no code with the runtime.
"""
