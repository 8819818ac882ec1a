"""Commands before and during a run: run, plan, demo, doctor.

They load a user's Python file. Commands that need only the name of a job are in operate.
"""
