"""A B+tree over the slots of a table, as kernels: insert, remove, and find ranges, for a batch of keys at a time.

Entries are compared by sort words, and by the canonical bytes of their records if the words are equal and the key has
text (state/tables/sortwords.py). So every inner entry is kept equal to the first entry of its child: the record that
it names exists. An empty node is freed; nodes are not merged, the owner rebuilds a sparse tree.

Invariants
    - The entries of all leaves, from the first leaf to the last one, strictly increase.
    - No node but an empty root is empty.
    - insert_rows stops before a row for whose splits there is no room; its caller makes room and resumes there.

Source: Knuth, The Art of Computer Programming 3, 6.2.4; Johnson and Shasha, B-trees with inserts and deletes: why
free-at-empty is better than merge-at-half, 1993.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from holdfast.state.compiled.jit import inner, kernel
from holdfast.state.compiled.memory import address_of, byte_swapped, get, get_u8, put, word_at
from holdfast.state.tables.kernels.layout import Control, TablePart
from holdfast.state.tables.kernels.tree_layout import LEAF_ENTRIES, NODE_HEADER, NONE, Bounds, Tree

_ROOT, _LEVELS, _HIGH, _FREE, _USED, _COUNT, _ROOM, _WORDS, _TEXT, _INNER, _NODE, _PATH = (
    int(Tree[name])
    for name in (
        *("ROOT", "LEVELS", "HIGH", "FREE", "USED", "COUNT"),
        *("ROOM", "WORDS", "TEXT", "INNER", "NODE", "PATH"),
    )
)
_AT, _OF_BOUND, _ABOVE, _DATA, _STARTS, _LENGTHS = (
    int(Bounds[name]) for name in ("WORDS", "COUNT", "ABOVE", "DATA", "STARTS", "LENGTHS")
)
_RECORDS, _ARENA, _CONTROL, _STRIDE = (
    int(TablePart.RECORDS),
    int(TablePart.ARENA),
    int(TablePart.CONTROL),
    int(Control.WORDS),
)
_ENTRIES, _NEXT, _PREVIOUS = 0, 1, 2
_CONTINUES = 0xFF
"""The byte after a closing 00 by which a text continues."""


@inner
def _node_at(tree: int, control: int, number: int) -> Any:
    return tree + number * get(control, _NODE) * 8


@inner
def _entry(node: int, at: int, stride: int) -> int:
    return node + (NODE_HEADER + at * stride) * 8


@inner
def _compare_bytes(key: int, size: int, bound: int, length: int) -> int:
    """Return how a canonical key compares with the canonical form of its first columns, or of all: 0 if they agree."""
    common_size, position = min(size, length), 0
    while position + 8 <= common_size:
        one, other = byte_swapped(word_at(key, position)), byte_swapped(word_at(bound, position))
        if one != other:
            return -1 if one < other else 1
        position += 8
    if position < common_size:
        shift = np.uint64(64 - 8 * (common_size - position))
        one, other = byte_swapped(word_at(key, position)) >> shift, byte_swapped(word_at(bound, position)) >> shift
        if one != other:
            return -1 if one < other else 1
    if size < length:
        return -1
    return 1 if size > length and get_u8(key, length) == _CONTINUES else 0


@inner
def _compare(places: int, control: int, entry: int, bounds: int, row: int) -> int:
    """Return -1, 0 or 1: how an entry compares with a bound, by as much of its key as the bound has."""
    count = get(bounds, _OF_BOUND)
    words = get(bounds, _AT) + row * count * 8
    for word in range(count):
        one, other = get(entry, word), get(words, word)
        if one != other:
            return -1 if one < other else 1
    if get(bounds, _DATA) == 0:
        return 0
    record = get(places, _RECORDS) + get(entry, get(control, _WORDS)) * get(get(places, _CONTROL), _STRIDE) * 8
    start, length = get(get(bounds, _STARTS), row), get(get(bounds, _LENGTHS), row)
    return _compare_bytes(get(places, _ARENA) + get(record, 1), get(record, 2), get(bounds, _DATA) + start, length)


@inner
def _rank(places: int, control: int, node: int, stride: int, bounds: int, row: int, above: int) -> int:
    """Return how many entries of a node are before a bound."""
    low, high = 0, get(node, _ENTRIES)
    while low < high:
        middle = (low + high) >> 1
        order = _compare(places, control, _entry(node, middle, stride), bounds, row)
        if order < 0 or (order == 0 and above != 0):
            low = middle + 1
        else:
            high = middle
    return low


@inner
def _leaf_of(places: int, tree: int, control: int, bounds: int, row: int, above: int) -> Any:
    """Return the number of the leaf in which a bound lies, or after which; note the path."""
    node, inner_stride = get(control, _ROOT), get(control, _WORDS) + 2
    for level in range(get(control, _LEVELS) - 1):
        address = _node_at(tree, control, node)
        child = max(_rank(places, control, address, inner_stride, bounds, row, above) - 1, 0)
        put(control, _PATH + 2 * level, node)
        put(control, _PATH + 2 * level + 1, child)
        node = get(_entry(address, child, inner_stride), inner_stride - 1)
    return node


@inner
def _new_node(tree: int, control: int) -> Any:
    number = get(control, _FREE)
    if number != NONE:
        put(control, _FREE, get(_node_at(tree, control, number), _NEXT))
    else:
        number = get(control, _HIGH)
        put(control, _HIGH, number + 1)
    node = _node_at(tree, control, number)
    put(node, _ENTRIES, 0)
    put(node, _NEXT, NONE)
    put(node, _PREVIOUS, NONE)
    put(control, _USED, get(control, _USED) + 1)
    return number


@inner
def _free_node(tree: int, control: int, number: int) -> None:
    put(_node_at(tree, control, number), _NEXT, get(control, _FREE))
    put(control, _FREE, number)
    put(control, _USED, get(control, _USED) - 1)


@inner
def _copy(source: int, target: int, words: int) -> None:
    for word in range(words):
        put(target, word, get(source, word))


@inner
def _open_gap(node: int, at: int, stride: int) -> int:
    """Make room for an entry; return where it goes."""
    size, first = get(node, _ENTRIES), _entry(node, at, stride)
    for word in range((size - at) * stride - 1, -1, -1):
        put(first, stride + word, get(first, word))
    put(node, _ENTRIES, size + 1)
    return first


@inner
def _close_gap(node: int, at: int, stride: int) -> Any:
    """Take an entry out; return how many are left."""
    left, first = get(node, _ENTRIES) - 1, _entry(node, at, stride)
    _copy(first + stride * 8, first, (left - at) * stride)
    put(node, _ENTRIES, left)
    return left


@inner
def _split(tree: int, control: int, number: int, keep: int, stride: int) -> Any:
    """Move the entries of a node from `keep` on to a new node after it; return the new node."""
    right = _new_node(tree, control)
    left_at, right_at = _node_at(tree, control, number), _node_at(tree, control, right)
    moved = get(left_at, _ENTRIES) - keep
    _copy(_entry(left_at, keep, stride), _entry(right_at, 0, stride), moved * stride)
    put(left_at, _ENTRIES, keep)
    put(right_at, _ENTRIES, moved)
    return right


@inner
def _link(tree: int, control: int, left: int, right: int) -> None:
    """Put a new leaf after another one."""
    left_at, right_at = _node_at(tree, control, left), _node_at(tree, control, right)
    behind = get(left_at, _NEXT)
    put(right_at, _NEXT, behind)
    put(right_at, _PREVIOUS, left)
    put(left_at, _NEXT, right)
    if behind != NONE:
        put(_node_at(tree, control, behind), _PREVIOUS, right)


@inner
def _unlink(tree: int, control: int, leaf: int) -> None:
    node = _node_at(tree, control, leaf)
    before, behind = get(node, _PREVIOUS), get(node, _NEXT)
    if before != NONE:
        put(_node_at(tree, control, before), _NEXT, behind)
    if behind != NONE:
        put(_node_at(tree, control, behind), _PREVIOUS, before)


@inner
def _first_changed(tree: int, control: int, node: int, level: int) -> None:
    """Copy the new first entry of a node into the inner nodes above it; `level` is that of the node's parent."""
    words = get(control, _WORDS)
    child = node
    while level >= 0:
        parent, at = get(control, _PATH + 2 * level), get(control, _PATH + 2 * level + 1)
        address = _node_at(tree, control, parent)
        _copy(_entry(_node_at(tree, control, child), 0, 0), _entry(address, at, words + 2), words + 1)
        if at != 0:
            break
        child = parent
        level -= 1


