"""Liveness: heartbeats, deadlines, and which workers, agents and barriers have passed them.

This is soft state. It is never recorded, only the conclusions are; after a restart it starts empty,
with a grace period in which workers and agents may return. Only the coordinator's monotonic clock
is used, never the clock of a sender.

Four signals, each with its own name in `WorkerLost`: the agent saw the process end (`exit`,
reported by a command); the connection broke and was not restored (`connection`); heartbeats stopped
(`heartbeat`); heartbeats arrive but steps do not (`hang`), measured against the steps before
(`step_durations`). A worker that waits for others never counts as hanging. A worker that does not
return after a restart is `absent`.

Before a hang or an incomplete barrier is declared, the stacks of the task's workers are collected
(see `stack_deadlines`). When heartbeats stop on a host that answers, they are collected shortly
before the loss, which is not delayed.

Heartbeats also carry progress: when every member of a generation has applied a step, it is
committed, at most once in `commit_interval_s`.
"""

from heapq import heappop, heappush
from typing import Literal

from strata.core.barriers.barrier_rules import (
    BarrierFailed,
    BarrierOpened,
    BarrierReleased,
    FailBarrier,
    missing_workers,
)
from strata.core.checkpoints.save_schedule import Pace, has_open_request, plan
from strata.core.datasets.lane_balance import Paces
from strata.core.events import Command, Event
from strata.core.generations.recovery import CommitSteps
from strata.core.generations.storage_waits import (
    StorageDeadlines,
    StorageReached,
    StorageUnreachable,
)
from strata.core.rule_settings import Timeouts
from strata.core.state import Cluster
from strata.core.task_state import ENDED
from strata.core.tasks.task_lifecycle import TaskStateChanged
from strata.core.workers.declared_losses import DeclareLosses, host_of, with_host_in_doubt
from strata.core.workers.heartbeats import SECOND_NS, Beat, LastHeard
from strata.core.workers.host_agents import AgentLost, AgentRegistered, DeclareAgentLost
from strata.core.workers.stack_collection import StackCollectionEnded, StacksRequested
from strata.core.workers.stack_deadlines import StackDeadlines
from strata.core.workers.step_durations import StepDurations
from strata.core.workers.worker_lifecycle import (
    DeclareLost,
    Signal,
    WorkerLost,
    WorkerRegistered,
    WorkerReturned,
    WorkerStateChanged,
)

TOGETHER_NS = 50_000_000
"""Connections that break within this time of the first one are handled together."""

BEAT_LOOKS = 30
"""A step that is too old is looked at so often within a heartbeat timeout until a heartbeat says
that it still is."""

FOLLOWED = frozenset(
    {WorkerRegistered, WorkerReturned, WorkerLost, WorkerStateChanged, AgentRegistered, AgentLost}
    | {BarrierOpened, BarrierReleased, BarrierFailed, StorageUnreachable, StorageReached}
    | {StacksRequested, StackCollectionEnded, TaskStateChanged}
)
"""The facts that change deadlines; most facts are arrivals, which do not."""


