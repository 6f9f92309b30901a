"""Loops: which steps of a run train which steps of a dataset.

The steps of a run are counted from its beginning to its end. A script may train them in several
loops: one for each epoch, or one dataset after another. A dataset's order has steps of its own
(`order`). A *loop* connects the two: from the run's step `start` on it trains the dataset's steps
from `first` on. A dataset that is opened again goes on where its last loop ended, at the beginning
of an epoch if the loop counts epochs.

A loop ends with its last step, or when the script opens another loop at a later step: it left the
loop early. Loops that are opened at the same step run side by side.

A loop's key is its place in the script, so a worker that starts later opens the same loop and gets
the same steps. In a task without loops every dataset is trained from step 0 on.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from strata.core.events import Event, Fact, applies
from strata.core.limits import require_name
from strata.errors import Conflict, InvalidArgument, LimitExceeded

if TYPE_CHECKING:
    from strata.core.datasets import AttachDataset, DatasetSpec, Feed
    from strata.core.state import Cluster
    from strata.core.tasks import Task

MAX_LOOPS = 10_000


class Loop(Struct, frozen=True):
    """One loop of a script over a dataset; without `steps` it has no end of its own.

    `left_at` is the step of the run at which the script left it before its end.
    """

    dataset: str
    start: int
    first: int
    steps: int | None = None
    left_at: int | None = None


class Stretch(Struct, frozen=True):
    """Steps `start` up to `stop` of a run, which train a dataset's steps from `first` on."""

    start: int
    stop: int
    first: int

    @property
    def shift(self) -> int:
        """What to add to a step of the run to get the dataset's step."""
        return self.first - self.start


class LoopOpened(Fact, frozen=True):
    """A script began a loop: the run's steps from `start` on train the dataset's from `first`."""

    task: str
    loop: str
    dataset: str
    start: int
    first: int
    steps: int | None = None


@applies(LoopOpened)
def _opened(state: "Cluster", fact: LoopOpened, event: Event) -> None:
    state.tasks[fact.task].loops[fact.loop] = Loop(
        dataset=fact.dataset, start=fact.start, first=fact.first, steps=fact.steps
    )


def stretches(loops: Mapping[str, Loop], dataset: str, committed: int) -> Iterator[Stretch]:
    """The steps of a run that train a dataset, up to the committed ones, in order."""
    if not loops:
        yield Stretch(start=0, stop=committed, first=0)
    for loop in _of(loops, dataset):
        stop = min(committed, _end(loops, loop))
        if stop > loop.start:
            yield Stretch(start=loop.start, stop=stop, first=loop.first)


def trained_steps(loops: Mapping[str, Loop], dataset: str, step: int) -> int:
    """How many steps of a dataset are trained when the run has had so many steps."""
    if not loops:
        return step
    last = next((each for each in reversed(_of(loops, dataset)) if each.start <= step), None)
    return last.first + min(step, _end(loops, last)) - last.start if last is not None else 0


def loop_is_open(loops: Mapping[str, Loop], dataset: str, step: int) -> bool:
    """Whether a run that has had so many steps trains its next one on a dataset."""
    return not loops or any(each.start <= step < _end(loops, each) for each in _of(loops, dataset))


def _of(loops: Mapping[str, Loop], dataset: str) -> list[Loop]:
    return [loop for loop in loops.values() if loop.dataset == dataset]


def _end(loops: Mapping[str, Loop], loop: Loop) -> int:
    """The step of the run at which a loop ends at the latest."""
    later = (each.start for each in loops.values() if each.start > loop.start)
    own = loop.start + loop.steps if loop.steps is not None else 1 << 62
    left = own if loop.left_at is None else loop.left_at
    return min(own, left, min(later, default=own))


def leave_loop(loops: dict[str, Loop], key: str, step: int) -> None:
    """Note at which step of the run a loop was left."""
    if key in loops:
        loops[key] = msgspec.structs.replace(loops[key], left_at=step)


def drop_loops_after(task: "Task", step: int) -> None:
    """Forget the loops that a rollback undoes: the script opens them again."""
    task.loops = loops_up_to(task.loops, step)


