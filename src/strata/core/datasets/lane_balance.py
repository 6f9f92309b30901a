"""Rebalancing: lanes of slow workers move to faster ones, if the script asks for it.

In synchronous training all workers wait for the slowest. Workers report how long their part of a
step takes, without waiting for others. With `rebalance`, this gives the time that each of them
needs for a lane, and the shares with which all would finish together. The rules:

- Every member has reported at least `STEPS` steps of the present generation, so that one slow step
  moves nothing.
- A step would become shorter by at least `GAIN`, so that lanes do not move back and forth.
- As few lanes as possible move (`lane_owners`), and they move with a new generation, so that all
  workers change between the same two steps and the audit knows the owner of each lane.

Measuring starts again in each generation: a worker that recovered its speed gets its lanes back.
"""

from msgspec import Struct

from strata.core.datasets.dataset_rules import FULL_SPEED
from strata.core.datasets.lane_owners import apply_moves, assign
from strata.core.decision import Decision, applies, decides
from strata.core.events import Command, Event, Fact
from strata.core.generations.generation_members import restart_generation
from strata.core.state import Cluster
from strata.core.task_state import Feed, Task

STEPS = 20
GAIN = 0.15


class PaceMeasured(Fact, frozen=True, kw_only=True):
    """The speed of each member, 1000 for the fastest; lanes are shared accordingly."""

    sentence = "lanes of {dataset} are redistributed by worker speed[: {reason}]"

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
    """New shares of the lanes, and the step time with them and without."""

    paces: dict[str, int]
    moved: int
    now_s: float
    then_s: float

    @property
    def worthwhile(self) -> bool:
        """Whether a step becomes enough shorter to move lanes."""
        return self.moved > 0 and self.then_s <= (1 - GAIN) * self.now_s


def planned(feed: Feed, busy_s: dict[str, float], weights: dict[str, int]) -> Plan:
    """Shares by measured speed. A worker without lanes keeps its last known speed."""
    held = {worker: len(feed.holdings.get(worker, ())) for worker in busy_s}
    lane_s = {w: busy_s[w] / held[w] for w in busy_s if held[w] and busy_s[w] > 0}
    fastest_s = min(lane_s.values(), default=0.0)
    speeds = {
        worker: max(1, round(FULL_SPEED * fastest_s / lane_s[worker]))
        if worker in lane_s
        else feed.paces.get(worker, FULL_SPEED)
        for worker in busy_s
    }
    # A speed describes a whole worker: its weight must not count twice.
    own = {w: max(1, round(speeds[w] / weights[w])) for w in speeds}
    moves = assign(feed.holdings, {w: weights[w] * own[w] for w in own}, feed.count)
    after = {worker: list(items) for worker, items in feed.holdings.items()}
    apply_moves(after, moves)
    then_s = max((len(after.get(w, ())) * lane_s[w] for w in lane_s), default=0.0)
    moved = sum(move.last - move.first + 1 for move in moves)
    return Plan(paces=own, moved=moved, now_s=max(busy_s.values(), default=0.0), then_s=then_s)


@applies(PaceMeasured)
def _measured(state: Cluster, fact: PaceMeasured, event: Event) -> None:
    state.tasks[fact.task].feeds[fact.dataset].paces = dict(fact.paces)


@decides(BalanceLanes)
def balance(d: Decision, c: BalanceLanes) -> Task:
    """Start a generation with lanes by speed, if that shortens the step enough."""
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
        fact = PaceMeasured(
            task=task.id,
            dataset=feed.dataset,
            generation=task.generation,
            paces=plan.paces,
            reason=reason,
        )
        restart_generation(d, task, reason, d.record(fact, c.cause))
        break
    return task


class _Reports(Struct, frozen=True):
    """Reports of a worker in a generation, since step `first`."""

    generation: int
    first: int
    step: int
    busy_s: float

    def enough(self, generation: int) -> bool:
        return self.generation == generation and self.step - self.first >= STEPS


class Paces:
    """Reported step times of members: soft state, lost with the coordinator."""

    def __init__(self) -> None:
        self._reports: dict[str, _Reports] = {}
        self._new: set[str] = set()

    def note(self, worker: str, generation: int, step: int, busy_s: float) -> None:
        """Note how long a worker's part of a step takes."""
        known = self._reports.get(worker)
        first = known.first if known is not None and known.generation == generation else step
        reports = self._reports[worker] = _Reports(
            generation=generation, first=first, step=step, busy_s=busy_s
        )
        if reports.enough(generation):
            self._new.add(worker)

    def due(self, state: Cluster) -> list[Command]:
        """Commands for tasks whose members have all reported enough steps."""
        tasks = {state.workers[worker].task for worker in self._new if worker in state.workers}
        self._new.clear()
        found: list[Command] = []
        for task in (state.tasks[task_id] for task_id in sorted(tasks)):
            if not any(feed.rebalance for feed in task.feeds.values()):
                continue
            reports = {member: self._reports.get(member) for member in task.members}
            busy = {m: t.busy_s for m, t in reports.items() if t and t.enough(task.generation)}
            if len(busy) == len(task.members) > 1 and task.phase == "running":
                for member in task.members:
                    self._reports.pop(member)  # measured again, whatever the decision
                found.append(BalanceLanes(task=task.id, generation=task.generation, busy_s=busy))
        return found
