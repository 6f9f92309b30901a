"""A whole cluster in one process: hosts, workers, a coordinator, faults, and the checkers.

Tasks run one after another until the simulated hours are over; then the faults stop and the last
tasks must finish by themselves, with every check passing.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import process_time

from msgspec import Struct

from strata.core.datasets.dataset_rules import RegisterDataset
from strata.core.events import Command, Event
from strata.core.generations.generation_members import GenerationChanged
from strata.core.hosts.host_exclusion import IncludeHost
from strata.core.rule_settings import HEARTBEAT_INTERVAL_S, Timeouts
from strata.core.state import Cluster, DatasetSpec
from strata.core.task_spec import Policy, TaskSpec
from strata.core.task_state import ENDED
from strata.core.tasks.placement import SubmitTask
from strata.core.tasks.task_lifecycle import TaskStateChanged, TaskSubmitted
from strata.sim.coordinator_checks import HOSTILE, Broken
from strata.sim.injected_faults import FAULTS, USUAL
from strata.sim.outcome_checks import Checkers
from strata.sim.sim_agent import SimAgent
from strata.sim.sim_coordinator import SimCoordinator
from strata.sim.sim_process import Process
from strata.sim.sim_recorder import PEER_S
from strata.sim.sim_worker import DATASET, SimWorker
from strata.sim.virtual_time import SECOND_NS, Network, World
from strata.wire.v1 import coordinator_pb2 as pb

ENVIRONMENT = {"SECRET": "of the task"}
DRAIN_HOURS = 12
LOOK_S = 1.0
REPAIR_S = 180.0


class Scenario(Struct, frozen=True):
    """The parameters of a simulation; all durations are virtual. With `events` workers record
    events too.

    `tasks` train at the same time, each with its own `workers`. With `urgent_every_s` a task of
    higher priority is submitted that often, and preempts one of them.
    """

    seed: int = 0
    workers: int = 8
    tasks: int = 1
    hours: float = 1.0
    faults: tuple[str, ...] = USUAL
    fault_every_s: float = 300.0
    policy: Policy = "replace"
    min_workers: int = 0
    spares: int = 0
    sharded: bool = False
    workers_per_host: int = 4
    steps: int = 120
    step_s: float = 10.0
    save_every: int = 10
    save_s: float = 15.0
    load_s: float = 5.0
    start_s: float = 3.0
    kill_s: float = 2.0
    barrier_every: int = 25
    heartbeat_s: float = HEARTBEAT_INTERVAL_S
    events: bool = False
    urgent_every_s: float = 0.0


class Simulation:
    """Runs a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.world = World(scenario.seed)
        self.network = Network(self.world)
        self.coordinator = SimCoordinator(self.world, self.network, Timeouts())
        check_every = max(1, scenario.workers // 64)
        self.checkers = Checkers(self.coordinator.storages, scenario.steps, check_every)
        self.coordinator.on_turn += [self.checkers.after_turn, self._follow]
        self.on_beat: list[Callable[[SimWorker, pb.Beat], None]] = []
        self.agents: dict[str, SimAgent] = {}
        self.workers: dict[str, SimWorker] = {}
        self.vault_damaged = False
        self.wrong_clocks: dict[str, int] = {}
        self.cut_peers: dict[tuple[str, str], list[tuple[SimWorker, str, str, int, str]]] = {}
        self.story: list[tuple[int, str, str]] = []
        self.kinds: dict[str, int] = {}
        self.struck: dict[str, int] = {}
        self.lanes = _lanes_for(scenario.workers)
        self.cpu_s = 0.0
        self._lives = 0
        self._open: set[str] = set()
        self._reduces: dict[tuple[str, int, int], list[SimWorker]] = {}
        self._over = False

    def run(self) -> "Simulation":
        """Run the whole scenario; raises `Broken` if a guarantee is broken."""
        began = process_time()
        with _silent("strata.coordinator"):
            self.begin()
            self.world.run(int(self.scenario.hours * 3_600 * SECOND_NS))
            self._over = True
            self.world.run(self.world.now_ns + DRAIN_HOURS * 3_600 * SECOND_NS, self._quiet)
        self.cpu_s = process_time() - began
        kernel = self.coordinator.kernel
        if kernel is None or not self._quiet():
            raise Broken("the tasks did not finish after the faults had stopped")
        self.checkers.at_end(kernel.state, self.coordinator.disk)
        return self

    def begin(self) -> None:
        """Start the hosts and submit the first task."""
        scenario = self.scenario
        self.coordinator.start()
        per_host = scenario.workers_per_host
        slots = (scenario.workers + scenario.spares) * scenario.tasks
        for number, first in enumerate(range(0, slots, per_host)):
            self.boot(f"host{number}", min(per_host, slots - first))
        self._keep_busy()
        if scenario.faults:
            self.world.after(self.world.about(scenario.fault_every_s, 0.9), self._strike)
        if scenario.urgent_every_s:
            self.world.after(scenario.urgent_every_s, self._submit_urgent)

    def _keep_busy(self) -> None:
        """Submit missing tasks again and again: an order may be refused, or lost in a crash."""
        kernel = self.coordinator.kernel
        if kernel is not None and DATASET not in kernel.state.datasets:
            self.coordinator.order(self._dataset())
        elif kernel is not None and not self._over and len(self._open) < self.scenario.tasks:
            self.coordinator.order(self._task())
        if kernel is not None:
            self._include_hosts(kernel.state)
        self.world.after(LOOK_S, self._keep_busy)

    def _include_hosts(self, state: Cluster) -> None:
        """Include hosts that were excluded some minutes ago: tasks would wait for them for ever."""
        for host in state.hosts.values():
            excluded_s = (self.world.clock().wall_ns - host.excluded_ns) / SECOND_NS
            hostile = host.id.startswith(HOSTILE)
            if host.excluded and excluded_s > REPAIR_S and not hostile:
                self.coordinator.order(IncludeHost(host=host.id, reason="it is repaired"))

    def _submit_urgent(self) -> None:
        """Submit a task that preempts one of the others."""
        kernel = self.coordinator.kernel
        if self._over:
            return
        if kernel is not None and DATASET in kernel.state.datasets:
            self.coordinator.order(self._task(priority=1))
        self.world.after(self.scenario.urgent_every_s, self._submit_urgent)

    def _dataset(self) -> Command:
        spec = DatasetSpec(total_samples=self.lanes * self.scenario.steps, shard_size=self.lanes)
        return RegisterDataset(dataset=DATASET, spec=spec)

    def _task(self, priority: int = 0) -> Command:
        """A task to submit; the values of its environment are in the vault."""
        scenario = self.scenario
        spec = TaskSpec(
            name="train",
            dataset_id=DATASET,
            worker_count=scenario.workers,
            min_workers=scenario.min_workers,
            policy=scenario.policy,
            spares=scenario.spares,
            model_state="sharded" if scenario.sharded else "replicated",
            max_restarts=1_000,
            env_key=self.coordinator.keep(ENVIRONMENT),
            priority=priority,
            preemptible=bool(self.scenario.urgent_every_s) and not priority,
        )
        return SubmitTask(spec=spec)

    def started(self, job: pb.Job) -> None:
        """Check that a worker starts with the environment that its task was submitted with."""
        if dict(job.environment) != ENVIRONMENT:
            raise Broken(f"a worker of {job.task_id} is started with another environment")

    def _strike(self) -> None:
        if self._over:
            return
        if self.coordinator.kernel is not None and any(w.alive for w in self.workers.values()):
            name = self.world.random.choice(self.scenario.faults)
            self.struck[name] = self.struck.get(name, 0) + 1
            self.tell(f"fault: {name}", FAULTS[name](self))
        pause = self.world.random.expovariate(1 / self.scenario.fault_every_s)
        self.world.after(pause, self._strike)

    def boot(self, host: str, slots: int) -> None:
        """Start a host with its agent."""
        self._lives += 1
        agent = SimAgent(self, host, slots, self._lives)
        self.agents[host] = agent
        agent.later(self.world.about(1.0), agent.connect)

    def lose_host(self, host: str) -> None:
        """Cut the power of a host: its agent and workers end without a message; it starts later.

        The coordinator notices at once, or when its keepalive finds the connections dead.
        """
        agent = self.agents[host]
        if not agent.alive:
            return
        lost: list[Process] = [agent, *agent.running.values()]
        noticed_s = self.world.random.choice((0.0, self.world.random.uniform(0, 40)))
        for process in lost:
            process.alive = False
            if process.line is not None:
                self.world.after(noticed_s, self.coordinator.lost, process.line)
        self.world.after(self.world.random.uniform(60, 600), self.boot, host, agent.slots)

    def ended(self, worker: SimWorker, code: int, signal: int) -> None:
        """Tell the agent of a worker that its process ended."""
        self.agents[worker.host].ended(worker, code, signal)

    def all_reduce(self, worker: SimWorker, generation: int, step: int) -> None:
        """Join the all-reduce of a step; when all members are there, each gets the result."""
        arrived = self._reduces.setdefault((worker.task, generation, step), [])
        arrived.append(worker)
        if len(arrived) < worker.world_size:
            return
        del self._reduces[worker.task, generation, step]
        self.checkers.trained([one.lanes for one in arrived], self.lanes)
        for one in arrived:
            one.later(self.world.random.uniform(0.001, 0.05), one.applied, generation, step)

    def met(self, worker: SimWorker) -> None:
        """Check that a worker left a barrier only after every living member had arrived."""
        for other in self.workers.values():
            standing = other.standing
            if other.task != worker.task or not other.alive or other.leaving or standing is None:
                continue
            member = standing.rank >= 0 and standing.generation == worker.generation
            if member and (worker.generation, worker.waits_at) not in other.arrived_at:
                raise Broken(f"{worker.name} left barrier {worker.waits_at} before {other.name}")

    def next_rank(self, worker: SimWorker) -> SimWorker | None:
        """The living worker whose rank follows, if there is another one."""
        standing = worker.standing
        if standing is None or worker.world_size < 2:
            return None
        wanted = (standing.rank + 1) % worker.world_size
        ranks = {
            other.standing.rank: other
            for other in self.workers.values()
            if other.task == worker.task and other.standing is not None
        }
        return ranks.get(wanted)

    def carry(
        self, sender: SimWorker, peer: SimWorker, message: str, generation: int, sent: str
    ) -> None:
        """Carry a message from one worker to another; a cut between them delays it."""
        held = self.cut_peers.get((sender.name, peer.name))
        if held is not None:
            held.append((peer, message, sender.name, generation, sent))
        else:
            peer.later(PEER_S, peer.witness.deliver, message, sender.name, generation, sent)

    def heal_peers(self, sender: str, peer: str) -> None:
        """End a cut between two workers; the delayed messages arrive."""
        for target, *word in self.cut_peers.pop((sender, peer), []):
            target.later(PEER_S, target.witness.deliver, *word)

    def _follow(self, state: Cluster, events: list[Event]) -> None:
        for event in events:
            kind = event.kind
            self.kinds[kind] = self.kinds.get(kind, 0) + 1
            body = event.body
            if isinstance(body, TaskSubmitted) and not body.spec.external:
                self._open.add(body.task)
            elif isinstance(body, TaskStateChanged):
                self.tell(f"task {body.task}", f"{body.before} → {body.after}: {body.reason}")
                if body.after in ENDED:
                    self._open.discard(body.task)
            elif isinstance(body, GenerationChanged):
                self._reduces = {
                    key: value for key, value in self._reduces.items() if key[0] != body.task
                }

    def _quiet(self) -> bool:
        return not self._open and self.coordinator.settled

    def tell(self, what: str, detail: str) -> None:
        """Add a line to the log of the run; only the newest lines are kept."""
        self.story.append((self.world.now_ns, what, detail))
        if len(self.story) > 20_000:
            del self.story[:10_000]


@contextmanager
def _silent(name: str) -> Iterator[None]:
    """Keep the coordinator's log lines about simulated faults from the terminal."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


def steps_for(workers: int) -> int:
    """Steps of a task: fewer in a large fleet, so that it ends in reasonable time."""
    return min(120, max(10, 12_000 // workers))


def _lanes_for(workers: int) -> int:
    """Lanes for a number of workers: a few for each, so that shares are nearly equal."""
    return workers * 4
