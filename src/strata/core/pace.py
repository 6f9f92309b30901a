"""A straggler's lanes are moved to faster workers, where the script asked for that.

In synchronous training everyone waits for the slowest. With `rebalance`, workers tell how long
their part of a step takes, without what they waited for others. From that follows how long a lane
takes each of them, and how the lanes would be shared if all were to end together. The rules:

- Everyone has told about `STEPS` steps of the present generation: one slow step moves nothing.
- A step would become shorter by `GAIN` at least: small differences move nothing, so that lanes do
  not go back and forth.
- Only what has to move does (`sharding`), and it moves with a new generation, so that everyone
  changes between the same two steps and the audit knows whose lanes were whose.

The measuring begins again in each generation: a worker that recovered gets its lanes back.
"""

from typing import TYPE_CHECKING

from msgspec import Struct

from strata.core.datasets import FULL_PACE, Feed
from strata.core.decision import Decision
from strata.core.events import Command, Event, Fact, applies, decides
from strata.core.generations import begin_again
from strata.core.sharding import apply_moves, assign

if TYPE_CHECKING:
    from strata.core.state import Cluster
    from strata.core.tasks import Task

STEPS = 20
GAIN = 0.15


class PaceMeasured(Fact, frozen=True):
    """How fast the members are, a thousand for the fastest; lanes are shared accordingly."""

    task: str
    dataset: str
    generation: int
    paces: dict[str, int]
    reason: str


class BalanceLanes(Command, frozen=True):
    """`busy_s` is how long each member's part of a step takes."""

    task: str
    generation: int
    busy_s: dict[str, float]


class Plan(Struct, frozen=True):
    """How lanes would be shared, and how long a step takes with them and without."""

    paces: dict[str, int]
    moved: int
    now_s: float
    then_s: float

    @property
    def worthwhile(self) -> bool:
        """Whether a step becomes so much shorter that moving pays."""
        return self.moved > 0 and self.then_s <= (1 - GAIN) * self.now_s


def planned(feed: Feed, busy_s: dict[str, float], weights: dict[str, int]) -> Plan:
    """Lanes by measured speed. A worker without lanes keeps the pace that it is thought to have."""
    held = {worker: len(feed.holdings.get(worker, ())) for worker in busy_s}
    lane_s = {w: busy_s[w] / held[w] for w in busy_s if held[w] and busy_s[w] > 0}
    fastest_s = min(lane_s.values(), default=0.0)
    paces = {
        worker: max(1, round(FULL_PACE * fastest_s / lane_s[worker]))
        if worker in lane_s
        else feed.paces.get(worker, FULL_PACE)
        for worker in busy_s
    }
    # A pace is of a whole worker: what its weight already says must not count twice.
    own = {w: max(1, round(paces[w] / weights[w])) for w in paces}
    moves = assign(feed.holdings, {w: weights[w] * own[w] for w in own}, feed.count)
    after = {worker: list(items) for worker, items in feed.holdings.items()}
    apply_moves(after, moves)
    then_s = max((len(after.get(w, ())) * lane_s[w] for w in lane_s), default=0.0)
    moved = sum(move.last - move.first + 1 for move in moves)
    return Plan(own, moved, max(busy_s.values(), default=0.0), then_s)


@applies(PaceMeasured)
def _measured(state: "Cluster", fact: PaceMeasured, event: Event) -> None:
    state.tasks[fact.task].feeds[fact.dataset].paces = dict(fact.paces)


@decides(BalanceLanes)
def balance(d: Decision, c: BalanceLanes) -> "Task":
    """Begins a generation with lanes by speed, if that pays; else nothing happens."""
    task = d.state.task(c.task)
    current = c.generation == task.generation and task.phase == "running" and not task.ended
    if not current or set(c.busy_s) != set(task.members):
        return task
    weights = {worker: d.state.workers[worker].weight for worker in task.members}
    for feed in task.feeds.values():
        plan = planned(feed, c.busy_s, weights) if feed.rebalance else None
        if plan is None or not plan.worthwhile:
            continue
        slowest = max(c.busy_s, key=lambda worker: (c.busy_s[worker], worker))
        reason = (
            f"worker {slowest} takes {plan.now_s:.3g} s for its part of a step; with {plan.moved} "
            f"lanes moved a step takes {plan.then_s:.3g} s"
        )
        fact = PaceMeasured(task.id, feed.dataset, task.generation, plan.paces, reason)
        begin_again(d, task, reason, d.record(fact, c.cause))
        break
    return task


class _Told(Struct, frozen=True):
    """What a worker told in a generation, since step `first`."""

    generation: int
    first: int
    step: int
    busy_s: float

    def enough(self, generation: int) -> bool:
        return self.generation == generation and self.step - self.first >= STEPS


class Paces:
    """What members told of their pace: soft state, gone with the coordinator."""

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}
        self._new: set[str] = set()

    def note(self, worker: str, generation: int, step: int, busy_s: float) -> None:
        """A worker said how long its part of a step takes."""
        known = self._told.get(worker)
        first = known.first if known is not None and known.generation == generation else step
        told = self._told[worker] = _Told(generation, first, step, busy_s)
        if told.enough(generation):
            self._new.add(worker)

    def due(self, state: "Cluster") -> list[Command]:
        """The tasks whose members have all told enough."""
        tasks = {state.workers[worker].task for worker in self._new if worker in state.workers}
        self._new.clear()
        found: list[Command] = []
        for task in (state.tasks[task_id] for task_id in sorted(tasks)):
            told = {member: self._told.get(member) for member in task.members}
            busy = {m: t.busy_s for m, t in told.items() if t and t.enough(task.generation)}
            if len(busy) == len(task.members) > 1 and task.phase == "running":
                for member in task.members:
                    self._told.pop(member)  # measured anew, whatever comes of it
                found.append(BalanceLanes(task=task.id, generation=task.generation, busy_s=busy))
        return found