def loops_up_to(loops: Mapping[str, Loop], step: int) -> dict[str, Loop]:
    """The loops that begin at a step of the run or before it, as they were at that step."""
    kept = {key: loop for key, loop in loops.items() if loop.start <= step}
    for key, loop in kept.items():
        if loop.left_at is not None and loop.left_at > step:
            kept[key] = msgspec.structs.replace(loop, left_at=None)
    return kept


def require_loop(task: "Task", spec: "DatasetSpec", c: "AttachDataset") -> None:
    """Refuse a loop that the other workers run differently, before anything is recorded."""
    require_name("loop", c.loop)
    if c.unit != "lane" or min(c.step, c.steps, c.loop_epochs) < 0:
        raise InvalidArgument(
            f"loop {c.loop}: {c.loop_epochs} epochs, {c.steps} {c.unit} steps at step {c.step}",
            hint="open loops over lanes, with numbers that are not negative",
        )
    known = task.loops.get(c.loop)
    if known is None:
        if len(task.loops) >= MAX_LOOPS:
            raise LimitExceeded(
                f"task {task.id!r} has opened {MAX_LOOPS} loops",
                hint="train several epochs in one loop: run.batches(dataset, epochs=N)",
            )
    elif known.dataset != c.dataset:
        raise InvalidArgument(
            f"loop {c.loop} of task {task.id!r} trains on {known.dataset!r}, not on {c.dataset!r}",
            hint="every worker must run the same script with the same datasets",
        )
    elif c.step < known.start or (c.entering and c.step != known.start):
        raise Conflict(
            f"this worker comes to loop {c.loop} at step {c.step}, another one came at step "
            f"{known.start}",
            hint="all workers must leave a loop at the same step; decide with run.agree(value)",
        )
    elif c.dataset in task.feeds:
        asked = _asked_steps(spec, task.feeds[c.dataset].global_batch, known.first, c)
        if asked != known.steps:
            raise InvalidArgument(
                f"this worker asks for {_shown(asked)} in loop {c.loop}, others for "
                f"{_shown(known.steps)}",
                hint="every worker must run the same script with the same epochs and steps",
            )


def _shown(steps: int | None) -> str:
    return "steps without an end" if steps is None else f"{steps} steps"


def new_loop(
    task: "Task", spec: "DatasetSpec", feed: "Feed", c: "AttachDataset"
) -> LoopOpened | None:
    """The loop that a worker is the first to open; None if another worker has opened it."""
    if not c.loop or c.loop in task.loops:
        return None
    first = trained_steps(task.loops, c.dataset, c.step) if task.loops else 0
    if c.loop_epochs:
        epoch = _epochs_begun(spec.total_samples, feed.global_batch, first, c.drop_tail)
        first = epoch_start(spec.total_samples, feed.global_batch, epoch, c.drop_tail)
    steps = _asked_steps(spec, feed.global_batch, first, c)
    return LoopOpened(
        task=task.id, loop=c.loop, dataset=c.dataset, start=c.step, first=first, steps=steps
    )


def _asked_steps(
    spec: "DatasetSpec", global_batch: int, first: int, c: "AttachDataset"
) -> int | None:
    """How many steps a loop has that begins with a step of the dataset; None for no end."""
    if not c.loop_epochs:
        return c.steps or None
    epoch = _epochs_begun(spec.total_samples, global_batch, first, c.drop_tail)
    stop = epoch_start(spec.total_samples, global_batch, epoch + c.loop_epochs, c.drop_tail)
    return min(stop - first, c.steps or stop - first)


def epoch_start(samples: int, global_batch: int, epoch: int, drop_tail: bool) -> int:
    """The dataset's step with which an epoch begins, or ends with `drop_tail`.

    A step that holds the last samples of one epoch and the first of the next belongs to the
    earlier epoch, unless tails are dropped.
    """
    positions = epoch * samples
    return positions // global_batch if drop_tail else -(-positions // global_batch)


def _epochs_begun(samples: int, global_batch: int, step: int, drop_tail: bool) -> int:
    """The first epoch that begins at a step of the dataset or after it."""
    epoch = step * global_batch // samples
    while epoch_start(samples, global_batch, epoch, drop_tail) < step:
        epoch += 1
    return epoch