class Watch:
    """Takes heartbeats and facts, and returns commands for expired deadlines."""

    def __init__(self, timeouts: Timeouts) -> None:
        self.timeouts = timeouts
        self.steps = StepDurations(timeouts)
        self._paces = Paces()
        self._workers: dict[str, LastHeard] = {}
        self._agents: dict[str, LastHeard] = {}
        self._due: list[tuple[int, Literal["worker", "agent", "barrier"], tuple[str, ...]]] = []
        self._barriers: dict[tuple[str, str], tuple[int, int]] = {}
        self._storage = StorageDeadlines(_ns(timeouts.storage_timeout_s))
        self._stacks = StackDeadlines(_ns(timeouts.hang_report_s))
        self._moved: set[str] = set()
        self._asked: set[str] = set()
        self._commit_ns = 0
        self._broken_look_ns = 0

    def adopt(self, state: Cluster, now_ns: int) -> None:
        """Start from a state after a restart: every living worker and agent may return in time."""
        grace = _ns(self.timeouts.reattach_grace_s)
        for worker in state.workers.values():
            if worker.alive:
                self._expect(self._workers, "worker", worker.id, worker.incarnation, now_ns, grace)
                self._workers[worker.id].task = worker.task
        for agent in state.agents.values():
            if agent.up:
                self._expect(self._agents, "agent", agent.id, agent.incarnation, now_ns, grace)
        for task in state.tasks.values():
            for barrier in task.barriers.values():
                if barrier.state == "waiting":
                    self._expect_release(task.id, barrier.name, barrier.round, now_ns)
            if task.storage_wait is not None and not task.ended:
                self._storage.expect(task.id, now_ns)
        self._stacks.adopt(state, now_ns)

    def follow(self, event: Event) -> None:
        """Update the deadlines after a fact."""
        body, now_ns = event.body, event.mono_ns
        if type(body) not in FOLLOWED:
            return
        timeout = _ns(self.timeouts.heartbeat_timeout_s)
        if isinstance(body, WorkerRegistered):
            self._expect(self._workers, "worker", body.worker, body.incarnation, now_ns, timeout)
            self._workers[body.worker].absent = False
            self._workers[body.worker].task = body.task
        elif isinstance(body, WorkerReturned):
            self.beat(body.worker, body.incarnation, Beat(), now_ns)
        elif isinstance(body, WorkerLost) or (
            isinstance(body, WorkerStateChanged) and body.after == "left"
        ):
            self._workers.pop(body.worker, None)
        elif isinstance(body, AgentRegistered):
            self._expect(self._agents, "agent", body.agent, body.incarnation, now_ns, timeout)
            self._agents[body.agent].absent = False
        elif isinstance(body, AgentLost):
            self._agents.pop(body.agent, None)
        elif isinstance(body, BarrierOpened):
            self._expect_release(body.task, body.barrier, body.round, now_ns)
        elif isinstance(body, BarrierReleased | BarrierFailed):
            self._barriers.pop((body.task, body.barrier), None)
        elif isinstance(body, StorageUnreachable | StorageReached):
            self._storage.follow(body, now_ns)
        elif isinstance(body, StacksRequested | StackCollectionEnded):
            self._stacks.follow(body, now_ns)
        elif isinstance(body, TaskStateChanged) and body.after in ENDED:
            self.steps.forget(body.task)

    def beat(self, worker: str, incarnation: int, beat: Beat, now_ns: int) -> bool:
        """Note a worker's heartbeat; False if this incarnation is fenced."""
        heard = self._workers.get(worker)
        if heard is None or heard.incarnation != incarnation:
            return False
        self._alive(heard, now_ns)
        if beat.busy_s > 0:
            self._paces.note(worker, beat.generation, beat.step, beat.busy_s)
        heard.hangable = beat.training and not beat.waiting
        if (beat.request, beat.generation) != (heard.request, heard.generation):
            heard.request = beat.request
            if beat.request:
                self._asked.add(worker)
        if beat.step != heard.step or beat.generation != heard.generation:
            self._moved_on(worker, heard, beat, now_ns)
            self._moved.add(worker)
        elif not heard.hangable:
            heard.step_ns = now_ns
        return True

    def agent_beat(self, agent: str, incarnation: int, now_ns: int) -> bool:
        """Note an agent's heartbeat; False if this incarnation is fenced."""
        heard = self._agents.get(agent)
        if heard is None or heard.incarnation != incarnation:
            return False
        self._alive(heard, now_ns)
        return True

    def disconnected(self, worker: str, incarnation: int, now_ns: int) -> None:
        """Note that a worker's connection broke; it may reconnect within the grace period."""
        heard = self._workers.get(worker)
        if heard is not None and heard.incarnation == incarnation:
            heard.broken_ns = now_ns
            deadline_ns = now_ns + _ns(self.timeouts.connection_grace_s)
            if deadline_ns > self._broken_look_ns:
                self._broken_look_ns = deadline_ns + TOGETHER_NS
            self._look(heard, self._broken_look_ns, "worker", worker)

    def agent_disconnected(self, agent: str, incarnation: int, now_ns: int) -> None:
        """Note that an agent's connection broke: its host is in doubt until the next heartbeat."""
        heard = self._agents.get(agent)
        if heard is not None and heard.incarnation == incarnation:
            heard.broken_ns = now_ns

    def credit(self, gap_ns: int) -> None:
        """Move every deadline by the time in which the coordinator itself did not run."""
        for heard in (*self._workers.values(), *self._agents.values()):
            heard.beat_ns += gap_ns
            heard.step_ns += gap_ns
            heard.look_ns += gap_ns
            heard.broken_ns += gap_ns if heard.broken_ns else 0
        self._due = [(due_ns + gap_ns, kind, key) for due_ns, kind, key in self._due]
        self._barriers = {
            key: (round, deadline_ns + gap_ns)
            for key, (round, deadline_ns) in self._barriers.items()
        }
        self._storage.credit(gap_ns)
        self._stacks.credit(gap_ns)

    def away_s(self, worker: str, now_ns: int) -> float:
        """Seconds since a worker disconnected, or was expected back after a restart; else 0."""
        heard = self._workers.get(worker)
        since_ns = (heard.broken_ns or heard.absent * heard.beat_ns) if heard is not None else 0
        return (now_ns - since_ns) / SECOND_NS if since_ns else 0.0

    def next_ns(self) -> int | None:
        """The time of the next check."""
        moments = self._storage.moments() + self._stacks.moments()
        moments += [self._due[0][0]] if self._due else []
        if self._moved:
            moments.append(self._commit_ns + _ns(self.timeouts.commit_interval_s))
        return min(moments, default=None)

    @property
    def pressing(self) -> bool:
        """Whether a report needs a decision at once."""
        return bool(self._asked)

    def overdue(self, state: Cluster, now_ns: int) -> list[Command]:
        """Commands for expired deadlines."""
        found = self._stacks.overdue(state, now_ns)
        lost = DeclareLosses()
        while self._due and self._due[0][0] <= now_ns:
            due_ns, kind, key = heappop(self._due)
            if kind == "worker":
                lost.workers.extend(self._check_worker(state, key[0], due_ns, now_ns, found))
            elif kind == "agent":
                lost.agents.extend(self._check_agent(key[0], due_ns, now_ns))
            else:
                found += self._check_barrier(state, key[0], key[1], now_ns)
        if lost.agents or lost.workers:
            found.insert(0, lost)
        found += self._storage.overdue(now_ns) + self._save_points(state, now_ns)
        return found + self._commits(state, now_ns) + self._paces.due(state)

    def _alive(self, heard: LastHeard, now_ns: int) -> None:
        heard.beat_ns = now_ns
        heard.broken_ns = 0
        if heard.absent:
            heard.absent = False
            heard.timeout_ns = _ns(self.timeouts.heartbeat_timeout_s)

    def _moved_on(self, worker: str, heard: LastHeard, beat: Beat, now_ns: int) -> None:
        """Update the mean step time, from steps within one generation."""
        if beat.generation == heard.generation and beat.step > heard.step >= 0:
            self.steps.note(worker, heard, beat.step - heard.step, now_ns - heard.step_ns)
        heard.attempt, heard.generation, heard.step = beat.attempt, beat.generation, beat.step
        heard.step_ns = now_ns

    def _expect(
        self,
        table: dict[str, LastHeard],
        kind: Literal["worker", "agent"],
        name: str,
        incarnation: int,
        now_ns: int,
        timeout_ns: int,
    ) -> None:
        heard = LastHeard(
            incarnation=incarnation,
            beat_ns=now_ns,
            timeout_ns=timeout_ns,
            look_ns=0,
            absent=True,
            step_ns=now_ns,
        )
        table[name] = heard
        first_look_ns = min(timeout_ns, _ns(self.timeouts.hang_floor_s))
        self._look(heard, now_ns + first_look_ns, kind, name)

    def _look(
        self, heard: LastHeard, when_ns: int, kind: Literal["worker", "agent"], name: str
    ) -> None:
        """Schedule the next check of a worker or agent; earlier entries are dropped when popped."""
        heard.look_ns = when_ns
        heappush(self._due, (when_ns, kind, (name,)))

    def _expect_release(self, task: str, barrier: str, round: int, now_ns: int) -> None:
        deadline = now_ns + _ns(self.timeouts.barrier_timeout_s)
        self._barriers[task, barrier] = (round, deadline)
        heappush(self._due, (deadline, "barrier", (task, barrier)))

    def _check_worker(
        self, state: Cluster, worker: str, due_ns: int, now_ns: int, first: list[Command]
    ) -> list[DeclareLost]:
        """The loss of a worker, if it is due; `first` gets the commands that precede it."""
        heard = self._workers.get(worker)
        if heard is None or heard.look_ns != due_ns:
            return []
        verdict = self._verdict(worker, heard, now_ns)
        task = state.workers[worker].task if worker in state.workers else ""
        host = self._agents.get(host_of(state, worker))
        asked, held_ns = self._stacks.before_loss(task, worker, heard, verdict, host, now_ns)
        first += asked
        if verdict is None or held_ns is not None:
            look_ns = held_ns or self._next_look(heard, now_ns)
        else:
            if host is None or not host.is_doubtful(now_ns):
                return [verdict]
            # When a host dies, its workers and its agent sent their last heartbeats at different
            # times: the agent's deadline is at most one heartbeat later. Then all are lost.
            if verdict.signal == "connection" or not host.is_nearly_lost(now_ns):
                return [with_host_in_doubt(verdict, (now_ns - host.beat_ns) / SECOND_NS)]
            look_ns = min(host.deadline_ns, now_ns + SECOND_NS)
        self._look(heard, look_ns, "worker", worker)
        return []

    def _verdict(self, worker: str, heard: LastHeard, now_ns: int) -> DeclareLost | None:
        grace = _ns(self.timeouts.connection_grace_s)
        since_beat_s = (now_ns - heard.beat_ns) / SECOND_NS
        limit_s = heard.timeout_ns / SECOND_NS
        if heard.broken_ns and now_ns - heard.broken_ns >= grace:
            return _lost(
                worker, heard, "connection", "its connection broke", {"silence_s": since_beat_s}
            )
        if now_ns - heard.beat_ns >= heard.timeout_ns:
            evidence = {"silence_s": since_beat_s, "timeout_s": limit_s}
            if heard.absent:
                reason = f"it did not return within {limit_s:g} s"
                return _lost(worker, heard, "absent", reason, evidence)
            return _lost(
                worker, heard, "heartbeat", f"no heartbeat for {since_beat_s:.1f} s", evidence
            )
        # What the last heartbeat reported: without heartbeats the step may have ended since.
        limit = self.steps.limit(heard)
        if limit is not None and heard.beat_ns - heard.step_ns >= limit.limit_ns:
            stuck_s = (now_ns - heard.step_ns) / SECOND_NS
            reason = (
                f"heartbeats arrive, but step {heard.step} is {stuck_s:.0f} s old ({limit.text()})"
            )
            evidence = {
                "stuck_s": stuck_s,
                "timeout_s": limit.limit_ns / SECOND_NS,
                "step_mean_s": limit.mean_ns / SECOND_NS,
            }
            return _lost(worker, heard, "hang", reason, evidence)
        return None

    def _next_look(self, heard: LastHeard, now_ns: int) -> int:
        # The worker's activity may change between checks, so check for a hang at least this often.
        moments = [heard.deadline_ns, now_ns + _ns(self.timeouts.hang_floor_s)]
        stacks_from_ns = heard.stacks_from_ns(self._stacks.limit_ns)
        if stacks_from_ns > now_ns:
            moments.append(stacks_from_ns)
        if heard.broken_ns:
            moments.append(heard.broken_ns + _ns(self.timeouts.connection_grace_s))
        limit = self.steps.limit(heard)
        if limit is not None:
            due_ns = heard.step_ns + limit.limit_ns
            moments.append(due_ns if due_ns > now_ns else now_ns + heard.timeout_ns // BEAT_LOOKS)
        return max(min(moments), now_ns + 1)

    def _check_agent(self, agent: str, due_ns: int, now_ns: int) -> list[DeclareAgentLost]:
        heard = self._agents.get(agent)
        if heard is None or heard.look_ns != due_ns:
            return []
        if now_ns < heard.deadline_ns:
            self._look(heard, heard.deadline_ns, "agent", agent)
            return []
        silence_s = (now_ns - heard.beat_ns) / SECOND_NS
        return [
            DeclareAgentLost(
                agent=agent,
                incarnation=heard.incarnation,
                reason=f"no heartbeat for {silence_s:.1f} s",
                silence_s=silence_s,
            )
        ]

    def _check_barrier(self, state: Cluster, task: str, barrier: str, now_ns: int) -> list[Command]:
        round, deadline = self._barriers.get((task, barrier), (0, 0))
        if not round or now_ns < deadline:
            return []
        reason = f"not complete after {self.timeouts.barrier_timeout_s:g} s"
        known = state.tasks[task].barriers.get(barrier)
        late = missing_workers(state.tasks[task], known) if known is not None else []
        why = f"barrier {barrier} is {reason}"
        first, held_ns = self._stacks.before_verdict(task, "barrier", why, late, now_ns)
        if held_ns is not None:
            heappush(self._due, (held_ns, "barrier", (task, barrier)))
            return first
        return [FailBarrier(task=task, barrier=barrier, round=round, reason=reason)]

    def _save_points(self, state: Cluster, now_ns: int) -> list[Command]:
        """Commands that schedule requested checkpoints for which every member is ready."""
        tasks = {state.workers[w].task for w in self._asked if w in state.workers}
        self._asked.clear()
        found: list[Command] = []
        for task in (state.tasks[task_id] for task_id in sorted(tasks)):
            wanted = (task.checkpoint_requests, task.attempt, task.generation)
            heard = [self._workers.get(member) for member in task.members]
            ready = [
                Pace(each.step, each.step_mean_ns / SECOND_NS, (now_ns - each.beat_ns) / SECOND_NS)
                for each in heard
                if each is not None and (each.request, each.attempt, each.generation) == wanted
            ]
            if has_open_request(task) and len(ready) == len(task.members):
                found += plan(task, ready)
        return found

    def _commits(self, state: Cluster, now_ns: int) -> list[Command]:
        if not self._moved or now_ns - self._commit_ns < _ns(self.timeouts.commit_interval_s):
            return []
        self._commit_ns = now_ns
        tasks = {state.workers[w].task for w in self._moved if w in state.workers}
        self._moved.clear()
        found: list[Command] = []
        for task_id in sorted(tasks):
            task = state.tasks[task_id]
            if task.phase != "running":
                continue
            at = (task.attempt, task.generation)
            steps = min((self._applied(member, at) for member in task.members), default=0)
            if steps > task.committed:
                command = CommitSteps(task=task_id, attempt=at[0], generation=at[1], steps=steps)
                found.append(command)
        return found

    def _applied(self, worker: str, lineage: tuple[int, int]) -> int:
        heard = self._workers.get(worker)
        if heard is None or (heard.attempt, heard.generation) != lineage:
            return 0
        return heard.step


def _lost(
    worker: str, heard: LastHeard, signal: Signal, reason: str, evidence: dict[str, float]
) -> DeclareLost:
    return DeclareLost(
        worker=worker,
        incarnation=heard.incarnation,
        signal=signal,
        reason=reason,
        evidence=evidence,
    )


def _ns(seconds: float) -> int:
    return int(seconds * SECOND_NS)
