"""A worker's membership in its task, and how it enters the next generation.

The coordinator sends the whole standing after every change. The script trains with the generation
that it has *entered*: rank, world size and lineage stay the same until the script enters the new
generation with `sync` and reports its model. When every member has entered, the coordinator chooses
the source from which all resume, and sends it as the answer.

The model's lineage: steps count for the attempt and generation in which they were applied. A model
that is in place belongs to the new generation at once. A model that must be loaded (from a peer or
a checkpoint) belongs to it after `restored`: if the generation ends before that, the worker has no
usable model and reports so.
"""

import time
from collections.abc import Callable, Set
from typing import Literal, TypeAlias, cast

from msgspec import Struct

from strata.errors import DeadlineExceeded, Fenced, NotAllowedNow
from strata.sdk.session.worker_session import WorkerSession
from strata.wire.v1 import coordinator_pb2 as pb

Source: TypeAlias = Literal["peer", "checkpoint", "fresh"]

ENDED = ("completed", "failed", "stopped")


class Recovery(Struct, frozen=True):
    """Where a generation resumes: after `step` steps, with the model of `source`.

    `in_place` means that this worker already has that model, so nothing must be loaded.
    """

    source: Source
    step: int
    worker_id: str = ""
    checkpoint_id: str = ""
    in_place: bool = False


class HeldModel(Struct, frozen=True, gc=False):
    """The lineage of a worker's model and its number of steps; -1 means no model."""

    attempt: int = 0
    generation: int = 0
    step: int = -1


class EnteredGeneration(Struct, frozen=True):
    """The generation that a worker has entered, and its rank there."""

    generation: int = 0
    rank: int = -1
    world_size: int = 0
    attempt: int = 0


