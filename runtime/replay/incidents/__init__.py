"""Incident files: one epoch of a job in one file, replayed where neither root nor sources nor targets can be reached.

Here: what the file holds, how it is written and read, the values that are replaced in it, and what is made of it: steps
and tests. Not here: the replay itself, which is that of any epoch.
"""
