"""Drives the core as the engine does and checks, after every decision, what must always hold:

- replaying the recorded bytes from nothing gives the very state that the decision left behind;
- the state survives a snapshot;
- positions are dense and every cause is an earlier fact;
- every life moved along its table;
- a refusal recorded nothing but that it refused, and says what to do next.

A `World` is one cluster, a `Peer` one incarnation of a worker in it. Their verbs keep tests short;
what they do not cover is said with `world.do(command)`.
"""

from collections.abc import Iterator
from typing import TypeVar

from strata.core.barriers.barrier_rules import ArriveAtBarrier
from strata.core.checkpoints.checkpoint_commits import AckPart, BeginCheckpoint, ConfirmCheckpoint
from strata.core.cluster import CODEC, LIFECYCLES, StartCoordinator, apply, decide, fold
from strata.core.events import Command, Event, Fact, Now
from strata.core.generations.recovery import CommitSteps, EnterGeneration
from strata.core.limits import LimitHit
from strata.core.rule_settings import Rules
from strata.core.state import Agent, Cluster, Worker, decode, encode
from strata.core.task_spec import TaskSpec
from strata.core.task_state import Barrier, Checkpoint, Entry, Task
from strata.core.tasks.placement import SubmitTask
from strata.core.workers.fencing import WorkerFenced
from strata.core.workers.host_agents import DeclareAgentLost, RegisterAgent, ReportExit
from strata.core.workers.worker_lifecycle import (
    DeclareLost,
    DeregisterWorker,
    RegisterWorker,
    WorkerRejected,
)

SECOND_NS = 1_000_000_000
DEFAULT_RULES = Rules()
SAY_NO = (WorkerFenced, WorkerRejected, LimitHit)
TABLES = {table.name: table for table in LIFECYCLES}

Kind = TypeVar("Kind", bound=Fact)


