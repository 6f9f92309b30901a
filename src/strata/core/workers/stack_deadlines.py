"""When the watchdog collects stacks, and how long a verdict waits for them: soft state.

A verdict on a hang or a barrier waits until the collection that it began is over, for at most
`hang_report_s`. A task's next collection by the watchdog may begin `EVERY_NS` after the last one;
until then verdicts do not wait. A user's request is never refused for that reason, and a collection
of the one worker whose heartbeats stopped delays only the next one of that worker.
"""

from msgspec import Struct

from strata.core.events import Command, Fact
from strata.core.state import Cluster
from strata.core.workers.heartbeats import SECOND_NS, LastHeard
from strata.core.workers.stack_collection import (
    EndStackCollection,
    RequestStacks,
    StackCollectionEnded,
    StacksRequested,
    Trigger,
    is_complete,
)
from strata.core.workers.worker_lifecycle import DeclareLost

EVERY_NS = 60 * SECOND_NS
AGAIN_NS = SECOND_NS // 10
"""A verdict that waits is looked at again after this time."""


class _Open(Struct):
    """A collection in progress."""

    number: int
    deadline_ns: int
    look_ns: int


class StackDeadlines:
    """Which tasks collect stacks now, until when, and when they did last."""

    def __init__(self, limit_ns: int) -> None:
        self.limit_ns = limit_ns
        self._open: dict[str, _Open] = {}
        self._begun_ns: dict[tuple[str, str], int] = {}

    def adopt(self, state: Cluster, now_ns: int) -> None:
        """Continue the collections that were in progress before a restart."""
        for task in state.tasks.values():
            if task.stack_collection is not None and task.stack_collection.open:
                self._expect(task.id, task.stack_collection.number, now_ns)
                self._begun_ns[task.id, ""] = now_ns

    def follow(self, fact: Fact, now_ns: int) -> None:
        """Note the begin or end of a collection."""
        if isinstance(fact, StacksRequested):
            self._expect(fact.task, fact.collection, now_ns)
            if fact.trigger != "request":
                self._begun_ns[fact.task, _only(fact.trigger, fact.suspects)] = now_ns
        elif isinstance(fact, StackCollectionEnded):
            self._open.pop(fact.task, None)

    def credit(self, gap_ns: int) -> None:
        """Move every deadline by the time in which the coordinator did not run."""
        for each in self._open.values():
            each.deadline_ns += gap_ns
            each.look_ns += gap_ns

    def before_verdict(
        self, task: str, trigger: Trigger, reason: str, suspects: list[str], now_ns: int
    ) -> tuple[list[Command], int | None]:
        """Commands that precede a verdict, and when to look at the verdict again; None: now."""
        if task in self._open:
            return [], now_ns + AGAIN_NS
        only = _only(trigger, suspects)
        if not self.may_begin(task, only, now_ns):
            return [], None
        self._begun_ns[task, only] = now_ns
        begin = RequestStacks(task=task, trigger=trigger, reason=reason, suspects=suspects)
        return [begin], now_ns + AGAIN_NS

    def before_loss(
        self,
        task: str,
        worker: str,
        heard: LastHeard,
        verdict: DeclareLost | None,
        host: LastHeard | None,
        now_ns: int,
    ) -> tuple[list[Command], int | None]:
        """Like `before_verdict` for a worker that hangs, or whose heartbeats stop on a host that
        answers: its loss does not wait for the stacks."""
        if verdict is not None and verdict.signal == "hang":
            reason = f"{worker}: {verdict.reason}"
            return self.before_verdict(task, "hang", reason, [worker], now_ns)
        answers = host is not None and not host.is_doubtful(now_ns)
        if verdict is None and answers and heard.is_due_for_stacks(now_ns, self.limit_ns):
            reason = f"{worker}: no heartbeat for {(now_ns - heard.beat_ns) / SECOND_NS:.1f} s"
            return self.before_verdict(task, "heartbeat", reason, [worker], now_ns)[0], None
        return [], None

    def may_begin(self, task: str, only: str, now_ns: int) -> bool:
        """Whether the watchdog may begin a collection of the task, or of `only` one worker."""
        if self.limit_ns <= 0 or task in self._open:
            return False
        begun = (self._begun_ns.get((task, each)) for each in {"", only})
        return all(begun_ns is None or now_ns - begun_ns >= EVERY_NS for begun_ns in begun)

    def moments(self) -> list[int]:
        """The times of the next checks."""
        return [min(each.look_ns, each.deadline_ns) for each in self._open.values()]

    def overdue(self, state: Cluster, now_ns: int) -> list[Command]:
        """Commands that end collections."""
        found: list[Command] = []
        for task_id, each in list(self._open.items()):
            task = state.tasks.get(task_id)
            collection = task.stack_collection if task is not None else None
            if task is None or collection is None or not collection.open:
                del self._open[task_id]
            elif now_ns >= each.deadline_ns or is_complete(state, task, collection):
                reason = f"it did not arrive within {self.limit_ns / SECOND_NS:g} s"
                found.append(
                    EndStackCollection(task=task_id, collection=each.number, reason=reason)
                )
            elif now_ns >= each.look_ns:
                each.look_ns = now_ns + SECOND_NS // 2
        return found

    def _expect(self, task: str, number: int, now_ns: int) -> None:
        # A user may ask for stacks although the watchdog collects none (`hang_report_s` is 0).
        limit_ns = self.limit_ns or 5 * SECOND_NS
        look_ns = now_ns + SECOND_NS // 2
        self._open[task] = _Open(number=number, deadline_ns=now_ns + limit_ns, look_ns=look_ns)


def _only(trigger: Trigger, suspects: list[str]) -> str:
    """The worker that alone is asked; empty if the whole task is."""
    return suspects[0] if trigger == "heartbeat" and suspects else ""
