"""The reader of the test of a copied Postgres table: it accepts what a copy may show, and finds everything else."""

from __future__ import annotations

from accounts import NUMBER, Model
from postgres_observed import Compared, Spread, Tags

HISTORY: list[Model] = [
    {1: 100, 2: 100, 3: 100, NUMBER: 0},
    {1: 70, 2: 130, 3: 100, NUMBER: 1},
    {2: 130, 3: 100, 4: 70, NUMBER: 2},
    {2: 230, 4: 70, NUMBER: 3},
]
WHOLE, WORKERS, PARTITIONS = Spread(1, 1), Spread(1, 2), Spread(4, 1)


def faults(spread: Spread, *snapshots: tuple[Tags, Model]) -> list[str]:
    """Return what is found in these snapshots, up to the first fault of each."""
    compared = Compared(HISTORY, spread, known_within_s=0.0)
    for tags, rows in snapshots:
        compared.take(tags, rows)
    return [fault.split(":")[0] for fault in compared.faults]


def at(epoch: int, *workers: int) -> Tags:
    return dict.fromkeys(workers or (0,), (1, epoch))


def of(spread: Spread, numbers: dict[int, int], by: int) -> Model:
    """Return the accounts as of these transactions, by partition (0) or worker (1)."""
    places = {key: spread.place(key)[by] for rows in HISTORY for key in rows}
    return {
        key: balance
        for place, number in numbers.items()
        for key, balance in HISTORY[number].items()
        if places[key] == place
    }


class TestWhatACopyMayShow:
    def test_transactions_in_order_some_of_them_together(self) -> None:
        assert faults(WHOLE, ({}, {}), (at(1), HISTORY[0]), (at(1), HISTORY[0]), (at(2), HISTORY[2])) == []

    def test_workers_that_have_delivered_different_epochs(self) -> None:
        behind = of(WORKERS, {0: 3, 1: 1}, 1)
        assert behind not in HISTORY
        assert faults(WORKERS, (at(1, 0, 1), HISTORY[1]), ({0: (1, 2), 1: (1, 1)}, behind)) == []

    def test_partitions_as_of_different_transactions(self) -> None:
        partitions = {PARTITIONS.place(key)[0] for key in HISTORY[0]}
        mixed = of(PARTITIONS, {each: place % 2 + 1 for place, each in enumerate(sorted(partitions))}, 0)
        assert mixed not in HISTORY
        assert faults(PARTITIONS, (at(1), HISTORY[0]), (at(2), mixed), (at(3), HISTORY[3])) == []


class TestWhatIsFound:
    def test_half_of_a_transaction(self) -> None:
        assert faults(WHOLE, (at(1), HISTORY[0] | {1: 70})) == ["partition and worker (0, 0)"]

    def test_a_transaction_after_a_later_one(self) -> None:
        assert faults(WHOLE, (at(1), HISTORY[2]), (at(2), HISTORY[1])) == ["partition and worker (0, 0)"]

    def test_workers_of_one_epoch_as_of_different_transactions(self) -> None:
        mixed = of(WORKERS, {0: 3, 1: 1}, 1)
        [found] = faults(WORKERS, (at(1, 0, 1), mixed))
        assert found == "{0"  # the tags come first

    def test_rows_that_change_without_an_epoch(self) -> None:
        assert faults(WHOLE, (at(1), HISTORY[0]), (at(1), HISTORY[1])) == ["rows changed under the tags {0"]

    def test_tags_that_go_back_or_are_lost(self) -> None:
        assert faults(WHOLE, (at(2), HISTORY[0]), (at(1), HISTORY[1])) == ["tags went back from {0"]
        assert faults(WORKERS, (at(1, 0, 1), HISTORY[0]), (at(1, 0), HISTORY[0])) == ["tags went back from {0"]
