"""Runs a framework's training loop in one generation after the other.

The framework trains as it does under torchrun: its own loop, `DistributedDataParallel`, samplers
and schedulers. When a worker is lost, every worker leaves the loop, enters the next generation, and
starts the loop again from the newest complete step, through the framework's own way to resume.

A step is *complete* when everything that the framework does after it has been done: logging,
evaluation, schedulers, early stopping. As a rule that is when the next step begins. A complete step
is counted, and saved if a checkpoint is due. `TrainingState` is what the framework needs to resume
there. Until the next optimizer step changes the parameters it is read from the live objects, so
nothing is copied per step but the random state and the buffers.

Rank 0's buffers are the model's, as under `DistributedDataParallel`; see `shared_buffers`.

If a worker is lost while a step is applied but not complete, which as a rule means during an
evaluation, the parameters are one step ahead of the rest. This worker's model is then not used. If
that is so on all workers, training goes back to the newest checkpoint.

Random state. Each rank's is saved with each checkpoint. A worker that takes the model from another
worker takes its random state, too. Hugging Face and Lightning seed all ranks alike, so this is what
the lost rank had; a script that seeds ranks differently gets other random numbers from there on.
"""

import gc
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, SupportsFloat, TypeVar

import torch
import torch.distributed as dist

from strata.checkpoint.state.random_generators import random_state, set_random_state
from strata.config import load_process
from strata.errors import DeadlineExceeded, InvalidArgument
from strata.sdk.interrupts import GenerationChanged, StopRequested
from strata.sdk.peers.exchange import Exchange, LinkBroken
from strata.sdk.run import Run
from strata.sdk.state.initial_weights import InitialWeights
from strata.torch.default_group import DefaultGroup, connection_failed

log = logging.getLogger(__name__)

Result = TypeVar("Result")

TRAINERS = {"huggingface": "Hugging Face's Trainer", "lightning": "Lightning's Trainer"}

NOTICE_S = 2.0
"""Seconds for the loss of a worker to be reported after an error in the training loop."""


@dataclass(frozen=True, kw_only=True)
class TrainingOrigin:
    """The origin of a training state, which every resume compares."""

    framework: str
    step: int
    world_size: int


class TrainingState:
    """What the framework needs to resume after the last complete step.

    `applying` is true from the moment the optimizer changes parameters until the step is complete.
    `random` is the random state at the beginning of the next step.
    """

    def __init__(self) -> None:
        self.applying = False
        self.random: dict[str, Any] | None = None
        self.for_peer = False
        self._tree: dict[str, Any] = {}
        self._read: Callable[[], dict[str, Any]] | None = None

    def capture(self, read: Callable[[], dict[str, Any]], origin: TrainingOrigin) -> None:
        """Record a complete step; `read` returns its state until another step is applied."""
        self._read = lambda: read() | {"origin": asdict(origin)}
        self._tree, self.applying = {}, False

    def discard(self) -> None:
        """Forget the state."""
        self._read, self._tree, self.applying, self.random = None, {}, False, None

    def settle(self) -> dict[str, Any]:
        """The state, independent of the loop that it was read from; empty before the first step."""
        if self._read is not None:
            self._tree, self._read = _on_host(self._read()), None
        return self._tree

    def state_dict(self) -> dict[str, Any]:
        """The state in plain values; for another worker with the random state."""
        tree = self._tree if self._read is None else self._read()
        if self.for_peer and tree and self.random is not None:
            return {**tree, "random": self.random}
        return tree

    def load_state_dict(self, tree: dict[str, Any]) -> None:
        """Take over the state of a checkpoint or of another worker."""
        self.discard()
        self._tree = {name: each for name, each in tree.items() if name != "random"}
        self.random = tree.get("random")


