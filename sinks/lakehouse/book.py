"""The book of a table: tags and owners as names with numbers, which the table keeps permanently.

Each commit of a sink changes the book together with the rows. Delta keeps it as `txn` actions, with the name as `appId`
and the number as `version`; Iceberg keeps it as table properties. They survive the clean-up of old commits, compaction,
and a manual return to an older version. The description in a commit is removed with old commits, so nothing here
depends on it.

- Names cannot be listed, only looked up. So a sink's newest tag has its own name, beside those of its writers.
- A number holds a tag: timeline * 2**40 + epoch, which grows as tags do.
- A number holds 6 bytes of a text: an owner's token takes several names.
- A table with a key belongs to one sink of one job. It has the number of that sink, so that a look needs one name; the
  text that identifies the sink is read only if the number is another one's.
- A table whose rows are only added has the number 0, and the first two sinks as text: no sink with a key is the only
  writer there. Only one job may use a sink's name, and its number is noted under that name: a recreated job would add
  all rows a second time.

Invariants
    - Every change of a table by a sink moves the newest tag of the sink.
    - The first change by a sink notes it as the one that the table belongs to, or as one that adds rows.
    - Deliveries that a rewind has undone keep their tags; the newest tag is on the new timeline and refuses writers of
      older ones.

Pure: no clock, thread or I/O.
Source: the Delta protocol, "Transaction Identifiers"; docs/decisions/0084-delta-sink.md, 0099-iceberg-sink.md,
0110-lakehouse-tables-with-one-owner.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from urllib.parse import quote, unquote

from holdfast.errors import Damaged
from holdfast.model import Epoch, Generation, Tag, Timeline, Writer
from holdfast.sinks.contract.owners import Claim, Held, NotOurs, Rival, belongs_to
from holdfast.sinks.contract.phrases import NOTHING

PREFIX = "holdfast/1"
"""How all names begin; the number is the version of names and numbers."""
NEWEST = f"{PREFIX}/newest/"
"""How the names of the newest tags begin."""
TABLE = f"{PREFIX}/table"
"""The name of the number of the sink that the table belongs to."""
SINKS = f"{TABLE}/sinks"
"""The name of the text that identifies that sink, or the sinks that add rows."""
ADDED = 0
"""The number of a table whose rows are only added."""
SINKS_MAX = 2
"""Sinks in the text: among two, each sink finds another one."""
EPOCH_BITS = 40
TIMELINE_MAX = (1 << 63 - EPOCH_BITS) - 1
WORD_BYTES = 6
"""Bytes of a text in one number. More would not survive a program that reads the numbers of JSON as doubles."""
TEXT_BYTES_MAX = 1024
Numbers = dict[str, int]
"""Names with their numbers."""
Deliverer = tuple[str, str]
"""Job UUID, name of the sink."""


class Book:
    """Tags and owners in one version of a table.

    Args:
        where: How messages name the target.
        number: Returns the number of a name; None if the table has none. Raises a HoldfastError.
    """

    def __init__(self, where: str, number: Callable[[str], int | None]) -> None:
        self._where, self._number = where, number

    def tag_of(self, job_uuid: str, writer: Writer) -> Tag | None:
        """Return the writer's tag; None if it never delivered. Raises Damaged."""
        return self._tag(tag_name(job_uuid, writer))

    def newest(self, job_uuid: str, sink: str) -> Tag | None:
        """Return the newest tag of a sink's writers. Raises Damaged."""
        return self._tag(newest_name(job_uuid, sink))

    def held(self, job_uuid: str, sink: str) -> Held | None:
        """Return who owns the target for a sink of a job. Raises Damaged."""
        generation = self._number(generation_name(job_uuid, sink))
        owner = None if generation is None else self._text(owner_name(job_uuid, sink))
        return None if generation is None or owner is None else Held(owner, Generation(generation))

    def rival(self, job_uuid: str, sink: str, keyed: bool) -> Rival | None:
        """Return another sink to which the table belongs; None if this one may write. Raises Damaged.

        Args:
            job_uuid: The job; empty if it is about to be created.
            keyed: Whether the sink has a key, so that no other may write to the table.
        """
        ours = (job_uuid, sink)
        if self._number(TABLE) in (None, sink_number(ours) if keyed else ADDED):
            return None
        others = [each for each in self._sinks() if each != ours]
        return Rival(*others[0], self.held(*others[0])) if others else None

    def noted(self) -> bool:
        """Return whether the table records the sink that it belongs to, or that rows are only added."""
        return self._number(TABLE) is not None

    def must_take_over(self, job_uuid: str, sink: str, keyed: bool, claim: Claim | None) -> bool:
        """Return whether a change has to note the claim before the table is written to.

        Args:
            claim: None compares nothing.

        Raises:
            Fenced: the table belongs to another sink, another job adds rows under this name, or another history owns
                the target.
            Damaged: see Claim.must_take_over.
        """
        if claim is None:
            return False
        found = self.rival(job_uuid, sink, keyed)
        if found is not None and not (keyed and claim.displaces(found)):
            raise belongs_to(self._where, job_uuid, found)
        if not keyed and self.another_job(job_uuid, sink):
            raise namesake(self._where, sink)
        return claim.must_take_over(self._where, self.held(job_uuid, sink), lambda: self.newest(job_uuid, sink))

    def claim_numbers(self, job_uuid: str, sink: str, keyed: bool, claim: Claim | None) -> Numbers:
        """Return the numbers that a change notes of the driver and of the table. Raises as must_take_over."""
        numbers: Numbers = {}
        if self.must_take_over(job_uuid, sink, keyed, claim) and claim is not None:
            numbers = owner_numbers(job_uuid, sink, claim)
        return numbers if claim is None else {**numbers, **self._table_numbers((job_uuid, sink), keyed)}

    def _table_numbers(self, ours: Deliverer, keyed: bool) -> Numbers:
        """Return the numbers that a change by this sink, which may write, notes of the table."""
        number = self._number(TABLE)
        if keyed:
            return {} if number == sink_number(ours) else {TABLE: sink_number(ours), **_sinks_text([ours])}
        if number != ADDED:
            return {TABLE: ADDED, **_sinks_text([ours])}
        if self.newest(*ours) is not None:
            return {}  # it was noted with its first delivery
        known = self._sinks()
        return {} if ours in known or len(known) >= SINKS_MAX else _sinks_text([*known, ours])

    def another_job(self, job_uuid: str | None, sink: str) -> bool:
        """Return whether another job was the last one that delivered under this sink name."""
        found = self._number(job_name(sink))
        return found is not None and (job_uuid is None or found != job_number(job_uuid))

    def _sinks(self) -> list[Deliverer]:
        text = self._text(SINKS)
        try:
            sink_ids = [(job, sink) for job, sink in json.loads(text or "")]
        except (ValueError, TypeError):
            sink_ids = []
        if not sink_ids or not all(isinstance(each, str) for sink in sink_ids for each in sink):
            raise self._unreadable(TABLE, self._number(TABLE) or ADDED)
        return sink_ids

    def _text(self, name: str) -> str | None:
        size = self._number(name)
        if size is None:
            return None
        if not 0 <= size <= TEXT_BYTES_MAX:
            raise self._unreadable(name, size)
        words = [self._number(f"{name}/{n}") for n in range(_words_of(size))]
        try:
            data = b"".join((-1 if word is None else word).to_bytes(WORD_BYTES, "big") for word in words)
            return data[:size].decode()
        except (OverflowError, UnicodeDecodeError):
            raise self._unreadable(name, size) from None

    def _tag(self, name: str) -> Tag | None:
        number = self._number(name)
        if number is None:
            return None
        if number < 0:
            raise self._unreadable(name, number)
        return Tag(Timeline(number >> EPOCH_BITS), Epoch(number & (1 << EPOCH_BITS) - 1))

    def _unreadable(self, name: str, number: int) -> Damaged:
        return Damaged(
            f"{self._where}: the table has {name!r} with the number {number}, which Holdfast never wrote",
            not_done=NOTHING,
            next_step=f"let no other program commit names that begin with {PREFIX!r}, and restore "
            "the table from a backup",
        )


