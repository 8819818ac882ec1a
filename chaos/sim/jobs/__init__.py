"""The jobs that a seed runs, their input, and the expected answer.

The oracle shares no code with the runtime.
"""
