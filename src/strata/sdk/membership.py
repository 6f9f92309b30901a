"""A worker's place in its task, and how it enters the next generation.

The coordinator tells the whole standing after every change. What the script trains with, though, is
the place it has *entered*: rank, world size and lineage stay as they are until the script says,
with `sync`, that it is ready for the new generation and what its model is. When every member has
said so the coordinator chooses from where all go on, and that is the answer.

The model's lineage. Steps count for the attempt and generation in which they were applied. A model
that is in place belongs to the new generation at once. One that has to be fetched (from a peer or
a checkpoint) does not until `restored`: a worker that loses the generation again before that
has no usable model, and says so.
"""

import time
from collections.abc import Callable, Set
from typing import Literal, TypeAlias, cast

from msgspec import Struct

from strata.errors import DeadlineExceeded, Fenced, NotAllowedNow
from strata.sdk.session import Session
from strata.wire.v1 import coordinator_pb2 as pb

Source: TypeAlias = Literal["peer", "checkpoint", "fresh"]

ENDED = ("completed", "failed", "stopped")


class Recovery(Struct, frozen=True):
    """From where a generation goes on: after `step` steps, with the model of that source.

    `in_place` means that this worker's model is already that one, so nothing has to be fetched.
    """

    source: Source
    step: int
    worker_id: str = ""
    checkpoint_id: str = ""
    in_place: bool = False


class Model(Struct, frozen=True, gc=False):
    """What the worker holds: the lineage of its model and the steps applied; -1 is no model."""

    attempt: int = 0
    generation: int = 0
    step: int = -1


class Place(Struct, frozen=True):
    """What the worker has entered."""

    generation: int = 0
    rank: int = -1
    world_size: int = 0
    attempt: int = 0