def namesake(where: str, sink: str) -> NotOurs:
    """Return the error for a table to which a sink of the same name of another job adds rows."""
    return NotOurs(
        f"{where}: holds output of a sink {sink!r} of another job",
        not_done="nothing was written to the target",
        next_step="if that job was deleted and recreated, its rows would be added twice: name another table, or "
        "delete this one. If both jobs are to write here, give this sink another name",
    )


def delivery_numbers(book: Book, job_uuid: str, writer: Writer, tag: Tag) -> Numbers:
    """Return the numbers that a delivery notes besides its owner."""
    newest = book.newest(job_uuid, writer.sink)
    return {
        tag_name(job_uuid, writer): tag_number(tag),
        newest_name(job_uuid, writer.sink): tag_number(tag if newest is None else max(newest, tag)),
        job_name(writer.sink): job_number(job_uuid),
    }


def rewind_numbers(job_uuid: str, sink: str, to: Tag, writers: Iterable[Writer]) -> Numbers:
    """Return the numbers that a rewind notes besides its owner."""
    numbers = {tag_name(job_uuid, writer): tag_number(to) for writer in writers}
    return {**numbers, newest_name(job_uuid, sink): tag_number(to), job_name(sink): job_number(job_uuid)}


def owner_numbers(job_uuid: str, sink: str, claim: Claim) -> Numbers:
    """Return the numbers that record that a driver has taken the target over."""
    return {
        generation_name(job_uuid, sink): claim.generation,
        **_text_numbers(owner_name(job_uuid, sink), claim.owner),
    }


