"""The ports of simulated processes: network, control streams, stores, disks, targets; each of them can fail.

A port injects faults. Whether the job survived them is judged in checks.
"""
