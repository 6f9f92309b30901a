"""How long the members of each step waited, and when a process did not run, from workers' events.

A collective exchange ends for all members at about the same time, so the member that arrives last
waits least. Of the communication and wait of a step, the shortest of any member is what the
exchange itself took; what a member waited beyond it, it waited for the slowest member. This needs
the step's record of every member of the generation; without all of them nothing is told apart.

A process that is stopped (SIGSTOP), swapped out or starved of CPU records nothing, and its
heartbeats stop, while a process that computes still sends them. So a process was paused if it
recorded nothing for clearly longer than the time between its heartbeats, which `RunStarted` has.
The pause is counted from the moment the next heartbeat was due. Not counted are gaps in which the
worker was disconnected or events are missing, or in which it waited for the answer to a heartbeat:
then the coordinator or the network was slow. Logs of releases that did not record the interval have
no pauses.
"""

from collections.abc import Iterable

import numpy as np
from msgspec import Struct

from strata.core.workers.exchange_facts import ConnectionChanged
from strata.core.workers.worker_facts import (
    ClockSampled,
    EventsDropped,
    RunStarted,
    StepFinished,
)
from strata.core.workers.worker_operations import EvaluationCompleted, EvaluationStarted
from strata.timeline.goodput.interruptions import Interruptions, Process
from strata.timeline.read.records import SECOND_NS, Record
from strata.timeline.why.worker_activity import LATE, LATE_NS, PAUSE_NS

NEVER = np.iinfo(np.int64).max
INTERVAL = "heartbeat_interval_s"
MAX_PAUSES = 10_000
MAX_STEPS = 50_000_000
"""Steps of one generation for which waits are compared; 25 bytes each."""


class Slowest(Struct, frozen=True):
    """The shortest wait of a step, the member that had it, and the second shortest wait."""

    worker: str
    wait_ns: int
    next_ns: int


class _Steps:
    """The waits of one generation's steps, as arrays that begin at step `first`."""

    def __init__(self, first: int) -> None:
        self.first = first
        self._shape(1_024)

    def _shape(self, room: int) -> None:
        self.least = np.full(room, NEVER, np.int64)
        self.second = np.full(room, NEVER, np.int64)
        self.worker = np.full(room, -1, np.int32)
        self.count = np.zeros(room, np.int32)

    def add(self, step: int, worker: int, wait_ns: int) -> None:
        """Add the wait of one member."""
        at = self._room_for(step)
        if at < 0:
            return
        self.count[at] += 1
        if wait_ns < self.least[at]:
            self.second[at] = self.least[at]
            self.least[at], self.worker[at] = wait_ns, worker
        elif wait_ns < self.second[at]:
            self.second[at] = wait_ns

    def _room_for(self, step: int) -> int:
        at = step - self.first
        if 0 <= at < len(self.least):
            return at
        before = max(-at, 0)
        room = max(2 * len(self.least), at + 1, len(self.least) + before)
        if room > MAX_STEPS:
            return -1
        least, second, worker, count = self.least, self.second, self.worker, self.count
        old = slice(before, before + len(least))
        self._shape(room)
        self.first -= before
        self.least[old], self.second[old] = least, second
        self.worker[old], self.count[old] = worker, count
        return step - self.first


class StepWaits:
    """Reads every process's events once; `pauses` are by worker, `last_events` by process."""

    def __init__(self, interruptions: Interruptions) -> None:
        self.pauses: dict[str, list[tuple[int, int]]] = {}
        self.last_events: dict[Process, int] = {}
        self._interruptions = interruptions
        self._steps: dict[int, _Steps] = {}
        self._names: list[str] = []

    def read(self, node: str, incarnation: int, records: Iterable[Record]) -> None:
        """Read the events of one process, in order."""
        if not self._names or self._names[-1] != node:
            self._names.append(node)
        process = node, incarnation
        loss = self._interruptions.losses.get(process)
        gaps, evaluated_ns, began_ns = _Gaps(), 0, 0
        for record in records:
            body = record.event.body
            if isinstance(body, StepFinished):
                self._step(body, record.at_ns, evaluated_ns)
                evaluated_ns = 0
            elif isinstance(body, EvaluationStarted):
                began_ns = record.at_ns
            elif isinstance(body, EvaluationCompleted) and began_ns:
                evaluated_ns, began_ns = evaluated_ns + record.at_ns - began_ns, 0
            gaps.feed(record)
            if loss is not None and record.at_ns <= loss.at_ns:
                self.last_events[process] = record.at_ns
        ended_ns = loss.at_ns if loss is not None else NEVER  # a fenced process may run again
        found = [(a, min(b, ended_ns)) for a, b in gaps.found if a < ended_ns]
        self.pauses.setdefault(node, []).extend(found)

    def _step(self, body: StepFinished, at_ns: int, evaluated_ns: int) -> None:
        generation = body.generation or self._interruptions.generation_at(at_ns)
        if not generation:
            return
        waited_s = max(body.communication_s, 0.0) + max(body.wait_s, 0.0)
        wait_ns = max(round(waited_s * SECOND_NS) - evaluated_ns, 0)
        if generation not in self._steps:
            self._steps[generation] = _Steps(body.step)
        self._steps[generation].add(body.step, len(self._names) - 1, wait_ns)

    def slowest(self, generation: int, step: int, members: int) -> Slowest | None:
        """The member that waited least in a step; None unless all members recorded the step."""
        steps = self._steps.get(generation)
        at = -1 if steps is None else step - steps.first
        if steps is None or members < 2 or not 0 <= at < len(steps.least):
            return None
        if int(steps.count[at]) != members:
            return None
        return Slowest(
            self._names[int(steps.worker[at])], int(steps.least[at]), int(steps.second[at])
        )

    def without(self, worker: str) -> int:
        """The time that others waited for a worker beyond the wait for the next slowest one."""
        number = self._names.index(worker) if worker in self._names else -1
        found = 0
        for steps in self._steps.values():
            own = (steps.worker == number) & (steps.second != NEVER)
            behind = (steps.second[own] - steps.least[own]) * (steps.count[own] - 1)
            found += int(behind.sum())
        return found


class _Gaps:
    """Finds the pauses of one process."""

    def __init__(self) -> None:
        self.found: list[tuple[int, int]] = []
        self._interval_ns: int | None = None
        self._before: Record | None = None
        self._away = False

    def feed(self, record: Record) -> None:
        """Compare the time since the last event with the time between heartbeats."""
        at_ns, body = record.at_ns, record.event.body
        if isinstance(body, RunStarted) and INTERVAL in body.parameters:
            self._interval_ns = round(float(body.parameters[INTERVAL]) * SECOND_NS)
        before = self._before
        if before is not None and self._interval_ns and not self._away:
            gap_ns = at_ns - before.at_ns
            late = gap_ns > self._interval_ns * LATE + LATE_NS and gap_ns >= PAUSE_NS
            if late and _proves_pause(before, record, gap_ns) and len(self.found) < MAX_PAUSES:
                self.found.append((before.at_ns + self._interval_ns, at_ns))
        if isinstance(body, ConnectionChanged) and body.peer == "coordinator":
            self._away = body.path == "disconnected"
        self._before = record


def _proves_pause(before: Record, record: Record, gap_ns: int) -> bool:
    """Whether nothing was recorded in a gap: no event is missing, and the gap was not spent
    waiting for the answer to a heartbeat."""
    body = record.event.body
    complete = record.event.seq == before.event.seq + 1 and not isinstance(body, EventsDropped)
    answered_late = isinstance(body, ClockSampled) and body.round_trip_ns * 2 > gap_ns
    return complete and not answered_late
