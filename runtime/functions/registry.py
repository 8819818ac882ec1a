"""The aggregate functions by name, which is their name in `.agg(...)` and a part of the identity of state.

A new function is one class of `Kind`, listed here, and one name that users call (named.py).

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.runtime.functions.adding import CountKind, Mean, SumKind
from holdfast.runtime.functions.cardinality import ApproxDistinct
from holdfast.runtime.functions.contract import Kind
from holdfast.runtime.functions.extremes import Max, Min
from holdfast.runtime.functions.membership import Member
from holdfast.runtime.functions.moments import Var
from holdfast.runtime.functions.multisets import CollectKind, Distinct
from holdfast.runtime.functions.picking import First, Last
from holdfast.runtime.functions.quantiles import Quantile
from holdfast.runtime.functions.top import Top

KINDS: Mapping[str, type[Kind]] = {
    kind.name: kind
    for kind in (
        CountKind,
        SumKind,
        Min,
        Max,
        Mean,
        Var,
        First,
        Last,
        Top,
        CollectKind,
        Distinct,
        ApproxDistinct,
        Quantile,
        Member,
    )
}
