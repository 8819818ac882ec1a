"""Wrong versions of reading state that other code wrote; chaos/mutants/mutants.py says which rule each negates.

Source: docs/decisions/0038-schema-evolution.md, docs/decisions/0046-dropped-state.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Right = Callable[..., Any]
"""The function that a mutant replaces."""


def reuses_ids(_: Right) -> Right:
    """A column that comes back gets the id, and with it the values, of the one that was removed."""
    return lambda name, used: name


def reads_any_image(_: Right) -> Right:
    """Rows of an image are read as the present columns, whatever columns wrote them."""
    return lambda wanted, head: True


def drops_at_every_start(_: Right) -> Right:
    """A start does not know which of its arguments an earlier one has carried out."""
    return lambda known, arguments: {}


def reuses_numbers(_: Right) -> Right:
    """State that begins with a drop gets the number of the state that was given up."""
    return lambda past: {operator.name: operator.id for operator in past}


def takes_any_base(_: Right) -> Right:
    """A checkpoint that other code completed after this run's check is read with this run's ids."""
    return lambda state, base: None
