"""Faults of the coordinator: killed at each stage of its work, stopped, or its clock set."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.agent.harness import until
from tests.faults.fault_checks import Why
from tests.faults.fault_cluster import SETTINGS, WAIT_S, Given, Trial
from tests.faults.fault_matrix import fault
from tests.faults.process_faults import second_worker

RESTARTED = "its process had ended and was started again"
OUTAGE = Why(("outage",), RESTARTED)


def kill_and_start(trial: Trial) -> None:
    """Kill the coordinator and start it again; the fault lasts until it serves."""
    trial.plant(trial.cluster.coordinator.kill)
    trial.cluster.coordinator.start()
    trial.lift(lambda: None)
    trial.waits_for("CoordinatorStarted")


@fault(
    "coordinator killed",
    "SIGKILL to the coordinator while workers train, and a new start",
    declared_by="CoordinatorStarted",
    quick=True,
)
def kill_coordinator(trial: Trial) -> Why:
    kill_and_start(trial)
    assert not trial.since("WorkerLost")
    return OUTAGE


@fault(
    "coordinator killed in a barrier",
    "SIGKILL to the coordinator while one of two workers waits at a barrier, and a new start",
    declared_by="CoordinatorStarted",
)
def kill_in_barrier(trial: Trial) -> Why:
    (trial.folder / "hold").touch()
    (trial.folder / "meet").touch()
    came = until(lambda: trial.watcher.of("BarrierArrived", task=trial.task), "a barrier", WAIT_S)
    (trial.folder / "meet").unlink()
    kill_and_start(trial)
    (trial.folder / "hold").unlink()
    [arrived, *_] = came
    which = {name: arrived["fields"][name] for name in ("barrier", "round")}
    released = trial.waits_for("BarrierReleased", task=trial.task, **which)
    assert released["position"] > arrived["position"]
    return OUTAGE


@fault(
    "coordinator killed in a checkpoint",
    "SIGKILL to the coordinator while the workers write a checkpoint, and a new start",
    declared_by="CoordinatorStarted",
)
def kill_in_checkpoint(trial: Trial) -> Why:
    (trial.folder / "hold_save").touch()
    known = {each["fields"]["checkpoint"] for each in begun(trial)}
    [new, *_] = until(
        lambda: [each for each in begun(trial) if each["fields"]["checkpoint"] not in known],
        "another checkpoint",
        WAIT_S,
    )
    kill_and_start(trial)
    (trial.folder / "hold_save").unlink()
    trial.waits_for("CheckpointCommitted", checkpoint=new["fields"]["checkpoint"])
    return OUTAGE


def begun(trial: Trial) -> list[dict]:
    return trial.watcher.of("CheckpointStarted", task=trial.task)


@fault(
    "coordinator killed in a registration",
    "a worker is killed; SIGKILL to the coordinator while its replacement registers",
    declared_by="CoordinatorStarted",
)
def kill_in_registration(trial: Trial) -> Why:
    worker, pid = second_worker(trial)
    coordinator = trial.cluster.coordinator
    os.kill(pid, signal.SIGKILL)
    replacement = until(lambda: newer(trial, worker, pid), "the replacement", WAIT_S)
    os.kill(coordinator.pid, signal.SIGSTOP)
    until(lambda: connected(replacement, coordinator.port), "its call to register", WAIT_S)
    kill_and_start(trial)
    trial.waits_for("WorkerRegistered", worker=worker)
    return OUTAGE


def newer(trial: Trial, worker: str, than: int) -> int | None:
    """The pid of a worker's next process."""
    found = trial.pids().get(worker, than)
    return None if found == than else found


def connected(pid: int, port: int) -> bool:
    """Whether a process has a connection to a port, or has ended."""
    try:
        found = psutil.Process(pid).net_connections("tcp")
    except psutil.NoSuchProcess:
        return True
    return any(each.raddr and each.raddr.port == port for each in found)


@fault(
    "coordinator stopped and continued",
    "SIGSTOP to the coordinator for longer than the heartbeat timeout, then SIGCONT",
    quick=True,
)
def stop_coordinator(trial: Trial) -> Why:
    pid = trial.cluster.coordinator.pid
    trial.plant(lambda: os.kill(pid, signal.SIGSTOP))
    time.sleep(SETTINGS["heartbeat_timeout_s"] * 1.3)  # the fault itself: nothing can be awaited
    trial.lift(lambda: os.kill(pid, signal.SIGCONT))
    until(trial.recovered, "a committed step", WAIT_S)
    assert not trial.since("WorkerLost"), "workers were lost while the coordinator was paused"
    until(
        lambda: (
            "answered no heartbeat" in trial.api.get("/timeline/why", question="outage")["answer"]
        ),
        "the workers' record of it",
        WAIT_S,
    )
    return Why(("outage",), "it answered no heartbeat for .* was stopped or starved")


def outage_of(trial: Trial) -> str:
    """What `strata why outage` answers now."""
    return str(trial.api.get("/timeline/why", question="outage")["answer"])


@contextmanager
def own_clock(folder: Path) -> Iterator[Given]:
    """The wall clock of the coordinator, the agent and the workers can be set, by a file."""
    (folder / "sitecustomize.py").write_text(CLOCK.format(file=str(folder / "ahead_s")), "utf-8")
    (folder / "ahead_s").write_text("0")
    variables = {"PYTHONPATH": str(folder)}
    yield Given(variables=variables, coordinator_variables=variables, tool=folder / "ahead_s")


CLOCK = """
import time

def ahead_s():
    try:
        with open({file!r}) as file:
            return int(file.read() or 0)
    except OSError:
        return 0

def ahead_ns(read):
    return lambda: read() + ahead_s() * 10**9

def ahead(read):
    return lambda: read() + ahead_s()

time.time, time.time_ns = ahead(time.time), ahead_ns(time.time_ns)
"""


@fault(
    "clocks set by an hour",
    "the wall clocks of all processes go one hour ahead, and later back, while workers train",
    prepare=own_clock,
)
def set_clocks(trial: Trial) -> Why:
    ahead = trial.cluster.tool
    trial.plant(lambda: ahead.write_text("3600"))
    trial.trains(20)
    trial.lift(lambda: ahead.write_text("0"))
    trial.trains(20)
    assert not trial.since("WorkerLost", "AgentLost", "GenerationChanged")
    return Why(("trust",), "clock")
