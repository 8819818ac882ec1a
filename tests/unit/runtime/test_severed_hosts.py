"""Hosts that reach the driver but not each other: which worker is replaced, and where the next one should not run."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from master_runs import RULES, A, B, C, Run, completed, opened

from holdfast.model import ChannelId, Epoch, Subtask, WorkerId
from holdfast.runtime.driver import master
from holdfast.runtime.driver.events import CreateRecord, Dismiss, Effect, Launch, Moment, Tick
from holdfast.runtime.driver.failover import DOUBTED_FOR_S, SEVERED_FOR_S, SEVERED_WAIT_S, avoided
from holdfast.runtime.driver.state import Opening, Over, Rules, Running, Site
from holdfast.runtime.job import explain
from holdfast.runtime.job.status import HOSTS_SEVERED, of_run
from holdfast.runtime.wire import messages as m
from holdfast.testing import TestDriver
from tests.unit.runtime.test_standbys import counting

D = WorkerId("d")
EVERYONE = (A, B, C, D)
ZERO, ONE = Subtask(0), Subtask(1)
SILENCE, RESET = "[Errno 110] Connection timed out", "[Errno 104] Connection reset by peer"
TWO = replace(RULES, restart_failures_max=100)
ONE_STANDBY = replace(TWO, standbys=1)
THREE = replace(TWO, key_ranges=((0, 40), (40, 80), (80, 128)))


def site(host: str) -> Site:
    return host, f"address of {host}"


def register(run: Run, worker: WorkerId, host: str) -> list[Effect]:
    launch = min(run.state.launching, default=99)
    return run.hear(m.Register(worker, launch, host, 1, "one boot id for all", (f"address of {host}", 1)))


def on(hosts: dict[WorkerId, str], rules: Rules = TWO) -> Run:
    """Every subtask is ready, the workers in order of their subtasks."""
    run = opened(rules)
    run.pass_time(0.0)
    for worker, host in hosts.items():
        register(run, worker, host)
    run.ready(*hosts)
    return run


def breaks(run: Run, worker: WorkerId, *peers: Subtask, why: str = SILENCE) -> None:
    """The worker reports broken channels to these peers."""
    links = tuple(m.BrokenLink(peer, why, silent=why == SILENCE) for peer in peers)
    run.hear(run.heartbeat(worker, broken=True, broken_to=links))


def recovered(run: Run) -> list[Effect]:
    """The next generation is in the log and has its base."""
    effects = run.pass_time(0.0, alive=EVERYONE) + run.append()
    return effects + run.load() if run.manifests else effects


def dismissed(effects: list[Effect]) -> list[WorkerId]:
    return [effect.worker for effect in effects if isinstance(effect, Dismiss)]


def launched(effects: list[Effect]) -> list[tuple[Site, ...]]:
    return [effect.avoid for effect in effects if isinstance(effect, Launch)]


class TestSilence:
    def test_between_two_hosts_replaces_a_worker_immediately_and_names_both(self) -> None:
        run = on({A: "h1", B: "h2"})
        breaks(run, A, ONE)
        assert run.pass_time(0.9) == []
        assert dismissed(run.pass_time(1.0)) == [B]
        cause = run.state.failures[-1].error.what
        assert cause == (
            "a data channel broke between subtask 0 on h1 and subtask 1 on h2, which both reach the driver: "
            f"{SILENCE}; the worker on h2 was replaced"
        )

    def test_on_one_host_recovers_in_place(self) -> None:
        run = on({A: "h1", B: "h1"})
        breaks(run, A, ONE)
        effects = run.pass_time(1.2)
        assert dismissed(effects) == [] and any(isinstance(effect, CreateRecord) for effect in effects)
        assert run.state.severed == {}

    def test_replaces_the_worker_that_is_severed_from_most(self) -> None:
        run = on({A: "h1", B: "h2", C: "h3"}, THREE)
        breaks(run, B, ZERO)
        breaks(run, C, ZERO)
        assert dismissed(run.pass_time(1.2)) == [A]

    def test_replaces_the_worker_that_the_driver_has_not_heard_for_a_while(self) -> None:
        run = on({A: "h1", B: "h2"})
        breaks(run, B, ZERO)
        effects = run.pass_time(1.0, alive=(B,)) + run.pass_time(0.2, alive=(B,))
        assert dismissed(effects) == [A]

    def test_takes_no_worker_for_lost_whose_next_heartbeat_is_not_due(self) -> None:
        run = on({A: "h1", B: "h2"}, replace(TWO, heartbeat_every=2.0))
        breaks(run, B, ZERO)
        effects = run.pass_time(1.0, alive=(B,)) + run.pass_time(0.2, alive=(B,))
        assert dismissed(effects) == [B]

    def test_replaces_the_worker_whose_standby_is_on_a_third_host(self) -> None:
        run = on({A: "h1", B: "h2"}, ONE_STANDBY)
        run.pass_time(0.0)
        register(run, C, "h3")
        completed(run)
        run.hear(run.heartbeat(C, copies=(m.StandbyCopy(ZERO, Epoch(1)),)))
        breaks(run, A, ONE)
        assert dismissed(run.pass_time(1.2)) == [A]
        assert run.state.workers[C].subtask is None
        recovered(run)
        assert run.state.workers[C].subtask == ZERO


class TestALastingCut:
    def test_stays_below_the_default_limit_of_failures(self) -> None:
        """A standby on the severed host takes over immediately, and its channels break again."""
        run = on({A: "h1", B: "h2"}, replace(ONE_STANDBY, restart_failures_max=40, restart_window=600.0))
        times: list[float] = []
        number = 0
        while run.now < 1_000.0:
            state = run.state
            if isinstance(state.phase, Over):
                break
            if isinstance(state.phase, Opening):
                run.append()
            elif isinstance(state.phase, Running) and state.phase.broken_since is None:
                active = {h.subtask: (w, h.host) for w, h in state.workers.items() if h.subtask is not None}
                run.ready(*(worker for worker, _ in active.values()))
                breaks(run, active[ZERO][0], ONE)
            for _ in tuple(run.state.launching):
                number += 1
                taken = {hosted.host for hosted in run.state.workers.values() if hosted.subtask is not None}
                register(run, WorkerId(f"w{number}"), "h2" if "h1" in taken else "h1")
            run.pass_time(0.5, alive=tuple(run.state.workers))
            times += [each.at for each in run.state.failures if each.at not in times]
        assert not isinstance(run.state.phase, Over) and len(times) > 20
        assert all(after - before >= SEVERED_WAIT_S for before, after in pairwise(times[1:]))


class TestResets:
    def test_recover_in_place_at_first(self) -> None:
        run = on({A: "h1", B: "h2"})
        breaks(run, A, ONE, why=RESET)
        effects = run.pass_time(1.2)
        assert dismissed(effects) == [] and any(isinstance(effect, CreateRecord) for effect in effects)

    def test_resets_that_recur_before_an_epoch_completes_replace_a_worker(self) -> None:
        """A firewall that refuses connections answers; only its persistence shows."""
        run = on({A: "h1", B: "h2"})
        breaks(run, A, ONE, why=RESET)
        run.pass_time(1.2)
        recovered(run)
        run.ready(A, B)
        breaks(run, A, ONE, why=RESET)
        assert dismissed(run.pass_time(1.2)) == [B]

    def test_after_an_epoch_recover_in_place_again(self) -> None:
        run = on({A: "h1", B: "h2"})
        breaks(run, A, ONE, why=RESET)
        run.pass_time(1.2)
        recovered(run)
        run.ready(A, B)
        completed(run, run.state.job.first_epoch)
        breaks(run, A, ONE, why=RESET)
        assert dismissed(run.pass_time(1.2)) == []


class TestPlaces:
    def test_a_launch_avoids_the_host_that_is_severed_from_a_survivor(self) -> None:
        run = on({A: "h1", B: "h2"})
        breaks(run, A, ONE)
        run.pass_time(1.2)
        assert launched(run.pass_time(0.0)) == [(site("h2"),)]

    def test_the_launch_of_a_standby_avoids_the_hosts_of_the_workers_it_follows(self) -> None:
        run = on({A: "h1", B: "h2"}, ONE_STANDBY)
        assert launched(run.pass_time(0.0)) == [(site("h1"), site("h2"))]

    def test_a_launch_avoids_hosts_whose_worker_fell_silent_until_one_registers_there(self) -> None:
        run = on({A: "h1", B: "h2"})
        effects = run.pass_time(RULES.silent_after + 1.0, alive=(A,))
        assert launched(effects) == [(site("h2"),)]
        register(run, C, "h2")
        assert avoided(run.state, standby=False) == ()

    def test_silent_hosts_are_avoided_only_until_spark_knows_better(self) -> None:
        run = on({A: "h1", B: "h2"})
        run.pass_time(RULES.silent_after + 1.0, alive=(A,))
        assert avoided(run.state, standby=False) == (site("h2"),)
        state, _ = master.step(run.state, Tick(), Moment(run.now + DOUBTED_FOR_S))
        assert state.doubted == {}

    def test_a_killed_worker_leaves_its_host_as_good_as_any(self) -> None:
        run = on({A: "h1", B: "h2"})
        run.lose(B)
        assert launched(run.pass_time(0.0)) == [()]

    def test_a_free_subtask_goes_to_a_worker_that_is_not_severed_from_the_others(self) -> None:
        run = on({A: "h1", B: "h2"}, replace(ONE_STANDBY, standbys=2))
        run.pass_time(0.0)
        register(run, C, "h2")
        completed(run)
        register(run, D, "h3")
        for worker in (C, D):
            run.hear(run.heartbeat(worker, copies=(m.StandbyCopy(ONE, Epoch(1 if worker == C else 0)),)))
        breaks(run, A, ONE)
        effects = run.pass_time(1.2, alive=EVERYONE)
        recovered(run)
        assert dismissed(effects) == [B] and run.state.workers[D].subtask == ONE

    def test_an_epoch_that_completes_proves_that_two_hosts_reach_each_other(self) -> None:
        run = on({A: "h1", B: "h2"})
        breaks(run, A, ONE)
        run.pass_time(1.2)
        recovered(run)
        register(run, C, "h2")
        run.ready(A, C)
        assert run.state.severed
        b, epoch = run.state.workers[C].subtask, run.state.job.first_epoch
        assert b == ONE
        run.pass_time(10.0)
        run.ack(A, epoch)
        run.ack(C, epoch)
        run.store()
        run.append()
        assert run.state.severed == {}

    def test_severed_hosts_are_forgotten_after_a_while(self) -> None:
        run = on({A: "h1", B: "h2", C: "h3"}, THREE)
        breaks(run, A, ONE)
        assert dismissed(run.pass_time(1.2)) == [B]
        recovered(run)
        register(run, D, "h4")
        run.ready(A, C, D)
        assert set(run.state.severed) == {frozenset((site("h1"), site("h2")))}
        run.pass_time(SEVERED_FOR_S, alive=(A, C, D))
        assert run.state.severed == {} and avoided(run.state, standby=False) == ()


class TestStatus:
    def test_names_two_hosts_that_keep_the_job_from_going_on(self) -> None:
        run = on({A: "h1", B: "h2"})
        breaks(run, A, ONE)
        run.pass_time(1.2)
        assert of_run(run.state, "root", "continuous", None).problems == ()
        recovered(run)
        register(run, C, "h2")
        (problem,) = of_run(run.state, "root", "continuous", None).problems
        assert problem.code == HOSTS_SEVERED
        assert problem.what.startswith("workers on h1 (address of h1) and h2 (address of h2) exchange no data")
        assert HOSTS_SEVERED in [each.code for each in explain.findings(of_run(run.state, "root", "continuous", None))]


class TestHeartbeats:
    def test_name_every_peer_with_a_broken_channel_once_and_silence_counts_most(self) -> None:
        with TestDriver(counting(0)) as t:
            generation = t.cluster.driver.state.job.generation
            worker, hosted = next(iter(t.cluster.driver.state.workers.items()))
            loop, own = t.cluster.members[worker].loop, hosted.subtask
            assert own is not None
            peer = Subtask(1 - own)
            for channel, why in ((ChannelId(0, own, peer), RESET), (ChannelId(0, peer, own), SILENCE)):
                loop.channel_broken(generation, channel, why, why == SILENCE)
            loop.channel_broken(generation, ChannelId(0, own, peer), RESET, False)
            loop.take_stock()
            assert loop.heartbeat().broken_to == (m.BrokenLink(peer, SILENCE, True),)
