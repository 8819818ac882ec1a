"""How the driver counts the deaths of workers during calls of a function, and what it decides."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from master_runs import RULES, A, B, C, Run, running

from holdfast.chaos.mutants.killing_mutants import KILLING_MUTANTS
from holdfast.chaos.mutants.mutation import Mutant, applied
from holdfast.errors import ErrorReport
from holdfast.model import Generation, SourcePosition, Subtask, WorkerId
from holdfast.runtime.driver import killing
from holdfast.runtime.driver.events import Dismiss, End, Send
from holdfast.runtime.driver.killing import KILLERS_MAX, QUIET_EPOCHS, UNPROVEN_MAX
from holdfast.runtime.driver.state import Called, Death, Kill, Kills
from holdfast.runtime.wire import messages as m
from holdfast.runtime.wire.vitals import UNKNOWN, At

D = WorkerId("d")
MARK = "function: map f"
FAILING = replace(RULES, functions={"map f": Called("s", leaves_out=False)}, restart_failures_max=40)
LEAVING = replace(RULES, functions={"map f": Called("s", leaves_out=True)}, restart_failures_max=40)


class Counting:
    """The count of one function of subtask 0."""

    def __init__(self, *, source: str | None = "s", leaves_out: bool = False) -> None:
        self.source, self.leaves_out = source, leaves_out
        self.kills: Kills = ()
        self.generation, self.offset = 0, 0
        self.guilty: Kill | None = None

    def die(self, at: At, *, generation: int | None = None) -> Counting:
        self.generation = self.generation + 1 if generation is None else generation
        partition = at.partition if self.source is not None and at.rows else UNKNOWN
        first = Kill("f", Subtask(0), partition, self.source, (("s", 0, self.offset),))
        death = Death(Generation(self.generation), self.generation, at)
        self.kills, self.guilty = killing.died(self.kills, first, death, self.leaves_out)
        return self

    def complete(self, offset: int) -> Counting:
        self.offset = offset
        self.kills = killing.passed(self.kills, [SourcePosition("s", 0, offset)])
        return self

    @property
    def suspect(self) -> m.Suspect:
        (suspect,) = killing.suspects(self.kills, Subtask(0))
        return suspect


def records(first: int, following: int, partition: int = 0, digest: int = 0) -> At:
    return At(following - first, partition, first, following, digest)


ONE_ROW, OTHER_ROW = At(1, digest=7), At(1, digest=8)


class TestCount:
    def test_three_deaths_at_the_same_offsets_are_proof(self) -> None:
        count = Counting()
        assert count.die(records(0, 200)).guilty is None
        assert count.die(records(64, 128)).guilty is None
        assert count.die(records(77, 78)).guilty is not None

    def test_deaths_at_other_offsets_never_add_up(self) -> None:
        count = Counting()
        for number in range(50):
            assert count.die(records(10 * number, 10 * number + 10)).guilty is None

    def test_deaths_with_an_epoch_between_that_passes_them_never_add_up(self) -> None:
        count = Counting()
        for number in range(50):
            assert count.die(records(number, number + 5)).complete(number + 1).guilty is None

    def test_an_epoch_that_does_not_get_past_the_place_ends_no_count(self) -> None:
        count = Counting()
        for _ in range(2):
            count.die(records(77, 90)).complete(77)
        assert count.die(records(77, 90)).guilty is not None

    def test_workers_that_are_lost_together_count_once(self) -> None:
        count = Counting()
        for _ in range(5):
            assert count.die(records(77, 78), generation=1).guilty is None

    def test_partitions_are_counted_apart(self) -> None:
        count = Counting()
        for partition in (0, 1, 0, 1):
            assert count.die(records(5, 6, partition)).guilty is None
        assert count.die(records(5, 6, 1)).guilty is not None

    def test_behind_a_shuffle_the_last_two_deaths_must_be_at_the_same_row(self) -> None:
        count = Counting(source=None)
        count.die(At(500)).die(At(7))
        assert count.die(ONE_ROW).guilty is None
        assert count.die(OTHER_ROW).guilty is None
        assert count.die(OTHER_ROW).guilty is not None

    def test_deaths_of_a_timer_end_the_run_if_they_continue(self) -> None:
        count = Counting(source=None)
        for _ in range(UNPROVEN_MAX - 1):
            assert count.die(At(0)).guilty is None
        assert count.die(At(0)).guilty is not None

    def test_epochs_that_move_no_source_do_not_end_the_count_of_a_timer(self) -> None:
        """The next worker completes some before event time, held back by an idle source, reaches the timer again."""
        count = Counting(source=None).complete(10)
        for _ in range(UNPROVEN_MAX - 1):
            assert count.die(At(0)).complete(10).complete(10).guilty is None
        assert count.die(At(0)).guilty is not None

    def test_each_epoch_that_moves_a_source_ends_the_count_of_a_timer(self) -> None:
        count = Counting(source=None)
        for offset in range(2 * UNPROVEN_MAX):
            assert count.die(At(0)).complete(offset + 1).guilty is None

    def test_many_epochs_without_a_death_end_the_count_of_a_timer_although_there_is_no_input(self) -> None:
        """A timer of processing time that is killed from outside now and then is not to blame."""
        count = Counting(source=None).complete(10)
        for _ in range(2 * UNPROVEN_MAX):
            assert count.die(At(0)).guilty is None
            for _ in range(QUIET_EPOCHS):
                count.complete(10)
        assert count.kills == ()


class TestSearch:
    def test_gives_a_64th_of_the_rows_where_all_deaths_agree(self) -> None:
        count = Counting().die(records(0, 4096))
        assert count.suspect == m.Suspect("f", 64, 0, 0, 4096)
        count.die(records(64, 128))
        assert count.suspect == m.Suspect("f", 1, 0, 64, 128)

    def test_leaves_out_a_row_at_which_the_process_has_died_twice(self) -> None:
        count = Counting(leaves_out=True).die(records(0, 200)).die(records(77, 80))
        count.die(records(77, 78, digest=7))
        assert count.suspect.killers == ()
        count.die(records(77, 78, digest=7))
        assert count.guilty is None
        assert count.suspect == m.Suspect("f", killers=(m.Killer(7, "the cause of its end is unknown", 0, 77),))

    def test_never_leaves_out_a_row_at_which_the_process_has_died_once(self) -> None:
        """Even where every other death agrees: the last one may have been a kill from outside."""
        count = Counting(leaves_out=True, source=None).die(At(1)).die(ONE_ROW).die(OTHER_ROW)
        assert (count.guilty, count.suspect.killers) == (None, ())

    def test_forgets_a_row_once_an_epoch_is_past_it(self) -> None:
        count = Counting(leaves_out=True)
        for _ in range(3):
            count.die(records(77, 78, digest=7))
        assert len(count.complete(77).suspect.killers) == 1
        assert count.complete(78).kills == ()

    def test_keeps_how_the_process_ended(self) -> None:
        count = Counting(leaves_out=True)
        for launch in (1, 2, 3):
            count.die(records(77, 78, digest=7))
            count.kills = killing.explained(count.kills, launch, f"exit status {launch}")
        (killer,) = count.suspect.killers
        assert killer.how == "exit status 2"

    def test_behind_a_shuffle_goes_on_although_epochs_are_completed_before_the_row(self) -> None:
        """The first epoch after a slow first call ends long before the row that ends the process."""
        count = Counting(source=None, leaves_out=True)
        for offset, at in enumerate((At(4096), At(64), ONE_ROW, ONE_ROW)):
            assert count.complete(32 * offset).die(at).guilty is None
        assert [killer.digest for killer in count.suspect.killers] == [ONE_ROW.digest]

    def test_behind_a_shuffle_ends_after_some_epochs_without_a_death(self) -> None:
        count = Counting(source=None).die(At(500))
        for offset in range(1, m.LIMITED_EPOCHS):
            assert count.complete(offset).suspect.rows_max == 7
        assert count.complete(m.LIMITED_EPOCHS).kills == ()

    def test_behind_a_shuffle_deaths_with_an_epoch_between_never_end_the_run(self) -> None:
        count = Counting(source=None)
        for offset in range(5 * UNPROVEN_MAX):
            assert count.die(At(500 + offset)).complete(offset + 1).guilty is None

    def test_behind_a_shuffle_deaths_before_an_epoch_are_no_proof_of_a_standstill(self) -> None:
        count = Counting(source=None).die(At(500)).die(At(500)).complete(1)
        for _ in range(UNPROVEN_MAX - 1):
            assert count.die(At(500)).guilty is None
        assert count.die(At(500)).guilty is not None

    def test_goes_on_while_the_function_still_gets_more_rows_than_the_limit(self) -> None:
        """Such deaths show no narrower place; a run that leaves rows out does not end for them."""
        count = Counting(leaves_out=True)
        for _ in range(3 * UNPROVEN_MAX):
            assert count.die(records(0, 4096)).guilty is None
        count.die(records(64, 128)).die(records(77, 78, digest=7)).die(records(77, 78, digest=7))
        assert [killer.digest for killer in count.suspect.killers] == [7]

    def test_a_search_of_single_rows_ends_the_run_after_its_limits_without_a_guilty_row(self) -> None:
        count = Counting(source=None, leaves_out=True)
        for number in range(UNPROVEN_MAX - 1):
            assert count.die(At(1, digest=number + 1)).guilty is None
        assert count.die(At(1, digest=99)).guilty is not None

    def test_leaves_out_so_many_rows_at_a_time_and_keeps_each_that_is_ahead(self) -> None:
        for source in ("s", None):
            count = Counting(source=source, leaves_out=True)
            for row in range(KILLERS_MAX):
                find(count, row)
            assert [killer.digest for killer in count.suspect.killers] == list(range(1, KILLERS_MAX + 1))
            find(count, KILLERS_MAX)
            assert count.guilty is not None and killing.is_full(count.guilty)
            assert len(count.guilty.killers) == KILLERS_MAX

    def test_goes_on_at_the_most_rows_once_epochs_are_past_some(self) -> None:
        for source in ("s", None):
            count = Counting(source=source, leaves_out=True)
            for row in range(KILLERS_MAX):
                find(count, row)
            for epoch in range(m.LIMITED_EPOCHS):
                count.complete(1 + epoch)
            find(count, KILLERS_MAX)
            assert count.guilty is None
            assert count.suspect.killers[-1].digest == KILLERS_MAX + 1


def find(count: Counting, row: int) -> None:
    """The process dies at this row until it is left out, or the run ends for it."""
    for _ in range(3):
        count.die(At(1, digest=row + 1) if count.source is None else records(row, row + 1, digest=row + 1))


def died(run: Run, at: At | None, worker: WorkerId = A, mark: str | None = MARK) -> ErrorReport | None:
    """A worker dies, and its companion reports it; return the error with which the run ends."""
    run.hear(m.Vitals(worker, "ended", mark, 0, at=at))
    launch = run.state.workers[worker].launch
    effects = run.lose(worker)
    assert effects[0] == Dismiss(worker, launch)
    run.end_launch(launch, "its process ended with exit status 3")
    return next((effect.error for effect in effects if isinstance(effect, End)), None)


def again(run: Run, worker: WorkerId) -> None:
    """The next generation runs, with another worker."""
    run.pass_time(20.0, alive=tuple(run.state.workers))
    run.append()
    if run.manifests:
        run.load()
    run.register(worker)
    run.ready(*run.state.workers)


class TestRun:
    def test_ends_as_failed_and_names_function_offsets_and_cause(self) -> None:
        run = running(FAILING)
        for worker, following in ((A, C), (C, D)):
            assert died(run, records(77, 78), worker) is None
            again(run, following)
        error = died(run, records(77, 78), D)
        assert error is not None
        assert (error.kind, error.operator, error.source) == ("failed", "map f", "s")
        assert (error.partition, error.offset) == (0, 77)
        assert "the Python function of step 'map f' ended its process 3 times" in error.what
        assert "source 's', partition 0, offset 77; cause: its process ended with exit status 3" in error.what
        assert 'on_error="dlq"' in error.next

    def test_ends_for_a_timer_although_epochs_complete_at_the_same_offsets_meanwhile(self) -> None:
        run, workers = running(FAILING), iter("cdefghijk")
        worker, error = A, None
        for number in range(UNPROVEN_MAX):
            assert error is None
            error = died(run, At(0), worker)
            run.state = replace(run.state, kills=killing.passed(run.state.kills, []))
            if number < UNPROVEN_MAX - 1:
                worker = WorkerId(next(workers))
                again(run, worker)
        assert error is not None and (error.kind, error.operator) == ("failed", "map f")
        assert (
            "the Python function of step 'map f' ended its process 8 times without progress, in a timer" in error.what
        )

    def test_tells_the_next_worker_what_is_known(self) -> None:
        run = running(LEAVING)
        died(run, records(0, 200))
        again(run, C)
        sent = [effect for effect in run.effects if isinstance(effect, Send)]
        deploys = {each.worker: each.message for each in sent if isinstance(each.message, m.Deploy)}
        assert deploys[C].suspects == (m.Suspect("map f", 3, 0, 0, 200),)
        assert deploys[B].suspects == ()

    @pytest.mark.parametrize(
        ("mark", "state"), [(None, "ended"), ("source: s", "ended"), (MARK, "held"), (MARK, "lost")]
    )
    def test_counts_no_death_outside_a_function(self, mark: str | None, state: str) -> None:
        run = running(FAILING)
        run.hear(m.Vitals(A, state, mark, 0))  # type: ignore[arg-type]
        run.lose(A)
        assert run.state.kills == ()

    def test_counts_a_death_although_a_heartbeat_from_before_it_comes_later(self) -> None:
        run = running(FAILING)
        run.hear(m.Vitals(A, "ended", MARK, 0, at=records(0, 5)))
        run.beat(A)
        run.lose(A)
        assert len(run.state.kills) == 1

    def test_counts_no_death_without_a_report(self) -> None:
        run = running(FAILING)
        run.lose(A)
        assert run.state.kills == ()

    def test_forgets_deaths_that_a_completed_epoch_has_got_past(self) -> None:
        run = running(FAILING)
        died(run, records(0, 5))
        again(run, C)
        assert len(run.state.kills) == 1
        run.state = replace(run.state, kills=killing.passed(run.state.kills, [SourcePosition("s", 0, 5)]))
        assert run.state.kills == ()

    def test_does_not_end_for_many_rows_that_are_left_out(self) -> None:
        run, workers = running(replace(LEAVING, restart_failures_max=3)), iter("cdefghijklmnopqrstuvwxyz")
        worker = A
        for row in range(8):
            for _ in range(3):
                assert died(run, records(row, row + 1, digest=row + 1), worker) is None
                worker = WorkerId(next(workers))
                again(run, worker)
            assert run.state.failures == ()

    def test_ends_at_the_most_rows_that_are_left_out_with_a_message_of_its_own(self) -> None:
        run = running(LEAVING)
        killers = tuple(m.Killer(1000 + n, "exit status 3", 0, 1000 + n) for n in range(KILLERS_MAX))
        at = records(77, 78, digest=7)
        deaths = tuple(Death(Generation(0), 0, at, "exit status 3") for _ in range(2))
        run.state = replace(
            run.state, kills=(Kill("map f", Subtask(0), 0, "s", (), deaths, rows_max=1, killers=killers),)
        )
        run.hear(m.Vitals(A, "ended", MARK, 0, at=at))
        error = next(effect.error for effect in run.lose(A) if isinstance(effect, End))
        assert error is not None and (error.kind, error.partition, error.offset) == ("failed", 0, 77)
        assert error.what == (
            "64 rows were left out because the Python function of step 'map f' ended its process at each, the most "
            "that are left out at a time; it ended its process at another one: source 's', partition 0, offset 77; "
            "cause: exit status 3"
        )
        assert error.not_done.startswith("this row was not left out")
        assert "on_error" not in error.next and "run the job again" in error.next


def plays_right(seed: int) -> bool:
    """Play one function: random kills from outside, epochs, and at most one record that kills.

    Kills from outside are at the same place twice at most: three times could not be told from the function's own.

    Returns:
        Whether the job gets to the end of its input, without that record if it may be left out; or ends for it.
    """
    rng = random.Random(seed)
    deadly, source = rng.choice([None, rng.randrange(40, 60)]), rng.choice(["s", None])
    count, base = Counting(source=source, leaves_out=rng.random() < 0.5), 0
    outside, gone, since = list[range](), set[int](), 0
    for _ in range(100):
        suspect = next(iter(killing.suspects(count.kills, Subtask(0))), m.Suspect("f"))
        limited = range(suspect.offset, suspect.following) if suspect.partition != UNKNOWN else range(1_000)
        left_out, at = {killer.digest - 1 for killer in suspect.killers}, base
        while count.guilty is None:
            if at in left_out:
                gone.add(at)
                at += 1
                continue
            end = min([at + 20, *(each for each in left_out if each > at)])
            if suspect.rows_max and limited.start < end and at < limited.stop:
                end = min(end, limited.start) if at < limited.start else at + suspect.rows_max
            dies = deadly is not None and at <= deadly < end
            here = sum(each.start < end and at < each.stop for each in outside)
            if not dies and rng.random() < 0.1 and here < (1 if end == at + 1 else 2) and since < 3:
                outside.append(range(at, end))
                dies, since = True, since + 1
            if dies:
                digest = at + 1 if end == at + 1 else 0
                count.die(At(end - at, digest=digest) if source is None else records(at, end, digest=digest))
                break
            at = end
            if at > 100:
                return gone == ({deadly} if deadly is not None and count.leaves_out else set())
            if rng.random() < 0.3:
                base = at
                count.complete(base)
                since = 0
        if count.guilty is not None:
            return deadly is not None and not count.leaves_out
    return False


class TestRandomPlays:
    def test_find_the_record_that_kills_and_no_other(self) -> None:
        assert [seed for seed in range(300) if not plays_right(seed)] == []

    @pytest.mark.parametrize("mutant", KILLING_MUTANTS, ids=lambda mutant: mutant.name)
    def test_catch_a_wrong_count(self, mutant: Mutant) -> None:
        with applied(mutant):
            assert not all(plays_right(seed) for seed in range(300))
