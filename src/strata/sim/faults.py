"""What can go wrong: each fault is one function that does its harm and later undoes it.

`FAULTS` is the catalogue; a run enables some of them by name and lets them strike at random.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from strata.core.cluster import Outcome
from strata.core.save_points import RequestCheckpoint
from strata.core.workers import RegisterWorker
from strata.sim.worker import SimWorker
from strata.sim.world import SECOND_NS

if TYPE_CHECKING:
    from strata.sim.simulation import Simulation

HOUR_NS = 3_600 * SECOND_NS


def crash(sim: "Simulation") -> str:
    """A worker is killed."""
    worker = _some_worker(sim)
    worker.exit(137, 9)
    return worker.name


def fail(sim: "Simulation") -> str:
    """A worker's script raises."""
    worker = _some_worker(sim)
    worker.exit(1)
    return worker.name


def hang(sim: "Simulation") -> str:
    """A worker stops computing; its beats go on."""
    worker = _some_worker(sim)
    worker.hung = True
    return worker.name


def stop(sim: "Simulation") -> str:
    """A worker is stopped for so long that it is declared lost, and wakes up as a zombie."""
    worker = _some_worker(sim)
    worker.pause()
    sim.world.after(sim.world.random.uniform(5, 120), worker.resume)
    return worker.name


def slow(sim: "Simulation") -> str:
    """A worker computes slowly for a while."""
    worker = _some_worker(sim)
    worker.slowness = sim.world.random.uniform(2, 8)
    sim.world.after(sim.world.random.uniform(60, 600), _speed_up, worker)
    return worker.name


def reset(sim: "Simulation") -> str:
    """A connection breaks; the process behind it is well."""
    worker = _some_worker(sim)
    sim.coordinator.reset(worker)
    return worker.name


def partition(sim: "Simulation") -> str:
    """A host is cut off for a while."""
    host = _some_host(sim)
    sim.network.cut(host)
    sim.world.after(sim.world.random.uniform(1, 120), sim.network.heal, host)
    return host


def host(sim: "Simulation") -> str:
    """A host loses power and comes back."""
    name = _some_host(sim)
    sim.lose_host(name)
    return name


def coordinator(sim: "Simulation") -> str:
    """The coordinator crashes: between turns, before its facts are stored, or right after."""
    moment = sim.world.random.choice(("now", "before", "after"))
    if moment == "now":
        sim.coordinator.crash()
    else:
        sim.coordinator.crash_at = moment
    return moment


def disk(sim: "Simulation") -> str:
    """The coordinator's disk refuses one write."""
    sim.coordinator.disk.refuse_next = True
    return "full"


def skew(sim: "Simulation") -> str:
    """The coordinator's wall clock jumps, forward or back."""
    sim.world.skew_ns += sim.world.random.randint(-HOUR_NS, HOUR_NS)
    return f"{sim.world.skew_ns / SECOND_NS:+.0f} s"


def impostor(sim: "Simulation") -> str:
    """A process claims the id of a worker that is alive."""
    worker = _some_worker(sim)
    kernel = sim.coordinator.kernel
    known = kernel.state.workers.get(worker.name) if kernel else None
    if known is not None and known.alive and known.incarnation == worker.incarnation:
        claim = RegisterWorker(
            worker=worker.name, task=worker.task, nonce="impostor", start=worker.start, syncs=True
        )
        sim.coordinator.receive(worker, -1, claim, lambda outcome: _refused(sim, worker, outcome))
    return worker.name


def save(sim: "Simulation") -> str:
    """Somebody asks for a checkpoint at an odd moment."""
    worker = _some_worker(sim)
    sim.coordinator.receive(None, 0, RequestCheckpoint(task=worker.task), None)
    return worker.task


FAULTS: dict[str, Callable[["Simulation"], str]] = {
    fault.__name__: fault
    for fault in (
        crash,
        fail,
        hang,
        stop,
        slow,
        reset,
        partition,
        host,
        coordinator,
        disk,
        skew,
        impostor,
        save,
    )
}


def _refused(sim: "Simulation", worker: SimWorker, outcome: Outcome) -> None:
    if outcome.refusal is None:
        sim.impostors.append(worker.name)


def _speed_up(worker: SimWorker) -> None:
    worker.slowness = 1.0


def _some_worker(sim: "Simulation") -> SimWorker:
    return sim.world.random.choice([worker for worker in sim.workers.values() if worker.alive])


def _some_host(sim: "Simulation") -> str:
    return sim.world.random.choice(list(sim.agents))
