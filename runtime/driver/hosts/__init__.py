"""Which worker runs or follows which subtask, with the hosts in view: placement, standbys, hosts to be avoided.

Parts of the master, all of them pure. What starts a recovery is decided beside this package, in failover.py.
"""
