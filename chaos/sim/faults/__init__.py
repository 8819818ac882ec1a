"""Which fault strikes when: draws from the seed, the schedule, points of the protocol, aims, damage.

Nothing here depends on the computation of a job.
"""
