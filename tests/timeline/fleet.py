"""A task on a dataset, driven through the core's rules, whose workers record what they apply.

Its verbs are what happens to a training: steps, loops, crashes inside a step, joins, saves, and the
loss of everyone. `applied` says how many steps each living worker's model has had.
"""

from strata.core.checkpoints.checkpoint_commits import AckPart, BeginCheckpoint, ConfirmCheckpoint
from strata.core.cluster import StartCoordinator, decide
from strata.core.datasets.dataset_rules import AttachDataset, RegisterDataset, order_of
from strata.core.events import Command, Event, Now
from strata.core.generations.recovery import CommitSteps, EnterGeneration
from strata.core.order import digests
from strata.core.record.event_codec import CODEC
from strata.core.state import Cluster, DatasetSpec
from strata.core.task_spec import TaskSpec
from strata.core.tasks.placement import SubmitTask
from strata.core.workers.worker_facts import TrainingFinished, TrainingStarted
from strata.core.workers.worker_lifecycle import DeclareLost, DeregisterWorker, RegisterWorker
from strata.data.reading.batch_measures import content_of
from strata.store.event_batches import pack
from strata.store.memory_store import MemoryStore

SECOND_NS = 1_000_000_000


class Fleet:
    """One task, `task`, that trains on one dataset, `d`, and on others if loops are opened.

    `reading` are the datasets of the present loops, with what to add to a step of the run to get
    the dataset's. An `older` fleet records the samples of a batch as earlier releases did: when it
    is handed out. `partial` are steps that only some workers recorded as applied. `averaged` is how
    many samples the workers record to be in the mean that they applied.
    """

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
        older=False,
        loops=False,
    ):
        self.state = Cluster()
        self.store = store if store is not None else MemoryStore(CODEC)
        self.clock_s = 0
        self.data, self.older, self.batch = data, older, batch
        self.averaged = 0
        self.reading: dict[str, int] = {"d": 0}
        self.orders = {}
        self.partial: set[int] = set()
        self.applied: dict[str, int] = {}
        self.models: dict[str, tuple[int, int]] = {}
        self.seqs: dict[tuple[str, int], int] = {}
        self.do(StartCoordinator(cluster="test", release="0"))
        sizes = DatasetSpec(total_samples=samples, shard_size=min(samples, 10), fingerprint="f")
        spec = data.spec() if data is not None else sizes
        self.do(RegisterDataset(dataset="d", spec=spec))
        asked = TaskSpec(name="default", worker_count=workers, external=True, policy="continue")
        self.task = self.do(SubmitTask(spec=asked)).id
        for number in range(workers):
            self.join(f"w{number}")
        self.sync()
        if loops:
            self.reading = {}
            return
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
        self.order = self.orders["d"] = order_of(spec, self.row.feeds["d"])

    def loop(self, key: str, dataset: str = "d", *, samples=60, beside=False, **asked) -> None:
        """Open a loop of the script over a dataset, instead of the one before it or beside it."""
        if dataset not in self.state.datasets:
            spec = DatasetSpec(total_samples=samples, shard_size=10, fingerprint=dataset)
            self.do(RegisterDataset(dataset=dataset, spec=spec))
        asked = {"step": self.applied[self.row.members[0]], "entering": True, **asked}
        self.do(
            AttachDataset(
                task=self.task,
                dataset=dataset,
                unit="lane",
                global_batch=self.batch,
                loop=key,
                **asked,
            )
        )
        opened = self.row.loops[key]
        self.orders[dataset] = order_of(self.state.datasets[dataset].spec, self.row.feeds[dataset])
        self.reading = {**(self.reading if beside else {}), dataset: opened.first - opened.start}

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
        """All workers enter the generation and load the chosen source; returns the step."""
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

    def read(self, steps: int, workers=None, *, silent=(), **how) -> None:
        """The members get the batches of the next steps; some may not record it."""
        for worker in workers if workers is not None else self.row.members:
            if worker not in silent:
                self._record(worker, steps, TrainingStarted, **how)

    def finish(self, steps: int, workers=None, *, silent=(), unfinished=(), **how) -> None:
        """The members record that they applied the steps of their last batches."""
        for worker in workers if workers is not None else self.row.members:
            if worker not in silent and worker not in unfinished:
                self._record(worker, steps, TrainingFinished, **how)

    def train(self, steps: int = 1, *, unfinished=(), **how: object) -> None:
        """Every member reads and applies steps, and reports them to the coordinator."""
        self.read(steps, **how)
        self.finish(steps, unfinished=unfinished, **how)
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
        """A worker dies inside a step that the workers `applied_by` have already applied."""
        self.read(1)
        self.finish(1, applied_by)
        if applied_by:
            self.partial.add(self.applied[worker])
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
        """Commit a checkpoint of the present step."""
        self.begin_save()()

    def begin_save(self):
        """Begin a checkpoint of the present step; returns a function that commits it."""
        me = [
            {"worker": worker, "incarnation": self.state.workers[worker].incarnation}
            for worker in self.row.members
        ]
        step = self.applied[self.row.members[0]]
        begun = self.do(BeginCheckpoint(**me[0], generation=self.row.generation, step=step))

        def finish() -> None:
            for each in me:
                self.do(AckPart(**each, checkpoint=begun.id, path="p", size_bytes=1))
            self.do(ConfirmCheckpoint(task=self.task, checkpoint=begun.id, path="m"))

        return finish

    def complete(self) -> None:
        """The script of every member ends."""
        for worker in list(self.row.members):
            incarnation = self.state.workers[worker].incarnation
            self.do(DeregisterWorker(worker=worker, incarnation=incarnation))

    def _content(self, samples, garbled: bool) -> int:
        return content_of(self.data.read(samples[::-1] if garbled else samples)) if self.data else 0

    def _record(self, worker, steps: int, kind, *, wrong=(), garbled=()) -> None:
        """Record a worker's next steps; with `wrong`, with other samples or other bytes."""
        first = self.applied[worker]
        bodies = []
        for dataset, shift in self.reading.items():
            lanes = self.row.feeds[dataset].holdings.get(worker, [])
            if not lanes:
                continue
            order = self.orders[dataset]
            positions = order.positions(first + shift, first + shift + steps, lanes)
            samples = order.samples(positions.ravel()).reshape(positions.shape)
            if worker in wrong:
                samples = samples + 1
            proofs = digests(positions, samples).tolist()
            for at, (proof, row) in enumerate(zip(proofs, samples, strict=True)):
                content = self._content(row, worker in garbled)
                bodies.append(self._body(kind, dataset, first + at, len(row), proof, content))
        self._append(worker, bodies)

    def _body(self, kind, dataset: str, step: int, samples: int, proof: int, content: int):
        batch = f"{dataset}/{step}"
        if self.older and kind is TrainingFinished:
            return TrainingFinished(batch=batch, step=step)
        fields = {"dataset": dataset, "generation": self.row.generation, "samples": samples}
        fields |= {"digest": proof}
        if self.older or kind is TrainingFinished:
            fields |= {"content": content}
        if kind is TrainingFinished:
            fields |= {"averaged": self.averaged}
        return kind(batch=batch, step=step, **fields)

    def _append(self, worker, bodies) -> None:
        incarnation = self.state.workers[worker].incarnation
        seq = self.seqs.get((worker, incarnation), 0)
        now_ns = self.clock_s * SECOND_NS + seq
        events = [
            Event(seq=seq + at, wall_ns=now_ns + at, mono_ns=now_ns + at, body=body)
            for at, body in enumerate(bodies)
        ]
        if events:
            self.seqs[worker, incarnation] = seq + len(events)
            batch = pack(CODEC, worker, incarnation, events)
            self.store.append((), incarnation=1, expected=self.store.position, batches=[batch])
