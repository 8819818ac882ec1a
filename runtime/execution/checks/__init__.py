"""The checks of a start, one per module, each a function of the facts that returns why the start is refused, or None.

`ordered.py` has their order. Everything that they need of the outside world is a fact; `prepare.py` acts.
"""
