"""The membership part of a run: identity, generations, and the state that is saved and restored.

`run.state` is the state of the run: `restore`, `save` and assignment set it. When the membership
changes, it is restored to the step at which all members resume: automatically between two batches,
elsewhere by `recover`. Arrays, tensors, dicts, lists and objects with `state_dict` are changed in
place, so variables that hold them stay valid. A functional script, whose steps make new arrays,
keeps its state in `run.state` instead of a variable:

    run.state, loss = train_step(run.state, batch)
"""

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from strata.checkpoint.read.weight_names import Rename
from strata.core.state import REPORTED, Reported
from strata.errors import InvalidArgument, NotAllowedNow, StrataError
from strata.sdk.interrupts import GenerationChanged, StopRequested, TerminationNotice
from strata.sdk.peers.blob_client import Circle
from strata.sdk.peers.blob_server import Blobs
from strata.sdk.peers.exchange import Exchange
from strata.sdk.record.recorder import Recorder
from strata.sdk.session.membership import Recovery
from strata.sdk.session.run_worker import RunWorker
from strata.sdk.state.initial_weights import InitialWeights, initial_weights
from strata.sdk.state.restorer import DamagedCheckpoint, PeersUnreachable
from strata.sdk.state.run_state import RunState
from strata.sdk.steps.step_block import StepTime, Timing
from strata.wire.v1 import coordinator_pb2 as pb


