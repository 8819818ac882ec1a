"""What a seed runs: jobs, their input, and the right answer.

The oracle shares no code with the runtime.
"""
