"""Jobs under faults: a simulator, real runs, and the judgment of both.

Nothing outside this folder imports it. The pytest plugin lives here under the name that users load it by.
"""
