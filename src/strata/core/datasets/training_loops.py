"""Attached datasets and loops: which steps of a run train which steps of a dataset.

The steps of a run are counted from its beginning to its end. A script may train them in several
loops: one for each epoch, or one dataset after another. A dataset's order has steps of its own
(`order`). A *loop* connects the two: from the run's step `start` on it trains the dataset's steps
from `first` on. A dataset that is opened again resumes where its last loop ended, at the beginning
of an epoch if the loop counts epochs.

A loop ends with its last step, or when the script opens another loop at a later step (it left the
loop early). Loops that are opened at the same step run side by side.

A loop's key is its place in the script, so a worker that starts later opens the same loop and gets
the same steps. After a task was continued, the first worker that opens a loop may give it another
length, for example more epochs; the other workers have to ask for the same. In a task without loops
every dataset is trained from step 0 on.
"""

from collections.abc import Iterator, Mapping

import msgspec
from msgspec import Struct

from strata.core.datasets.dataset_rules import MAX_PARTS, AttachDataset, DatasetAttached, reassign
from strata.core.decision import Decision, applies, decides
from strata.core.events import Event, Fact
from strata.core.limits import require_name
from strata.core.state import Cluster, DatasetSpec
from strata.core.task_state import Feed, Loop, Task
from strata.errors import AlreadyExists, Conflict, InvalidArgument, LimitExceeded

MAX_LOOPS = 10_000

USUAL_LANES = 512
"""Lanes that a dataset gets if the user sets none: enough to share the work evenly, and few to
record."""


class LoopRange(Struct, frozen=True):
    """Steps `start` up to `stop` of a run, which train a dataset's steps from `first` on."""

    start: int
    stop: int
    first: int

    @property
    def shift(self) -> int:
        """What to add to a step of the run to get the dataset's step."""
        return self.first - self.start


class LoopOpened(Fact, frozen=True, kw_only=True):
    """A script opened a loop: the run's steps from `start` on train the dataset's from `first`.

    `epochs` is how many epochs of the dataset the script plans in all; 0 if it does not say.
    """

    sentence = (
        "a loop over {dataset} started: step {start} of the run is step {first} of the dataset"
    )

    task: str
    loop: str
    dataset: str
    start: int
    first: int
    steps: int | None = None
    epochs: int = 0


class LoopContinued(Fact, frozen=True, kw_only=True):
    """A script opened a loop again after its task was continued; `steps` is its length now."""

    sentence = "the loop over {dataset} continues at step {step}[ with {steps:step} in all]"

    task: str
    loop: str
    dataset: str
    step: int
    before: int | None = None
    steps: int | None = None
    epochs: int = 0


@applies(LoopOpened)
def _opened(state: Cluster, fact: LoopOpened, event: Event) -> None:
    task = state.tasks[fact.task]
    task.loops[fact.loop] = Loop(
        dataset=fact.dataset,
        start=fact.start,
        first=fact.first,
        steps=fact.steps,
        continuation=task.continuations,
    )
    _plan(task, fact)


def _plan(task: Task, fact: LoopOpened | LoopContinued) -> None:
    """Note the planned epochs, which may change when a task continues."""
    if fact.epochs and fact.dataset in task.feeds:
        task.feeds[fact.dataset].epochs = fact.epochs


@applies(LoopContinued)
def _continued(state: Cluster, fact: LoopContinued, event: Event) -> None:
    task = state.tasks[fact.task]
    task.loops[fact.loop] = msgspec.structs.replace(
        task.loops[fact.loop], steps=fact.steps, continuation=task.continuations
    )
    _plan(task, fact)


def loop_ranges(loops: Mapping[str, Loop], dataset: str, committed: int) -> Iterator[LoopRange]:
    """The steps of a run that train a dataset, up to the committed ones, in order."""
    if not loops:
        yield LoopRange(start=0, stop=committed, first=0)
    for loop in _of(loops, dataset):
        stop = min(committed, _end(loops, loop))
        if stop > loop.start:
            yield LoopRange(start=loop.start, stop=stop, first=loop.first)


def trained_steps(loops: Mapping[str, Loop], dataset: str, step: int) -> int:
    """How many steps of a dataset are trained when the run has applied `step` steps."""
    if not loops:
        return step
    last = next((each for each in reversed(_of(loops, dataset)) if each.start <= step), None)
    return last.first + min(step, _end(loops, last)) - last.start if last is not None else 0


def loop_is_open(loops: Mapping[str, Loop], dataset: str, step: int) -> bool:
    """Whether a run that has applied `step` steps trains its next one on a dataset."""
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
    """Set the step of the run at which a loop was left."""
    if key in loops:
        loops[key] = msgspec.structs.replace(loops[key], left_at=step)


def drop_loops_after(task: Task, step: int) -> None:
    """Remove the loops that a rollback undoes: the script opens them again."""
    task.loops = loops_up_to(task.loops, step)


