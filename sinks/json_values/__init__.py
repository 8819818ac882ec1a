"""Rows as JSON, as targets that take text hold them."""
