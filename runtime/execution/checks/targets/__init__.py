"""Checks of a start against targets: owners, tags, output that is committed and not delivered, or to be undone."""
