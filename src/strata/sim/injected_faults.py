"""Faults: each is one function that causes a fault and later ends it.

`FAULTS` is the catalogue; a run enables some of them by name, at random times.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from strata.core.checkpoints.save_schedule import RequestCheckpoint
from strata.core.hosts.host_exclusion import ExcludeHost
from strata.core.tasks.resizing import ResizeTask
from strata.sim.coordinator_checks import HOSTILE
from strata.sim.hostile.hostile_peer import HostilePeer
from strata.sim.sim_worker import SimWorker
from strata.sim.virtual_time import SECOND_NS

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
    """A worker stops computing; its heartbeats continue."""
    worker = _some_worker(sim)
    worker.hung = True
    return worker.name


def stop(sim: "Simulation") -> str:
    """A worker is stopped until it is declared lost, and then continues."""
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
    worker.reset()
    return worker.name


def partition(sim: "Simulation") -> str:
    """A host is cut off for a while; its workers keep trying to connect."""
    host, dice = _some_host(sim), sim.world.random
    sim.network.cut(host)
    sim.world.after(dice.uniform(1, 120), sim.network.heal, host)
    for worker in sim.agents[host].running.values():
        worker.later(dice.uniform(1, 120), worker.request_save)
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
    elif moment == "before":
        sim.coordinator.disk.power_fails = "before"
    else:
        sim.coordinator.disk.power_fails = "after"
    return moment


def restart(sim: "Simulation") -> str:
    """The coordinator is stopped gracefully and started again."""
    sim.coordinator.stop()
    return "stopped"


def disk(sim: "Simulation") -> str:
    """The coordinator's disk refuses one write."""
    sim.coordinator.disk.refuse_next = True
    return "full"


def snapshots(sim: "Simulation") -> str:
    """The coordinator's disk has room for facts, and for a while none for snapshots."""
    sim.coordinator.disk.refuse_snapshots = True
    sim.world.after(sim.world.random.uniform(60, 1800), _take_snapshots, sim)
    return "nearly full"


def slow_disk(sim: "Simulation") -> str:
    """Writes of the coordinator take seconds for a while, as connections break."""
    dice = sim.world.random
    sim.coordinator.slow = True
    length_s = dice.uniform(5, 60)
    sim.world.after(length_s, _speed_up_disk, sim)
    for worker in dice.sample([w for w in sim.workers.values() if w.alive], 1):
        worker.later(dice.uniform(0, length_s), worker.reset)
    return f"{length_s:.0f} s"


def storage(sim: "Simulation") -> str:
    """The coordinator cannot reach the checkpoint storage for a while."""
    sim.coordinator.storages.unreachable = True
    sim.world.after(sim.world.random.uniform(1, 30), _reach_storage, sim)
    return "unreachable"


def vault(sim: "Simulation") -> str:
    """The files of the vault cannot be read for a while, as an agent reconnects."""
    dice = sim.world.random
    if sim.vault_damaged:
        return "damaged already"
    sim.vault_damaged = True
    kept = {file: file.read_bytes() for file in sorted(sim.coordinator.vault.iterdir())}
    for file in kept:
        file.unlink()
        if dice.random() < 0.5:
            file.symlink_to(file.name)  # reading it is an error of the system
        else:
            file.write_bytes(b"\0" * 16)
    sim.world.after(dice.uniform(1, 60), _mend, sim, kept)
    agent = sim.agents[_some_host(sim)]
    agent.later(dice.uniform(0, 1), agent.reset)
    return f"{len(kept)} files"


def skew(sim: "Simulation") -> str:
    """The coordinator's wall clock jumps, forward or back."""
    sim.world.skew_ns += sim.world.random.randint(-HOUR_NS, HOUR_NS)
    return f"{sim.world.skew_ns / SECOND_NS:+.0f} s"


def impostor(sim: "Simulation") -> str:
    """A process claims the id of a worker."""
    worker = _some_worker(sim)
    claim = worker.registration()
    claim.nonce = "impostor"
    payload = claim.SerializeToString()
    sim.coordinator.call(worker.host, "RegisterWorker", payload, lambda reply: None)
    return worker.name


def save(sim: "Simulation") -> str:
    """A checkpoint is requested at an odd moment, by an operator or a worker."""
    worker = _some_worker(sim)
    if sim.world.random.random() < 0.5:
        worker.request_save()
    else:
        sim.coordinator.order(RequestCheckpoint(task=worker.task))
    return worker.task


def write(sim: "Simulation") -> str:
    """A worker cannot write its next part of a checkpoint."""
    worker = _some_worker(sim)
    worker.cannot_write = True
    return worker.name


def resize(sim: "Simulation") -> str:
    """A task gets another number of workers."""
    worker = _some_worker(sim)
    count = sim.world.random.randint(1, sim.scenario.workers)
    sim.coordinator.order(ResizeTask(task=worker.task, worker_count=count))
    return f"{worker.task} to {count}"


def exclude(sim: "Simulation") -> str:
    """An operator excludes the host of a worker; it is included again later."""
    host = _some_worker(sim).host
    sim.coordinator.order(ExcludeHost(host=host, reason="it is repaired"))
    return host


def hostile(sim: "Simulation") -> str:
    """A process without the secrets of others sends any messages, as worker, agent and caller."""
    peer = HostilePeer(sim, f"{HOSTILE}-{sim.struck['hostile']}")
    peer.begin()
    return peer.name


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
        restart,
        disk,
        snapshots,
        slow_disk,
        storage,
        vault,
        skew,
        impostor,
        save,
        write,
        resize,
        exclude,
        hostile,
    )
}
USUAL = tuple(name for name in FAULTS if name != "hostile")
"""Faults of a run that names none: a hostile process sends so much that it hides the others."""


def _take_snapshots(sim: "Simulation") -> None:
    sim.coordinator.disk.refuse_snapshots = False


def _speed_up_disk(sim: "Simulation") -> None:
    sim.coordinator.slow = False


def _reach_storage(sim: "Simulation") -> None:
    sim.coordinator.storages.unreachable = False


def _mend(sim: "Simulation", kept: dict[Path, bytes]) -> None:
    sim.vault_damaged = False
    for file, content in kept.items():
        file.unlink(missing_ok=True)
        file.write_bytes(content)


def _speed_up(worker: SimWorker) -> None:
    worker.slowness = 1.0


def _some_worker(sim: "Simulation") -> SimWorker:
    return sim.world.random.choice([worker for worker in sim.workers.values() if worker.alive])


def _some_host(sim: "Simulation") -> str:
    return sim.world.random.choice(list(sim.agents))
