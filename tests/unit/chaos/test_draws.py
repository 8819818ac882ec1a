from __future__ import annotations

import random

from holdfast.chaos.sim.faults.draws import Chance, Noted, Noting


class DrawingProcess:
    """The process that draws."""

    def __init__(self) -> None:
        self.name = "w1"

    def __call__(self) -> str:
        return self.name


def some(chance: Chance) -> list[float]:
    numbers: list[float] = [chance.random(), chance.uniform(2.0, 3.0), chance.choice((0.1, 0.5, 2.0))]
    return [*numbers, chance.randint(1, 6), chance.getrandbits(128)]


class TestNoting:
    def test_noting_does_not_change_the_numbers(self) -> None:
        assert some(Noting(random.Random(7), DrawingProcess())) == some(random.Random(7))


class TestNoted:
    def test_the_same_questions_get_the_same_answers(self) -> None:
        noting = Noting(random.Random(7), DrawingProcess())
        asked = some(noting)
        assert some(Noted(7, noting.notes, DrawingProcess())) == asked

    def test_draws_by_others_in_between_change_nothing(self) -> None:
        who = DrawingProcess()
        noting = Noting(random.Random(7), who)
        asked = some(noting)
        noted = Noted(7, noting.notes, who)
        who.name = "w2"
        some(noted)
        who.name = "w1"
        assert some(noted) == asked

    def test_draws_beyond_the_notes_come_from_the_seed(self) -> None:
        first, second, other = (some(Noted(seed, {}, DrawingProcess())) for seed in (7, 7, 8))
        assert first == second != other

    def test_a_choice_among_fewer_items_is_one_of_them(self) -> None:
        noting = Noting(random.Random(7), DrawingProcess())
        noting.choice([object() for _ in range(9)])
        assert Noted(7, noting.notes, DrawingProcess()).choice(["only"]) == "only"
