"""Audit of a task: compare the coordinator's decisions with the samples that workers applied.

There are two sources. The coordinator's facts give the applied steps, the generation that trained
each of them (`lineage`), the steps of a dataset that they train (`core/datasets/training_loops`),
and the owner of each lane. With the order of samples, which is arithmetic, they give the samples
that each worker must have applied in each step. The workers' own records, written when a step is
applied, have a digest of the samples: eight bytes per step.

A step is *proven* if every worker that owned lanes of it recorded that it applied exactly those
samples; *contradicted* if a worker recorded other samples, applied its batch twice, or applied a
batch that was not assigned to it; *unproven* if a record is missing. A missing record is not
counted as a lost sample, and a batch that was handed out is not counted as applied.

The verdict: `broken` if a sample is missing or was applied twice, or a step is contradicted; else
`unproven` if a record is missing or unreadable, if shards were leased (they leave no records), or
if there is no applied step; else `proven`.

If facts of the coordinator are damaged, the steps committed before them are compared. The owners of
lanes after them are unknown, so later steps are not.
"""

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from strata.core.datasets.training_loops import LoopRange
from strata.core.events import COORDINATOR
from strata.core.generations.recovery import StepsCommitted
from strata.core.order import digests
from strata.core.state import DatasetSpec
from strata.errors import Corrupt, NotFound
from strata.store.event_store import EventReader, Window
from strata.timeline.audit.applied_records import (
    ALL,
    APPLIED,
    APPLIED_TWICE,
    HANDED_OUT,
    NOTHING,
    Digests,
    Evidence,
)
from strata.timeline.audit.audit_results import (
    Audit,
    AuditFinding,
    EpochAudit,
    FeedAudit,
    Problem,
    WorkerAudit,
    judge,
    lost_words,
    verdict_of,
    words_of,
)
from strata.timeline.audit.lineage import Lineage, Piece, Span, order_for, parts_of, read_lineage
from strata.timeline.audit.sample_counts import EpochCounter, MixtureCounter, SampleCounter
from strata.timeline.goodput.task_goodput import effective
from strata.timeline.read.sentences import counted

Steps: TypeAlias = NDArray[np.bool_]

MAX_FINDINGS = 50
_CHUNK_SAMPLES = 1 << 18


def audit(reader: EventReader, task: str) -> Audit:
    """Audit a task."""
    unread: list[str] = []
    lineage = read_lineage(
        reader, task, lambda at, error: unread.append(_unread_facts(reader, task, at, error))
    )
    if not lineage.spans and not lineage.feeds and not unread:
        raise NotFound(
            f"the log has no training of task {task!r}", hint="`strata tasks` lists the tasks"
        )
    evidence = Evidence(lineage, reader)
    feeds = [
        LaneAudit(lineage, name, evidence).done()
        if feed.unit == "lane"
        else _audit_shards(lineage, name)
        for name, feed in lineage.feeds.items()
        if feed.unit != "shard"
    ]
    for feed in feeds:
        judge(feed)
    damaged = [*unread, *evidence.damaged, *(lost_words(*each) for each in lineage.lost)]
    verdict = verdict_of(feeds, damaged)
    return Audit(
        task=task,
        verdict=verdict,
        summary=words_of(feeds, verdict, damaged),
        committed=lineage.committed,
        attempts=lineage.attempt,
        bare=_bare_steps(lineage),
        voided=lineage.voided,
        damaged=damaged,
        feeds=feeds,
        effective=None if unread else effective(reader, task, lineage),
    )


def _unread_facts(reader: EventReader, task: str, position: int, error: Corrupt) -> str:
    """A sentence on unreadable facts, and how much of the task was decided after them."""
    wanted = Window(node=COORDINATOR)
    stop, steps = reader.position, 0
    for _, _, event in reader.query(wanted, limit=ALL, on_damage=lambda _: None):
        if event.seq > position:
            stop = min(stop, event.seq)
        body = event.body
        if event.seq > position and isinstance(body, StepsCommitted) and body.task == task:
            steps += body.last - body.first + 1
    return (
        f"facts @{position} to @{stop - 1}: {error.message}; later decisions are not compared, at "
        f"least {counted(steps, 'applied step')}"
    )


