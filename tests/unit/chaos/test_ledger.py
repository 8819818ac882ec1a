from __future__ import annotations

from typing import Any

from holdfast.chaos.sim.jobs import oracle
from holdfast.chaos.sim.jobs.ledger import Ledger, Regrouped
from holdfast.chaos.sim.jobs.oracle import Input
from holdfast.model import Epoch, Subtask, Tag, Timeline, Writer

RECORDS = ((Input(0, 1, 0, 10), Input(1, 1, 1, 5), Input(2, 4, 2, -3)),)
EVERYTHING = {0: 3}
ONE, TWO = Writer("accounts", Subtask(0)), Writer("accounts", Subtask(1))


def shown(cut: dict[int, int], *accounts: int) -> list[dict[str, Any]]:
    rows = oracle.balances(RECORDS, cut)
    return [row for account, row in rows.items() if not accounts or account in accounts]


class Seen:
    """A ledger, and the rules it found broken."""

    def __init__(self, rescales: bool = False) -> None:
        self.found: list[str] = []
        self.ledger = Ledger(RECORDS, rescales, lambda rule, what: self.found.append(rule))

    def look(self, writer: Writer, epoch: int, cut: dict[int, int], accounts: set[int], rows: Any) -> None:
        self.ledger.look(writer, Tag(Timeline(1), Epoch(epoch)), cut, accounts, rows)


class TestLedger:
    def test_the_correct_rows_sum_to_zero(self) -> None:
        seen = Seen()
        rows = shown(EVERYTHING)
        seen.look(ONE, 1, EVERYTHING, {row["account"] for row in rows}, rows)
        seen.ledger.compare("I1 loss", "the end", EVERYTHING, rows)
        assert seen.found == [] and sum(row["balance"] for row in rows) == 0

    def test_half_a_transfer_is_found(self) -> None:
        seen = Seen()
        seen.ledger.compare("I1 loss", "the end", EVERYTHING, shown(EVERYTHING)[1:])
        assert seen.found == ["I1 loss", "I5 ledger"]

    def test_a_writer_whose_rows_do_not_match_its_epoch_is_found(self) -> None:
        seen = Seen()
        seen.look(ONE, 1, {0: 1}, {1}, shown(EVERYTHING, 1))
        assert "I5 visible" in seen.found

    def test_writers_at_different_epochs_need_not_balance(self) -> None:
        seen = Seen()
        before, after = shown({0: 1}, 2), shown(EVERYTHING, 1)
        seen.look(TWO, 1, {0: 1}, {2}, before)
        seen.look(ONE, 2, EVERYTHING, {1}, after + before)
        assert seen.found == []


class TestRegrouped:
    def test_every_window_counts_once(self) -> None:
        found: list[str] = []
        regrouped = Regrouped(RECORDS, lambda rule, what: found.append(rule))
        windows = [{"bucket": 0, "n": 1}, {"bucket": 0, "n": 2}]
        regrouped.at_end([{"bucket": 0, "windows": 2, "n": 3}], windows)
        assert found == []
        regrouped.at_end([{"bucket": 0, "windows": 3, "n": 5}], windows)
        assert found == ["I1 loss"]

    def test_a_count_above_the_records_read_is_found(self) -> None:
        found: list[str] = []
        regrouped = Regrouped(RECORDS, lambda rule, what: found.append(rule))
        regrouped.look("then", EVERYTHING, [{"bucket": 0, "windows": 1, "n": 1}])
        assert found == []
        regrouped.look("then", EVERYTHING, [{"bucket": 0, "windows": 1, "n": 2}])
        assert found == ["I5 visible"]
