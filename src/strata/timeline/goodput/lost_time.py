"""Sums of worker time by cause: what a loss, a slow worker or the checkpoints cost altogether."""

from collections.abc import Callable

from msgspec import Struct, field

from strata.core.alerts.alert_record import AlertRaised
from strata.core.workers.stack_collection import StacksRequested
from strata.core.workers.worker_lifecycle import WorkerLost
from strata.timeline.goodput.goodput_answers import LABELS, CauseAnswer, Saving, TimeClass
from strata.timeline.goodput.interruptions import Interruptions
from strata.timeline.goodput.prices import money
from strata.timeline.goodput.step_pieces import Piece
from strata.timeline.read.records import SECOND_NS, Record, ms
from strata.timeline.read.sentences import counted, lasting, sentence
from strata.timeline.why.worker_losses import SIGNALS

MAX_CAUSES = 10_000
TOP = 10
KIND_TEXTS = {
    **{str(name): label for name, label in LABELS.items()},
    "slow": "a slower worker",
    "more": f"causes beyond the first {MAX_CAUSES:,}",
    "AlertRaised": "no progress until a stop or a kill",
    "StacksRequested": "no progress until a stop or a kill",
    "TaskPlaced": "start of the workers",
    "GenerationChanged": "a change of the members without a loss",
    "RolledBack": "a rollback",
    "RecoveryChosen": "a recovery",
}
NOT_LOST: frozenset[TimeClass] = frozenset({"productive"})


class Spent(Struct):
    """Worker time and its cost; `priced_ns` of it have a price."""

    ns: int = 0
    cost: float = 0.0
    priced_ns: int = 0

    def add(self, length_ns: int, cost: float | None) -> None:
        """Add a span."""
        self.ns += length_ns
        if cost is not None:
            self.cost += cost
            self.priced_ns += length_ns

    def join(self, other: "Spent") -> None:
        """Add another sum."""
        self.ns += other.ns
        self.cost += other.cost
        self.priced_ns += other.priced_ns

    @property
    def money(self) -> float | None:
        """The cost; None if nothing has a price."""
        return self.cost if self.priced_ns else None

    def part(self, ns: float) -> float | None:
        """The cost of a part of the time."""
        return self.cost * ns / self.ns if self.priced_ns and self.ns else None


class Cause(Struct):
    """The time lost to one cause. `ref` is the event, or the record of the longest span.

    `earlier` is the rolled-back work up to the middle of the checkpoint interval, and `furthest`
    says whether there was work beyond it.
    """

    key: str
    record: Record | None = None
    ref: str = ""
    at_ns: int = 0
    note: str = ""
    longest_ns: int = 0
    spans: int = 0
    total: Spent = field(default_factory=Spent)
    classes: dict[TimeClass, Spent] = field(default_factory=dict)
    earlier: Spent = field(default_factory=Spent)
    furthest: bool = False


class LostTime:
    """Collects pieces by their cause; further causes than `MAX_CAUSES` count as one."""

    def __init__(self, interruptions: Interruptions) -> None:
        self.causes: dict[str, Cause] = {}
        self._interruptions = interruptions

    def add(self, piece: Piece, cost: float | None) -> None:
        """Add a piece that is not productive."""
        if piece.kind in NOT_LOST:
            return
        key = _key(piece)
        if key not in self.causes and len(self.causes) >= MAX_CAUSES:
            key = "more"
        cause = self.causes.setdefault(key, Cause(key=key, record=piece.cause, note=piece.note))
        length_ns = piece.to_ns - piece.from_ns
        cause.spans += 1
        if length_ns > cause.longest_ns and piece.cause is None:
            cause.longest_ns, cause.ref, cause.at_ns = length_ns, piece.ref, piece.from_ns
        cause.total.add(length_ns, cost)
        cause.classes.setdefault(piece.kind, Spent()).add(length_ns, cost)
        until = self._interruptions.earlier.get(piece.cause.ref) if piece.cause else None
        if until is not None and piece.kind == "rolled_back" and piece.step >= 0:
            if piece.step < until:
                cause.earlier.add(length_ns, cost)
            else:
                cause.furthest = True


class KindSum(Struct):
    """The time lost to all causes of one kind, and the number of causes."""

    total: Spent = field(default_factory=Spent)
    count: int = 0


def by_kind(lost: LostTime) -> dict[str, KindSum]:
    """The lost time by the kind of its causes; losses of workers by how they were noticed."""
    found: dict[str, KindSum] = {}
    for cause in lost.causes.values():
        sums = found.setdefault(_kind(cause), KindSum())
        sums.total.join(cause.total)
        sums.count += 1
    return found


def kind_text(kind: str) -> str:
    """A kind of causes in words."""
    name, _, signal = kind.partition(" ")
    if name == WorkerLost.__name__:
        return f"worker lost: {SIGNALS[signal]}" if signal in SIGNALS else "worker lost"
    return KIND_TEXTS.get(name, name)


def _kind(cause: Cause) -> str:
    body = cause.record.event.body if cause.record is not None else None
    if isinstance(body, WorkerLost):
        return f"{WorkerLost.__name__} {body.signal}"
    return cause.record.kind if cause.record is not None else cause.key.split(" ")[0]


