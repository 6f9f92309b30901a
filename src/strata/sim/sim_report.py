"""The report of a simulated run, as a Struct to print or to compare."""

import tracemalloc
from collections import Counter

from msgspec import Struct

from strata.core import state as cluster_state
from strata.core.events import COORDINATOR
from strata.sim.simulation import Scenario, Simulation
from strata.sim.virtual_time import SECOND_NS
from strata.store.event_store import Window


class Load(Struct, frozen=True):
    """The coordinator's load per second of virtual time."""

    facts_per_s: float
    log_bytes_per_s: float
    messages_per_s: float
    state_bytes: int
    snapshot_bytes: int


class Report(Struct, frozen=True):
    """A run in figures."""

    seed: int
    virtual_hours: float
    cpu_s: float
    tasks_completed: int
    steps_committed: int
    facts: dict[str, int]
    faults: dict[str, int]
    losses: dict[str, int]
    coordinator_crashes: int
    load: Load

    @property
    def hours_per_cpu_minute(self) -> float:
        """Virtual hours in a minute of processor time."""
        return self.virtual_hours / self.cpu_s * 60


def report(sim: Simulation) -> Report:
    """Sum up a run that has ended."""
    kernel = sim.coordinator.kernel
    assert kernel is not None, "a run that has ended has a coordinator"
    tasks = kernel.state.tasks.values()
    return Report(
        seed=sim.scenario.seed,
        virtual_hours=sim.world.now_ns / SECOND_NS / 3_600,
        cpu_s=sim.cpu_s,
        tasks_completed=sum(task.state == "completed" for task in tasks),
        steps_committed=sum(task.committed for task in tasks),
        facts=dict(sorted(sim.kinds.items(), key=lambda item: -item[1])),
        faults=dict(sorted(sim.struck.items())),
        losses=_losses(sim),
        coordinator_crashes=sim.coordinator.crashes,
        load=_load(sim),
    )


def _losses(sim: Simulation) -> dict[str, int]:
    lost = sim.coordinator.disk.query(Window(kinds=frozenset({"WorkerLost"})), limit=1_000_000)
    return dict(Counter(str(getattr(event.body, "signal", "")) for _, _, event in lost))


def _load(sim: Simulation) -> Load:
    assert sim.coordinator.kernel is not None
    seconds = max(sim.world.now_ns / SECOND_NS, 1.0)
    facts = sim.coordinator.disk.batches(Window(node=COORDINATOR))
    stored = sum(len(batch.payload) for batch in facts)
    snapshot = cluster_state.encode(sim.coordinator.kernel.state)
    tracemalloc.start()
    copy = cluster_state.decode(snapshot)
    memory, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert copy.position == sim.checkers.facts
    return Load(
        facts_per_s=sim.checkers.facts / seconds,
        log_bytes_per_s=stored / seconds,
        messages_per_s=sim.network.carried / seconds,
        state_bytes=memory,
        snapshot_bytes=len(snapshot),
    )


def command_of(scenario: Scenario) -> str:
    """The command that repeats a run."""
    options = [
        f"--seed {scenario.seed}",
        f"--workers {scenario.workers}",
        f"--hours {scenario.hours:g}",
        f"--faults {','.join(scenario.faults) or 'none'}",
        f"--policy {scenario.policy}",
        f"--fault-every {scenario.fault_every_s:g}",
        f"--min-workers {scenario.min_workers}",
        f"--spares {scenario.spares}",
    ]
    return " ".join(["strata sim", *options, *(["--sharded"] if scenario.sharded else [])])
