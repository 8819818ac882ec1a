"""The contract of sinks and targets, and common parts of all sinks: owners, audits, refusals, words of messages.

No target of its own, no order of deliveries.
"""
