"""A worker as a member of its task: who it is, entering generations, and the state it brings along.

`run.state` is the state that the run knows: `restore`, `save` and assigning to it set it. When the
membership changes it is brought to where everyone goes on, by itself between two batches, or in
`recover`. Arrays, tensors, dicts, lists and whatever has `state_dict` are changed in place, so a
variable that holds them needs nothing. A functional script, whose steps make new arrays, keeps its
state in `run.state` instead of a variable:

    run.state, loss = train_step(run.state, batch)
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from strata.core.workers import REPORTED, Reported
from strata.errors import InvalidArgument, StrataError
from strata.sdk.blobs import Blobs
from strata.sdk.events import Recorder
from strata.sdk.exchange import Exchange
from strata.sdk.keeping import Keeping
from strata.sdk.membership import Recovery
from strata.sdk.peers import Circle
from strata.sdk.restoring import DamagedCheckpoint, PeersUnreachable
from strata.sdk.signals import GenerationChanged, StopRequested, TerminationNotice
from strata.sdk.steptime import StepTime, Timing
from strata.sdk.worker import Worker


class Member:
    """What a run is because it belongs to a task."""

    def __init__(self, worker: Worker, keeping: Keeping) -> None:
        self._worker = worker
        self._session = worker.session
        self._membership = worker.membership
        self._keeping = keeping
        self._times = StepTime()
        self._notice = TerminationNotice()
        self._script = keeping.script
        self._save_wanted = False
        keeping.due.stopping = lambda: self.stop_requested

    @property
    def worker_id(self) -> str:
        """The id that the coordinator knows this worker by."""
        return self._session.identity.worker_id

    @property
    def incarnation(self) -> int:
        """Which start of the worker this is; a new one after it was declared lost."""
        return self._session.identity.incarnation

    @property
    def rank(self) -> int:
        """This worker's number in the generation it has entered, from 0."""
        return self._membership.place.rank

    @property
    def world_size(self) -> int:
        """How many workers the entered generation has."""
        return self._membership.place.world_size

    @property
    def generation(self) -> int:
        """The generation that the script has entered."""
        return self._membership.place.generation

    @property
    def attempt(self) -> int:
        """Counts the task's rollbacks, from 1; steps of an earlier attempt are void."""
        return self._membership.place.attempt

    @property
    def recovery(self) -> Recovery:
        """From where the entered generation went on."""
        return self._membership.recovery

    @property
    def steps(self) -> int:
        """How many steps the model has had, or will have once it is restored."""
        return self._membership.steps

    @property
    def membership_changed(self) -> bool:
        """Whether there is a new generation to enter with `sync`."""
        return self._membership.changed

    @property
    def stop_requested(self) -> str:
        """Why the script should save and end; empty while it need not."""
        return self._notice.reason or self._membership.stopping

    @property
    def device(self) -> str:
        """Where PyTorch trains in this process: `cuda` if a GPU is there, else `cpu`."""
        torch = sys.modules.get("torch")
        return "cuda" if torch is not None and torch.cuda.is_available() else "cpu"

    @property
    def datasets(self) -> list[str]:
        """What the task trains step by step, as far as it was opened."""
        return sorted(self._membership.attached)

    @property
    def recorder(self) -> Recorder:
        """Where this worker's facts go; for what is built on a run."""
        return self._worker.recorder

    @property
    def blobs(self) -> Blobs:
        """What this worker offers to the others; for what is built on a run."""
        return self._keeping.blobs

    def circle(self, exchange: Exchange) -> Circle:
        """Where the members of the generation are reached; all of them ask in one exchange."""
        told = msgspec.json.encode((self.worker_id, self._keeping.own_address())).decode()
        heard = [
            msgspec.json.decode(each, type=tuple[str, str]) for each in exchange.everyone(told)
        ]
        token = self.blobs.token = self._membership.token
        return Circle(exchange.generation, self.worker_id, token, dict(heard))

    def sync(self, timeout: float | None = None) -> Recovery:
        """Enters the newest generation; when all have, returns from where it goes on.

        The coordinator is told the lineage of this worker's model and its `steps`. What is returned
        has to be carried out by the caller, unless it is `in_place`; then call `restored`, or just
        `step`. Raises `StopRequested` when a stop comes first.
        """
        self._session.require_usable()
        self._worker.waiting = True
        try:
            with Timing(self._times, "wait"):
                recovery = self._membership.sync(
                    self._session, lambda: bool(self.stop_requested), timeout
                )
        finally:
            self._worker.waiting = False
        if recovery is None:
            raise StopRequested(f"no generation was entered: {self.stop_requested}")
        self.report("training" if recovery.in_place else "recovering")
        return recovery

    def restored(self) -> None:
        """The model is now what `sync` said; the next `step` says the same."""
        self._membership.restored()
        self.report("training")

    def restore(self, state: Any = None, *, resume: str = "", **parts: Any) -> Any:
        """Bring the state to where the task goes on; as given at a task's very beginning.

        The state is one tree, or parts by name: `run.restore(model=model, optimizer=optimizer)`.
        It is changed in place and returned. From then on the run saves it, restores it after a
        loss, and gives it to workers who lack it (see `run.state`).

        `resume` begins a new task with what another one saved: the id of a task of this cluster, a
        folder or `s3://bucket/prefix`, each also with `/` and the id of a checkpoint. Steps are
        counted from 0 all the same.
        """
        if (state is None) == (not parts):
            raise InvalidArgument(
                "run.restore needs one state, or its parts by name",
                hint="run.restore(model=model, optimizer=optimizer)",
            )
        state = parts if state is None else state
        self._keeping.state = state
        if resume and self.recovery.source == "fresh" and self.steps == 0:
            self._keeping.state = self._keeping.load(resume, state)
        self._carry_out()
        return self._keeping.state

    def rebuild(self, build: Callable[[], Any]) -> None:
        """In place of `restore`, for a state that has to be made anew in each generation.

        A model whose shards lie on the members (FSDP2) is gone when one of them is. Then `build`
        makes it again, among the members of now, and what was saved last is put into it: find it in
        `run.state`.
        """
        self._keeping.rebuild(build)
        self._carry_out()

    def recover(self) -> None:
        """Enters the newest generation and brings `run.state` to where it goes on."""
        self.sync()
        if self._keeping.has_state:
            self._carry_out()

    def discard_model(self) -> None:
        """Bring no model to the next generation: it was changed in part, or is not the task's."""
        self._membership.discard_model()

    def _carry_out(self) -> None:
        """Brings the state to where the generation goes on.

        A damaged checkpoint and a peer that gives no model are refused, and another source is
        agreed upon. Storage that cannot be reached is waited for (`sdk/storage_wait`).
        """
        while True:
            try:
                self._keeping.carry_out(self.recovery)
                return self.restored()
            except GenerationChanged:
                self.sync()
            except (DamagedCheckpoint, PeersUnreachable) as error:
                if not self._membership.changed:
                    self._keeping.refuse(error)
                self.sync()

    @property
    def state(self) -> Any:
        """The state that the run restores, gives to others, and saves when none is named."""
        return self._keeping.known_state

    @state.setter
    def state(self, state: Any) -> None:
        self._keeping.state = state

    def save_due(self) -> bool:
        """Whether to save now: by steps, by time, on SIGTERM, on request; the same on all ranks.

        For loops that mark their steps themselves: every rank asks after every step, and saves if
        it is so. It never waits.
        """
        return self._keeping.due.now(self.steps)

    @property
    def checkpoint_interval_s(self) -> float | None:
        """After how many seconds a save is due; the adaptive interval moves with what is measured,
        and None is never."""
        return self._keeping.due.interval_s

    def save(
        self,
        state: Any = None,
        *,
        epoch: int | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> bool:
        """Saves this rank's part of a checkpoint of this step; returns after one copy in memory.

        Every rank calls it at the same step. What all hold alike is written once, split among
        them; pieces of larger tensors (DTensor, `strata.Sharded`) by their owners. The rest
        happens in the background, and what goes wrong there never stops the run: it is logged, and
        the checkpoint before stays the latest.

        Between two loops the save waits until the next loop begins, so that it holds everything
        that the script does in between.

        While an earlier save is under way it returns False: the save is postponed to a step that
        all ranks reach after that one has ended (`checkpoint_when_busy` can make it wait instead).
        An automatic save that is asked for or scheduled does not keep it from saving.
        """
        if state is not None:
            self._keeping.state = state
        self._save_wanted = self._script.between_loops
        if self._save_wanted:
            return False
        working = self._worker.state
        self.report("checkpointing")
        try:
            number = self._worker.epoch if epoch is None else epoch
            return self._keeping.save(self.steps, number, metadata)
        finally:
            self.report(working)

    @property
    def ending(self) -> bool:
        """Whether the loop should end: a stop was asked for, and no last save is to come."""
        return bool(self.stop_requested) and not self._keeping.due.finishing

    def report(self, state: Reported) -> None:
        """Report what this worker does now, for the dashboard and the watchdog."""
        if state not in REPORTED:
            raise InvalidArgument(f"{state!r} is no state", hint=f"use {', '.join(REPORTED)}")
        if self._worker.state != state:
            self._worker.state = state
            self._session.pulse.beat_soon()

    def _take_up(self) -> bool:
        """Enters the newest generation if it is another one; False when the loop should end."""
        while self._membership.changed and not self.ending:
            self._session.require_usable()
            try:
                self.recover()
            except StopRequested:
                return False
        return not self.ending

    def _change(self) -> StrataError:
        """Why the script cannot go on as it is."""
        if self.stop_requested:
            return StopRequested(f"the others are leaving: {self.stop_requested}")
        standing = self._membership.standing
        told = f"generation {standing.generation}" if standing else "a new incarnation"
        return GenerationChanged(
            f"the membership changed: {told} in place of generation {self.generation}",
            hint="train in `with run.step()` in a loop over run.batches or run.loader: it enters "
            "the new generation by itself; elsewhere call run.recover()",
        )
