"""What must hold in every simulated run, checked while it happens and at its end.

Checks read and never change the world. history.py reads the job log without the runtime's code.
"""
