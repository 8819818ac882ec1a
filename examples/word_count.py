"""How often every word occurs in the Python language reference that Python ships for help().

A function cuts lines into words (flat_map), and a table keeps one count per word.

    python examples/word_count.py       or: holdfast run examples/word_count.py
    sqlite3 words.db "SELECT * FROM words ORDER BY n DESC LIMIT 10"

WORDS_DB is the path of the table.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pydoc_data.topics import topics

import holdfast as hf

DB = os.environ.get("WORDS_DB", "words.db")
LINES = [(topic, text) for topic in sorted(topics) for text in topics[topic].splitlines()]


@dataclass
class Line:
    topic: str
    text: str


@dataclass
class Word:
    word: str


def line(number: int) -> Line:
    """Return one line of the text, the same one whenever it is read."""
    return Line(*LINES[number])


def words(line: Line) -> Iterator[Word]:
    """Return the words of a line, in lower case; a word consists of letters, with apostrophes inside."""
    for found in re.finditer(r"[^\W\d_]+(?:'[^\W\d_]+)*", line.text):
        yield Word(found[0].lower())


app = hf.App("word-count")
lines = app.source("lines", hf.Generator(Line, line, count=len(LINES), partitions=4))
counts = lines.flat_map(words, to=Word).key_by("word").agg("words", n=hf.count())
counts.sink("words-out", hf.SQLite(DB, table="words", key=["word"]))

if __name__ == "__main__":
    app.main()
