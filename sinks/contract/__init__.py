"""The contract of sinks and targets, and what every sink shares: owners, audits, refusals, words of messages.

No target of its own, no order of deliveries.
"""
