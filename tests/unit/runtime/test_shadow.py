"""What `shadow` says differs between two versions of a job is what an oracle finds, which computes both results.

The job is killed, rescaled and rewound in between. The oracle takes from it only the offsets with which epochs end, and
from the test the records that were pushed; it shares no code with the replay.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from job_player import rescale

import holdfast as hf
from holdfast.errors import ConfigError
from holdfast.runtime.config.settings import CONTINUOUS, MICROBATCH
from holdfast.runtime.inspect.stored import Stored
from holdfast.runtime.replay import shadow
from holdfast.runtime.replay.contrast import Contrast, GivenRows
from holdfast.runtime.replay.following import EpochChain, chain_from
from holdfast.runtime.replay.player import Code
from holdfast.runtime.replay.shadow import Shadow
from holdfast.runtime.rows.dead_letters import DLQ
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import TestDriver

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
PARTITIONS, EPOCHS, SIZE_S, WITHIN_S = 4, 6, 20, 15
SOURCES = ("rows", "others")
KEYS = ("ab", "cd", "ef", "gh")
"""By partition: the order of records of different partitions is not recorded, so no key may depend on it."""
SEEDS = range(3)

Rule = Callable[[str, int], list[tuple[str, int]]]


@dataclass
class Row:
    k: str
    n: int
    at: datetime


def as_is(k: str, n: int) -> list[tuple[str, int]]:
    return [(k, n)]


def some_doubled(k: str, n: int) -> list[tuple[str, int]]:
    return [(k, 2 * n if k in "aceg" else n)]


def some_left_out(k: str, n: int) -> list[tuple[str, int]]:
    return [] if k in "bdfh" and n % 2 else [(k, n)]


def some_twice(k: str, n: int) -> list[tuple[str, int]]:
    return [(k, n)] * (1 + (n % 5 == 0))


def some_under_another_key(k: str, n: int) -> list[tuple[str, int]]:
    return [(k.upper() if n > 30 else k, n)]


def one_left_out(k: str, n: int) -> list[tuple[str, int]]:
    return [] if k in "ad" else [(k, n)]


RULES: tuple[Rule, ...] = (one_left_out, some_doubled, some_left_out, some_twice, some_under_another_key)


def app_of(rule: Rule) -> hf.App:
    def changed(row: Row) -> Iterator[Row]:
        return (Row(k, n, row.at) for k, n in rule(row.k, row.n))

    app = hf.App("shadowed")
    rows = app.source("rows", hf.Log("unused/rows", Row), event_time="at").flat_map(changed, to=Row)
    rows.sink("rows-out", MemorySink())
    keyed = rows.key_by("k")
    keyed.agg("totals", rows=hf.count(), total=hf.sum("n")).sink("out", MemorySink(["k"]))
    rows.key_by("k").dedup("once", within=f"{WITHIN_S}s").sink("once-out", MemorySink())
    others = app.source("others", hf.Log("unused/others", Row), event_time="at")
    pairs = rows.join("pairs", others, on="k", within=hf.between("0s", f"{WITHIN_S}s"))
    pairs.sink("paired", MemorySink())
    keyed.window(hf.tumbling(f"{SIZE_S}s")).agg("windows", total=hf.sum("n")).sink("windowed", MemorySink())
    return app


@dataclass
class Played:
    """A job that ran with the rule `as_is`.

    Args:
        pushed: The records of each partition of each source.
    """

    driver: TestDriver
    stored: Stored
    pushed: dict[tuple[str, int], list[Row]]

    @property
    def epochs(self) -> list[int]:
        return [int(done.body.epoch) for done in self.stored.job.completed]

    def read_by(self, epoch: int) -> dict[tuple[str, int], int]:
        """The offsets with which an epoch ends; none for 0."""
        if epoch == 0:
            return {}
        done = self.stored.job.checkpoint(epoch)
        assert done is not None
        manifest = self.stored.repository.load_manifest(done.body.manifest)
        return {(at.source, at.partition): at.offset for at in manifest.positions}

    def shadowed(self, rule: Rule, start: int, *, proved: bool = True) -> tuple[dict[str, Contrast], Shadow]:
        """Replay all epochs behind one with the rule."""
        before = Code(self.driver._plan, self.driver.sources)
        after = Code(app_of(rule).plan(), self.driver.sources)
        chain = chain_from(self.stored, str(start) if start else None, 100)
        with Shadow(before, after, chain) as both:
            for link in chain.more(self.stored):
                both.play(link)
            found = {each.name: each for each in both.compared(1_000)}
            assert not proved or (not both.totals.differences and both.totals.unknown is None)
            return found, both


def played(driver: TestDriver, seed: int) -> Played:
    rng = random.Random(seed)
    pushed = {(source, partition): list[Row]() for source in SOURCES for partition in range(PARTITIONS)}
    second = 0.0
    for number in range(EPOCHS):
        for source, partition in pushed:
            times = sorted(second + rng.random() for _ in range(rng.randint(1, 6)))
            rows = [Row(rng.choice(KEYS[partition]), rng.randint(0, 40), NOON + timedelta(seconds=at)) for at in times]
            driver.push(source, rows, partition)
            pushed[source, partition] += rows
        driver.checkpoint()
        second += rng.choice([3, 12, 25])
        match rng.randint(0, 4):
            case 0:
                driver.crash(0)
                driver.recover()
            case 1:
                rescale(driver, rng.randint(1, 3))
            case 2 if number > 1:
                driver.rewind(int(driver.cluster.driver.state.job.completed[-2].body.epoch))
                driver.checkpoint()
            case _:
                pass
    job = driver.cluster.repository.read_log()
    assert job is not None
    return Played(driver, Stored("shadowed", "memory", driver.cluster._store, driver.cluster.repository, job), pushed)


@pytest.fixture(scope="module")
def jobs() -> Iterator[list[Played]]:
    with ExitStack() as stack:
        found = []
        for seed in SEEDS:
            driver = TestDriver(app_of(as_is), seed=seed, mode=(CONTINUOUS, MICROBATCH)[seed % 2])
            found.append(played(stack.enter_context(driver), seed))
        yield found


@dataclass
class Result:
    """What one version gives, as the oracle computes it.

    Args:
        totals: State of each key.
        out: What it put under each key.
        rows: All rows of the sink without a key.
        windows: The rows of windows that closed.
        once: The rows that repeat none.
        pairs: The rows of the join.
    """

    totals: dict[str, tuple[int, int]]
    out: dict[str, tuple[int, int]]
    rows: Counter[tuple[str, int, datetime]]
    windows: Counter[tuple[str, int, int]]
    once: Counter[tuple[str, int, datetime]]
    pairs: Counter[tuple[str, int, datetime, int, datetime]]


def oracle(job: Played, rule: Rule, start: int) -> Result:
    """Compute what is there after the last epoch if the rule applies to all records behind an epoch."""
    began, ends = job.read_by(start), job.read_by(job.epochs[-1])
    result = Result({}, {}, Counter(), Counter(), Counter(), Counter())
    passed: dict[str, datetime] = {}
    open_windows: Counter[tuple[str, int]] = Counter()
    for partition in range(PARTITIONS):
        place = "rows", partition
        for offset, row in enumerate(job.pushed[place][: ends[place]]):
            is_new = offset >= began.get(place, 0)
            for k, n in (rule if is_new else as_is)(row.k, row.n):
                count, total = result.totals.get(k, (0, 0))
                result.totals[k] = count + 1, total + n
                open_windows[k, int((row.at - NOON).total_seconds()) // SIZE_S] += n
                if is_new:
                    result.out[k] = result.totals[k]
                    result.rows[k, n, row.at] += 1
                if k not in passed or row.at - passed[k] >= timedelta(seconds=WITHIN_S):
                    passed[k] = row.at
                    result.once[k, n, row.at] += is_new
                for other, is_other_new in others_of(job, partition, began, ends):
                    if other.k == k and timedelta() <= other.at - row.at <= timedelta(seconds=WITHIN_S):
                        result.pairs[k, n, row.at, other.n, other.at] += is_new or is_other_new
    closed, closes = (closed_by(job, epoch) for epoch in (start, job.epochs[-1]))
    for (k, window), total in open_windows.items():
        if closed <= window < closes:
            result.windows[k, window, total] += 1
    return result


def others_of(job: Played, partition: int, began: Any, ends: Any) -> list[tuple[Row, bool]]:
    """Return the records of the other source, and whether each is behind the epoch."""
    place = "others", partition
    return [(row, at >= began.get(place, 0)) for at, row in enumerate(job.pushed[place][: ends[place]])]


def closed_by(job: Played, epoch: int) -> int:
    """Return the first window that is open after an epoch."""
    read = job.read_by(epoch)
    places = [("rows", partition) for partition in range(PARTITIONS)]
    if any(not read.get(place) for place in places):
        return 0
    latest = (max(row.at for row in job.pushed[place][: read[place]]) for place in places)
    return int((min(latest) - NOON).total_seconds()) // SIZE_S


def agrees(job: Played, rule: Rule, start: int) -> Counter[str]:
    """Compare with the oracle; return how much differs, so that tests can see that something did."""
    found, _ = job.shadowed(rule, start)
    before, after = oracle(job, as_is, start), oracle(job, rule, start)
    for name, one, other in (("totals", before.totals, after.totals), ("out", before.out, after.out)):
        expected = {k for k in one.keys() | other.keys() if one.get(k) != other.get(k)}
        contrast = found[name]
        assert (contrast.differ, contrast.rounded) == (len(expected), 0)
        assert {(each.key or {})["k"] for each in contrast.first} == expected
        for each in contrast.first:
            k = (each.key or {})["k"]
            shown = [None if row is None else (row["rows"], row["total"]) for row in (each.before, each.after)]
            assert shown == [one.get(k), other.get(k)]
            change = "changed" if k in one and k in other else "removed" if k in one else "added"
            assert each.change == change
    bags: tuple[tuple[str, Counter[Any], Counter[Any]], ...] = (
        ("rows-out", before.rows, after.rows),
        ("windowed", before.windows, after.windows),
        ("once-out", before.once, after.once),
        ("paired", before.pairs, after.pairs),
    )
    for name, ones, others in bags:
        assert (found[name].before, found[name].after) == (ones.total(), others.total())
        assert found[name].differ == max((ones - others).total(), (others - ones).total())
    return Counter({name: each.differ for name, each in found.items()})


class TestShadow:
    @pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
    @pytest.mark.parametrize("seed", SEEDS)
    def test_finds_what_the_oracle_finds(self, jobs: list[Played], seed: int, rule: Rule) -> None:
        job = jobs[seed]
        start = random.Random(f"{seed}{rule.__name__}").choice([0, *job.epochs[:-1]])
        assert agrees(job, rule, start).total() > 0, "else this shows nothing"

    @pytest.mark.parametrize("seed", SEEDS[:2])
    def test_the_same_code_gives_no_difference(self, jobs: list[Played], seed: int) -> None:
        assert agrees(jobs[seed], as_is, jobs[seed].epochs[1]).total() == 0

    @pytest.mark.parametrize("seed", SEEDS[:2])
    def test_finds_the_same_where_one_job_in_memory_goes_on_from_another(
        self, jobs: list[Played], monkeypatch: pytest.MonkeyPatch, seed: int
    ) -> None:
        monkeypatch.setattr(shadow, "TOGETHER_MAX", 1)
        assert agrees(jobs[seed], some_under_another_key, jobs[seed].epochs[0]).total() > 0

    def test_names_the_epoch_in_which_a_key_begins_to_differ(self, jobs: list[Played]) -> None:
        job = jobs[0]
        found, both = job.shadowed(some_doubled, 0)
        firsts = {(each.key or {})["k"]: each for each in found["out"].first}
        assert firsts
        for k, each in firsts.items():
            expected = next(
                epoch
                for epoch in job.epochs
                for partition in range(PARTITIONS)
                for row in job.pushed["rows", partition][: job.read_by(epoch)["rows", partition]]
                if row.k == k and row.n
            )
            assert each.epoch == expected
            assert both.since(found["totals"], k, {"k": k}) == (expected, True)


def itself(right: Any) -> Any:
    """The comparison of the former version with itself."""

    def taken(rows: GivenRows, epoch: Any, before: Any, after: Any) -> None:
        right(rows, epoch, before, before)

    return taken


def state_of_itself(right: Any) -> Any:
    return lambda name, before, after, limit: right(name, before, before, limit)


def one_epoch_late(right: Any) -> Any:
    """The first epoch behind the checkpoint is left out."""

    def more(chain: EpochChain, stored: Stored, count: int | None = None) -> Any:
        links = right(chain, stored, count)
        return links[1:] if len(links) > 1 else links

    return more


def without_removed(right: Any) -> Any:
    """A key that the new version does not have is not counted."""

    def count(contrast: Contrast, each: Any, limit: int) -> None:
        if each.change != "removed":
            right(contrast, each, limit)

    return count


FAULTS = (
    (GivenRows, "take", itself),
    (shadow, "contrast_of", state_of_itself),
    (EpochChain, "more", one_epoch_late),
    (Contrast, "count", without_removed),
)


class TestFaults:
    """Wrong versions of the comparison: the oracle disagrees with each."""

    @pytest.mark.parametrize(("owner", "name", "fault"), FAULTS, ids=lambda each: getattr(each, "__name__", ""))
    def test_are_found(
        self, jobs: list[Played], monkeypatch: pytest.MonkeyPatch, owner: object, name: str, fault: Any
    ) -> None:
        monkeypatch.setattr(owner, name, fault(getattr(owner, name)))
        with pytest.raises(AssertionError):
            for seed in SEEDS:
                for rule in RULES:
                    agrees(jobs[seed], rule, jobs[seed].epochs[1])


@dataclass
class Weighed:
    k: str
    x: float


def weighed(keep: Callable[[float], bool], scale: float = 1.0, **aggregates: Any) -> hf.App:
    """An app that keeps some records, scaled."""
    app = hf.App("shadowed")
    rows = app.source("rows", hf.Log("unused/rows", Weighed))
    some = rows.filter(lambda row: keep(row.x)).map(lambda row: Weighed(row.k, scale * row.x), to=Weighed)
    some.key_by("k").agg("means", **(aggregates or {"mean": hf.mean("x")})).sink("out", MemorySink(["k"]))
    return app


def contrasted(before: hf.App, after: hf.App, *epochs: list[Weighed]) -> dict[str, Contrast]:
    with TestDriver(before) as t:
        for rows in epochs:
            t.push("rows", rows)
            t.checkpoint()
        job = t.cluster.repository.read_log()
        assert job is not None
        stored = Stored("shadowed", "memory", t.cluster._store, t.cluster.repository, job)
        chain = chain_from(stored, None, 100)
        with Shadow(Code(t._plan, t.sources), Code(after.plan(), t.sources), chain) as both:
            for link in chain.more(stored):
                both.play(link)
            return {each.name: each for each in both.compared(10)}


class TestState:
    def test_state_behind_an_equal_result_differs(self) -> None:
        """The mean of 2 and 2 is that of 2 alone, until the next record."""
        rows = [Weighed("a", 2.0), Weighed("a", 2.0), Weighed("b", 1.0)]
        seen = iter([True, False, True])
        found = contrasted(weighed(lambda _: True), weighed(lambda _: next(seen)), rows)
        assert (found["out"].differ, found["means"].differ) == (0, 1)
        [first] = found["means"].first
        assert (first.key, first.before, first.after) == ({"k": "a"}, {"mean": 2.0}, {"mean": 2.0})

    def test_rounding_alone_is_counted_apart(self) -> None:
        rows = [Weighed("a", 0.1), Weighed("a", 0.2), Weighed("a", 0.3), Weighed("b", 1.0)]
        found = contrasted(weighed(lambda _: True), weighed(lambda _: True, 1 + 1e-13), rows)
        assert [(each.differ, each.rounded) for each in found.values()] == [(0, 2), (0, 2)]

    def test_state_of_another_declaration_is_compared_by_the_columns_that_both_have(self) -> None:
        rows = [[Weighed("a", 1.0), Weighed("b", 1.0)], [Weighed("b", -1.0), Weighed("c", -1.0)]]
        one = weighed(lambda _: True, n=hf.count(), most=hf.max("x"))
        other = weighed(lambda x: x > 0, n=hf.count(), least=hf.min("x"))
        means = contrasted(one, other, *rows)["means"]
        assert (means.columns.added, means.columns.removed) == (("least",), ("most",))
        assert {((each.key or {})["k"], each.change) for each in means.first} == {("b", "changed"), ("c", "removed")}
        assert (means.before, means.after, means.differ) == (3, 2, 2)


def failing(words: str | None) -> hf.App:
    """An app whose function fails for one record, with these words; None: it does not."""

    def checked(row: Weighed) -> Weighed:
        if row.x == 13 and words is not None:
            raise ValueError(words)
        return row

    app = hf.App("shadowed", dlq=MemorySink())
    rows = app.source("rows", hf.Log("unused/rows", Weighed)).map(checked, to=Weighed, on_error="dlq")
    rows.sink("out", MemorySink())
    return app


class TestDeadLetters:
    def test_differ_by_their_record_not_by_the_text_of_the_error(self) -> None:
        """The text depends on where the code was loaded from."""
        rows = [Weighed("a", 1.0), Weighed("a", 13.0)]
        found = contrasted(failing("unlucky"), failing("another text"), rows)
        assert [(each.name, each.before, each.after, each.differ) for each in found.values()] == [
            ("out", 1, 1, 0),
            (DLQ, 1, 1, 0),
        ]
        found = contrasted(failing("unlucky"), failing(None), rows)
        assert [(each.before, each.after, each.differ) for each in found.values()] == [(1, 2, 1), (1, 0, 1)]


class TestChain:
    def test_takes_the_records_of_expired_checkpoints_as_one_longer_epoch(self, jobs: list[Played]) -> None:
        job = jobs[0]
        left = tuple(done for at, done in enumerate(job.stored.job.completed) if at not in (1, 2))
        thinned = Played(job.driver, replace(job.stored, job=replace(job.stored.job, completed=left)), job.pushed)
        found, both = thinned.shadowed(some_doubled, 0, proved=False)
        whole, _ = job.shadowed(some_doubled, 0)
        assert {name: each.differ for name, each in found.items()} == {n: each.differ for n, each in whole.items()}
        assert both.totals.epochs == thinned.epochs and both.totals.unknown is not None
        assert "have expired" in both.totals.unknown and not both.totals.differences

    def test_gives_what_comes_later_once(self, jobs: list[Played]) -> None:
        job = jobs[0]
        completed = tuple(job.stored.job.completed)
        early = replace(job.stored, job=replace(job.stored.job, completed=completed[:3]))
        chain = chain_from(early, str(completed[0].body.epoch), 100)
        given = [chain.more(stored) for stored in (early, early, job.stored, job.stored)]
        assert [len(links) for links in given] == [2, 0, len(completed) - 3, 0]
        assert all(link.is_whole for links in given for link in links)

    def test_ends_where_a_rewind_abandoned_what_it_gave(self, jobs: list[Played]) -> None:
        job = jobs[0]
        chain = chain_from(job.stored, None, 100)
        chain.more(job.stored)
        rewound = replace(job.stored, job=replace(job.stored.job, completed=tuple(job.stored.job.completed)[:2]))
        with pytest.raises(ConfigError, match="was rewound to epoch"):
            chain.more(rewound)
