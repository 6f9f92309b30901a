"""`run.step()`: one step of training, applied by every worker or by none.

    with run.step() as step:
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        step.log(loss=loss)

The block communicates with the other workers: `run.average`, `strata.torch.data_parallel`, a
`strata.torch.Mesh`. If a worker is lost before that communication is complete, `GenerationChanged`
is raised inside the block. The block ends, the step is not counted, and the loop around it returns
the same batch again after the recovery. So the script needs no `except`.

When the block reaches its end the step is applied: it is counted and recorded, and the state is
saved if a checkpoint is due. Code after the block, in the same iteration of the loop, runs in both
cases; `step.applied` tells them apart.

A library that takes part in a step registers a *hook* with the run. A hook prepares the step,
completes it, or undoes the changes of the block. A hook that cannot undo them returns False; then
this worker's model may be half updated, and the recovery does not use it.

The time of a step is split into data, compute, communication and wait. A region is marked with
`with run.timing("data")`; time in a nested region counts for the inner one only. Time outside of
regions is compute. For the training thread only.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, SupportsFloat

from strata.errors import NotAllowedNow
from strata.sdk.interrupts import GenerationChanged
from strata.sdk.record.late_numbers import numbers_of
from strata.sdk.record.logged_media import Loggable, Media

if TYPE_CHECKING:
    from strata.sdk.run_steps import RunSteps
import time
from typing import Literal, TypeAlias


class StepHook(Protocol):
    """A participant in every step of a run. Called by the training thread.

    `begin` must not communicate: an error there leaves the `with` statement, not the block. `end`
    may, and raises `GenerationChanged` if a worker is lost. `abandon` undoes the block; False means
    that the state was changed and cannot be restored. `lost_link` says whether an error from the
    block comes from a connection to another worker, not from the script.
    """

    def begin(self, step: "Step") -> None: ...

    def end(self, step: "Step") -> None: ...

    def abandon(self, step: "Step") -> bool: ...

    def lost_link(self, error: BaseException) -> bool: ...


class Step:
    """The current step. Made by `run.step`.

    `number` counts from 0. `samples` is the number of samples that this worker trains in the step,
    its weight in every mean over the workers. `averaged` is the number of samples of all workers in
    that mean, if known. `accumulating` says whether gradients stay on this worker for now.
    `applied` is True after the block if the step counts, and False if a worker was lost and the
    same batch comes again.
    """

    def __init__(self, run: "RunSteps") -> None:
        self._run = run
        self.number = run.steps
        self.samples = self.averaged = 0
        self.metrics: dict[str, SupportsFloat] = {}
        self.media: dict[str, Media] = {}
        self.accumulating = False
        self.applied = False
        self._open = False

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Accumulate the gradients of the backward passes in this block on this worker.

        The next backward pass after the block sends their sum. Without it every backward pass
        communicates: the same result, but slower.
        """
        before, self.accumulating = self.accumulating, True
        try:
            yield
        finally:
            self.accumulating = before

    def log(self, values: Mapping[str, Loggable] | None = None, **metrics: Loggable) -> None:
        """Record metrics with this step, such as `loss=loss`; a later value replaces an earlier.

        Does not wait for a number on a GPU: its current value is copied in the background. Images,
        texts and histograms (`strata.Image`, …) are recorded when the step is applied.
        """
        self.metrics |= numbers_of({**(values or {}), **metrics}, self.media)

    def __enter__(self) -> "Step":
        if self._open:
            raise NotAllowedNow("this step is already open", hint="call run.step() for each step")
        self._run.begin_step(self)
        self._open = True
        self._run.step_interrupt.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._open = False
        try:
            if error is None:
                self._run.end_step(self)
                return False
            return self._run.abandon_step(self, error)
        finally:
            self._run.step_interrupt.end()


class StepHooks:
    """The hooks of a run, called in the order in which they were added."""

    def __init__(self) -> None:
        self._hooks: list[StepHook] = []

    def add(self, hook: StepHook) -> None:
        """Add a hook for all later steps."""
        self._hooks.append(hook)

    def __len__(self) -> int:
        return len(self._hooks)

    def begin(self, step: Step) -> None:
        """Prepare a step."""
        for hook in self._hooks:
            hook.begin(step)

    def end(self, step: Step) -> bool:
        """Complete a step; False if a worker was lost and the step must be undone."""
        try:
            for hook in self._hooks:
                hook.end(step)
        except GenerationChanged:
            return False
        return True

    def abandon(self, step: Step) -> bool:
        """Undo a step; False if the state was changed and cannot be restored."""
        undone = [hook.abandon(step) for hook in self._hooks]
        return all(undone)

    def lost_link(self, error: BaseException) -> bool:
        """Whether the error comes from a connection to another worker."""
        return any(hook.lost_link(error) for hook in self._hooks)


Part: TypeAlias = Literal["data", "communication", "wait"]

PARTS: tuple[Part, ...] = ("data", "communication", "wait")


class StepTime:
    """The sums of the current step's regions."""

    def __init__(self) -> None:
        self.spent_ns: dict[Part, int] = dict.fromkeys(PARTS, 0)
        self.named_ns = 0
        self._begun_ns = time.perf_counter_ns()

    def finish(self) -> tuple[float, float, float, float]:
        """End the step; returns its seconds of data, compute, communication and wait."""
        now_ns = time.perf_counter_ns()
        whole_ns, self._begun_ns = now_ns - self._begun_ns, now_ns
        if not self.named_ns:
            return 0.0, whole_ns / 1e9, 0.0, 0.0
        spent = self.spent_ns
        compute_ns = max(whole_ns - self.named_ns, 0)
        self.spent_ns = dict.fromkeys(PARTS, 0)
        self.named_ns = 0
        return (
            spent["data"] / 1e9,
            compute_ns / 1e9,
            spent["communication"] / 1e9,
            spent["wait"] / 1e9,
        )


class Timing:
    """A region of a step's time, as a context manager."""

    __slots__ = ("_begun_ns", "_named_ns", "_part", "_times")

    def __init__(self, times: StepTime, part: Part) -> None:
        self._times = times
        self._part = part
        self._begun_ns = self._named_ns = 0

    def __enter__(self) -> None:
        self._begun_ns, self._named_ns = time.perf_counter_ns(), self._times.named_ns

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        times = self._times
        inner_ns = max(times.named_ns - self._named_ns, 0)
        own_ns = time.perf_counter_ns() - self._begun_ns - inner_ns
        times.spent_ns[self._part] += own_ns
        times.named_ns += own_ns