@inner
def _name_child(tree: int, control: int, node: int, at: int, child: int) -> None:
    """Insert the entry of a child into an inner node."""
    words = get(control, _WORDS)
    entry = _open_gap(_node_at(tree, control, node), at, words + 2)
    _copy(_entry(_node_at(tree, control, child), 0, 0), entry, words + 1)
    put(entry, words + 1, child)


@inner
def _grow(tree: int, control: int, child: int, last: int) -> None:
    """Insert a new node, which the path leads to, into the inner nodes above; `last`: it is the last of the tree."""
    level, stride, room = get(control, _LEVELS) - 2, get(control, _WORDS) + 2, get(control, _INNER)
    while level >= 0:
        parent, at = get(control, _PATH + 2 * level), get(control, _PATH + 2 * level + 1) + 1
        size = get(_node_at(tree, control, parent), _ENTRIES)
        if size < room:
            _name_child(tree, control, parent, at, child)
            return
        keep = size if last != 0 else size // 2
        right = _split(tree, control, parent, keep, stride)
        if at > keep or keep == size:
            _name_child(tree, control, right, at - keep, child)
        else:
            _name_child(tree, control, parent, at, child)
        child = right
        level -= 1
    root = _new_node(tree, control)
    _name_child(tree, control, root, 0, get(control, _ROOT))
    _name_child(tree, control, root, 1, child)
    put(control, _ROOT, root)
    put(control, _LEVELS, get(control, _LEVELS) + 1)


