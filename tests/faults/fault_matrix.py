"""The fault matrix: its list, how a fault is written, and how one is run.

A fault is a function with the decorator `fault`, in a module named in `MODULES`:

    @fault("worker killed", "SIGKILL to one of two workers", declared_by="WorkerLost")
    def kill_worker(trial):
        worker, pid = list(trial.pids().items())[1]
        trial.plant(lambda: os.kill(pid, signal.SIGKILL))
        return Why(("lost", f"worker={worker}"), "signal 9")

It gets a `Trial`: a task of two workers that trains and has a checkpoint. It plants one fault with
`trial.plant`, waits until the fault is over (`trial.lift` ends one that lasts), and returns the
question to `strata why` whose answer must name the cause. `play` then waits for a new committed
step, lets the task end, checks every promise (`fault_checks`) and measures. Faults with the same
`prepare` share a cluster: a context manager that yields the cluster's settings and the server or
disk that the fault needs (`fault_cluster.Given`), which is then `trial.cluster.tool`.
`needs` names what the machine must have (`fault_needs`), and `quick` faults are drawn by the chaos
run (`chaos`).
"""

import importlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from tests.agent.harness import until
from tests.faults.fault_checks import Why, check
from tests.faults.fault_cluster import WAIT_S, Cluster, Prepare, Trial, plain

MODULES = (
    "process_faults",
    "coordinator_faults",
    "storage_faults",
    "crowd_faults",
    "network_faults",
)


@dataclass(frozen=True)
class Fault:
    """One row of the matrix."""

    name: str
    does: str
    strike: Callable[[Trial], Why]
    declared_by: str
    prepare: Prepare = plain
    needs: tuple[str, ...] = ()
    quick: bool = False


@dataclass(frozen=True)
class Measured:
    """What was measured for one fault; None where nothing is recorded.

    `lasted_s`: how long the fault was there. `detected_s` and `recovered_s` count from its
    beginning to the fact that declares it and to the first commit of a step that was applied later.
    """

    name: str
    does: str
    lasted_s: float | None
    detected_s: float | None
    recovered_s: float | None
    lost_samples: int
    lost_facts: int
    steps: int
    why: str


FAULTS: dict[str, Fault] = {}


def fault(name: str, does: str, *, declared_by: str = "", **given: Any) -> Callable[..., Any]:
    """Add a function to the matrix."""

    def add(strike: Callable[[Trial], Why]) -> Callable[[Trial], Why]:
        assert name not in FAULTS, f"two faults are called {name!r}"
        FAULTS[name] = Fault(name, does, strike, declared_by, **given)
        return strike

    return add


def load() -> dict[str, Fault]:
    """Every fault, by its name."""
    for module in MODULES:
        importlib.import_module(f"tests.faults.{module}")
    return FAULTS


def play(cluster: Cluster, fault: Fault) -> dict[str, Any]:
    """Plant a fault into a new task, check every promise after it; returns what was measured."""
    trial = cluster.begin(f"{fault.name.replace(' ', '-')}-{time.monotonic_ns()}")
    why = fault.strike(trial)
    until(lambda: trial.recovered(), f"a new step of {trial.task} after {fault.name}", WAIT_S)
    trial.finish()
    until(trial.completed, f"the end of {trial.task}", WAIT_S)
    found = check(trial, why)
    declared = trial.since(*fault.declared_by.split()) if fault.declared_by else []
    return asdict(
        Measured(
            name=fault.name,
            does=fault.does,
            lasted_s=trial.lasted_s,
            detected_s=trial.after_s(declared[0]) if declared else None,
            recovered_s=trial.after_s(trial.recovered()),
            lost_samples=found.lost_samples,
            lost_facts=found.lost_facts,
            steps=found.steps,
            why=found.why.replace(trial.task, "TASK").replace(f"{cluster.folder}/", ""),
        )
    )