def loops_up_to(loops: Mapping[str, Loop], step: int) -> dict[str, Loop]:
    """The loops that begin at a step of the run or before it, as they were at that step."""
    kept = {key: loop for key, loop in loops.items() if loop.start <= step}
    for key, loop in kept.items():
        if loop.left_at is not None and loop.left_at > step:
            kept[key] = msgspec.structs.replace(loop, left_at=None)
    return kept


def require_loop(task: Task, spec: "DatasetSpec", c: "AttachDataset") -> None:
    """Refuse a loop that the other workers run differently, before anything is recorded."""
    require_name("loop", c.loop)
    if c.unit != "lane" or min(c.step, c.steps, c.loop_epochs, c.until) < 0:
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
    elif known.dataset != c.dataset and known.continuation < task.continuations:
        raise InvalidArgument(
            f"task {task.id!r} trained loop {c.loop} on {known.dataset!r} before it was continued, "
            f"and the script now opens it on {c.dataset!r}: other data, or data that has changed",
            hint="continue with the same data, or start a new task; it can begin with the weights "
            f'of this one: run.restore(..., from_="{task.id}")',
        )
    elif known.dataset != c.dataset:
        raise InvalidArgument(
            f"loop {c.loop} of task {task.id!r} trains on {known.dataset!r}, not on {c.dataset!r}",
            hint="every worker must run the same script with the same datasets",
        )
    elif c.step < known.start or (c.entering and c.step != known.start):
        raise Conflict(
            f"this worker enters loop {c.loop} at step {c.step}, another worker entered at step "
            f"{known.start}",
            hint="all workers must leave a loop at the same step; decide with run.agree(value)",
        )
    elif c.dataset in task.feeds:
        asked = _asked_steps(spec, task.feeds[c.dataset].global_batch, known.start, known.first, c)
        if asked == known.steps:
            return
        if known.continuation < task.continuations:
            return _require_open_end(task, c, known, asked)
        raise InvalidArgument(
            f"this worker asks for {_shown(asked)} in loop {c.loop}, others for "
            f"{_shown(known.steps)}",
            hint="every worker must run the same script with the same epochs and steps",
        )


def _require_open_end(task: Task, c: "AttachDataset", loop: Loop, asked: int | None) -> None:
    """Refuse another length of a loop whose steps after that are already trained."""
    done = c.step - loop.start
    if asked is not None and asked < done:
        raise InvalidArgument(
            f"loop {c.loop} of task {task.id!r} has trained {done} steps, and the script now asks "
            f"for {asked}",
            hint="ask for as many epochs or steps as are trained, or more",
        )
    if any(each.start > loop.start for each in task.loops.values()):
        raise InvalidArgument(
            f"loop {c.loop} of task {task.id!r} had {_shown(loop.steps)} and others followed it, "
            f"so it cannot have {_shown(asked)} now",
            hint="change the length of the last loop only",
        )


def _shown(steps: int | None) -> str:
    return "steps without an end" if steps is None else f"{steps} steps"


def new_loop(
    task: Task, spec: "DatasetSpec", feed: "Feed", c: "AttachDataset"
) -> LoopOpened | None:
    """The loop that a worker is the first to open; None if another worker has opened it."""
    if not c.loop or c.loop in task.loops:
        return None
    first = trained_steps(task.loops, c.dataset, c.step) if task.loops else 0
    if c.loop_epochs:
        epoch = _epochs_begun(spec.total_samples, feed.global_batch, first, c.drop_tail)
        first = epoch_start(spec.total_samples, feed.global_batch, epoch, c.drop_tail)
    steps = _asked_steps(spec, feed.global_batch, c.step, first, c)
    return LoopOpened(
        task=task.id,
        loop=c.loop,
        dataset=c.dataset,
        start=c.step,
        first=first,
        steps=steps,
        epochs=c.epochs,
    )


def _asked_steps(
    spec: "DatasetSpec", global_batch: int, start: int, first: int, c: "AttachDataset"
) -> int | None:
    """How many steps a loop has that starts at a step of the run; None for no end."""
    own = loop_steps(
        spec.total_samples, global_batch, first, c.loop_epochs, c.steps, drop_tail=c.drop_tail
    )
    if not c.until:
        return own
    left = max(c.until - start, 0)
    return left if own is None else min(own, left)


def loop_steps(
    samples: int, global_batch: int, first: int, epochs: int, steps: int, *, drop_tail: bool
) -> int | None:
    """How many steps a loop of so many epochs or steps has from a step of the dataset on.

    0 epochs or steps are no limit; None is no end.
    """
    if not epochs:
        return steps or None
    epoch = _epochs_begun(samples, global_batch, first, drop_tail)
    stop = epoch_start(samples, global_batch, epoch + epochs, drop_tail)
    return min(stop - first, steps or stop - first)


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


