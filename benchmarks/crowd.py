"""Cost of a task with thousands of workers in the core alone, without sockets and disk.

Eight workers run on each host. They train on a dataset in lanes and were placed by agents, so that
a lost host has the same effects as in a real cluster: a new generation, other lanes, replacements.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import cast

from common import cpu_timed, spread

from strata.coordinator.engine.engine import MAX_TURN
from strata.coordinator.engine.kernel import Kernel
from strata.coordinator.sessions.standing_messages import PeerTokens, StandingMessages, secret_in
from strata.core.barriers.barrier_rules import ArriveAtBarrier
from strata.core.checkpoints.checkpoint_commits import AckPart, BeginCheckpoint
from strata.core.cluster import CODEC
from strata.core.datasets.dataset_rules import AttachDataset, RegisterDataset
from strata.core.events import Command, Now
from strata.core.generations.recovery import CommitSteps, EnterGeneration
from strata.core.rule_settings import Rules, Timeouts
from strata.core.state import DatasetSpec, Outcome, Worker
from strata.core.task_spec import TaskSpec
from strata.core.task_state import Checkpoint, Task
from strata.core.tasks.placement import StopTask, SubmitTask
from strata.core.workers.declared_losses import DeclareLosses
from strata.core.workers.heartbeats import Beat
from strata.core.workers.host_agents import DeclareAgentLost, RegisterAgent, ReportExit
from strata.core.workers.liveness import Watch
from strata.core.workers.worker_lifecycle import DeregisterWorker, RegisterWorker
from strata.store.memory_store import MemoryStore

PER_HOST = 8
DATASET = "samples"
STEPS = 10
ROUNDS = 5
WORKERS = 10_000
HOSTS_LOST = 16
WORKERS_OF_HOSTS_LOST = 4_000
SECOND_NS = 1_000_000_000


def batched(commands: Sequence[Command], size: int) -> Iterator[list[Command]]:
    """The commands in lists of at most this size."""
    rest = iter(commands)
    while taken := list(islice(rest, size)):
        yield taken


class Crowd:
    """A cluster whose one task has `workers` workers, which are placed and not yet registered."""

    def __init__(self, workers: int, spare_hosts: int = 0) -> None:
        self.mono_ns = 0
        self.kernel = Kernel(MemoryStore(CODEC), self._now)
        self.kernel.start("crowd", "1", Rules(max_workers=1_000_000))
        self.state = self.kernel.state
        for host in range(workers // PER_HOST + spare_hosts):
            name = f"host-{host}"
            self.do(RegisterAgent(agent=name, hostname=name, slots=PER_HOST))
        spec = DatasetSpec(path="/data", total_samples=100 * workers, shard_size=100)
        self.do(RegisterDataset(dataset=DATASET, spec=spec))
        asked = TaskSpec(name="crowd", worker_count=workers, min_workers=workers // 2)
        self.task = cast("Task", self.do(SubmitTask(spec=asked)))

    def _now(self) -> Now:
        self.mono_ns += 1_000_000
        return Now(self.mono_ns, self.mono_ns)

    def do(self, command: Command) -> object:
        """Decide a command; returns its answer or raises its refusal."""
        return self.decide([command])[0]

    def decide(self, commands: Sequence[Command]) -> list[object]:
        """Decide commands that arrive together, in turns as large as the engine's; returns the
        answers or raises the first refusal."""
        answers = []
        for turn in batched(commands, MAX_TURN):
            for outcome in self.kernel.decide(turn, check_deadlines=False).outcomes:
                if outcome.refusal is not None:
                    raise outcome.refusal
                answers.append(outcome.answer)
        return answers

    def members(self) -> list[Worker]:
        """The members of the present generation, by rank."""
        return [self.state.workers[member] for member in self.task.members]

    def start(self) -> None:
        """Register every process that was placed and does not run yet."""
        commands = []
        for worker, placement in self.task.placements.items():
            known = self.state.workers.get(worker)
            if known is None or not known.alive:
                command = RegisterWorker(
                    worker=worker,
                    task=self.task.id,
                    hostname=placement.agent,
                    start=placement.start,
                )
                commands.append(command)
        self.decide(commands)

    def enter(self, newcomers: Iterable[str] = ()) -> None:
        """Every member enters the generation; all but the new ones report the newest model."""
        task, without = self.task, set(newcomers)
        trained = task.ran_generation
        for worker in self.members():
            holds = trained > 0 and worker.id not in without
            self.do(
                EnterGeneration(
                    worker=worker.id,
                    incarnation=worker.incarnation,
                    generation=task.generation,
                    model_attempt=task.attempt if holds else 0,
                    model_generation=trained if holds else 0,
                    step=task.committed if holds else -1,
                    address=f"{worker.hostname}:9000",
                    meeting=f"{worker.hostname}:9001",
                )
            )

    def train(self) -> None:
        """Every worker registers, enters, attaches the dataset and applies some steps."""
        self.start()
        self.enter()
        task = self.task
        self.do(
            AttachDataset(
                task=task.id, dataset=DATASET, unit="lane", global_batch=2 * len(task.members)
            )
        )
        self.commit(STEPS)

    def commit(self, steps: int) -> None:
        """Every member reports this many applied steps."""
        task = self.task
        self.do(
            CommitSteps(task=task.id, attempt=task.attempt, generation=task.generation, steps=steps)
        )

    def lose_hosts(self, first: int, count: int) -> None:
        """Declare hosts lost together."""
        names = [f"host-{number}" for number in range(first, first + count)]
        agents = [
            DeclareAgentLost(
                agent=name, incarnation=self.state.agents[name].incarnation, reason="no heartbeat"
            )
            for name in names
        ]
        self.do(DeclareLosses(agents=agents))

    def recover(self) -> None:
        """The replacements of lost workers register and load the model from the others."""
        workers = self.state.workers
        lost = [worker for worker in self.task.placements if not workers[worker].alive]
        self.start()
        self.enter(lost)
        assert self.task.phase == "running", self.task.phase

    def meet(self, request: int) -> None:
        """Every member arrives at a barrier."""
        for worker in self.members():
            command = ArriveAtBarrier(
                worker=worker.id, incarnation=worker.incarnation, barrier="meet", request=request
            )
            self.do(command)

    def finish(self) -> None:
        """Every member leaves because it has finished."""
        self._leave("done")
        assert self.task.state == "completed", self.task.state

    def stop(self) -> None:
        """Every member leaves because the task is stopped."""
        self.do(StopTask(task=self.task.id))
        self._leave("stopped")
        assert self.task.state == "stopped", self.task.state

    def fail(self) -> None:
        """Every member fails, its process ends, and the agents start all of them again."""
        placed = dict(self.task.placements)
        self._leave("failed")
        self.decide(
            [
                ReportExit(
                    agent=placement.agent,
                    incarnation=self.state.agents[placement.agent].incarnation,
                    task=self.task.id,
                    worker=worker,
                    start=placement.start,
                    code=1,
                )
                for worker, placement in placed.items()
            ]
        )
        assert all(each.start == 2 for each in self.task.placements.values())

    def _leave(self, outcome: Outcome) -> None:
        steps = self.task.committed
        self.decide(
            [
                DeregisterWorker(
                    worker=each.id, incarnation=each.incarnation, outcome=outcome, steps=steps
                )
                for each in self.members()
            ]
        )

    def save(self, step: int) -> None:
        """Every member begins a checkpoint and acknowledges its part."""
        found = [
            self.do(
                BeginCheckpoint(
                    worker=worker.id,
                    incarnation=worker.incarnation,
                    generation=self.task.generation,
                    step=step,
                )
            )
            for worker in self.members()
        ]
        checkpoint = cast("Checkpoint", found[0]).id
        for worker in self.members():
            self.do(
                AckPart(
                    worker=worker.id,
                    incarnation=worker.incarnation,
                    checkpoint=checkpoint,
                    path=f"{checkpoint}/rank-{worker.rank}",
                    size_bytes=1,
                )
            )


def bench_losses(workers: int, hosts: int) -> dict[str, object]:
    """CPU milliseconds to decide that hosts are lost, again and again."""
    crowd = Crowd(workers, spare_hosts=hosts * ROUNDS)
    crowd.train()
    took = []
    for turn in range(ROUNDS):
        generation = crowd.task.generation
        took.append(cpu_timed(lambda first=turn * hosts: crowd.lose_hosts(first, hosts)))
        assert crowd.task.generation == generation + 1
        crowd.recover()
    return spread(took, 1e3, 1)


def bench_standings(workers: int) -> dict[str, object]:
    """CPU milliseconds to encode all standings while some workers load the model from peers."""
    crowd = Crowd(workers, spare_hosts=1)
    crowd.train()
    crowd.lose_hosts(0, 1)
    crowd.recover()
    assert crowd.task.recovery is not None
    assert crowd.task.recovery.source == "peer"
    took = []
    with tempfile.TemporaryDirectory() as folder:
        tokens = PeerTokens(secret_in(Path(folder) / "secret"))
        for _ in range(ROUNDS):
            messages = StandingMessages(tokens)  # a new one knows no position yet
            took.append(
                cpu_timed(
                    lambda made=messages: [
                        made.framed(crowd.state, member, -1) for member in crowd.task.members
                    ]
                )
            )
    return spread(took, 1e3, 1)


def bench_commits(crowd: Crowd) -> float:
    """CPU seconds for a heartbeat of every member and the commit of the reported step."""
    watch = Watch(Timeouts())
    watch.adopt(crowd.state, 0)
    task = crowd.task

    def work() -> None:
        beat = Beat(
            attempt=task.attempt,
            generation=task.generation,
            step=task.committed + 1,
            training=True,
        )
        for worker in crowd.members():
            watch.beat(worker.id, worker.incarnation, beat, 2 * SECOND_NS)
        commands = watch.overdue(crowd.state, 2 * SECOND_NS)
        assert [type(command) for command in commands] == [CommitSteps]
        crowd.do(commands[0])

    return cpu_timed(work)


def bench_turns(workers: int) -> dict[str, object]:
    """CPU milliseconds of actions that all members of a task do at about the same time."""
    took: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        crowd = Crowd(workers)
        works: dict[str, Callable[[], object]] = {
            "register": crowd.start,
            "enter": crowd.enter,
            "arrive_at_barrier": lambda one=crowd: one.meet(1),
            "save": lambda one=crowd: one.save(0),
        }
        for name, work in works.items():
            took.setdefault(name, []).append(cpu_timed(work))
        took.setdefault("commit_step", []).append(bench_commits(crowd))
        took.setdefault("finish", []).append(cpu_timed(crowd.finish))
        took.setdefault("stop", []).append(cpu_timed(_trained(workers).stop))
        failing = _trained(workers)
        took.setdefault("fail", []).append(cpu_timed(failing.fail))
        took.setdefault("register_again", []).append(cpu_timed(failing.start))
        assert len(failing.members()) == workers
    return {f"{name}_ms": spread(each, 1e3, 1) for name, each in took.items()}


def _trained(workers: int) -> Crowd:
    crowd = Crowd(workers)
    crowd.train()
    return crowd


def bench_crowd() -> dict[str, object]:
    """CPU milliseconds that thousands of workers in one task cost the core."""
    return {
        "workers": WORKERS,
        "all_standings_in_peer_recovery_ms": bench_standings(WORKERS),
        "all_standings_in_peer_recovery_ms_wanted": 500,
        "one_host_of_8_lost_ms": bench_losses(WORKERS, 1),
        "one_host_of_8_lost_ms_wanted": 50,
        "hosts_lost": HOSTS_LOST,
        "workers_of_hosts_lost": WORKERS_OF_HOSTS_LOST,
        "hosts_of_8_lost_ms": bench_losses(WORKERS_OF_HOSTS_LOST, HOSTS_LOST),
        "hosts_of_8_lost_ms_wanted": 300,
        "all_workers_once": bench_turns(WORKERS),
    }
