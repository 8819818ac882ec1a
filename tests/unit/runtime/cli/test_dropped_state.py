"""`--drop-state` from the plan to the audit: it gives up what it names, once, and everything else keeps its state."""

from __future__ import annotations

import json
from typing import Any

import pytest
from orders_job import Orders

from holdfast.errors import ConfigError
from holdfast.runtime.cli.main import main

Capture = pytest.CaptureFixture[str]
OTHER = 'orders.key_by("word").agg("counts", n=hf.count())\n'


@pytest.fixture
def changed(orders: Orders) -> Orders:
    """The job with code that cannot read the state of `totals`, {a: 1, b: 2}."""
    orders.change('hf.sum("v")', 'hf.sum("u")')
    return orders


def numbers(orders: Orders) -> list[tuple[str, int, bool]]:
    return [(each.name, each.id, each.dropped) for each in orders.manifest().operators]


def read(capsys: Capture, orders: Orders, *command: str) -> Any:
    capsys.readouterr()
    assert main(["state", *command, "--root", str(orders.folder / "root"), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


class TestThePlan:
    def test_accepts_what_it_refuses_without_the_flag(self, changed: Orders, capsys: Capture) -> None:
        changes, text = changed.plan(capsys, "--drop-state", "totals")
        assert changes["refused"] == []
        assert changes["drop_state"] == [{"argument": "totals", "operator": "totals", "carried_out": False}]
        assert "operator 'totals' gives up its state\n    it starts empty: its results cover only the records" in text
        assert changed.plan(capsys)[0]["drop_state"] == []

    def test_shows_the_number_of_the_new_state(self, changed: Orders, capsys: Capture) -> None:
        assert main(["plan", changed.file, "--drop-state", "totals", "--json"]) == 0
        assert [(o["name"], o["id"]) for o in json.loads(capsys.readouterr().out)["operators"]] == [("totals", 2)]

    def test_refuses_state_that_does_not_exist(self, changed: Orders, capsys: Capture) -> None:
        changes, _ = changed.plan(capsys, "--drop-state", "nope")
        assert [each["what"] for each in changes["refused"]][1:] == ["no state is kept for nope"]

    def test_a_drop_state_plan_without_a_checkpoint_refuses_every_name(self, tmp_path: Any, capsys: Capture) -> None:
        changes, _ = Orders(tmp_path).plan(capsys, "--drop-state", "totals")
        assert [each["what"] for each in changes["refused"]] == ["no state is kept for totals"]

    def test_a_drop_state_plan_for_a_removed_operator_names_the_unread_state(
        self, orders: Orders, capsys: Capture
    ) -> None:
        orders.change('agg("totals"', 'agg("sums"')
        changes, text = orders.plan(capsys, "--drop-state", "totals")
        assert changes["refused"] == [] and "operator 'totals' gives up its state\n    no operator reads it" in text

    def test_shows_that_an_argument_has_been_carried_out(self, changed: Orders, capsys: Capture) -> None:
        changed.start("totals")
        changed.order(a=1)
        changed.stop()
        changes, _ = changed.plan(capsys, "--drop-state", "totals")
        assert changes["drop_state"] == [{"argument": "totals", "operator": "totals", "carried_out": True}]
        assert (changes["changed"], changes["refused"]) == ([], [])


class TestTheStart:
    def test_begins_with_empty_state(self, changed: Orders) -> None:
        changed.start("totals")
        changed.order(a=1)
        changed.stop()
        assert changed.totals() == {"a": 10, "b": 2}
        assert numbers(changed) == [("totals", 1, True), ("totals", 2, False)]

    def test_repeated_before_the_first_checkpoint_gives_up_the_same_state(self, changed: Orders) -> None:
        changed.start("totals")  # its generation is in the log; it ends without a checkpoint
        changed.start("totals")
        changed.order(a=1)
        assert numbers(changed) == [("totals", 1, True), ("totals", 2, False)]
        assert changed.totals() == {"a": 10, "b": 2}

    def test_decides_nothing_for_another_start_before_the_first_checkpoint(self, changed: Orders) -> None:
        changed.start("totals")
        with pytest.raises(ConfigError, match="the column 'v' and now has the column 'u'"):
            changed.start()
        changed.change('hf.sum("u")', 'hf.sum("v")')
        changed.start()
        changed.order(a=1)
        assert changed.totals() == {"a": 2, "b": 2}

    def test_repeated_later_gives_up_nothing(self, changed: Orders) -> None:
        for total in (10, 20, 30):
            prepared = changed.checked("totals")
            assert bool(prepared.warnings) == (total > 10)
            changed.begin(prepared)
            changed.order(a=1)
            changed.stop()
            assert changed.totals()["a"] == total
        (warning,) = prepared.warnings
        assert warning.startswith(
            "--drop-state totals has no effect: an earlier start has carried it out. Leave it out;"
        )
        assert warning.endswith("--drop-state totals#2")

    def test_with_a_suffix_gives_up_state_once_more(self, changed: Orders) -> None:
        changed.start("totals")
        changed.order(a=1)
        changed.stop()
        for total in (70, 80):
            changed.start("totals", "totals#2")
            changed.order(a=7 if total == 70 else 1)
            changed.stop()
            assert changed.totals()["a"] == total
        assert numbers(changed) == [("totals", 1, True), ("totals", 2, True), ("totals", 3, False)]

    def test_is_carried_out_again_after_a_start_without_it(self, changed: Orders) -> None:
        for arguments, total in ((["totals"], 10), ([], 20), (["totals"], 10)):
            changed.start(*arguments)
            changed.order(a=1)
            changed.stop()
            assert changed.totals()["a"] == total

    def test_does_not_give_up_state_for_a_later_change_of_the_code(self, changed: Orders) -> None:
        changed.start("totals")
        changed.order(a=1)
        changed.stop()
        changed.change('hf.sum("u")', 'hf.max("v")')
        with pytest.raises(ConfigError, match="'total'") as refused:
            changed.start("totals")
        assert refused.value.next_step.endswith(
            "--drop-state totals has been carried out: for the state kept since, write totals#2"
        )

    def test_a_start_that_drops_one_aggregate_does_not_drop_it_again(self, changed: Orders) -> None:
        for total in (10, 20):
            changed.start("totals.total")
            changed.order(a=1)
            changed.stop()
            assert changed.totals()["a"] == total
        changed.start("totals.total#2")
        changed.order(a=1)
        assert changed.totals()["a"] == 10


class TestTheNumberOfAnOperator:
    def test_stays_reserved_when_the_name_comes_back(self, orders: Orders) -> None:
        code = orders.code
        orders.change('agg("totals"', 'agg("sums"')
        orders.start("totals")
        orders.order(a=1)
        orders.stop()
        orders.start("totals")  # the same command after a crash: neither refused nor carried out again
        orders.order(a=1)
        orders.stop()
        assert numbers(orders) == [("totals", 1, True), ("sums", 2, False)] and orders.totals() == {"a": 2, "b": 2}
        orders.code = code
        orders.start("sums")
        orders.order(a=5)
        orders.stop()
        assert numbers(orders) == [("totals", 1, True), ("sums", 2, True), ("totals", 3, False)]
        assert orders.totals() == {"a": 5, "b": 2}

    def test_the_number_of_another_operator_is_unaffected(self, orders: Orders, capsys: Capture) -> None:
        orders.code += OTHER
        orders.start()
        orders.order(a=1)
        orders.stop()
        orders.change('hf.sum("v")', 'hf.sum("u")')
        orders.start("totals")
        orders.order(a=1)
        orders.stop()
        assert numbers(orders) == [("totals", 1, True), ("totals", 3, False), ("counts", 2, False)]
        assert read(capsys, orders, "get", "orders", "counts", "a")["rows"] == [{"word": "a", "n": 2}]


class TestARewindToBefore:
    def test_restores_the_state_for_the_former_code(self, changed: Orders) -> None:
        epoch = self.dropped(changed)
        assert changed.totals() == {"a": 1, "b": 2}
        changed.change('hf.sum("u")', 'hf.sum("v")')
        changed.start()
        changed.order(a=4)  # after the order that is read again
        changed.stop()
        assert numbers(changed) == [("totals", 1, False)] and changed.totals() == {"a": 6, "b": 2}
        assert changed.manifest().follows >= epoch

    def test_lets_the_same_command_give_up_the_state_again(self, changed: Orders) -> None:
        self.dropped(changed)
        changed.start("totals")
        changed.order(b=1)
        assert numbers(changed) == [("totals", 1, True), ("totals", 2, False)]
        assert changed.totals() == {"a": 10, "b": 10}

    def dropped(self, changed: Orders) -> int:
        """Give up the state, order one more a, and rewind to before that."""
        epoch = changed.manifest().epoch
        changed.start("totals")
        changed.order(a=1)
        changed.stop()
        assert changed.totals() == {"a": 10, "b": 2}
        assert main(["rewind", changed.file, "--to-epoch", str(epoch), "--apply"]) == 0
        return epoch


class TestInspectionAndAudit:
    @pytest.fixture
    def after(self, changed: Orders) -> Orders:
        changed.start("totals")
        changed.order(a=1)
        changed.stop()
        return changed

    def test_the_new_state_is_read(self, after: Orders, capsys: Capture) -> None:
        assert read(capsys, after, "scan", "orders", "totals")["rows"] == [{"word": "a", "total": 10}]

    def test_the_former_state_is_read_at_its_epochs(self, changed: Orders, capsys: Capture) -> None:
        former = str(changed.manifest().epoch)
        changed.start("totals")
        changed.order(a=1)
        rows = read(capsys, changed, "get", "orders", "totals", "b", "--epoch", former)["rows"]
        assert rows == [{"word": "b", "total": 2}]

    def test_the_history_of_a_key_ends_where_the_state_was_given_up(self, after: Orders, capsys: Capture) -> None:
        capsys.readouterr()
        assert main(["state", "history", "orders", "totals", "a", "--root", str(after.folder / "root")]) == 0
        out, err = capsys.readouterr()
        assert "added" in out and "totals had state that was given up; for its history there: --epoch" in err

    def test_the_audit_proves_every_epoch(self, after: Orders, capsys: Capture) -> None:
        capsys.readouterr()
        assert main(["audit", after.file, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["verdict"] == "proven"
