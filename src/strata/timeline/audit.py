"""Proves from the record that each sample was applied exactly once per epoch.

Two witnesses are heard. The coordinator's facts say which steps count, in which generation each
was trained (`lineage`) and whose lanes were whose; with the order of samples, which is arithmetic,
that says how often each sample was applied. The workers' own records say which samples they read,
as eight bytes per step; those must be what the order gives for their lanes. A step is *proven* when
every worker of its generation recorded it so, *contradicted* when one recorded other samples, and
*unproven* when a record is missing: a hole in a log is not taken for a lost sample.

The verdict: `broken` if a sample is missing or twice or a step is contradicted; else `unproven` if
a step is; else `kept`. Cost is the order's: some 20 million samples a second.
"""

from collections.abc import Iterable
from typing import Literal, TypeAlias

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from strata.core.datasets import DatasetSpec, Feed
from strata.core.order import digests
from strata.data.steps import Ordered
from strata.errors import NotFound
from strata.store.base import EventReader
from strata.timeline.effective import Effective, effective
from strata.timeline.evidence import Digests, Evidence
from strata.timeline.lineage import Lineage, Span, Voided, read_lineage
from strata.timeline.orders import order_for, parts_of
from strata.timeline.tallies import EpochAudit, EpochTally, MixtureTally, Tally

Verdict: TypeAlias = Literal["kept", "broken", "unproven"]
Problem: TypeAlias = Literal["no record", "other samples"]

MAX_FINDINGS = 50
_CHUNK_SAMPLES = 1 << 18


class Finding(Struct, frozen=True):
    """Steps `first` to `last` of a worker, and what is wrong with them."""

    worker: str
    generation: int
    first: int
    last: int
    what: Problem


class WorkerAudit(Struct):
    """What one worker trained of what counts: steps, or shards where those were leased."""

    worker: str
    steps: int = 0
    samples: int = 0


class FeedAudit(Struct):
    """The audit of one dataset; `steps` are shards where those were leased."""

    dataset: str
    samples: int
    steps: int = 0
    proven: int = 0
    unproven: int = 0
    contradicted: int = 0
    skipped: int = 0
    unit: Literal["step", "shard"] = "step"
    epochs: list[EpochAudit] = field(default_factory=list)
    workers: list[WorkerAudit] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        """What the record says of this dataset."""
        wrong = any(epoch.missing or epoch.twice for epoch in self.epochs)
        if wrong or self.contradicted:
            return "broken"
        return "unproven" if self.unproven else "kept"


class Audit(Struct):
    """The audit of a task."""

    task: str
    verdict: Verdict
    committed: int
    attempts: int
    voided: list[Voided]
    feeds: list[FeedAudit]
    effective: Effective


def audit(reader: EventReader, task: str) -> Audit:
    """Reads the log, and says what it proves about a task."""
    lineage = read_lineage(reader, task)
    if not lineage.spans and not lineage.feeds:
        raise NotFound(f"the log has no training of task {task!r}", hint="strata tasks lists them")
    evidence = Evidence(lineage, reader)
    feeds = [
        LaneAudit(lineage, name, evidence).done()
        if feed.unit == "lane"
        else _audit_shards(lineage, name)
        for name, feed in lineage.feeds.items()
        if feed.unit != "shard"
    ]
    verdicts: dict[Verdict, None] = dict.fromkeys(feed.verdict for feed in feeds)
    spent = effective(reader, task, lineage)
    worst: Verdict = next((v for v in ("broken", "unproven") if v in verdicts), "kept")
    return Audit(task, worst, lineage.committed, lineage.attempt, lineage.voided, feeds, spent)