class LaneAudit:
    """The audit of one dataset: counts every sample of every applied step, checks every record."""

    def __init__(self, lineage: Lineage, name: str, evidence: Evidence) -> None:
        self._lineage, self._name, self._evidence = lineage, name, evidence
        self._batch = lineage.feeds[name].global_batch
        self._workers: dict[str, WorkerAudit] = {}
        self._looked: dict[tuple[int, str], Steps] = {}
        self._ranges, unused = self._due()
        self._order = order_for(lineage, name)
        self._counter = self._new_counter()
        self._found = FeedAudit(
            dataset=name,
            samples=lineage.specs[name].total_samples,
            steps=sum(each.stop - each.start for each in self._ranges),
            unused=unused,
            skipped=len(evidence.skipped.get(name, ())),
        )

    def done(self) -> FeedAudit:
        """Compare every step and return the result."""
        at_once = max(1, _CHUNK_SAMPLES // self._batch)
        for piece in self._lineage.pieces_of(self._name, self._ranges):
            for step in range(piece.first, piece.stop, at_once):
                self._look(piece, step, min(step + at_once, piece.stop))
        self._note_unassigned()
        self._found.epochs = self._counter.epochs()
        self._found.workers = sorted(self._workers.values(), key=lambda each: each.worker)
        return self._found

    def _due(self) -> tuple[list[LoopRange], int]:
        """The steps that trained the dataset, and the number of steps of unused loops."""
        lineage, name = self._lineage, self._name
        every = lineage.ranges_of(name)
        if not lineage.loops and lineage.begun[name]:
            # Older logs do not have the first step of a dataset that was attached later.
            begin = self._evidence.first_step.get(name, lineage.begun[name])
            every = [LoopRange(start=begin, stop=max(begin, every[0].stop), first=begin)]
        used = [each for each in every if not self._never_applied(each)]
        return used, sum(each.stop - each.start for each in every if each not in used)

    def _never_applied(self, loop_range: LoopRange) -> bool:
        pieces = self._lineage.pieces_of(self._name, [loop_range])
        return all(self._evidence.never_applied(self._name, piece) for piece in pieces)

    def _new_counter(self) -> SampleCounter:
        batch, spec = self._batch, self._lineage.specs[self._name]
        left = [(first * batch, stop * batch) for first, stop in self._lineage.left_of(self._name)]
        parts = parts_of(spec)
        if parts:
            sizes = [self._lineage.specs[part].total_samples for part, _ in parts]
            return MixtureCounter(self._order, sizes, left)
        due = [(each.first * batch, (each.stop + each.shift) * batch) for each in self._ranges]
        return EpochCounter(spec.total_samples, due, left)

    def _look(self, piece: Piece, first: int, stop: int) -> None:
        """Compare some steps of one generation: each worker's lanes with its records."""
        found, span = self._found, piece.span
        proven = np.ones(stop - first, bool)
        contradicted = np.zeros(stop - first, bool)
        for worker, lanes in sorted(span.holdings.get(self._name, {}).items()):
            if not lanes:
                continue
            positions = self._order.positions(first + piece.shift, stop + piece.shift, lanes)
            samples = self._order.samples(positions.ravel())
            expected = digests(positions, samples.reshape(positions.shape))
            good, wrong = self._compare(span, worker, first, stop, expected)
            proven &= good
            contradicted |= wrong
            self._counter.add(positions.ravel(), samples, np.repeat(~good, positions.shape[1]))
            own = self._workers.setdefault(worker, WorkerAudit(worker))
            own.steps += stop - first
            own.samples += samples.size
        found.proven += int(proven.sum())
        found.contradicted += int(contradicted.sum())
        found.unproven += int((~proven & ~contradicted).sum())
        self._counter.counted(
            (first + piece.shift) * self._batch, (stop + piece.shift) * self._batch
        )

    def _compare(
        self, span: Span, worker: str, first: int, stop: int, expected: Digests
    ) -> tuple[Steps, Steps]:
        """The steps that a worker's records prove, and the steps that they contradict."""
        cut = slice(first - span.first, stop - span.first)
        every, recorded = self._evidence.of(self._name, span, worker)
        seen = every[cut]
        self._looked_at(span, worker)[cut] = True
        same = recorded[cut] == expected
        shared = (seen == HANDED_OUT) & self._evidence.whole(self._name, span)[cut] & same
        self._found.by_mean += int(shared.sum())
        other = (seen == APPLIED) & ~same
        twice = seen == APPLIED_TWICE
        problems: dict[Problem, Steps] = {
            "no record": seen == NOTHING,
            "not applied": (seen == HANDED_OUT) & ~shared,
            "other samples": other,
            "applied twice": twice,
        }
        for what, steps in problems.items():
            self._note_runs(worker, span.generation, first, steps, what)
        return ((seen == APPLIED) & ~other) | shared, other | twice

    def _looked_at(self, span: Span, worker: str) -> Steps:
        key = (span.generation, worker)
        if key not in self._looked:
            self._looked[key] = np.zeros(span.stop - span.first, bool)
        return self._looked[key]

    def _note_unassigned(self) -> None:
        """Find records of applied batches that were not assigned to the worker."""
        steps: dict[int, Steps] = {}
        for span, worker in self._evidence.holders(self._name):
            seen, _ = self._evidence.of(self._name, span, worker)
            more = (seen >= APPLIED) & ~self._looked_at(span, worker)
            self._note_runs(worker, span.generation, span.first, more, "not assigned")
            steps[span.generation] = more | steps.get(span.generation, more)
        self._found.contradicted += sum(int(each.sum()) for each in steps.values())

    def _note_runs(
        self, worker: str, generation: int, first: int, steps: Steps, what: Problem
    ) -> None:
        """Add a finding for each run of consecutive steps with a problem."""
        edges = np.flatnonzero(np.diff(np.concatenate(([0], steps.view(np.int8), [0]))))
        room = MAX_FINDINGS - len(self._found.findings)
        for begin, end in edges.reshape(-1, 2)[: max(room, 0)].tolist():
            self._found.findings.append(
                AuditFinding(
                    worker=worker,
                    generation=generation,
                    first=first + begin,
                    last=first + end - 1,
                    what=what,
                )
            )


def _bare_steps(lineage: Lineage) -> int:
    """The number of applied steps that trained no dataset by steps."""
    lanes = [name for name, feed in lineage.feeds.items() if feed.unit == "lane"]
    covered, done = 0, 0
    for start, stop in sorted((x.start, x.stop) for d in lanes for x in lineage.ranges_of(d)):
        covered += max(stop - max(start, done), 0)
        done = max(done, stop)
    return lineage.committed - covered if lanes else 0


def _audit_shards(lineage: Lineage, name: str) -> FeedAudit:
    """Count leased shards, as their workers returned them."""
    spec = lineage.specs[name]
    found = FeedAudit(dataset=name, samples=spec.total_samples, unit="shard")
    workers: dict[str, WorkerAudit] = {}
    epochs = sorted({epoch for dataset, epoch, _ in lineage.consumed if dataset == name})
    for epoch in epochs:
        trained = {
            shard: holders
            for (dataset, in_epoch, shard), holders in lineage.consumed.items()
            if (dataset, in_epoch) == (name, epoch)
        }
        ended = epoch < epochs[-1] or len(trained) == spec.shard_count
        once = _samples_of(spec, (shard for shard, by in trained.items() if len(by) == 1))
        twice = _samples_of(spec, (shard for shard, by in trained.items() if len(by) > 1))
        due = spec.total_samples if ended else once + twice
        found.epochs.append(
            EpochAudit(epoch=epoch, due=due, once=once, missing=due - once - twice, twice=twice)
        )
        found.steps += len(trained)
        for shard, holder in ((shard, by) for shard, each in trained.items() for by in each):
            worker = workers.setdefault(holder, WorkerAudit(holder))
            worker.steps += 1
            worker.samples += _samples_of(spec, [shard])
    found.unproven = found.steps
    found.workers = [workers[name] for name in sorted(workers)]
    return found


def _samples_of(spec: DatasetSpec, shards: Iterable[int]) -> int:
    return sum(stop - first for first, stop in map(spec.shard_range, shards))
