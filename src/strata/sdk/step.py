"""`run.step()`: one step of training, applied by every worker or by none.

    with run.step() as step:
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        step.log(loss=loss)

The block communicates with the other workers: `run.average`, `strata.torch.data_parallel`, a
`strata.torch.Mesh`. If a worker is lost before that communication is complete, `GenerationChanged`
is raised inside the block. It ends there, the step is not counted, and the loop that the block is
in hands out the same batch again after the recovery. So the script needs no `except`.

When the block reaches its end the step is applied: it is counted and recorded, and the state is
saved if a checkpoint is due. Code after the block, in the same round of the loop, runs in both
cases; `step.applied` tells them apart.

What takes part in a step registers a *hook* with the run. A hook prepares the step, completes it,
or undoes what the block has changed so far. A hook that cannot undo says so; then this worker's
model is a mixture of two steps, and the recovery does not use it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, SupportsFloat

from strata.errors import InvalidArgument, NotAllowedNow
from strata.sdk.late_numbers import number_of
from strata.sdk.signals import GenerationChanged

if TYPE_CHECKING:
    from strata.sdk.run_steps import RunSteps


class StepHook(Protocol):
    """Something that takes part in every step of a run. Called by the training thread.

    `begin` must not communicate: an error there would leave the `with` statement, not the block.
    `end` may, and raises `GenerationChanged` when a worker is lost. `abandon` undoes the block;
    False means that the state has been changed and cannot be put back. `lost_link` says whether an
    error that left the block comes from a connection to another worker, not from the script.
    """

    def begin(self, step: "Step") -> None: ...

    def end(self, step: "Step") -> None: ...

    def abandon(self, step: "Step") -> bool: ...

    def lost_link(self, error: BaseException) -> bool: ...


class Step:
    """The step that is under way. Made by `run.step`.

    `number` counts from 0. `samples` is how many samples this worker trains in it: its weight in
    every mean over the workers. `averaged` is how many samples of all workers are in the mean that
    the step applies, as far as it is known. `accumulating` says whether gradients stay on this
    worker for now. `applied` is True after the block if the step counts, and False if a worker was
    lost, so that the same batch comes again.
    """

    def __init__(self, run: "RunSteps") -> None:
        self._run = run
        self.number = run.steps
        self.samples = self.averaged = 0
        self.metrics: dict[str, SupportsFloat] = {}
        self.accumulating = False
        self.applied = False
        self._open = False

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Keep the gradients of the backward passes in this block on this worker.

        The next backward pass outside of it sends the sum of all. Without it every backward pass
        communicates: the result is the same, and takes longer.
        """
        before, self.accumulating = self.accumulating, True
        try:
            yield
        finally:
            self.accumulating = before

    def log(
        self, values: Mapping[str, SupportsFloat] | None = None, **metrics: SupportsFloat
    ) -> None:
        """Record metrics with this step, such as `loss=loss`; the last value of a name counts.

        A number on a GPU is not waited for. It is copied in the background, as it is now.
        """
        for name, value in {**(values or {}), **metrics}.items():
            try:
                self.metrics[name] = number_of(value)
            except (TypeError, ValueError) as error:
                raise InvalidArgument(
                    f"metric {name!r} is not a number: {error}",
                    hint="log numbers or tensors with one element",
                ) from error

    def __enter__(self) -> "Step":
        if self._open:
            raise NotAllowedNow("this step is open already", hint="call run.step() for each step")
        self._run.begin_step(self)
        self._open = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._open = False
        if error is None:
            self._run.end_step(self)
            return False
        return self._run.abandon_step(self, error)


class StepHooks:
    """The hooks of a run, called in the order in which they were added."""

    def __init__(self) -> None:
        self._hooks: list[StepHook] = []

    def add(self, hook: StepHook) -> None:
        """Let a hook take part in every later step."""
        self._hooks.append(hook)

    def __len__(self) -> int:
        return len(self._hooks)

    def begin(self, step: Step) -> None:
        """Prepare a step."""
        for hook in self._hooks:
            hook.begin(step)

    def end(self, step: Step) -> bool:
        """Complete a step; False when a worker was lost meanwhile and the step is undone."""
        try:
            for hook in self._hooks:
                hook.end(step)
        except GenerationChanged:
            return False
        return True

    def abandon(self, step: Step) -> bool:
        """Undo a step; False when the state has been changed and cannot be put back."""
        undone = [hook.abandon(step) for hook in self._hooks]
        return all(undone)

    def lost_link(self, error: BaseException) -> bool:
        """Whether the error comes from a connection to another worker."""
        return any(hook.lost_link(error) for hook in self._hooks)