def _key(piece: Piece) -> str:
    if piece.cause is not None:
        return piece.cause.ref
    if piece.slow:
        return f"slow {piece.slow}"
    return f"{piece.kind} {piece.note}"


class WhatIf(Struct, frozen=True):
    """What the savings are computed from, besides the causes. `alone` are the losses of which no
    other member was lost before training continued."""

    spares: int
    alone: frozenset[str]
    saves: int
    without_slow: Callable[[str], int]
    currency: str


def answers(lost: LostTime, rules: WhatIf, most: int = TOP) -> list[CauseAnswer]:
    """The most expensive causes, the most expensive first."""
    causes = sorted(lost.causes.values(), key=lambda cause: (-cause.total.cost, -cause.total.ns))
    return [_answer(cause, rules) for cause in causes[:most]]


def _answer(cause: Cause, rules: WhatIf) -> CauseAnswer:
    known = cause.record
    return CauseAnswer(
        kind=known.kind if known is not None else cause.key.split(" ")[0],
        text=_text(cause, rules),
        seconds=cause.total.ns / SECOND_NS,
        cost=cause.total.money,
        count=cause.spans,
        ref=known.ref if known is not None else cause.ref,
        at_ms=ms(known.at_ns if known is not None else cause.at_ns),
        classes={name: spent.ns / SECOND_NS for name, spent in sorted(cause.classes.items())},
        saving=_saving(cause, rules),
    )


def _text(cause: Cause, rules: WhatIf) -> str:
    body = cause.record.event.body if cause.record is not None else None
    if isinstance(body, AlertRaised | StacksRequested):
        return f"no progress: {body.text if isinstance(body, AlertRaised) else body.reason}"
    if cause.record is not None and cause.record.kind == "WorkerLost":
        return sentence(cause.record)
    if cause.record is not None:
        most = max(cause.classes, key=lambda name: cause.classes[name].ns)
        return f"{LABELS[most]}: {sentence(cause.record)}"
    if cause.key.startswith("slow "):
        return f"other workers waited for {cause.key[5:]}, which was slower"
    if cause.key == "more":
        return f"causes beyond the first {MAX_CAUSES:,}"
    kind = next(iter(cause.classes))
    if kind == "checkpoint_stall" and rules.saves:
        return f"{LABELS[kind]}: {counted(rules.saves, 'checkpoint')}"
    return f"{LABELS[kind]}: {cause.note}" if cause.note else LABELS[kind]


def _saving(cause: Cause, rules: WhatIf) -> Saving | None:
    """The largest of the savings that can be computed for a cause."""
    found = [_spare(cause, rules), _checkpoint(cause, rules), _slow(cause, rules)]
    known = [saving for saving in found if saving is not None]
    return max(known, key=lambda saving: saving.seconds, default=None)


def _shown(what: str, seconds: float, cost: float | None, currency: str) -> str:
    worth = f" = {money(currency, cost)}" if cost is not None else ""
    return f"{what} would have saved {lasting(seconds)}{worth}"


def _made(spent: Spent, ns: float, what: str, method: str, rules: WhatIf) -> Saving | None:
    if ns <= 0:
        return None
    seconds, cost = ns / SECOND_NS, spent.part(ns)
    text = _shown(what, seconds, cost, rules.currency)
    return Saving(seconds=seconds, cost=cost, text=text, method=method)


def _spare(cause: Cause, rules: WhatIf) -> Saving | None:
    """A spare takes the rank in the turn of the loss, so no worker waits for a registration."""
    waited = cause.classes.get("replacement_wait")
    known = cause.record
    if waited is None or known is None or known.ref not in rules.alone or rules.spares:
        return None
    method = (
        "a spare gets the rank of a lost worker in the same turn, so the time from WorkerLost to "
        "the registration of the replacement is not waited for; a spare itself uses worker time "
        "for the whole run"
    )
    return _made(waited, waited.ns, "a spare", method, rules)


def _checkpoint(cause: Cause, rules: WhatIf) -> Saving | None:
    """One more checkpoint, halfway, would have kept the steps up to it."""
    if cause.earlier.ns and cause.furthest:
        method = (
            "the recorded time of the rolled-back steps before the middle of the checkpoint "
            "interval, which a checkpoint there would have kept; without the time to save it"
        )
        what = "a checkpoint interval half as long"
        return _made(cause.earlier, cause.earlier.ns, what, method, rules)
    stalled = cause.classes.get("checkpoint_stall")
    if stalled is None or cause.record is not None or rules.saves < 2:
        return None
    kept = rules.saves // 2
    method = f"the mean stall of {counted(rules.saves, 'checkpoint')}, times {kept}"
    ns = stalled.ns * kept / rules.saves
    return _made(stalled, ns, "half as many checkpoints", method, rules)


def _slow(cause: Cause, rules: WhatIf) -> Saving | None:
    """What the others waited for the slowest worker beyond the second slowest."""
    if not cause.key.startswith("slow "):
        return None
    worker = cause.key[5:]
    ns = min(rules.without_slow(worker), cause.total.ns)
    method = (
        "for each step, the wait of the second slowest worker beyond that of the slowest, times "
        "the number of workers that waited"
    )
    return _made(cause.total, ns, f"{worker} as fast as the next slowest worker", method, rules)
