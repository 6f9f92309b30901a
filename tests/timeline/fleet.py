"""A task on a dataset, driven through the core's rules, whose workers record what they read.

Its verbs are what happens to a training: steps, crashes inside a step, joins, saves, and the loss
of everyone. `applied` says how many steps each living worker's model has had.
"""

from strata.core.catalogue import CODEC
from strata.core.cluster import StartCoordinator, decide
from strata.core.datasets import AttachDataset, DatasetSpec, RegisterDataset, order_of
from strata.core.events import Command, Event, Now
from strata.core.order import digests
from strata.core.recovery import CommitSteps, EnterGeneration
from strata.core.saving import AckPart, BeginCheckpoint, ConfirmCheckpoint
from strata.core.scheduling import SubmitTask
from strata.core.state import Cluster
from strata.core.tasks import TaskSpec
from strata.core.worker_facts import TrainingStarted
from strata.core.workers import DeclareLost, RegisterWorker
from strata.data.contents import content_of
from strata.store.batches import pack
from strata.store.memory import MemoryStore

SECOND_NS = 1_000_000_000


class Fleet:
    """One task, `task`, that trains on one dataset, `d`."""

    def __init__(
        self,
        workers=3,
        *,
        samples=60,
        batch=12,
        epochs=0,
        lanes=0,
        store=None,
        data=None,
        rebalance=False,
    ):
        self.state = Cluster()
        self.store = store if store is not None else MemoryStore(CODEC)
        self.clock_s = 0
        self.data = data
        self.applied: dict[str, int] = {}
        self.models: dict[str, tuple[int, int]] = {}
        self.seqs: dict[tuple[str, int], int] = {}
        self.do(StartCoordinator(cluster="test", release="0"))
        sizes = DatasetSpec(total_samples=samples, shard_size=min(samples, 10), fingerprint="f")
        spec = data.spec() if data is not None else sizes
        self.do(RegisterDataset(dataset="d", spec=spec))
        asked = TaskSpec(name="t", worker_count=workers, external=True, policy="continue")
        self.task = self.do(SubmitTask(spec=asked)).id
        for number in range(workers):
            self.join(f"w{number}")
        self.sync()
        attach = AttachDataset(
            task=self.task,
            dataset="d",
            unit="lane",
            global_batch=batch,
            epochs=epochs,
            lanes=lanes,
            rebalance=rebalance,
        )
        self.do(attach)
        self.order = order_of(spec, self.row.feeds["d"])

    @property
    def row(self):
        return self.state.tasks[self.task]

    def do(self, command: Command):
        self.clock_s += 1
        now = Now(self.clock_s * SECOND_NS, self.clock_s * SECOND_NS)
        outcome = decide(self.state, command, now)
        self.store.append(outcome.events, incarnation=1, expected=self.store.position)
        if outcome.refusal is not None:
            raise outcome.refusal
        return outcome.answer

    def join(self, worker: str) -> None:
        self.do(RegisterWorker(worker=worker, task=self.task, syncs=True))
        self.applied[worker], self.models[worker] = -1, (0, 0)

    def sync(self) -> int:
        """Everyone enters the generation and takes over what was chosen; from which step."""
        for worker in list(self.row.members):
            attempt, generation = self.models[worker]
            self.do(
                EnterGeneration(
                    worker=worker,
                    incarnation=self.state.workers[worker].incarnation,
                    generation=self.row.generation,
                    model_attempt=attempt,
                    model_generation=generation,
                    step=self.applied[worker],
                )
            )
        for worker in self.row.members:
            self.applied[worker] = self.row.recovery.step
            self.models[worker] = (self.row.attempt, self.row.generation)
        return self.row.recovery.step

    def read(self, steps: int, workers=None, *, silent=(), wrong=(), garbled=()) -> None:
        """The members read the next steps; some may not record it, read other samples, or other
        bytes."""
        first = self.applied[self.row.members[0]]
        for worker in workers if workers is not None else self.row.members:
            lanes = self.row.feeds["d"].holdings.get(worker, [])
            if worker in silent or not lanes:
                continue
            positions = self.order.positions(first, first + steps, lanes)
            samples = self.order.samples(positions.ravel()).reshape(positions.shape)
            if worker in wrong:
                samples = samples + 1
            proofs = digests(positions, samples).tolist()
            contents = [self._content(row, worker in garbled) for row in samples]
            self._record(worker, first, positions.shape[1], proofs, contents)

    def train(self, steps: int = 1, **how: object) -> None:
        """Every member reads and applies steps, and the coordinator hears of it."""
        self.read(steps, **how)
        for worker in self.row.members:
            self.applied[worker] += steps
        self.do(
            CommitSteps(
                task=self.task,
                attempt=self.row.attempt,
                generation=self.row.generation,
                steps=self.applied[self.row.members[0]],
            )
        )

    def crash(self, worker: str, *, applied_by=(), sync: bool = True) -> None:
        """A worker dies inside a step that the workers `applied_by` had applied already."""
        self.read(1)
        for survivor in applied_by:
            self.applied[survivor] += 1
        self.lose(worker)
        if sync and self.row.members:
            self.sync()

    def lose(self, worker: str) -> None:
        lost = self.state.workers[worker]
        reason = DeclareLost(
            worker=worker, incarnation=lost.incarnation, signal="heartbeat", reason="no beats"
        )
        self.do(reason)
        del self.applied[worker], self.models[worker]

    def save(self) -> None:
        """A checkpoint of the present step."""
        me = [
            {"worker": worker, "incarnation": self.state.workers[worker].incarnation}
            for worker in self.row.members
        ]
        step = self.applied[self.row.members[0]]
        begun = self.do(BeginCheckpoint(**me[0], generation=self.row.generation, step=step))
        for each in me:
            self.do(AckPart(**each, checkpoint=begun.id, path="p", size_bytes=1))
        self.do(ConfirmCheckpoint(task=self.task, checkpoint=begun.id, path="m"))

    def _content(self, samples, garbled: bool) -> int:
        return content_of(self.data.read(samples[::-1] if garbled else samples)) if self.data else 0

    def _record(self, worker, first: int, width: int, proofs: list[int], contents) -> None:
        incarnation = self.state.workers[worker].incarnation
        seq = self.seqs.get((worker, incarnation), 0)
        events = [
            Event(
                seq=seq + at,
                wall_ns=self.clock_s * SECOND_NS + at,
                mono_ns=self.clock_s * SECOND_NS + at,
                body=TrainingStarted(
                    f"d/{first + at}", first + at, "d", self.row.generation, width, proof, content
                ),
            )
            for at, (proof, content) in enumerate(zip(proofs, contents, strict=True))
        ]
        self.seqs[worker, incarnation] = seq + len(events)
        batch = pack(CODEC, worker, incarnation, events)
        self.store.append((), incarnation=1, expected=self.store.position, batches=[batch])
