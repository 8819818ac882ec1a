"""`holdfast chaos`: the commands of simulator, live runs and evidence.

They parse and print. What they call is in the other packages of chaos.
"""