class Membership:
    """Follows the standing; written with the session's `news` held.

    `stopping` is why the task wants no more work, if so; `changed`, whether there is a generation
    to enter other than the one that was. At `leader` the entered generation's rank 0 is met, with
    its `token`; `meeting` is where this worker would be, and `address` tells where it gives its
    model to others. `entered` is the standing of the generation that was entered, `applied` how
    many steps this process has applied, whatever became of them. `training` holds the loops of the
    step that is under way. A worker that `rebuilds` makes its
    model anew in each generation, so it brings none.
    """

    def __init__(self, meeting: str = "") -> None:
        self.meeting = meeting
        self.standing: pb.Standing | None = None
        self.stopping = ""
        self.changed = True
        self.place = Place()
        self.model = Model()
        self.recovery = Recovery("fresh", 0)
        self.leader = ""
        self.token = ""
        self.entered = pb.Standing()
        self.applied = 0
        self.rebuilds = False
        self.training: set[str] = set()
        self.address: Callable[[], str] = str
        self._lanes: dict[str, list[int]] = {}

    def told(self, standing: pb.Standing) -> bool:
        """Takes in what the coordinator says; whether that is news."""
        known, self.standing = self.standing, standing
        state = standing.task_state
        over = state in ("stopping", *ENDED)
        self.stopping = f"task {standing.task_id} is {state}" if over else ""
        self.changed = standing.generation != self.place.generation
        if not self.changed:
            self._own(standing)
        return known is None or _essence(known) != _essence(standing)

    def begin_again(self) -> None:
        """A new incarnation: nothing that was held or entered counts."""
        self.standing = None
        self.stopping = ""
        self.changed = True
        self.place = Place()
        self.model = Model()

    @property
    def displaced(self) -> bool:
        """Whether this worker has trained, was declared lost, and has not entered again since."""
        return self.applied > 0 and self.place.generation == 0

    @property
    def failed(self) -> bool:
        """Whether the task has failed."""
        return self.standing is not None and self.standing.task_state == "failed"

    @property
    def agreed(self) -> int:
        """How many values the workers of the task have agreed on."""
        return self.standing.agreed if self.standing is not None else 0

    @property
    def finished_step(self) -> int:
        """After how many steps other workers of the task finished; -1 while none has."""
        return self.standing.finished_step if self.standing is not None else -1

    @property
    def told_place(self) -> tuple[int, str]:
        """The newest generation and its phase, whether or not it was entered."""
        standing = self.standing
        return (standing.generation, standing.phase) if standing is not None else (0, "")

    def left_before(self, step: int, loops: Set[str]) -> str:
        """The worker that left one of these loops before a step, so does not train it; or none."""
        standing = self.standing
        if standing is None or not standing.HasField("loop_exit"):
            return ""
        left = standing.loop_exit
        return left.worker_id if left.loop in loops and left.step <= step else ""

    @property
    def deserted(self) -> bool:
        """Whether another worker has left the loop of the step that is under way."""
        return bool(self.training) and bool(self.left_before(self.steps, self.training))

    @property
    def spare(self) -> bool:
        """Whether the others train and this worker waits, should one of them be lost."""
        standing = self.standing
        return standing is not None and standing.rank < 0 and standing.phase != "forming"

    @property
    def steps(self) -> int:
        """How many steps the model has had, or will have once it is restored."""
        return self.model.step if self.model.step >= 0 else self.recovery.step

    @property
    def attached(self) -> Set[str]:
        """The datasets whose lanes are known in the generation that was entered."""
        return self._lanes.keys()

    def lanes(self, dataset: str) -> list[int]:
        """The lanes of a dataset that this worker owns in the generation it has entered."""
        return self._lanes.get(dataset, [])

    @property
    def waits_for(self) -> str:
        """What has to happen before this worker can go on, in words."""
        standing = self.standing
        if standing is None:
            return "for the coordinator to tell its standing"
        if standing.phase == "syncing":
            return f"for the others to enter generation {standing.generation}"
        if self.spare:
            return "as a spare worker, for the seat of one that is lost"
        return f"for task {standing.task_id} to have enough workers"

    def restored(self) -> None:
        """The model is now what the recovery said."""
        if self.model.step < 0:
            self.model = Model(self.place.attempt, self.place.generation, self.recovery.step)

    def discard_model(self) -> None:
        """The model was changed in part and must not be used: this worker brings none."""
        self.model = Model()

    def stepped(self) -> int:
        """One more step is applied; its number, counted from 0."""
        self.restored()
        self.applied += 1
        model = self.model
        self.model = Model(model.attempt, model.generation, model.step + 1)
        return model.step

    def sync(
        self, session: Session, stopped: Callable[[], bool], timeout_s: float | None
    ) -> Recovery | None:
        """Enters the newest generation and waits until it trains; None when stopped meanwhile."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._wait(session, lambda: stopped() or self._next() is not None, deadline_s)
            if stopped():
                return None
            standing = self._next()
            if standing is None:
                continue
            if standing.phase == "running":
                with session.news:
                    return self._settle(standing)
            self._enter(session, standing, stopped, deadline_s)

    def _wait(
        self, session: Session, happened: Callable[[], bool], deadline_s: float | None
    ) -> None:
        left_s = None if deadline_s is None else max(deadline_s - time.monotonic(), 0.0)
        if not session.wait_for(happened, left_s, lambda: f"it waits {self.waits_for}"):
            raise DeadlineExceeded(
                f"not in a generation in time: it waits {self.waits_for}",
                hint="start the missing workers, or ask for a smaller world_size",
            )

    def _next(self) -> pb.Standing | None:
        """The standing to act on; None if there is only waiting."""
        standing = self.standing
        ready = standing is not None and standing.rank >= 0 and standing.phase != "forming"
        return standing if ready else None

    def _enter(
        self,
        session: Session,
        standing: pb.Standing,
        stopped: Callable[[], bool],
        deadline_s: float | None,
    ) -> None:
        """Says what the model is; returns when the generation trains or has ended."""
        model = Model() if self.rebuilds else self.model
        request = session.ask(
            "enter",
            pb.Enter(
                generation=standing.generation,
                model_attempt=model.attempt,
                model_generation=model.generation,
                step=model.step,
                meeting=self.meeting,
                address=self.address() if model.step >= 0 else "",
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
        place = Place(standing.generation, standing.rank, standing.world_size, standing.attempt)
        wanted = Model(chosen.model_attempt, chosen.model_generation, chosen.step)
        in_place = chosen.source == "fresh" or (chosen.source == "peer" and self.model == wanted)
        self.recovery = Recovery(
            cast(Source, chosen.source),
            chosen.step,
            chosen.worker_id,
            chosen.checkpoint_id,
            in_place,
        )
        self.place, self.model, self.entered = place, Model(), standing
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
    )
