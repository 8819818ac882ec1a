"""Topics by a pattern, as one source.

Source: docs/decisions/0095-topics-by-pattern.md.
"""
