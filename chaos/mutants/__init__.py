"""Wrong versions of the protocol, each the negation of one rule, and the hunt for them.

A mutant replaces a function of the production code; it is never imported outside the hunt.
"""
