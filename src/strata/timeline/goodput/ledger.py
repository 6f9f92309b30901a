"""The ledger of a task: every worker-second in exactly one class, with its cause and cost.

The wall time of a worker of the task is the time from its placement on a host (or its registration)
to its leaving. The time between its loss and its registration counts as long as the task wants it
back: until it registers again, or, with the policy `replace`, until a worker of the task has
finished or the task ends. The sum over all workers is the total of the ledger, and the classes add
up to it exactly, in nanoseconds. A task that waits in the queue has no workers.

Of a running task the newest time is pending: the step in progress, and steps that are applied but
not committed. It is in no class and not in the total, and summed on its own.

Memory: per worker its states, per generation 25 bytes for each step, and the causes.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from msgspec import Struct, field
from msgspec.structs import replace

from strata.core.checkpoints.checkpoint_lifecycle import CheckpointStarted
from strata.core.events import COORDINATOR
from strata.core.workers.worker_lifecycle import WorkerRegistered
from strata.errors import NotFound
from strata.timeline.audit.lineage import Lineage, read_lineage
from strata.timeline.goodput.goodput_answers import CLASSES, TimeClass
from strata.timeline.goodput.interruptions import FACTS as TASK_FACTS
from strata.timeline.goodput.interruptions import Interruptions
from strata.timeline.goodput.lost_time import LostTime, Spent
from strata.timeline.goodput.prices import Host, HostShares, Meter, Prices
from strata.timeline.goodput.stalls import FACTS as STALL_FACTS
from strata.timeline.goodput.stalls import finds_stall, stalls
from strata.timeline.goodput.step_pieces import Piece, TaskTime
from strata.timeline.goodput.step_waits import StepWaits
from strata.timeline.goodput.time_pieces import WorkerPieces
from strata.timeline.lanes.worker_periods import FACTS, Life, Lives
from strata.timeline.lanes.worker_time import Activity, activities, leave_out_lost_time, recorded_by
from strata.timeline.read.records import Record
from strata.timeline.read.run_timeline import Timeline

SLICES = 200
WEEK_NS = 7 * 86_400 * 1_000_000_000
MONDAY_NS = 4 * 86_400 * 1_000_000_000
"""The first Monday after the start of Unix time."""

MAX_HOSTS = 1_000
MAX_WEEKS = 1_000
MORE = "others"


class Ledger(Struct):
    """The sums of a task's worker time, in nanoseconds. `wall_ns` is summed independently of the
    classes, from the workers' states: all classes and `pending_ns` add up to it."""

    task: str
    from_ns: int
    to_ns: int
    meter: Meter
    lost: LostTime
    interruptions: Interruptions
    waits: StepWaits
    workers: int = 0
    wall_ns: int = 0
    pending_ns: int = 0
    counted_to_ns: int = 0
    saves: int = 0
    classes: dict[TimeClass, Spent] = field(default_factory=dict)
    slice_ns: int = 1
    slices: list[dict[TimeClass, int]] = field(default_factory=list)
    weeks: dict[int, dict[TimeClass, Spent]] = field(default_factory=dict)
    hosts: dict[str, dict[TimeClass, Spent]] = field(default_factory=dict)

    @property
    def total(self) -> Spent:
        """All classes together."""
        found = Spent()
        for spent in self.classes.values():
            found.join(spent)
        return found

    @property
    def productive_ns(self) -> int:
        """The productive time."""
        return self.classes.get("productive", Spent()).ns

    def ordered(self) -> list[tuple[TimeClass, Spent]]:
        """The classes that have time, in the order of their definition."""
        return [(name, self.classes[name]) for name in CLASSES if name in self.classes]

    def add(self, piece: Piece, host: Host) -> None:
        """Add a piece of a worker's time."""
        if piece.pending:
            self.pending_ns += piece.to_ns - piece.from_ns
            return
        self.counted_to_ns = max(self.counted_to_ns, piece.to_ns)
        for part in _by_week(piece):
            length_ns = part.to_ns - part.from_ns
            cost = self.meter.cost(host, part.from_ns, part.to_ns) if self.meter.given else None
            self.classes.setdefault(part.kind, Spent()).add(length_ns, cost)
            week = (part.from_ns - MONDAY_NS) // WEEK_NS
            in_week = self.weeks.setdefault(week if len(self.weeks) < MAX_WEEKS else 0, {})
            in_week.setdefault(part.kind, Spent()).add(length_ns, cost)
            name = host.name if host.name in self.hosts or len(self.hosts) < MAX_HOSTS else MORE
            on_host = self.hosts.setdefault(name, {})
            on_host.setdefault(part.kind, Spent()).add(length_ns, cost)
            self.lost.add(part, cost)
        self._slice(piece)

    def close(self) -> None:
        """End the ledger where its newest counted time ends."""
        if self.pending_ns:
            self.to_ns = max(self.counted_to_ns, self.from_ns)
            del self.slices[-(-(self.to_ns - self.from_ns) // self.slice_ns) :]

    def _slice(self, piece: Piece) -> None:
        at_ns = piece.from_ns
        while at_ns < piece.to_ns:
            number = (at_ns - self.from_ns) // self.slice_ns
            stop_ns = min(piece.to_ns, self.from_ns + (number + 1) * self.slice_ns)
            held = self.slices[number]
            held[piece.kind] = held.get(piece.kind, 0) + stop_ns - at_ns
            at_ns = stop_ns


def _by_week(piece: Piece) -> Iterator[Piece]:
    """A piece, cut where a week (UTC) begins."""
    at_ns = piece.from_ns
    while at_ns < piece.to_ns:
        week = (at_ns - MONDAY_NS) // WEEK_NS
        stop_ns = min(piece.to_ns, MONDAY_NS + (week + 1) * WEEK_NS)
        whole = (at_ns, stop_ns) == (piece.from_ns, piece.to_ns)
        yield piece if whole else replace(piece, from_ns=at_ns, to_ns=stop_ns)
        at_ns = stop_ns


class _Facts(Struct):
    """What the coordinator's facts say about a task and its workers."""

    lives: list[Life]
    interruptions: Interruptions
    places: dict[str, list[tuple[int, Host]]]
    saves: int


def ledger(
    timeline: Timeline,
    task: str,
    prices: Prices | None = None,
    lineage: Lineage | None = None,
    since_ns: int = 0,
) -> Ledger:
    """The ledger of a task; without prices there are no costs, without workers it is empty.

    It counts the time after `since_ns`; its wall time and `from_ns` are those of the whole task.
    """
    facts = _facts(timeline, task)
    if not facts.lives and not facts.interruptions.submitted:
        raise NotFound(
            f"the log has no workers of task {task!r}", hint="`strata tasks` lists the tasks"
        )
    until_ns = timeline.extent().to_ns + 1
    waits = StepWaits(facts.interruptions)
    own = {life.node for life in facts.lives}
    for node, incarnation in timeline.reader.streams():
        if node in own:
            waits.read(node, incarnation, timeline.events_of(node, incarnation))
    facts.interruptions.read(waits.last_events, until_ns)
    lives = [_wanted(life, task, facts.interruptions) for life in facts.lives]
    spans = {life.node: list(_spans(life, task, until_ns)) for life in lives}
    found = _empty(task, facts, waits, spans, prices or Prices())
    kept = lineage if lineage is not None else read_lineage(timeline.reader, task)
    for life in lives:
        pieces = WorkerPieces(TaskTime(kept, facts.interruptions, waits), life)
        for piece in _pieces(timeline, life, pieces, task, until_ns):
            if piece.to_ns <= since_ns:
                continue
            if piece.from_ns < since_ns:
                piece = replace(piece, from_ns=since_ns)
            found.add(piece, _host_at(facts.places.get(life.node, []), piece.from_ns))
    found.close()
    return found


def _pieces(
    timeline: Timeline, life: Life, pieces: WorkerPieces, task: str, until_ns: int
) -> Iterator[Piece]:
    records = pieces.noted(recorded_by(timeline, life.node))
    did: Iterable[Activity] = activities(life, records, until_ns)
    for each in did:
        if each.task == task:
            yield from pieces.feed(each)
    yield from pieces.end()


def _facts(timeline: Timeline, task: str) -> _Facts:
    lives, interruptions = Lives(), Interruptions(task)
    places = defaultdict[str, list[tuple[int, Host]]](list)
    saves = 0
    found_stalls: list[Record] = []
    kinds = {*FACTS, *TASK_FACTS, *STALL_FACTS, CheckpointStarted.__name__}
    for record in timeline.records(node=COORDINATOR, kinds=kinds):
        lives.feed(record)
        interruptions.feed(record)
        body = record.event.body
        if isinstance(body, WorkerRegistered) and body.task == task:
            host = Host(body.hostname, body.gpu_count)
            places[body.worker].append((record.at_ns, host))
        elif isinstance(body, CheckpointStarted) and body.task == task:
            saves += 1
        elif finds_stall(record) and record.text("task") == task:
            found_stalls.append(record)
    interruptions.stalls = stalls(timeline, task, found_stalls)
    leave_out_lost_time(timeline, lives)
    own = [life for _, life in sorted(lives.of.items()) if any(t.task == task for t in life.turns)]
    return _Facts(lives=own, interruptions=interruptions, places=dict(places), saves=saves)


def _host_at(places: list[tuple[int, Host]], at_ns: int) -> Host:
    """Where a worker ran: the last registration before a moment, else the first one."""
    found = Host()
    for registered_ns, host in places:
        if registered_ns > at_ns and found.gpus >= 0:
            break
        found = host
    return found


def _wanted(life: Life, task: str, interruptions: Interruptions) -> Life:
    """A life without the time in which a lost worker was not to be replaced."""
    turns = list(life.turns)
    for at, turn in enumerate(life.turns):
        follows = life.turns[at + 1] if at + 1 < len(life.turns) else None
        if turn.kind != "lost" or turn.task != task:
            continue
        if follows is not None and follows.kind is not None:
            continue  # it came back
        finished_ns = interruptions.finished_ns
        end_ns = turn.at_ns if interruptions.policy != "replace" else finished_ns
        if end_ns is None or (follows is not None and end_ns >= follows.at_ns):
            continue
        gone = replace(turn, at_ns=max(end_ns, turn.at_ns), kind=None, label="not replaced")
        place = turns.index(turn)
        turns[place : place + 1] = [gone] if end_ns <= turn.at_ns else [turn, gone]
    return replace(life, turns=turns)


def _spans(life: Life, task: str, until_ns: int) -> Iterator[tuple[int, int]]:
    """The spans in which a worker belonged to the task, from its states alone."""
    for at, turn in enumerate(life.turns):
        end_ns = life.turns[at + 1].at_ns if at + 1 < len(life.turns) else until_ns
        if turn.kind is not None and turn.task == task and turn.at_ns < min(end_ns, until_ns):
            yield turn.at_ns, min(end_ns, until_ns)


def _empty(
    task: str,
    facts: _Facts,
    waits: StepWaits,
    spans: dict[str, list[tuple[int, int]]],
    prices: Prices,
) -> Ledger:
    """A ledger without time; its slices cover the time of all workers."""
    edges = [edge for each in spans.values() for span in each for edge in span]
    from_ns, to_ns = min(edges, default=0), max(edges, default=0)
    slice_ns = max(-(-(to_ns - from_ns) // SLICES), 1)
    stays = (
        (_host_at(facts.places.get(node, []), begin).name, begin, end)
        for node, each in spans.items()
        for begin, end in each
    )
    return Ledger(
        task=task,
        from_ns=from_ns,
        to_ns=to_ns,
        meter=Meter(prices, HostShares(stays)),
        lost=LostTime(facts.interruptions),
        interruptions=facts.interruptions,
        waits=waits,
        workers=sum(bool(each) for each in spans.values()),
        wall_ns=sum(end - begin for each in spans.values() for begin, end in each),
        saves=facts.saves,
        slice_ns=slice_ns,
        slices=[{} for _ in range(-(-(to_ns - from_ns) // slice_ns))],
    )
