"""Faults of the network between the coordinator, the agents and the workers, on hosts of their
own (`network_cluster`). Two of three hosts have a worker; the third one has room."""

import os
import signal
import subprocess
import time
from contextlib import AbstractContextManager, ExitStack

from tests.faults.fault_checks import Why
from tests.faults.fault_cluster import Trial
from tests.faults.fault_matrix import fault
from tests.faults.namespaces import Host, Network
from tests.faults.network_cluster import HEAD, far, lossy_network, network

SHORT_S = 1.0
LOSSY_S = 6.0
LOST = 0.3
LATENCY_S = 0.2


def ranks(trial: Trial) -> list[str]:
    """The members of the newest generation, by rank."""
    seats: dict[int, str] = {}
    for changed in trial.watcher.of("GenerationChanged", task=trial.task):
        seats.update({int(rank): worker for rank, worker in changed["fields"]["seats"]})
    return [seats[rank] for rank in sorted(seats)]


def host_of(trial: Trial, worker: str) -> Host:
    """The host on which a worker runs."""
    pid = trial.pids()[worker]
    shown = subprocess.run(["ip", "netns", "identify", str(pid)], capture_output=True, text=True)
    hosts: Network = trial.cluster.tool
    return next(each for each in hosts.hosts.values() if each.namespace == shown.stdout.strip())


def others(trial: Trial, host: Host) -> list[str]:
    """The names of all hosts but one."""
    return [name for name in trial.cluster.tool.hosts if name != host.name]


def lost_and_returned(trial: Trial, worker: str, cut: AbstractContextManager) -> Why:
    """Cut a worker's host off until the worker was replaced; then wait for the host's return."""
    with ExitStack() as stack:
        trial.plant(lambda: stack.enter_context(cut))
        trial.waits_for("WorkerLost", worker=worker)
        trial.waits_for("RecoveryChosen", task=trial.task)
        trial.trains()
        trial.lift(stack.close)
    trial.waits_for("AgentRegistered")
    trial.waits_for("WorkerExited", worker=worker)
    return Why(("lost", f"worker={worker}"), "a partition: its whole host was unreachable")


def require_undisturbed(trial: Trial) -> None:
    """No worker or host was lost, and the generation is the same."""
    changed = trial.since("WorkerLost", "AgentLost", "GenerationChanged")
    assert not changed, changed[0]


@fault(
    "partition shorter than the timeout",
    f"the host of a worker is cut off from all others for {SHORT_S:g} s",
    prepare=network,
    needs=("namespaces",),
)
def short_partition(trial: Trial) -> Why:
    first, second = ranks(trial)
    host = host_of(trial, second)
    with ExitStack() as stack:
        cut = trial.cluster.tool.partition([host.name], others(trial, host))
        trial.plant(lambda: stack.enter_context(cut))
        time.sleep(SHORT_S)
        trial.lift(stack.close)
    trial.trains()
    require_undisturbed(trial)
    # One step took a second: `slow` compares the median of the recent ones.
    return Why(("slow", f"worker={first}"), "(no|yes, in communication.*): a step takes")


@fault(
    "partition of a host",
    "the host of a worker is cut off from all others until the worker was replaced",
    declared_by="WorkerLost",
    prepare=network,
    needs=("namespaces",),
)
def long_partition(trial: Trial) -> Why:
    worker = ranks(trial)[1]
    host = host_of(trial, worker)
    cut = trial.cluster.tool.partition([host.name], others(trial, host))
    return lost_and_returned(trial, worker, cut)


@fault(
    "one-way cut to the coordinator",
    "nothing that the host of a worker sends arrives at the coordinator; the other way works",
    declared_by="WorkerLost",
    prepare=network,
    needs=("namespaces",),
)
def cut_to_coordinator(trial: Trial) -> Why:
    worker = ranks(trial)[1]
    return lost_and_returned(trial, worker, host_of(trial, worker).cut(HEAD))