def tag_number(tag: Tag) -> int:
    """Return a tag as a number, which grows as tags do."""
    assert 0 <= tag.timeline <= TIMELINE_MAX and 0 <= tag.epoch < 1 << EPOCH_BITS, "tags are far below these limits"
    return tag.timeline << EPOCH_BITS | tag.epoch


def job_number(job_uuid: str) -> int:
    """Return the number by which a job is recognised under a sink's name: 48 bits of a hash."""
    return int.from_bytes(hashlib.blake2b(job_uuid.encode(), digest_size=WORD_BYTES).digest(), "big")


def sink_number(sink: Deliverer) -> int:
    """Return the number of a table that belongs to a sink: 48 bits of a hash, and not that of added rows."""
    return job_number(_json(sink)) or 1


def deliverers(names: Iterable[str]) -> set[Deliverer]:
    """Return the sinks whose newest tags have these names."""
    parts = [name.removeprefix(NEWEST).split("/") for name in names if name.startswith(NEWEST)]
    return {(unquote(part[0]), unquote(part[1])) for part in parts if len(part) == 2}


def tag_name(job_uuid: str, writer: Writer) -> str:
    """Return the name of a writer's tag."""
    return f"{PREFIX}/tag/{_quoted(job_uuid)}/{_quoted(writer.sink)}/{writer.subtask}"


def newest_name(job_uuid: str, sink: str) -> str:
    """Return the name of the newest tag of a sink's writers."""
    return f"{NEWEST}{_quoted(job_uuid)}/{_quoted(sink)}"


def owner_name(job_uuid: str, sink: str) -> str:
    """Return the name of the length of an owner's token; its bytes follow under /0, /1 and so on."""
    return f"{PREFIX}/owner/{_quoted(job_uuid)}/{_quoted(sink)}"


def generation_name(job_uuid: str, sink: str) -> str:
    """Return the name of the generation with which the owner took the target over."""
    return f"{PREFIX}/generation/{_quoted(job_uuid)}/{_quoted(sink)}"


def job_name(sink: str) -> str:
    """Return the name of the job that last delivered under a sink's name."""
    return f"{PREFIX}/job/{_quoted(sink)}"


def _sinks_text(sinks: Iterable[Deliverer]) -> Numbers:
    return _text_numbers(SINKS, _json([*sinks]))


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _text_numbers(name: str, text: str) -> Numbers:
    data = text.encode()
    assert len(data) <= TEXT_BYTES_MAX, "names of sinks and tokens of owners are short"
    padded = data.ljust(_words_of(len(data)) * WORD_BYTES, b"\0")
    words = (padded[at : at + WORD_BYTES] for at in range(0, len(padded), WORD_BYTES))
    return {name: len(data), **{f"{name}/{n}": int.from_bytes(word, "big") for n, word in enumerate(words)}}


def _words_of(size: int) -> int:
    return -(-size // WORD_BYTES)


def _quoted(text: str) -> str:
    return quote(text, safe="")
