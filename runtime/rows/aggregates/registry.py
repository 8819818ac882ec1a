"""The aggregate functions by name, which is their name in `.agg(...)` and a part of the identity of state.

A new function is one class of `Kind`, listed here, and one name that users call (named.py).

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.runtime.rows.aggregates.adding import Count, Mean, Sum
from holdfast.runtime.rows.aggregates.cardinality import ApproxDistinct
from holdfast.runtime.rows.aggregates.contract import Kind
from holdfast.runtime.rows.aggregates.extremes import Max, Min
from holdfast.runtime.rows.aggregates.membership import Member
from holdfast.runtime.rows.aggregates.moments import Var
from holdfast.runtime.rows.aggregates.multisets import Collect, Distinct
from holdfast.runtime.rows.aggregates.picking import First, Last
from holdfast.runtime.rows.aggregates.quantiles import Quantile
from holdfast.runtime.rows.aggregates.top import Top

KINDS: Mapping[str, type[Kind]] = {
    kind.name: kind
    for kind in (
        Count,
        Sum,
        Min,
        Max,
        Mean,
        Var,
        First,
        Last,
        Top,
        Collect,
        Distinct,
        ApproxDistinct,
        Quantile,
        Member,
    )
}