class LaneAudit:
    """Counts every sample of every step that counts, and hears every worker's record of it."""

    def __init__(self, lineage: Lineage, name: str, evidence: Evidence) -> None:
        spec, feed = lineage.specs[name], lineage.feeds[name]
        self._lineage, self._evidence = lineage, evidence
        self._batch = feed.global_batch
        self._workers: dict[str, WorkerAudit] = {}
        begin, stop = self._due(feed, spec)
        self._order = order_for(lineage, name)
        self._tally = _tally_for(lineage, name, self._order, begin, stop)
        self._found = FeedAudit(name, spec.total_samples, max(stop - begin, 0))
        self._begin, self._stop = begin, stop

    def done(self) -> FeedAudit:
        """Looks at every span."""
        found = self._found
        found.skipped = len(self._evidence.skipped.get(found.dataset, ()))
        for span in self._lineage.spans:
            first, stop = max(span.first, self._begin), min(span.stop, self._stop)
            at_once = max(1, _CHUNK_SAMPLES // self._batch)
            for step in range(first, stop, at_once):
                self._look(span, step, min(step + at_once, stop))
        found.epochs = self._tally.epochs()
        found.workers = sorted(self._workers.values(), key=lambda each: each.worker)
        return found

    def _due(self, feed: Feed, spec: DatasetSpec) -> tuple[int, int]:
        """The steps that should have trained the dataset by now."""
        late = self._lineage.begun[feed.dataset]
        begin = self._evidence.first_step.get(feed.dataset, 0) if late else 0
        if not feed.epochs:
            return begin, self._lineage.committed
        last = -(-feed.epochs * spec.total_samples // feed.global_batch)
        return begin, min(self._lineage.committed, last)

    def _look(self, span: Span, first: int, stop: int) -> None:
        """A few steps of one generation: each worker's lanes, and its records of them."""
        found = self._found
        proven = np.ones(stop - first, bool)
        contradicted = np.zeros(stop - first, bool)
        for worker, lanes in sorted(span.holdings.get(found.dataset, {}).items()):
            if not lanes:
                continue
            expected = self._count(worker, lanes, first, stop)
            seen, proofs = self._evidence.of(found.dataset, span, worker)
            cut = slice(first - span.first, stop - span.first)
            silent = seen[cut] == 0
            wrong = ~silent & ((seen[cut] == 2) | (proofs[cut] != expected))
            proven &= ~(wrong | silent)
            contradicted |= wrong
            _note_runs(found, worker, span.generation, first, silent, "no record")
            _note_runs(found, worker, span.generation, first, wrong, "other samples")
        found.proven += int(proven.sum())
        found.contradicted += int(contradicted.sum())
        found.unproven += int((~proven & ~contradicted).sum())
        self._tally.counted_before(stop * self._batch)

    def _count(self, worker: str, lanes: list[int], first: int, stop: int) -> Digests:
        """What the order gives for a worker's lanes: counted, and a digest for each step."""
        positions = self._order.positions(first, stop, lanes)
        samples = self._order.samples(positions.ravel())
        self._tally.add(positions.ravel(), samples)
        own = self._workers.setdefault(worker, WorkerAudit(worker))
        own.steps += stop - first
        own.samples += samples.size
        return digests(positions, samples.reshape(positions.shape))


def _note_runs(
    found: FeedAudit,
    worker: str,
    generation: int,
    first: int,
    steps: NDArray[np.bool_],
    what: Problem,
) -> None:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], steps.view(np.int8), [0]))))
    for begin, end in edges.reshape(-1, 2)[: MAX_FINDINGS - len(found.findings)].tolist():
        found.findings.append(Finding(worker, generation, first + begin, first + end - 1, what))


def _audit_shards(lineage: Lineage, name: str) -> FeedAudit:
    """Leases: a shard counts once its holder said that it was trained."""
    spec = lineage.specs[name]
    found = FeedAudit(name, spec.total_samples, unit="shard")
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
        found.epochs.append(EpochAudit(epoch, due, once, due - once - twice, twice))
        found.steps += len(trained)
        for shard, holder in ((shard, by) for shard, each in trained.items() for by in each):
            worker = workers.setdefault(holder, WorkerAudit(holder))
            worker.steps += 1
            worker.samples += _samples_of(spec, [shard])
    found.workers = [workers[name] for name in sorted(workers)]
    return found


def _samples_of(spec: DatasetSpec, shards: Iterable[int]) -> int:
    return sum(stop - first for first, stop in map(spec.shard_range, shards))


def _tally_for(lineage: Lineage, name: str, order: Ordered, begin: int, stop: int) -> Tally:
    """How the steps `begin` up to `stop` of a dataset, or of a mixture, are counted."""
    spec, batch = lineage.specs[name], lineage.feeds[name].global_batch
    parts = parts_of(spec)
    if not parts:
        return EpochTally(spec.total_samples, begin * batch, stop * batch)
    sizes = [lineage.specs[part].total_samples for part, _ in parts]
    return MixtureTally(order, sizes, begin * batch)