class RunMember:
    """A run as a member of its task. For the training thread."""

    def __init__(self, worker: RunWorker, run_state: RunState) -> None:
        self._worker = worker
        self._session = worker.session
        self._membership = worker.membership
        self._run_state = run_state
        self._times = StepTime()
        self._notice = TerminationNotice()
        self._script = run_state.script
        self._script.stopping = lambda: bool(self.stop_requested)
        self._save_wanted = False
        # The other workers save: a released worker is no longer a member.
        run_state.due.stopping = lambda: "" if worker.membership.released else self.stop_requested

    @property
    def worker_id(self) -> str:
        """This worker's id."""
        return self._session.identity.worker_id

    @property
    def incarnation(self) -> int:
        """This worker's incarnation; it increases when a lost worker registers again."""
        return self._session.identity.incarnation

    @property
    def rank(self) -> int:
        """This worker's rank in the entered generation, from 0."""
        return self._membership.place.rank

    @property
    def world_size(self) -> int:
        """The number of workers in the entered generation."""
        return self._membership.place.world_size

    @property
    def generation(self) -> int:
        """The generation that the script has entered."""
        return self._membership.place.generation

    @property
    def attempt(self) -> int:
        """The task's attempt, from 1; each rollback starts a new one and voids later steps."""
        return self._membership.place.attempt

    @property
    def recovery(self) -> Recovery:
        """The source and step from which the entered generation resumed."""
        return self._membership.recovery

    @property
    def steps(self) -> int:
        """The number of steps applied to the model, or to the model that will be restored."""
        return self._membership.steps

    @property
    def membership_changed(self) -> bool:
        """Whether there is a new generation to enter with `sync`."""
        return self._membership.changed

    @property
    def stop_requested(self) -> str:
        """Why the script should save and end; empty if no stop was requested."""
        return self._notice.reason or self._membership.stopping

    @property
    def device(self) -> str:
        """The device for PyTorch in this process: `cuda` if a GPU is available, else `cpu`."""
        torch = sys.modules.get("torch")
        return "cuda" if torch is not None and torch.cuda.is_available() else "cpu"

    @property
    def datasets(self) -> list[str]:
        """The names of the datasets that this task has opened for training in steps."""
        return sorted(self._membership.attached)

    @property
    def recorder(self) -> Recorder:
        """The recorder of this worker's events; for libraries that extend a run."""
        return self._worker.recorder

    @property
    def blobs(self) -> Blobs:
        """The blobs that this worker offers to its peers; for libraries that extend a run."""
        return self._run_state.blobs

    def add_tick(self, act: Callable[[], None]) -> None:
        """Call `act` about once a second, in the heartbeat thread; it must not block."""
        self._worker.on_tick.append(act)

    def circle(self, exchange: Exchange) -> Circle:
        """The addresses of the generation's members; a collective call."""
        own = msgspec.json.encode((self.worker_id, self._run_state.own_address())).decode()
        addresses = [
            msgspec.json.decode(each, type=tuple[str, str]) for each in exchange.everyone(own)
        ]
        entered = self._membership.entered
        self.blobs.open_to(entered)
        return Circle(
            generation=exchange.generation,
            own=self.worker_id,
            token=entered.peer_token,
            addresses=dict(addresses),
            encryption=self.blobs.encryption,
        )

    def sync(self, timeout: float | None = None) -> Recovery:
        """Enter the newest generation; when all members have, return where it resumes.

        The coordinator learns the lineage and the steps of this worker's model. The caller loads
        the returned recovery, unless it is `in_place`, and then calls `restored` or `step`. Raises
        `StopRequested` if a stop is requested first.
        """
        self._session.require_usable()
        if self._run_state.checks.partly_changed and self._membership.changed:
            self.discard_model()
        self._worker.waiting = True
        try:
            with Timing(self._times, "wait"):
                recovery = self._membership.sync(
                    self._session, lambda: bool(self.stop_requested), timeout
                )
        finally:
            self._worker.waiting = False
        if recovery is None:
            raise StopRequested(f"stopped before a generation was entered: {self.stop_requested}")
        self.report("training" if recovery.in_place else "recovering")
        return recovery

    def restored(self) -> None:
        """Report that the model is the one that `sync` returned; `step` implies it."""
        self._membership.restored()
        self.report("training")

    def restore(
        self,
        state: Any = None,
        *,
        from_: str | os.PathLike[str] | None = None,
        strict: bool = True,
        rename: Rename | None = None,
        **parts: Any,
    ) -> Any:
        """Restore the state of the task; a new task starts with the given state.

        The state is one tree, or parts by name: `run.restore(model=model, optimizer=optimizer)`.
        It is changed in place and returned. From then on the run saves it, restores it after the
        loss of a worker, and sends it to workers without a state (see `run.state`).

        `from_` fills the state of a new task with weights from elsewhere: a task of this cluster, a
        folder or `s3://bucket/prefix` with checkpoints, each optionally with `/` and the id of one;
        or a file of safetensors or torch.save, a DCP folder or a Hugging Face folder, which hold
        the weights of the model. Parts that are not there stay as they are. Steps, samples and
        random numbers are those of this run.

        With `strict` every tensor must have its value, and every value of the same part its tensor.
        Without, tensors of equal names and shapes are taken, and the others stay as initialised.
        `rename` maps names of the source, or prefixes of them, to names in the state, or to None to
        leave them out; it may also be a function.
        """
        if (state is None) == (not parts):
            raise InvalidArgument(
                "run.restore takes either one state or its parts by name",
                hint="call run.restore(model=model, optimizer=optimizer)",
            )
        self._run_state.state = parts if state is None else state
        self._run_state.initial = initial_weights(from_, strict, rename)
        self._apply_recovery()
        return self._run_state.state

    def rebuild(
        self,
        build: Callable[[], Any],
        *,
        from_: str | os.PathLike[str] | None = None,
        strict: bool = True,
        rename: Rename | None = None,
    ) -> None:
        """Instead of `restore`, for a state that must be built again in each generation.

        A model sharded over the members (FSDP2) is incomplete when one of them is lost. Then
        `build` creates it again on the current members, and the newest checkpoint is loaded into
        it. The result is in `run.state`. The other arguments are those of `restore`.
        """
        self._run_state.rebuild(build)
        self._run_state.initial = initial_weights(from_, strict, rename)
        self._session.ask("enter", pb.Enter(generation=self.generation, rebuilds=True))
        self._apply_recovery()

    def declare_trainer(self, trainer: str) -> None:
        """Declare that a framework's trainer trains, so that the number of workers is fixed.

        Raises `InvalidArgument` if the task has a range of workers.
        """
        self._membership.trainer = trainer
        entry = pb.Enter(generation=self.generation, trainer=trainer)
        try:
            self._session.answer(self._session.ask("enter", entry))
        except NotAllowedNow:  # there is a newer generation: it is entered with the declaration
            if not self._run_state.has_state:
                self.discard_model()  # at step 0, but there is none to give to a replacement yet
            self.sync()

    def load_weights(self, model: Any, wanted: InitialWeights) -> None:
        """Fill a model with weights from elsewhere; a collective call of loops at step 0.

        For adapters of frameworks: the state of their runs has no model before the first step, so
        every worker loads the weights again when such a loop is started again at step 0.
        """
        self.report("recovering")
        self._run_state.load_weights({"model": model}, wanted)
        self.report("training")

    def recover(self) -> None:
        """Enter the newest generation and restore `run.state` for it."""
        self.sync()
        if self._run_state.has_state:
            self._apply_recovery()

    def discard_model(self) -> None:
        """Exclude this worker's model from recovery: it was changed in part, or is another one."""
        self._membership.discard_model()

    def _apply_recovery(self) -> None:
        """Restore the state for the entered generation.

        A damaged checkpoint or a peer that does not send its model is refused, and another source
        is chosen. Unreachable storage is waited for (`sdk/state/restorer`).
        """
        while True:
            try:
                if self._run_state.starts_warm(self.recovery):
                    self.report("recovering")
                self._run_state.apply_recovery(self.recovery)
                return self.restored()
            except GenerationChanged:
                self.sync()
            except (DamagedCheckpoint, PeersUnreachable) as error:
                if not self._membership.changed:
                    self._run_state.refuse(error)
                self.sync()

    @property
    def state(self) -> Any:
        """The state that the run saves, restores and sends to other workers."""
        return self._run_state.known_state

    @state.setter
    def state(self, state: Any) -> None:
        self._run_state.state = state

    def save_due(self) -> bool:
        """Whether to save now: by steps, time, SIGTERM or request; the same on all ranks.

        For loops that call `mark_step`: every rank asks after every step. Never blocks.
        """
        return self._run_state.due.now(self.steps)

    @property
    def checkpoint_interval_s(self) -> float | None:
        """Seconds between saves, None for no limit; an adaptive interval follows measurements."""
        return self._run_state.due.interval_s

    def save(
        self,
        state: Any = None,
        *,
        epoch: int | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> bool:
        """Save this rank's part of a checkpoint of this step; returns after one copy in memory.

        Every rank calls it at the same step. Replicated values are written once, split among the
        ranks; pieces of larger tensors (DTensor, `strata.Sharded`) are written by their owners.
        Writing happens in the background. A failure there never stops the run: it is logged, and
        the checkpoint before remains the latest.

        Between two loops the save is deferred to the start of the next loop, so that it includes
        the effects of the code in between, and after the last loop to the end of the run.

        While an earlier save is running, it returns False: the save is postponed to a step that all
        ranks reach after that save (`checkpoint_when_busy` can make it wait instead). A requested
        or scheduled automatic save does not prevent it.
        """
        if state is not None:
            self._run_state.state = state
        self._save_wanted = self._script.between_loops
        if self._save_wanted:
            return False
        working = self._worker.state
        self.report("checkpointing")
        try:
            number = self._worker.epoch if epoch is None else epoch
            return self._run_state.save(self.steps, number, metadata)
        finally:
            self.report(working)

    @property
    def ending(self) -> bool:
        """Whether the loop should end: a stop was requested, and no last save is pending."""
        return bool(self.stop_requested) and not self._run_state.due.finishing

    def report(self, state: Reported) -> None:
        """Report this worker's state, for the dashboard and the watchdog."""
        if state not in REPORTED:
            raise InvalidArgument(
                f"{state!r} is not a worker state", hint=f"use {', '.join(REPORTED)}"
            )
        if self._worker.state != state:
            self._worker.state = state
            self._session.heartbeat.beat_soon()

    def _enter_newest(self) -> bool:
        """Enter a newer generation if there is one; False if the loop should end."""
        while self._membership.changed and not self.ending:
            self._session.require_usable()
            try:
                self.recover()
            except StopRequested:
                return False
        return not self.ending

    def _change(self) -> StrataError:
        """The error for a changed membership or a requested stop."""
        if self.stop_requested:
            return StopRequested(f"the run is stopping: {self.stop_requested}")
        standing = self._membership.standing
        newer = f"generation {standing.generation}" if standing else "a new incarnation"
        return GenerationChanged(
            f"the membership changed: {newer} replaces generation {self.generation}",
            hint="train in `with run.step()` inside a loop over run.batches or run.loader, which "
            "enters the new generation; elsewhere call run.recover()",
        )
