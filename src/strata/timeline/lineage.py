"""The lineage of a task's model: in which generation each step that counts was trained.

A generation begins at the step that its recovery chose, so everything that an earlier one trained
from that step on is not in the model: it was redone, or voided by a rollback. Of all generations
that began at or before a step, the newest is the one whose training of it counts.

Which lanes were whose in a generation is what the assignments say up to its end.
"""

from bisect import bisect_right
from collections.abc import Iterable

from msgspec import Struct, field

from strata.core.datasets import (
    AssignmentChanged,
    DatasetAttached,
    DatasetRegistered,
    DatasetSpec,
    Feed,
)
from strata.core.events import Event
from strata.core.generations import GenerationChanged
from strata.core.leases import LeaseGranted, LeaseReturned
from strata.core.recovery import RecoveryChosen, RolledBack, StepsCommitted
from strata.core.sharding import Holdings, apply_moves
from strata.store.base import EventReader
from strata.timeline.states import fold


class Span(Struct):
    """Steps `first` up to `stop`, exclusive, as one generation trained them; lanes by dataset."""

    generation: int
    first: int
    stop: int = 0
    holdings: dict[str, Holdings] = field(default_factory=dict)
    ended: bool = False


class Voided(Struct, frozen=True):
    """Steps that counted and, after a rollback, no longer do."""

    attempt: int
    first: int
    stop: int
    reason: str


class Lineage(Struct):
    """What the facts say about a task: its datasets, its spans, and what was undone.

    `begun` is how many steps had counted when a dataset was attached; `granted` maps a dataset's
    leases to their epochs, and `consumed` names who trained a dataset's shard in an epoch.
    """

    specs: dict[str, DatasetSpec] = field(default_factory=dict)
    feeds: dict[str, Feed] = field(default_factory=dict)
    begun: dict[str, int] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    voided: list[Voided] = field(default_factory=list)
    granted: dict[tuple[str, int], int] = field(default_factory=dict)
    consumed: dict[tuple[str, int, int], list[str]] = field(default_factory=dict)
    committed: int = 0
    attempt: int = 1

    @property
    def workers(self) -> set[str]:
        """Everyone who held lanes in a generation that counts."""
        held = (owners for span in self.spans for owners in span.holdings.values())
        return {worker for owners in held for worker in owners}

    def owner_of(self, step: int) -> int:
        """The generation whose training of a step counts; 0 for a step that does not."""
        at = bisect_right(self.spans, step, key=lambda span: span.first) - 1
        return self.spans[at].generation if at >= 0 and step < self.spans[at].stop else 0


def read_lineage(reader: EventReader, task: str) -> Lineage:
    """The lineage of a task; a log that begins later knows the datasets of before by its state."""
    first = reader.first
    before = fold(reader, first).state.datasets if first else {}
    specs = {name: dataset.spec for name, dataset in before.items()}
    return _folded(task, reader.read(first), Lineage(specs=specs))


def _folded(task: str, facts: Iterable[Event], found: Lineage) -> Lineage:
    """Folds facts into the lineage of one task."""
    present: dict[str, Holdings] = {}
    for event in facts:
        body = event.body
        if isinstance(body, DatasetRegistered):
            found.specs[body.dataset] = body.spec
        elif getattr(body, "task", None) != task:
            continue
        elif isinstance(body, GenerationChanged):
            _freeze(found, present)
        elif isinstance(body, AssignmentChanged):
            apply_moves(present.setdefault(body.dataset, {}), body.moves)
        else:
            _take_in(found, body)
    _freeze(found, present)
    ends = [*(span.first for span in found.spans[1:]), found.committed]
    for span, end in zip(found.spans, ends, strict=False):
        span.stop = min(end, found.committed)
    return found


def _take_in(found: Lineage, body: object) -> None:
    if isinstance(body, DatasetAttached):
        found.feeds[body.dataset] = Feed(
            body.dataset,
            body.unit,
            body.count,
            body.global_batch,
            body.epochs,
            body.batch_size,
            body.mode,
            body.window,
        )
        found.begun[body.dataset] = found.committed
    elif isinstance(body, RecoveryChosen):
        found.spans = [span for span in found.spans if span.first < body.step]
        found.spans.append(Span(body.generation, body.step))
    elif isinstance(body, StepsCommitted):
        found.committed = body.last + 1
    elif isinstance(body, RolledBack):
        found.voided.append(Voided(body.attempt - 1, body.to, body.origin, body.reason))
        found.committed, found.attempt = body.to, body.attempt
    elif isinstance(body, LeaseGranted):
        found.granted[body.dataset, body.lease] = body.epoch
    elif isinstance(body, LeaseReturned):
        epoch = found.granted.pop((body.dataset, body.lease), 0)
        if body.consumed:
            key = (body.dataset, epoch, body.shard)
            found.consumed.setdefault(key, []).append(body.worker)


def _freeze(found: Lineage, present: dict[str, Holdings]) -> None:
    """The newest generation ends, or the log does: what it held stays its own."""
    if found.spans and not found.spans[-1].ended:
        found.spans[-1].ended = True
        found.spans[-1].holdings = {
            name: {worker: list(lanes) for worker, lanes in held.items()}
            for name, held in present.items()
        }
