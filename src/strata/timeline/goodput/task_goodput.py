"""The goodput of one task, and its part in an audit, from the ledger."""

from strata.core.events import COORDINATOR
from strata.core.workers.worker_lifecycle import WorkerRegistered
from strata.errors import NotFound
from strata.store.event_store import EventReader
from strata.timeline.audit.audit_results import Effective
from strata.timeline.audit.lineage import Lineage
from strata.timeline.goodput.goodput_answers import (
    LABELS,
    ClassShare,
    GoodputAnswer,
    TimeSlice,
)
from strata.timeline.goodput.ledger import Ledger, ledger
from strata.timeline.goodput.lost_time import WhatIf, answers
from strata.timeline.goodput.prices import Prices
from strata.timeline.read.records import SECOND_NS, ms
from strata.timeline.read.run_timeline import Timeline


def goodput(timeline: Timeline, task: str = "", prices: Prices | None = None) -> GoodputAnswer:
    """The goodput of a task; without one, of the task whose worker registered last."""
    wanted = prices or Prices()
    return shown(ledger(timeline, task or newest_task(timeline), wanted), wanted, timeline.name)


def newest_task(timeline: Timeline) -> str:
    """The task of the newest registration of a worker."""
    kinds = {WorkerRegistered.__name__}
    until_ns = timeline.extent().to_ns + 1
    for record in timeline.backwards(until_ns, node=COORDINATOR, kinds=kinds):
        return record.text("task")
    raise NotFound("no worker has registered yet", hint="try again when a task trains")


def shown(found: Ledger, prices: Prices, run: str) -> GoodputAnswer:
    """A ledger as the API shows it."""
    total = found.total
    lost_cost = total.cost - _productive_cost(found) if total.priced_ns else None
    return GoodputAnswer(
        task=found.task,
        run=run,
        from_ms=ms(found.from_ns),
        to_ms=ms(found.to_ns),
        workers=found.workers,
        total_s=total.ns / SECOND_NS,
        productive_s=found.productive_ns / SECOND_NS,
        goodput=found.productive_ns / total.ns if total.ns else 0.0,
        classes=[
            ClassShare(
                name=name,
                label=LABELS[name],
                seconds=spent.ns / SECOND_NS,
                share=spent.ns / total.ns,
                cost=spent.money,
            )
            for name, spent in found.ordered()
        ],
        slice_ms=found.slice_ns / 1e6,
        series=[
            TimeSlice(
                from_ms=ms(found.from_ns + at * found.slice_ns),
                seconds={name: ns / SECOND_NS for name, ns in sorted(each.items())},
            )
            for at, each in enumerate(found.slices)
        ],
        causes=answers(found.lost, what_if(found, prices)),
        causes_total=len(found.lost.causes),
        price=prices.text,
        currency=prices.currency,
        cost=total.money,
        lost_cost=lost_cost,
        pending_s=found.pending_ns / SECOND_NS,
        notes=found.meter.notes(),
    )


def what_if(found: Ledger, prices: Prices) -> WhatIf:
    """What the savings of a ledger are computed from."""
    return WhatIf(
        spares=found.interruptions.spares,
        alone=frozenset(found.interruptions.alone),
        saves=found.saves,
        without_slow=found.waits.without,
        currency=prices.currency,
    )


def _productive_cost(found: Ledger) -> float:
    productive = found.classes.get("productive")
    return productive.cost if productive is not None else 0.0


def effective(reader: EventReader, task: str, lineage: Lineage) -> Effective:
    """The worker time of a task by class, for its audit; zero without workers."""
    try:
        found = ledger(Timeline(reader), task, lineage=lineage)
    except NotFound:
        return Effective(0.0, 0.0)
    seconds = {name: spent.ns / SECOND_NS for name, spent in found.ordered()}
    return Effective(found.productive_ns / SECOND_NS, found.total.ns / SECOND_NS, seconds)