@fault(
    "one-way cut from the coordinator",
    "nothing that the coordinator sends arrives at the host of a worker; the other way works",
    declared_by="WorkerLost",
    prepare=network,
    needs=("namespaces",),
)
def cut_from_coordinator(trial: Trial) -> Why:
    worker = ranks(trial)[1]
    cut = trial.cluster.tool[HEAD].cut(host_of(trial, worker).name)
    return lost_and_returned(trial, worker, cut)


@fault(
    "link down and up",
    "the network link of rank 0's host is down until the worker was replaced",
    declared_by="WorkerLost",
    prepare=network,
    needs=("namespaces",),
)
def link_down(trial: Trial) -> Why:
    worker = ranks(trial)[0]
    return lost_and_returned(trial, worker, host_of(trial, worker).unplugged())


@fault(
    "30 % packet loss",
    f"30 % of the packets from and to a worker's host are lost for {LOSSY_S:g} s",
    prepare=lossy_network,
    needs=("namespaces",),
)
def packet_loss(trial: Trial) -> Why:
    first, second = ranks(trial)
    host, hosts = host_of(trial, second), trial.cluster.tool
    with ExitStack() as stack:

        def lose() -> None:
            stack.enter_context(host.loses(LOST))
            for name in others(trial, host):
                stack.enter_context(hosts[name].loses(LOST, host.name))

        trial.plant(lose)
        time.sleep(LOSSY_S)
        until_ms = time.time() * 1000
        trial.lift(stack.close)
    trial.trains()
    require_undisturbed(trial)
    return Why(
        ("slow", f"worker={first}", f"time_ms={until_ms}"),
        "(no|yes, in communication.*): a step takes",
    )


@fault(
    "latency of 200 ms",
    f"every message to and from the coordinator takes {LATENCY_S:g} s longer, for {LOSSY_S:g} s",
    prepare=far,
)
def latency(trial: Trial) -> Why:
    forwarder = trial.cluster.tool
    trial.plant(lambda: setattr(forwarder, "delay_s", LATENCY_S))
    time.sleep(LOSSY_S)
    trial.lift(lambda: setattr(forwarder, "delay_s", 0.0))
    trial.trains()
    require_undisturbed(trial)
    return Why(("outage",), "no: it did not restart, and no heartbeat was answered late")


@fault(
    "one-way cut between workers",
    "nothing that rank 1 sends arrives at rank 0; both reach the coordinator",
    declared_by="ExchangeBroken",
    prepare=network,
    needs=("namespaces",),
)
def cut_between_workers(trial: Trial) -> Why:
    first, second = ranks(trial)
    to = host_of(trial, first).name
    with ExitStack() as stack:
        cut = host_of(trial, second).cut(to)
        trial.plant(lambda: stack.enter_context(cut))
        broken = trial.waits_for("ExchangeBroken", task=trial.task)
        trial.lift(stack.close)
    trial.trains()
    next_one = broken["fields"]["generation"] + 1
    named = "its host has acknowledged nothing|lost its connection to"
    return Why(("changed", f"task={trial.task}", f"generation={next_one}"), named)


@fault(
    "worker vanishes",
    "the link of a worker's host goes down, then the worker is killed: its connections stay open",
    declared_by="WorkerLost",
    prepare=network,
    needs=("namespaces",),
)
def vanished_worker(trial: Trial) -> Why:
    worker = ranks(trial)[1]
    host, pid = host_of(trial, worker), trial.pids()[worker]

    with ExitStack() as stack:

        def vanish() -> None:
            stack.enter_context(host.unplugged())
            os.kill(pid, signal.SIGKILL)

        trial.plant(vanish)
        trial.waits_for("WorkerLost", worker=worker)
        trial.trains()
        trial.lift(stack.close)
    trial.waits_for("WorkerExited", worker=worker)
    return Why(("lost", f"worker={worker}"), "ended with signal 9, reported later")
