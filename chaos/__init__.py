"""Jobs under faults: a simulator, real runs, and the judgment of both.

No other package imports this one. The pytest plugin has the name under which users load it.
"""
