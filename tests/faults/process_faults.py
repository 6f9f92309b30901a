"""Faults of workers and agents: killed, stopped, hung, or with an id that is taken."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.agent.harness import environment
from tests.faults.fault_checks import Why
from tests.faults.fault_cluster import SCRIPT, WAIT_S, Given, Trial
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
    "SIGSTOP to a worker until it was declared lost, then SIGCONT: its late messages are refused",
    declared_by="WorkerLost",
    quick=True,
)
def stop_worker(trial: Trial) -> Why:
    worker, pid = second_worker(trial)
    trial.plant(lambda: os.kill(pid, signal.SIGSTOP))
    lost = trial.waits_for("WorkerLost", worker=worker)
    trial.lift(lambda: os.kill(pid, signal.SIGCONT))
    assert lost["fields"]["signal"] == "heartbeat"
    return Why(("lost", f"worker={worker}"), "a paused process: it was stopped or starved")


@contextmanager
def short_hangs(folder: Path) -> Iterator[Given]:
    """A hang is declared after seconds instead of a minute."""
    yield Given({"hang_floor_s": 3.0})


@fault(
    "main thread hung",
    "the main thread of a worker waits for ever; its heartbeats go on",
    declared_by="WorkerLost",
    prepare=short_hangs,
)
def hang_worker(trial: Trial) -> Why:
    worker, _ = second_worker(trial)
    hang = trial.folder / f"hang-{worker}"
    trial.plant(hang.touch)
    lost = trial.waits_for("WorkerLost")
    trial.lift(hang.unlink)
    assert (lost["fields"]["worker"], lost["fields"]["signal"]) == (worker, "hang")
    return Why(("hang", f"task={trial.task}"), r"rank 1 is in wait_while at exact_trainee\.py:\d+")


@fault(
    "worker id used twice",
    "a second process joins with the id of a live worker",
    declared_by="WorkerRejected",
    quick=True,
)
def use_an_id_twice(trial: Trial) -> Why:
    worker, _ = second_worker(trial)
    address = trial.cluster.coordinator.address
    given = {"COORDINATOR_ADDR": address, "STRATA_TASK": trial.task, "WORKER_ID": worker}
    command = [sys.executable, str(SCRIPT), str(trial.folder), "{}"]
    began: list[subprocess.Popen[str]] = []

    def join() -> None:
        began.append(
            subprocess.Popen(
                command,
                env=environment(**given),
                cwd=trial.folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )

    trial.plant(join)
    output, _ = began[0].communicate(timeout=WAIT_S)
    assert began[0].returncode != 0, output
    refused = trial.waits_for("WorkerRejected", worker=worker)
    assert not trial.since("WorkerLost")
    return Why((f"@{refused['position']}",), "was refused registration: .*alive")


@fault(
    "agent killed",
    "SIGKILL to the agent of both workers, and a new start; the workers train on",
    declared_by="AgentLost",
    quick=True,
)
def kill_agent(trial: Trial) -> Why:
    agent, pids = trial.cluster.agent, trial.pids()
    trial.plant(agent.kill)
    lost = trial.waits_for("AgentLost")
    trial.trains(5)
    trial.lift(agent.start)
    trial.waits_for("AgentRegistered")
    assert trial.pids() == pids, "the workers were adopted"
    return Why((f"@{lost['position']}",), "agent|a was lost")