@decides(AttachDataset)
def attach_dataset(d: Decision, c: AttachDataset) -> Feed:
    """Attach a dataset to a task and divide it among the members; repeating is harmless."""
    task = d.state.task(c.task)
    spec = d.state.dataset(c.dataset).spec
    if c.loop:
        require_loop(task, spec, c)
    known = task.feeds.get(c.dataset)
    if known is not None:
        if not _same(known, c):
            raise AlreadyExists(
                f"task {c.task!r} trains on {c.dataset!r} with {_batches(known)}, and this worker "
                f"asks for something else: {_asked(c)}",
                hint="ask for the same batches: another global batch would change which samples "
                "each step trains. A new task can start from the weights of this one: "
                f'run.restore(..., from_="{c.task}")',
            )
        _open_loop(d, task, spec, c, c.cause)
        return known
    if c.unit == "lane":
        global_batch, count = _lanes(c, _batch_workers(task), _most_workers(task))
    else:
        global_batch, count = c.global_batch, spec.shard_count
    attached = DatasetAttached(
        task=c.task,
        dataset=c.dataset,
        unit=c.unit,
        count=count,
        global_batch=global_batch,
        epochs=c.epochs,
        batch_size=c.batch_size,
        mode=c.mode,
        window=c.window,
        rebalance=c.rebalance,
    )
    cause = d.record(attached, c.cause)
    _open_loop(d, task, spec, c, cause)
    reassign(d, task, "the dataset was attached", cause)
    return task.feeds[c.dataset]


def _open_loop(
    d: Decision,
    task: Task,
    spec: DatasetSpec,
    c: AttachDataset,
    cause: str | tuple[str, ...],
) -> None:
    known, feed = task.loops.get(c.loop), task.feeds[c.dataset]
    opened: Fact | None = new_loop(task, spec, feed, c)
    if known is not None and known.continuation < task.continuations:
        opened = LoopContinued(
            task=task.id,
            loop=c.loop,
            dataset=c.dataset,
            step=c.step,
            before=known.steps,
            steps=_asked_steps(spec, feed.global_batch, known.start, known.first, c),
            epochs=c.epochs,
        )
    if opened is not None:
        d.record(opened, cause)


def _batches(feed: Feed) -> str:
    """The parameters of a dataset's batches, as text."""
    per_worker = f" ({feed.batch_size} for each worker at its start)" if feed.batch_size else ""
    order = f"order {feed.mode}" + (f" in windows of {feed.window}" if feed.window else "")
    return f"a global batch of {feed.global_batch}{per_worker} in {feed.count} lanes, {order}"


def _asked(c: AttachDataset) -> str:
    """The batches that a worker asks for, as text."""
    batch = f"a global batch of {c.global_batch}"
    if not c.global_batch:
        batch = f"a batch of {c.batch_size} for each worker" if c.batch_size else "its own batches"
    order = f"order {c.mode}" + (f" in windows of {c.window}" if c.window else "")
    return f"{batch}{f' in {c.lanes} lanes' if c.lanes else ''}, {order}"


def _same(feed: Feed, c: AttachDataset) -> bool:
    """Whether a worker asks for the parameters that the task has; unset fields match any value."""
    return (
        (c.unit, c.batch_size, c.mode, c.window, c.rebalance)
        == (feed.unit, feed.batch_size, feed.mode, feed.window, feed.rebalance)
        and (c.unit == "lane" or c.epochs == feed.epochs)
        and (c.global_batch or feed.global_batch) == feed.global_batch
        and (c.lanes or feed.count) == feed.count
    )


def _batch_workers(task: Task) -> int:
    """The number of workers that a batch size per worker refers to: those there were at first."""
    spec = task.spec
    return task.batch_workers or (spec.min_workers if spec.elastic else len(task.members))


def _most_workers(task: Task) -> int:
    """The number of workers for which lanes are needed."""
    return max(len(task.members), task.spec.worker_count if task.spec.elastic else 0)


def _lanes(c: AttachDataset, batch_workers: int, workers: int) -> tuple[int, int]:
    """The global batch, and how many lanes share it."""
    if c.global_batch and c.batch_size:
        raise InvalidArgument(
            f"batch_size {c.batch_size} and global_batch {c.global_batch} were both given",
            hint="give one: batch_size is for each worker, global_batch for all together",
        )
    global_batch = c.global_batch or c.batch_size * batch_workers
    if global_batch <= 0:
        raise InvalidArgument(
            f"the batch is {global_batch}", hint="give a batch_size or global_batch of at least 1"
        )
    most = min(max(USUAL_LANES, 2 * workers), MAX_PARTS)
    lanes = c.lanes or largest_divisor(global_batch, most)
    if lanes <= 0 or global_batch % lanes:
        raise InvalidArgument(
            f"{lanes} lanes do not divide a global batch of {global_batch}",
            hint="choose lanes that divide the global batch",
        )
    if lanes > MAX_PARTS:
        raise InvalidArgument(f"{lanes} lanes", hint=f"use at most {MAX_PARTS} lanes")
    if lanes < workers and not c.lanes:
        raise InvalidArgument(
            f"a global batch of {global_batch} in {lanes} lanes is too few for {workers} workers",
            hint="choose a global batch that is a multiple of the number of workers",
        )
    return global_batch, lanes


def largest_divisor(number: int, most: int) -> int:
    """The largest divisor of a number up to `most`; 0 if the number is 0."""
    return next((each for each in range(min(number, most), 0, -1) if number % each == 0), 0)
