"""`holdfast chaos`: the commands of simulator, live runs and evidence.

The commands parse and print; the other packages of chaos do the work.
"""