class LoopSupervisor:
    """Runs a framework's loop for a run. Its methods are for the training thread.

    `group_of_one` says whether the framework needs a process group even with one worker. `initial`
    are the weights that a new task starts with.
    """

    def __init__(
        self,
        run: Run,
        framework: str,
        *,
        group_of_one: bool,
        initial: InitialWeights | None = None,
    ) -> None:
        if run in _supervised:
            raise InvalidArgument(
                "this run has already trained with a framework's trainer",
                hint="train once in a run: start another task for the next phase",
            )
        run.require_no_goal(f"the Trainer of {framework}")
        run.declare_trainer(TRAINERS[framework])
        _supervised.append(run)
        self.run = run
        self.state = TrainingState()
        self._framework = framework
        self._group = DefaultGroup(run)
        self._group_of_one = group_of_one
        self._initial = initial
        self._world_size = load_process({}).world_size or run.world_size

    def follow(self, attempt: Callable[[dict[str, Any]], Result]) -> Result:
        """Run the loop until it has ended on all workers.

        `attempt` gets the state to resume from, empty at the beginning. It is called again after
        each change of membership.
        """
        self.run.restore({"training": self.state})
        while True:
            try:
                result = attempt(self._begin())
                self._wait_for_others()
                return result
            except GenerationChanged:
                log.info("the membership changed: the training loop starts again")
            except RuntimeError as error:
                self._require_loss(error)
            self._recover()

    def load_initial(self, model: torch.nn.Module) -> None:
        """Fill the model of an attempt with the weights that the task starts with, if it names any.

        Until the first step is complete every attempt loads them: a worker that begins then gets no
        model from the others, and what is read is agreed upon by all.
        """
        if self._initial is not None and self.run.steps == 0:
            self.run.load_weights(model, self._initial)

    def complete(
        self,
        step: int,
        read: Callable[[], dict[str, Any]],
        *,
        loss: SupportsFloat | None,
        epoch: int,
        metrics: Mapping[str, float],
    ) -> None:
        """Count a complete step, and save it if a checkpoint is due.

        Raises `GenerationChanged` or `StopRequested`, which ends the framework's loop.
        """
        run = self.run
        if step != run.steps + 1:
            raise InvalidArgument(
                f"{self._framework} is at step {step}, but the run is at step {run.steps}",
                hint="train with one optimizer and without calling run.mark_step yourself",
            )
        self.state.random = random_state()
        self.state.capture(read, self._origin(step))
        run.mark_step(loss, epoch=epoch, **metrics)
        if run.save_due():
            run.save(epoch=epoch, metadata={"framework": self._framework})
        if run.ending:
            raise StopRequested(f"the training loop ends: {run.stop_requested}")

    def begin_update(self) -> None:
        """Called before the optimizer steps; raises if its gradients may be incomplete."""
        self._group.require_complete()
        self.state.applying = True

    def resumed(self, read: Callable[[], dict[str, Any]]) -> None:
        """Record that the loop is where the run is; `read` returns its state until a step is
        applied.
        """
        self.state.capture(read, self._origin(self.run.steps))

    def shared_buffers(self, buffers: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copies of rank 0's buffers, the same on every rank.

        `DistributedDataParallel` gives rank 0's buffers to all ranks when the next forward pass
        begins; until then each rank has those of its own batch.
        """
        copies = copied(buffers)
        if self.run.world_size == 1 or not copies:
            return copies
        flat = torch.cat([each.reshape(-1).view(torch.uint8) for each in copies.values()])
        try:
            dist.broadcast(flat, 0)
        except RuntimeError:
            if self.run.rank == 0:
                return copies  # the others are lost or will take over this worker's model
            raise
        sizes = [each.nbytes for each in copies.values()]
        for each, part in zip(copies.values(), flat.split(sizes), strict=True):
            each.copy_(part.view(each.dtype).view_as(each))
        return copies

    @property
    def local_rank(self) -> int:
        """This worker's number among the workers on its host, from 0."""
        return self._group.local_rank

    def require_group(self) -> None:
        """Form the process group if there is none."""
        if not self._group.formed:
            self._group.form()

    def store_random(self) -> None:
        """Store the random state of a loop that begins."""
        self.state.random = random_state()

    def restore_random(self) -> None:
        """Set the random generators to their state at this point of the resumed step."""
        if self.state.random is not None:
            set_random_state(self.state.random)

    def _begin(self) -> dict[str, Any]:
        """Form the group; return the state to resume from, if it fits this generation."""
        run = self.run
        source = run.recovery
        if source.source == "checkpoint" and not source.in_place:
            self.state.random = random_state()  # restored with this rank's part
        tree = self.state.settle()
        self._require_fit(tree)
        if run.world_size > 1 or self._group_of_one:
            self._group.form()
        return tree

    def _require_fit(self, tree: dict[str, Any]) -> None:
        run = self.run
        first = TrainingOrigin(framework=self._framework, step=0, world_size=self._world_size)
        origin = TrainingOrigin(**tree["origin"]) if tree else first
        if (origin.framework, origin.step) != (self._framework, run.steps):
            raise InvalidArgument(
                f"the state to resume from is step {origin.step} of {origin.framework}, but the "
                f"task goes on from step {run.steps} with {self._framework}",
                hint="resume a task with the script that began it",
            )
        if origin.world_size != run.world_size:
            raise InvalidArgument(
                f"the task trains with {origin.world_size} workers and has {run.world_size} now: "
                f"with {self._framework} the global batch, the number of steps in an epoch and the "
                "order of the data follow from the number of workers, so the result would be "
                "another one",
                hint="keep the number of workers, with the loss policy `replace`; a loop with "
                "run.step() trains on with any number",
            )

    def _origin(self, step: int) -> TrainingOrigin:
        return TrainingOrigin(framework=self._framework, step=step, world_size=self.run.world_size)

    def _recover(self) -> None:
        self._group.leave()
        gc.collect()  # the remains of the loop hold parameters, and hooks on them
        if self.state.applying:
            log.warning("step %d was not complete; this worker's model is not used", self.run.steps)
            self.run.discard_model()
            self.state.discard()
        self.state.for_peer = True
        try:
            self.run.recover()
        finally:
            self.state.for_peer = False

    def _require_loss(self, error: RuntimeError) -> None:
        """Raise the error again, unless it comes from the loss of a worker."""
        run = self.run
        deadline_s = time.monotonic() + NOTICE_S
        while time.monotonic() < deadline_s and not run.membership_changed:
            time.sleep(0.02)
        if not run.membership_changed and not connection_failed(error):
            raise error
        first_line = str(error).partition("\n")[0]
        log.info("the training loop starts again: %s", first_line)
        try:
            run.together(partial(_break, first_line))
        except GenerationChanged:
            return

    def _wait_for_others(self) -> None:
        """Wait until the loop has ended on all workers: until then one may need this model."""
        while not self.run.stop_requested:
            try:
                self.run.barrier("training has ended")
                return
            except DeadlineExceeded:
                continue


_supervised: list[Run] = []


def _break(reason: str, exchange: Exchange) -> None:
    raise LinkBroken(reason)


def _on_host(tree: Any) -> Any:
    """The same tree with tensors in host memory, so that the device has memory
    for the next loop.
    """
    if isinstance(tree, torch.Tensor):
        return tree.detach().to("cpu")
    if isinstance(tree, dict):
        return {name: _on_host(each) for name, each in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_on_host(each) for each in tree)
    return tree


def saved_buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The buffers in a model's state, which the forward pass of a step may change."""
    saved = model.state_dict().keys()
    return {name: each for name, each in model.named_buffers() if name in saved}


def copied(buffers: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies of buffers, by name."""
    return {name: each.detach().clone().contiguous() for name, each in buffers.items()}