@inner
def _insert(places: int, tree: int, control: int, bounds: int, row: int, slot: int) -> None:
    words = get(control, _WORDS)
    leaf = _leaf_of(places, tree, control, bounds, row, 1)
    node = _node_at(tree, control, leaf)
    at, size = _rank(places, control, node, words + 1, bounds, row, 1), get(node, _ENTRIES)
    last = 1 if at == size and get(node, _NEXT) == NONE else 0
    right, target = NONE, node
    if size == LEAF_ENTRIES:
        # Keys that arrive in order fill whole nodes.
        keep = size if last != 0 else size // 2
        right = _split(tree, control, leaf, keep, words + 1)
        _link(tree, control, leaf, right)
        if at > keep or keep == size:
            target, at = _node_at(tree, control, right), at - keep
    entry = _open_gap(target, at, words + 1)
    _copy(get(bounds, _AT) + row * words * 8, entry, words)
    put(entry, words, slot)
    put(control, _COUNT, get(control, _COUNT) + 1)
    if at == 0 and target == node:
        _first_changed(tree, control, leaf, get(control, _LEVELS) - 2)
    if right != NONE:
        _grow(tree, control, right, last)


@inner
def _drop_leaf(tree: int, control: int, leaf: int) -> None:
    """Free an empty leaf, to which the path leads, and the inner nodes that become empty; another leaf exists."""
    _unlink(tree, control, leaf)
    _free_node(tree, control, leaf)
    stride, level = get(control, _WORDS) + 2, get(control, _LEVELS) - 2
    while level >= 0:
        parent, at = get(control, _PATH + 2 * level), get(control, _PATH + 2 * level + 1)
        if _close_gap(_node_at(tree, control, parent), at, stride) > 0:
            if at == 0:
                _first_changed(tree, control, parent, level - 1)
            break
        _free_node(tree, control, parent)
        level -= 1
    root = get(control, _ROOT)
    while get(control, _LEVELS) > 1 and get(_node_at(tree, control, root), _ENTRIES) == 1:
        child = get(_entry(_node_at(tree, control, root), 0, stride), stride - 1)
        _free_node(tree, control, root)
        put(control, _LEVELS, get(control, _LEVELS) - 1)
        put(control, _ROOT, child)
        root = child


@inner
def _remove(places: int, tree: int, control: int, bounds: int, row: int, slot: int) -> bool:
    words = get(control, _WORDS)
    leaf = _leaf_of(places, tree, control, bounds, row, 1)
    node = _node_at(tree, control, leaf)
    at = _rank(places, control, node, words + 1, bounds, row, 0)
    if at >= get(node, _ENTRIES) or get(_entry(node, at, words + 1), words) != slot:
        return False
    left = _close_gap(node, at, words + 1)
    put(control, _COUNT, get(control, _COUNT) - 1)
    if left == 0:
        if get(control, _COUNT) > 0:
            _drop_leaf(tree, control, leaf)
    elif at == 0:
        _first_changed(tree, control, leaf, get(control, _LEVELS) - 2)
    return True


@kernel("number", "words", "words", "words", "words", "words", "number")
def insert_rows(places_: Any, tree_: Any, control_: Any, bounds_: Any, slots_: Any, first: int) -> int:
    """Insert slots that are not in the tree, from the row `first` on; a bound is the whole key of its slot.

    Returns:
        The first row that was not inserted, for lack of room; else the number of rows.
    """
    places, tree, control, bounds = (
        address_of(places_), address_of(tree_), address_of(control_), address_of(bounds_)
    )  # fmt: skip
    rows = int(slots_.size)
    for row in range(first, rows):
        if get(control, _ROOM) - get(control, _HIGH) <= get(control, _LEVELS):
            return row
        _insert(places, tree, control, bounds, row, get(address_of(slots_), row))
    return rows


