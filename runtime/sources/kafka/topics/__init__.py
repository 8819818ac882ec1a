"""Topics by a pattern, as one source.

Source: docs/design/0095-topics-by-pattern.md.
"""
