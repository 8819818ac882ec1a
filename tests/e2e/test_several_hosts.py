"""A job on several hosts, in namespaces: hosts lost, severed and with wrong clocks; output equals an oracle's.

Each test checks that its faults took effect: processes are gone, packets do not arrive, causes name the hosts.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from hosts import Host, missing
from patience import wait
from running import Run, differences, pid_gone
from several_hosts import (
    DRIVER,
    SparkHosts,
    active,
    await_status,
    epoch_of,
    fed,
    host_of,
    process_of,
    running_on,
    spark_hosts,
    standbys,
    status,
)
from standalone import executor_of

Fault = Callable[[SparkHosts, dict[str, Any], random.Random], str]
LACKS = missing()
pytestmark = [pytest.mark.e2e, pytest.mark.skipif(LACKS is not None, reason=f"hosts need namespaces: {LACKS}")]

HOUR_S = 3_600
CLOCKS = {"h1": HOUR_S, "h2": -HOUR_S, "h3": 0}
STANDBY = ("--standbys", "1")
QUICK = {"HOLDFAST_SILENT_AFTER_MS": "3000", "HOLDFAST_SESSION_TIMEOUT_MS": "5000"}


def hosts_of_subtasks(cluster: SparkHosts, shown: dict[str, Any]) -> tuple[Host, Host]:
    found = active(shown)
    return host_of(cluster, found[0]), host_of(cluster, found[1])


def await_apart(run: Run, cluster: SparkHosts) -> dict[str, Any]:
    """Wait until both subtasks and the standby are on three hosts; Spark alone chose those of the subtasks."""
    shown = await_status(run, cluster, standbys, "a standby with complete copies")
    first, second = hosts_of_subtasks(cluster, shown)
    if first is second:
        process_of(cluster, active(shown)[1]).kill()
        shown = await_generation(run, cluster, shown)
        shown = await_status(run, cluster, standbys, "a standby with complete copies")
    used = {worker["host"] for worker in (*active(shown).values(), *standbys(shown))}
    assert used == set(CLOCKS), "the standby is beside a worker that it follows"
    return shown


def await_generation(run: Run, cluster: SparkHosts, before: dict[str, Any]) -> dict[str, Any]:
    """Wait until a newer generation completes epochs."""
    return await_status(
        run,
        cluster,
        lambda s: (
            s["state"] == "running"
            and s["generation"] > before["generation"]
            and s["checkpoint"]["epoch"] > before["checkpoint"]["epoch"] + 1
        ),
        "epochs of a new generation",
    )


class TestSeveralHosts:
    @pytest.mark.timeout(400)
    def test_severed_and_lost_hosts_are_left_by_a_standby_on_another_one_and_lose_nothing(self, tmp_path: Path) -> None:
        with (
            spark_hosts(tmp_path, CLOCKS, slots=2) as cluster,
            fed(cluster.folder) as feed,
            running_on(cluster, *STANDBY, **QUICK) as run,
        ):
            run.wait_until_running()
            before = await_apart(run, cluster)
            assert clocks_of(before) == {worker["host"]: CLOCKS[worker["host"]] for worker in active(before).values()}
            one, other = hosts_of_subtasks(cluster, before)
            one.cut(other)
            assert other.reaches(one) and one.reaches(cluster.network.hosts[DRIVER])
            severed = await_generation(run, cluster, before)
            assert not one.reaches(other)
            (cause,) = [restart["cause"] for restart in severed["restarts"][len(before["restarts"]) :]]
            assert one.name in cause and other.name in cause and "both reach the driver" in cause
            assert how(severed) == ["promoted", "rolled back"]
            assert set(hosts_of_subtasks(cluster, severed)) != {one, other}

            before = await_apart(run, cluster)
            lost, (taker,) = active(before)[0], standbys(before)
            host_of(cluster, lost).stop()
            after = await_generation(run, cluster, before)
            assert (active(after)[0]["host"], active(after)[0]["pid"]) == (taker["host"], taker["pid"])
            assert how(after) == ["promoted", "rolled back"]
            assert lost["host"] in after["restarts"][-1]["cause"]

            frame = feed.end()
            assert run.finish() == 0, run.errors()
            assert differences(cluster.folder, frame) == []

    @pytest.mark.slow
    @pytest.mark.timeout(3_600)
    def test_twenty_random_faults_of_processes_hosts_and_links_lose_and_duplicate_nothing(self, tmp_path: Path) -> None:
        rng = random.Random(57)
        more = {"HOLDFAST_RESTART_FAILURES_MAX": "1000"}
        with (
            spark_hosts(tmp_path, CLOCKS, slots=2) as cluster,
            fed(cluster.folder) as feed,
            running_on(cluster, *STANDBY, **more) as run,
        ):
            run.wait_until_running()
            faults = [fault for fault in FAULTS for _ in range(FAULTS_EACH)]
            rng.shuffle(faults)
            for fault in faults:
                await_status(run, cluster, lambda s: s["state"] == "running", "a running job")
                if rng.random() < WAIT_FOR_STANDBY:
                    await_status(run, cluster, standbys, "a standby with complete copies")
                before, said = wait(lambda fault=fault: struck(cluster, fault, rng), "a victim")
                after = await_epochs(run, cluster, before)
                print(f"{said}: generation {before['generation']} to {after['generation']}", flush=True)
            restarts = status(cluster)["restarts"]
            print(f"{len(restarts)} restarts: " + "; ".join(restart["cause"] for restart in restarts))
            frame = feed.end()
            print(f"{frame.height:,} rows")
            assert run.finish() == 0, run.errors()
            assert differences(cluster.folder, frame) == []


def struck(cluster: SparkHosts, fault: Fault, rng: random.Random) -> tuple[dict[str, Any], str] | None:
    """Return the status before a fault, and what it did; None if the process that it chose had already ended."""
    before = status(cluster)
    try:
        return before, fault(cluster, before, rng)
    except (ProcessLookupError, psutil.NoSuchProcess):
        return None


WAIT_FOR_STANDBY, FAULTS_EACH = 0.6, 4
"""How often a fault strikes only once a standby is complete, and how often each kind strikes: 20 faults in all."""


def kill_worker(cluster: SparkHosts, before: dict[str, Any], rng: random.Random) -> str:
    return killed(cluster, rng.choice(list(active(before).values())))


def kill_standby(cluster: SparkHosts, before: dict[str, Any], rng: random.Random) -> str:
    found = [worker for worker in before["workers"] if worker["role"] == "standby"]
    return killed(cluster, rng.choice(found or list(active(before).values())))


def kill_executor(cluster: SparkHosts, before: dict[str, Any], rng: random.Random) -> str:
    """With all workers that it hosts."""
    worker = rng.choice(before["workers"])
    victim = executor_of(process_of(cluster, worker).pid)
    victim.kill()
    wait(lambda: pid_gone(victim.pid), "the end of an executor")
    return f"an executor on {worker['host']} was killed"


def lose_host(cluster: SparkHosts, before: dict[str, Any], rng: random.Random) -> str:
    """The host returns some seconds later, with its disk."""
    name = rng.choice(before["workers"])["host"]
    host, away_s = cluster.workers[name], rng.uniform(1.0, 15.0)
    host.stop()
    threading.Event().wait(away_s)
    host.start()
    times = cluster.joined(name) + 1
    cluster.join(name)
    cluster.await_joined(name, times)
    return f"{name} was lost and returned after {away_s:.1f} s"


def sever(cluster: SparkHosts, before: dict[str, Any], rng: random.Random) -> str:
    """Cut a link between two hosts, the driver's among them, in one direction or both."""
    one = host_of(cluster, rng.choice(before["workers"]))
    used = {worker["host"] for worker in before["workers"]}
    other = cluster.network.hosts[rng.choice(sorted({*used, DRIVER} - {one.name}))]
    directions = rng.choice(([(one, other)], [(other, one)], [(one, other), (other, one)]))
    for_s = rng.uniform(1.0, 15.0)
    for sender, receiver in directions:
        sender.cut(receiver)
    threading.Event().wait(for_s)
    for sender, receiver in directions:
        assert not sender.reaches(receiver)
        sender.heal(receiver)
    how = " and ".join(f"{sender.name} to {receiver.name}" for sender, receiver in directions)
    return f"{how} was cut for {for_s:.1f} s"