@kernel("number", "words", "words", "words", "words", "words")
def remove_rows(places_: Any, tree_: Any, control_: Any, bounds_: Any, slots_: Any) -> int:
    """Remove slots, whose whole keys the bounds are; return how many were in the tree."""
    places, tree, control, bounds = (
        address_of(places_), address_of(tree_), address_of(control_), address_of(bounds_)
    )  # fmt: skip
    count = 0
    for row in range(slots_.size):
        if _remove(places, tree, control, bounds, row, get(address_of(slots_), row)):
            count += 1
    return count


@inner
def _ascending(
    places: int, tree: int, control: int, lower: int, upper: int, row: int, skip: int, limit: int, out: int
) -> int:
    """Write the slots of one range, if `out` is not 0; return how many there are."""
    stride, count = get(control, _WORDS) + 1, 0
    leaf = _leaf_of(places, tree, control, lower, row, get(lower, _ABOVE))
    at = _rank(places, control, _node_at(tree, control, leaf), stride, lower, row, get(lower, _ABOVE))
    while leaf != NONE and count < limit:
        node = _node_at(tree, control, leaf)
        end = get(node, _ENTRIES)
        over = end > 0 and _compare(places, control, _entry(node, end - 1, stride), upper, row) >= get(upper, _ABOVE)
        if over:
            end = _rank(places, control, node, stride, upper, row, get(upper, _ABOVE))
        if end > at:
            skip_count = min(skip, end - at)
            skip -= skip_count
            take_count = min(end - at - skip_count, limit - count)
            if out != 0:
                for i in range(take_count):
                    put(out, count + i, get(_entry(node, at + skip_count + i, stride), stride - 1))
            count += take_count
        if over:
            break
        leaf, at = get(node, _NEXT), 0
    return count


@inner
def _descending(
    places: int, tree: int, control: int, lower: int, upper: int, row: int, skip: int, limit: int, out: int
) -> int:
    """Do as _ascending, from the last slot of the range to the first."""
    stride, count = get(control, _WORDS) + 1, 0
    leaf = _leaf_of(places, tree, control, upper, row, get(upper, _ABOVE))
    end = _rank(places, control, _node_at(tree, control, leaf), stride, upper, row, get(upper, _ABOVE))
    while leaf != NONE and count < limit:
        node, first = _node_at(tree, control, leaf), 0
        over = end > 0 and _compare(places, control, _entry(node, 0, stride), lower, row) < get(lower, _ABOVE)
        if over:
            first = _rank(places, control, node, stride, lower, row, get(lower, _ABOVE))
        if end > first:
            skip_count = min(skip, end - first)
            skip -= skip_count
            take_count = min(end - first - skip_count, limit - count)
            if out != 0:
                for i in range(take_count):
                    put(out, count + i, get(_entry(node, end - skip_count - 1 - i, stride), stride - 1))
            count += take_count
        if over:
            break
        leaf = get(node, _PREVIOUS)
        if leaf != NONE:
            end = get(_node_at(tree, control, leaf), _ENTRIES)
    return count


@kernel("number", "words", "words", "words", "words", "words", "words", "words", "number", "words", "words")
def find_ranges(
    places_: Any,
    tree_: Any,
    control_: Any,
    lower_: Any,
    upper_: Any,
    skips_: Any,
    limits_: Any,
    descending: int,
    counts_: Any,
    out_: Any,
) -> int:
    """Find the slots from each lower bound to the upper bound of the same row, in order.

    Args:
        skips_, limits_: How many slots of each range to leave out first, and how many to take then at most.
        descending: 1: from the last slot of a range to the first.
        counts_: Becomes the number of slots per range, which sets the number of ranges.
        out_: Becomes the slots, range by range, if it is not empty; it has room for all then.

    Returns:
        The number of slots.
    """
    places, tree, control, lower, upper = (
        address_of(places_), address_of(tree_), address_of(control_), address_of(lower_), address_of(upper_)
    )  # fmt: skip
    total = 0
    for row in range(counts_.size):
        skip, limit = get(address_of(skips_), row), get(address_of(limits_), row)
        out = address_of(out_) + total * 8 if out_.size > 0 else 0
        if descending != 0:
            count = _descending(places, tree, control, lower, upper, row, skip, limit, out)
        else:
            count = _ascending(places, tree, control, lower, upper, row, skip, limit, out)
        put(address_of(counts_), row, count)
        total += count
    return total
