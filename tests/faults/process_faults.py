"""Faults of processes: workers, agents and the coordinator, killed, stopped or hung."""

import os
import signal

from tests.faults.fault_checks import Why
from tests.faults.fault_cluster import Trial
from tests.faults.fault_matrix import fault


def second_worker(trial: Trial) -> tuple[str, int]:
    """The id and the pid of one of the two workers."""
    return list(trial.pids().items())[1]


@fault("worker killed", "SIGKILL to one of two workers", declared_by="WorkerLost", quick=True)
def kill_worker(trial: Trial) -> Why:
    worker, pid = second_worker(trial)
    trial.plant(lambda: os.kill(pid, signal.SIGKILL))
    trial.waits_for("WorkerLost", worker=worker)
    return Why(("lost", f"worker={worker}"), "it crashed: .* ended with signal 9")


@fault(
    "worker stopped and continued",
    "SIGSTOP to a worker until it was declared lost, then SIGCONT",
    declared_by="WorkerLost",
)
def stop_worker(trial: Trial) -> Why:
    worker, pid = second_worker(trial)
    trial.plant(lambda: os.kill(pid, signal.SIGSTOP))
    lost = trial.waits_for("WorkerLost", worker=worker)
    trial.lift(lambda: os.kill(pid, signal.SIGCONT))
    assert lost["fields"]["signal"] == "heartbeat"
    return Why(("lost", f"worker={worker}"), "paused|stopped")