class World:
    """A cluster, its log, and its workers."""

    def __init__(self, rules: Rules = DEFAULT_RULES) -> None:
        self.state = Cluster()
        self.log: list[Event] = []
        self.last: list[Fact] = []
        self.peers: dict[str, Peer] = {}
        self.moves: set[tuple[str, str, str]] = set()
        self._batches: list[bytes] = []
        self._shadow = Cluster()
        self._lives: dict[tuple[str, str], str] = {}
        self._now_s = 0
        self.do(StartCoordinator(cluster="test", release="0", rules=rules))

    def do(self, command: Command) -> object:
        """Decide a command; returns the answer or raises the refusal. `last` has the facts."""
        self._now_s += 1
        now = Now(self._now_s * SECOND_NS, self._now_s * SECOND_NS)
        outcome = decide(self.state, command, now)
        self.last = [event.body for event in outcome.events]
        self._check(outcome.events)
        if outcome.refusal is not None:
            assert outcome.refusal.hint, f"no hint: {outcome.refusal}"
            assert all(isinstance(fact, SAY_NO) for fact in self.last), "refused after recording"
            raise outcome.refusal
        return outcome.answer

    def facts(self, kind: type[Kind]) -> list[Kind]:
        """Every fact of a kind so far."""
        return [event.body for event in self.log if isinstance(event.body, kind)]

    def new(self, kind: type[Kind]) -> list[Kind]:
        """The facts of a kind that the last decision recorded."""
        return [fact for fact in self.last if isinstance(fact, kind)]

    def one(self, kind: type[Kind]) -> Kind:
        """The only fact of a kind that the last decision recorded."""
        (fact,) = self.new(kind)
        return fact

    def event(self, fact: Fact) -> Event:
        """The envelope that a fact was recorded in."""
        return next(event for event in self.log if event.body is fact)

    def restart(self) -> None:
        """The coordinator dies and starts again from its log."""
        self.state = self.replay()
        self.do(StartCoordinator(cluster="test", release="0", rules=self.state.rules))

    def replay(self) -> Cluster:
        """The state that follows from the recorded bytes alone."""
        state = Cluster()
        for batch in self._batches:
            fold(state, CODEC.decode(batch))
        return state

    def submit(self, workers: int = 2, *, external: bool = True, workdir=None, **spec) -> Task:
        """Submit a task; without agents its workers register by themselves."""
        name = str(spec.pop("name", "demo"))
        digest = workdir.digest if workdir is not None else ""
        asked = TaskSpec(name=name, worker_count=workers, external=external, workdir=digest, **spec)
        return self.do(SubmitTask(spec=asked, workdir=workdir))

    def join(self, task: Task, *ids: str, **details: object) -> "list[Peer]":
        """Register workers, one after the other."""
        return [self.register(worker, task=task.id, **details) for worker in ids]

    def register(self, worker: str = "", task: str = "", **details: object) -> "Peer":
        """Register one worker; a process that an agent started gives its start number."""
        known = self.state.tasks.get(task)
        placed = known.placements if known else {}
        if known:
            details.setdefault("syncs", known.syncs)
        if worker in placed:
            details.setdefault("start", placed[worker].start)
        registered = self.do(RegisterWorker(worker=worker, task=task, **details))
        self.peers[registered.id] = Peer(self, registered)
        return self.peers[registered.id]

    def members(self, task: Task) -> "list[Peer]":
        """The members of the present generation, by rank."""
        return [self.peers[worker] for worker in self.state.tasks[task.id].members]

    def sync(self, task: Task) -> None:
        """Every member enters the generation with its model and loads the chosen source."""
        for peer in self.members(task):
            peer.enter()
        task = self.state.tasks[task.id]
        assert task.phase == "running", f"{task.id} is {task.phase}"
        for peer in self.members(task):
            peer.model = Entry(task.attempt, task.generation, task.committed)

    def train(self, task: Task, steps: int) -> None:
        """Every member applies steps until `steps` are done, and reports them."""
        task = self.state.tasks[task.id]
        self.do(
            CommitSteps(task=task.id, attempt=task.attempt, generation=task.generation, steps=steps)
        )
        for peer in self.members(task):
            peer.model = Entry(task.attempt, task.generation, steps)

    def save(self, task: Task, step: int, **details: object) -> Checkpoint:
        """Save a checkpoint of every member, with its manifest."""
        checkpoint = self.seal(task, step, **details)
        return self.do(ConfirmCheckpoint(task=task.id, checkpoint=checkpoint.id, path="ckpt/m"))

    def seal(self, task: Task, step: int, **details: object) -> Checkpoint:
        """Save a checkpoint of every member; its manifest is not written yet."""
        members = self.members(task)
        metrics = details.pop("metrics", {})
        checkpoint = members[0].begin(step, **details)
        for peer in members:
            peer.ack(checkpoint, metrics=metrics)
        return self.state.tasks[task.id].checkpoints[checkpoint.id]

    def agent(self, agent: str, slots: int = 2, nonce: str = "") -> Agent:
        """Register a host that offers slots."""
        return self.do(RegisterAgent(agent=agent, hostname=agent, slots=slots, nonce=nonce))

    def lose_agent(self, agent: str) -> None:
        """Declare a host lost."""
        incarnation = self.state.agents[agent].incarnation
        self.do(DeclareAgentLost(agent=agent, incarnation=incarnation, reason="out of reach"))

    def start(self, task: Task) -> "list[Peer]":
        """Register the processes that were placed and are not registered yet."""
        placed = [w for w in self.state.tasks[task.id].placements if not self._is_alive(w)]
        return self.join(task, *placed)

    def exit(self, task: Task, worker: str, code: int = 1, signal: int = 0) -> None:
        """Report, as the agent, that a worker's process ended."""
        known = self.state.tasks[task.id]
        placement = (known.placements | known.released)[worker]
        self.do(
            ReportExit(
                agent=placement.agent,
                incarnation=self.state.agents[placement.agent].incarnation,
                task=task.id,
                worker=worker,
                start=placement.start,
                code=code,
                signal=signal,
            )
        )

    def _is_alive(self, worker: str) -> bool:
        known = self.state.workers.get(worker)
        return known is not None and known.alive

    def _check(self, events: list[Event]) -> None:
        self.log += events
        batch = CODEC.encode(events)
        self._batches.append(batch)
        for event in CODEC.decode(batch):
            assert event.seq == self._shadow.position
            for cause in event.cause:
                assert not cause.startswith("@") or int(cause[1:]) < event.seq, event
            apply(self._shadow, event)
            self._follow_lives(event)
        live = encode(self.state)
        assert encode(self.replay()) == live, "the log does not lead to this state"
        assert encode(decode(live)) == live, "a snapshot does not bring this state back"

    def _follow_lives(self, event: Event) -> None:
        for (table, subject), after in _lives(self._shadow):
            before = self._lives.get((table, subject))
            if before is None:
                assert after == TABLES[table].initial, f"{table} {subject} began as {after}"
            elif before != after:
                assert TABLES[table].allows(before, after), (
                    f"{table} {subject}: {before} to {after} by {event}"
                )
                self.moves.add((table, before, after))
            self._lives[table, subject] = after