class Membership:
    """The newest standing and the entered generation; written with the session's `updated` held.

    `stopping` is why this worker has no more work to do, or empty. `changed` is whether there is a
    newer generation to enter. `leader` is the address of the entered generation's rank 0, `token`
    its token; `meeting` is this worker's own address for that, and `address` returns where it
    offers its model. `entered` is the standing of the entered generation, `applied` the number of
    steps that this process has applied, including steps that were rolled back. `training` holds the
    loops of the current step. A worker that `rebuilds` builds its model in each generation, so it
    offers none. `trainer` is the framework's trainer that fixes the number of workers, or empty.
    """

    def __init__(self, meeting: str = "") -> None:
        self.meeting = meeting
        self.standing: pb.Standing | None = None
        self.stopping = ""
        self.changed = True
        self.place = EnteredGeneration()
        self.model = HeldModel()
        self.recovery = Recovery(source="fresh", step=0)
        self.leader = ""
        self.token = ""
        self.entered = pb.Standing()
        self.applied = 0
        self.rebuilds = False
        self.trainer = ""
        self.training: set[str] = set()
        self.address: Callable[[], str] = str
        self._lanes: dict[str, list[int]] = {}

    def apply_standing(self, standing: pb.Standing) -> bool:
        """Store a new standing; True if it differs in what is recorded."""
        known, self.standing = self.standing, standing
        state = standing.task_state
        over = state in ("stopping", *ENDED)
        self.stopping = f"task {standing.task_id} is {state}" if over else ""
        if standing.released and not over:
            self.stopping = f"task {standing.task_id} released this worker"
        self.changed = standing.generation != self.place.generation
        if not self.changed:
            self._own(standing)
        return known is None or _essence(known) != _essence(standing)

    def begin_again(self) -> None:
        """Reset for a new incarnation, which holds no model and has entered nothing."""
        self.standing = None
        self.stopping = ""
        self.changed = True
        self.place = EnteredGeneration()
        self.model = HeldModel()

    @property
    def displaced(self) -> bool:
        """Whether this worker has trained, was declared lost, and has not entered since."""
        return self.applied > 0 and self.place.generation == 0

    @property
    def failed(self) -> bool:
        """Whether the task has failed."""
        return self.standing is not None and self.standing.task_state == "failed"

    @property
    def planned(self) -> bool:
        """Whether no member of the entered generation was lost since it was entered."""
        newest = self.standing
        if newest is None:
            return False
        return newest.generation - newest.planned_changes <= self.place.generation

    @property
    def released(self) -> bool:
        """Whether the task continues without this worker."""
        return self.standing is not None and self.standing.released

    @property
    def agreed(self) -> int:
        """The number of values that the workers of the task have agreed on."""
        return self.standing.agreed if self.standing is not None else 0

    @property
    def finished_step(self) -> int:
        """The step count at which other workers of the task finished; -1 if none has."""
        return self.standing.finished_step if self.standing is not None else -1

    @property
    def newest_place(self) -> tuple[int, str]:
        """The newest generation and its phase, entered or not."""
        standing = self.standing
        return (standing.generation, standing.phase) if standing is not None else (0, "")

    def left_before(self, step: int, loops: Set[str]) -> str:
        """The worker that left one of these loops before a step, or an empty string."""
        standing = self.standing
        if standing is None or not standing.HasField("loop_exit"):
            return ""
        left = standing.loop_exit
        return left.worker_id if left.loop in loops and left.step <= step else ""

    @property
    def left_by_peer(self) -> bool:
        """Whether another worker has left the loop of the current step."""
        return bool(self.training) and bool(self.left_before(self.steps, self.training))

    @property
    def spare(self) -> bool:
        """Whether this worker is a spare: it waits to replace a lost member."""
        standing = self.standing
        return standing is not None and standing.rank < 0 and standing.phase != "forming"

    @property
    def steps(self) -> int:
        """The number of steps applied to the model, or to the model that will be restored."""
        return self.model.step if self.model.step >= 0 else self.recovery.step

    @property
    def attached(self) -> Set[str]:
        """The datasets whose lanes are known in the entered generation."""
        return self._lanes.keys()

    def lanes(self, dataset: str) -> list[int]:
        """This worker's lanes of a dataset in the entered generation."""
        return self._lanes.get(dataset, [])

    @property
    def waits_for(self) -> str:
        """What this worker waits for, as text."""
        standing = self.standing
        if standing is None:
            return "for its standing from the coordinator"
        if standing.phase == "syncing":
            return f"for the other members to enter generation {standing.generation}"
        if self.spare:
            return "as a spare worker, to replace a lost one"
        return f"for task {standing.task_id} to have enough workers"

    def restored(self) -> None:
        """Note that the model is that of the recovery."""
        if self.model.step < 0:
            self.model = HeldModel(self.place.attempt, self.place.generation, self.recovery.step)

    def discard_model(self) -> None:
        """Exclude this worker's model, which was changed in part, from recovery."""
        self.model = HeldModel()

    def stepped(self) -> int:
        """Count an applied step; returns its number, from 0."""
        self.restored()
        self.applied += 1
        model = self.model
        self.model = HeldModel(model.attempt, model.generation, model.step + 1)
        return model.step

    def sync(
        self, session: WorkerSession, stopped: Callable[[], bool], timeout_s: float | None
    ) -> Recovery | None:
        """Enter the newest generation and wait until it trains; None if stopped first."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._wait(session, lambda: stopped() or self._next() is not None, deadline_s)
            if stopped():
                return None
            standing = self._next()
            if standing is None:
                continue
            if standing.phase == "running":
                with session.updated:
                    return self._settle(standing)
            self._enter(session, standing, stopped, deadline_s)

    def _wait(
        self, session: WorkerSession, happened: Callable[[], bool], deadline_s: float | None
    ) -> None:
        left_s = None if deadline_s is None else max(deadline_s - time.monotonic(), 0.0)
        if not session.wait_for(happened, left_s, lambda: f"waiting {self.waits_for}"):
            raise DeadlineExceeded(
                f"no generation included this worker in time; it waits {self.waits_for}",
                hint="start the missing workers, or use a smaller world_size",
            )

    def _next(self) -> pb.Standing | None:
        """The standing of a generation to enter; None if there is none yet."""
        standing = self.standing
        ready = standing is not None and standing.rank >= 0 and standing.phase != "forming"
        return standing if ready else None

    def _enter(
        self,
        session: WorkerSession,
        standing: pb.Standing,
        stopped: Callable[[], bool],
        deadline_s: float | None,
    ) -> None:
        """Report the model; returns when the generation trains or has ended."""
        model = HeldModel() if self.rebuilds else self.model
        request = session.ask(
            "enter",
            pb.Enter(
                generation=standing.generation,
                model_attempt=model.attempt,
                model_generation=model.generation,
                step=model.step,
                meeting=self.meeting,
                address=self.address() if model.step >= 0 else "",
                rebuilds=self.rebuilds,
                trainer=self.trainer,
            ),
        )

        def moved_on() -> bool:
            now = self.standing
            syncing = now is not None and now.phase == "syncing"
            same = now is not None and now.generation == standing.generation
            return stopped() or request.error is not None or not (syncing and same)

        try:
            self._wait(session, moved_on, deadline_s)
        finally:
            session.forget(request)
        if request.error is not None and not isinstance(request.error, NotAllowedNow | Fenced):
            raise request.error

    def _settle(self, standing: pb.Standing) -> Recovery:
        chosen = standing.recovery
        if standing.generation == self.place.generation:
            return self.recovery
        place = EnteredGeneration(
            generation=standing.generation,
            rank=standing.rank,
            world_size=standing.world_size,
            attempt=standing.attempt,
        )
        wanted = HeldModel(chosen.model_attempt, chosen.model_generation, chosen.step)
        in_place = chosen.source == "fresh" or (chosen.source == "peer" and self.model == wanted)
        self.recovery = Recovery(
            source=cast(Source, chosen.source),
            step=chosen.step,
            worker_id=chosen.worker_id,
            checkpoint_id=chosen.checkpoint_id,
            in_place=in_place,
        )
        self.place, self.model, self.entered = place, HeldModel(), standing
        self._own(standing)
        self.leader, self.token = standing.leader, standing.peer_token
        self.changed = self.standing is None or self.standing.generation != place.generation
        if in_place:
            self.restored()
        return self.recovery

    def _own(self, standing: pb.Standing) -> None:
        self._lanes = {name: list(each.lanes) for name, each in standing.lanes.items()}


def _essence(standing: pb.Standing) -> tuple[object, ...]:
    return (
        standing.incarnation,
        standing.task_state,
        standing.generation,
        standing.rank,
        standing.world_size,
        standing.phase,
        standing.attempt,
        standing.released,
    )