FAULTS = (kill_worker, kill_standby, kill_executor, lose_host, sever)


def killed(cluster: SparkHosts, worker: dict[str, Any]) -> str:
    victim = process_of(cluster, worker)
    victim.kill()
    wait(lambda: pid_gone(victim.pid), "the end of a worker")
    return f"a {worker['role']} on {worker['host']} was killed"


def await_epochs(run: Run, cluster: SparkHosts, before: dict[str, Any]) -> dict[str, Any]:
    """Wait for two epochs; Spark takes two minutes to notice that an executor is gone with its host."""
    return await_status(
        run,
        cluster,
        lambda s: s["state"] == "running" and epoch_of(s) > epoch_of(before) + 1,
        "epochs after a fault",
    )


def clocks_of(shown: dict[str, Any]) -> dict[str, int]:
    """Return by how many hours, in seconds, the clocks of the hosts with subtasks are ahead of this one."""
    ahead = {worker["host"]: worker["first_record_at"] / 1e6 - time.time() for worker in active(shown).values()}
    return {host: round(seconds / HOUR_S) * HOUR_S for host, seconds in ahead.items()}


def how(shown: dict[str, Any]) -> list[str]:
    """Return how the workers of all subtasks obtained their state."""
    return sorted(worker["how"] for worker in active(shown).values())