class Peer:
    """One incarnation of a worker. `model` is what it reports when it enters the next
    generation."""

    def __init__(self, world: World, worker: Worker) -> None:
        self.world = world
        self.id = worker.id
        self.incarnation = worker.incarnation
        self.model = Entry(0, 0, -1)

    @property
    def me(self) -> dict[str, object]:
        """Its fields in a command."""
        return {"worker": self.id, "incarnation": self.incarnation}

    @property
    def worker(self) -> Worker:
        """The coordinator's state of its id."""
        return self.world.state.workers[self.id]

    @property
    def task(self) -> Task:
        """The task it belongs to."""
        return self.world.state.tasks[self.worker.task]

    def again(self, **details: object) -> "Peer":
        """The next incarnation, after this one has ended."""
        return self.world.register(self.id, task=self.worker.task, **details)

    def enter(self, address: str = "") -> Task:
        return self.world.do(
            EnterGeneration(
                **self.me,
                generation=self.task.generation,
                model_attempt=self.model.attempt,
                model_generation=self.model.generation,
                step=self.model.step,
                address=address,
            )
        )

    def arrive(self, barrier: str = "meet", request: int = 1) -> Barrier:
        return self.world.do(ArriveAtBarrier(**self.me, barrier=barrier, request=request))

    def begin(self, step: int, **details: object) -> Checkpoint:
        generation = details.pop("generation", self.task.generation)
        return self.world.do(
            BeginCheckpoint(**self.me, generation=generation, step=step, **details)
        )

    def ack(self, checkpoint: Checkpoint, **details: object) -> Checkpoint:
        part = {"path": f"{checkpoint.id}/rank-{self.worker.rank}", "size_bytes": 100}
        return self.world.do(
            AckPart(**self.me, checkpoint=checkpoint.id, checksum="c0", **part, **details)
        )

    def lost(self, signal: str = "heartbeat", reason: str = "no beats") -> None:
        self.world.do(DeclareLost(**self.me, signal=signal, reason=reason))

    def leave(self, outcome: str = "done", **details: object) -> None:
        self.world.do(DeregisterWorker(**self.me, outcome=outcome, **details))


def _lives(state: Cluster) -> Iterator[tuple[tuple[str, str], str]]:
    """Everything that has a life cycle: its table and name, and the state it is in."""
    for worker in state.workers.values():
        yield ("worker", worker.id), worker.state
    for task in state.tasks.values():
        yield ("task", task.id), task.state
        for barrier in task.barriers.values():
            yield ("barrier", f"{task.id} {barrier.name} {barrier.round}"), barrier.state
        for checkpoint in (each for each in task.checkpoints.values() if not each.owner):
            yield ("checkpoint", f"{task.id} {checkpoint.id}"), checkpoint.state
