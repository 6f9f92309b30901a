"""Guarantees of the coordinator, checked against its disk and the messages that reached it.

Five guarantees: what a worker is told is on disk before the message leaves; a worker whose sign of
life arrived in time is not declared lost; no worker is lost by a hang while stacks are collected;
requests of a fenced incarnation change nothing; and a hostile process changes no worker or task of
others. Like the incarnations, hostile processes mark the reasons that they give.

A worker whose incarnation is over may still send requests. To detect their effects, the simulated
workers write their incarnation into the reasons that they give, and the facts repeat these reasons.
"""

import re
from collections import deque
from collections.abc import Sequence
from typing import Literal, TypeAlias

from msgspec import Struct, field

from strata.core.checkpoints.checkpoint_lifecycle import CheckpointFailed, CheckpointRequested
from strata.core.events import Event, Fact
from strata.core.generations.generation_members import GenerationChanged
from strata.core.generations.recovery import RolledBack, StepsCommitted
from strata.core.rule_settings import Timeouts
from strata.core.workers.stack_collection import StackCollectionEnded, StacksRequested
from strata.core.workers.worker_lifecycle import WorkerLost, WorkerRegistered, WorkerStateChanged
from strata.sim.virtual_time import SECOND_NS
from strata.wire.v1 import coordinator_pb2 as pb

SIGNS = 64
Sign: TypeAlias = Literal["hello", "beat", "broken"]
COUNTING: dict[str, tuple[Sign, ...]] = {
    "connection": ("hello", "beat", "broken"),
    "heartbeat": ("beat",),
    "absent": ("hello", "beat"),
}
"""The signs of life that a loss by each signal must take into account."""

HOSTILE = "hostile"
"""How the ids of hostile processes begin."""

FORGED = "forged"
"""The reason that hostile processes give."""

SPOKEN = re.compile(r"worker (\S+): incarnation (\d+)")


class Broken(AssertionError):
    """A guarantee was broken."""


class _Progress(Struct):
    """How far a task is, on disk."""

    generation: int = 0
    attempt: int = 1
    committed: int = 0
    collecting: bool = False


class _Life(Struct):
    """An incarnation of a worker: whether it is accepted, and when its signs of life arrived."""

    incarnation: int
    counts: bool = True
    signs: deque[tuple[int, Sign]] = field(default_factory=lambda: deque(maxlen=SIGNS))


def named_reason(incarnation: int, reason: str) -> str:
    """A reason that names the incarnation which gives it."""
    return f"incarnation {incarnation} {reason}"


class GuaranteeChecker:
    """Follows the disk, and the messages that arrive and leave."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._limits_s = {
            "connection": timeouts.connection_grace_s,
            "heartbeat": timeouts.heartbeat_timeout_s,
            "absent": timeouts.reattach_grace_s,
        }
        self._tasks: dict[str, _Progress] = {}
        self._lives: dict[str, _Life] = {}
        self._newest_incarnation = 0

    def stored(self, events: Sequence[Event]) -> None:
        """Note facts that are on disk."""
        for event in events:
            body = event.body
            self._require_own(body)
            if isinstance(body, GenerationChanged):
                self._task(body.task).generation = body.generation
            elif isinstance(body, StepsCommitted):
                self._task(body.task).committed = body.last + 1
            elif isinstance(body, RolledBack):
                task = self._task(body.task)
                task.attempt, task.committed = body.attempt, body.to
            elif isinstance(body, WorkerRegistered):
                self._register(body)
            elif isinstance(body, StacksRequested):
                self._task(body.task).collecting = True
            elif isinstance(body, StackCollectionEnded):
                self._task(body.task).collecting = False
            elif isinstance(body, WorkerLost):
                if body.signal == "hang" and self._task(body.task).collecting:
                    raise Broken(f"{body.worker} was declared lost before its stacks were there")
                self._lose(body, event.mono_ns)
            elif isinstance(body, WorkerStateChanged) and body.after == "left":
                self._lives[body.worker].counts = False
            elif isinstance(body, CheckpointFailed | CheckpointRequested):
                self._require_living(body, body.reason)

    def noticed(self, worker: str, incarnation: int, now_ns: int, sign: Sign) -> None:
        """Note a sign of life that reaches the coordinator."""
        life = self._lives.get(worker)
        if life is not None and life.incarnation == incarnation:
            life.signs.append((now_ns, sign))

    def standing_sent(self, standing: pb.Standing) -> None:
        """Check that a state which is sent to a worker is on disk."""
        task = self._task(standing.task_id)
        said = (standing.generation, standing.attempt, standing.incarnation)
        known = (task.generation, task.attempt, self._newest_incarnation)
        ahead = standing.attempt == task.attempt and standing.committed > task.committed
        if any(each > stored for each, stored in zip(said, known, strict=True)) or ahead:
            raise Broken(
                f"{standing.worker_id} is told generation {said[0]}, attempt {said[1]}, "
                f"incarnation {said[2]}, step {standing.committed}; on disk are generation "
                f"{known[0]}, attempt {known[1]}, incarnation {known[2]}, step {task.committed}"
            )

    def registered(self, answer: pb.RegisterWorkerResponse) -> None:
        """Check that an answered registration is on disk."""
        if answer.incarnation > self._newest_incarnation:
            raise Broken(f"incarnation {answer.incarnation} was given and is not on disk")

    def _task(self, task: str) -> _Progress:
        return self._tasks.setdefault(task, _Progress())

    def _register(self, body: WorkerRegistered) -> None:
        before = self._lives.get(body.worker)
        if before is not None and before.counts:
            raise Broken(
                f"a second process was registered as {body.worker} while "
                f"incarnation {before.incarnation} is alive"
            )
        self._newest_incarnation = max(self._newest_incarnation, body.incarnation)
        self._lives[body.worker] = _Life(body.incarnation)

    def _lose(self, body: WorkerLost, decided_ns: int) -> None:
        life = self._lives[body.worker]
        life.counts = False
        limit_s = self._limits_s.get(body.signal)
        counting = COUNTING.get(body.signal, ())
        before = [each for each in life.signs if each[0] < decided_ns and each[1] in counting]
        if limit_s is None or not before:
            return
        sign_ns, sign = before[-1]
        since_s = (decided_ns - sign_ns) / SECOND_NS
        if since_s < limit_s or (sign != "broken" and body.signal == "connection"):
            raise Broken(
                f"{body.worker} was declared lost ({body.signal}) though the newest sign of it, "
                f"{sign}, came {since_s:.3f} s before"
            )

    def _require_own(self, body: Fact) -> None:
        worker = str(getattr(body, "worker", ""))
        if getattr(body, "reason", "") == FORGED and not worker.startswith(HOSTILE):
            raise Broken(f"a hostile process caused {body}")

    def _require_living(self, body: Fact, reason: str) -> None:
        found = SPOKEN.search(reason)
        if found is None:
            return
        worker, incarnation = found[1], int(found[2])
        life = self._lives.get(worker)
        if life is None or not life.counts or life.incarnation != incarnation:
            raise Broken(
                f"{type(body).__name__} was asked for by incarnation {incarnation} of {worker}, "
                f"which is fenced"
            )
