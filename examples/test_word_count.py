"""A test of word_count.py, as you would write it for your own job: workers and drivers die at moments that a seed
chooses, and every word is still counted once.

    pytest examples/test_word_count.py                     one test per seed, each within a second
    pytest examples/test_word_count.py --chaos-seed 2      that seed again
"""

from __future__ import annotations

import re
from collections import Counter
from pydoc_data.topics import topics

from holdfast.testing import Outcome, chaos_case

LINES = [{"topic": topic, "text": text} for topic in ("if", "while", "for") for text in topics[topic].splitlines()]


@chaos_case("word_count.py", driver="test", rows={"lines": LINES}, seeds=5)
def test_every_word_is_counted_once_whatever_dies(outcome: Outcome) -> None:
    words = Counter(word.lower() for line in LINES for word in re.findall(r"[^\W\d_]+(?:'[^\W\d_]+)*", line["text"]))
    assert outcome.held
    assert {row["word"]: row["n"] for row in outcome.rows("words-out")} == words
