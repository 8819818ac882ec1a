"""Outputs for the program that runs the job: `hf.Collect` and `hf.Console`.

No target that outlives the process.
"""
