"""Worker processes whose scripts have several loops: `looper.py SCENE JSON`.

The model sums the samples it was trained on, and a schedule counts what the script does between
loops, so they show at the end whether everything was applied exactly once.
"""

import os
import signal
import time

import numpy as np
from trainee import main, place, say, scene

import strata


def arrays(name, count):
    return strata.open_arrays({"x": np.arange(count)}, name=name)


class Schedule:
    """A counter with a `state_dict`, like a learning-rate scheduler."""

    def __init__(self):
        self.count = 0

    def step(self):
        self.count += 1

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


def begin(run):
    state = {"seen": np.zeros(200), "schedule": Schedule()}
    run.restore(**state)
    return run.state["seen"], run.state["schedule"]


def train(run, seen, loader, step_s=0.0, die_at=-1):
    """Train one loop, in which all workers count each sample."""
    for batch in loader:
        with run.step() as step:
            if run.steps == die_at and run.generation == 1 and run.rank == run.world_size - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            counted = np.bincount(batch["x"], minlength=200).astype(float)
            seen += np.rint(run.average(counted, weight=1.0) * run.world_size)
            time.sleep(step_s)
            step.log(loss=1.0)
        if not step.applied:
            say("not applied", number=step.number)
        elif step.number != run.steps - 1:
            say("counted wrongly", number=step.number)


@scene
def per_epoch(epochs=3, samples=40, step_s=0.0, die_at=-1, save_after=-1, **given):
    """A loop per epoch, each followed by an evaluation and a step of the schedule."""
    with strata.join(**given) as run:
        seen, schedule = begin(run)
        say("joined", **place(run))
        loader = run.batches(arrays("numbers", samples), global_batch=8)
        for epoch in run.epochs(epochs):
            train(run, seen, loader, step_s, die_at)
            total = run.evaluate(list(range(10)), lambda batch: float(np.mean(batch)), batch_size=3)
            schedule.step()
            say("epoch", number=epoch, score=total, length=len(loader), **place(run))
            if epoch == save_after:
                run.save()
        done = {"seen": seen[:samples].tolist(), "schedule": schedule.count}
        say("done", **done, **place(run))
    say("left")


@scene
def limited(max_steps, samples=40, die_at=-1, scheduled=False, loops=1, **given):
    """Loops over epochs up to a number of steps; the script may count the epochs in its state."""
    with strata.join(**given) as run:
        seen, schedule = begin(run)
        loaders = [
            run.batches(arrays(f"numbers{number}", samples), global_batch=8)
            for number in range(loops)
        ]
        for _ in run.epochs(max_steps=max_steps):
            for loader in loaders:
                train(run, seen, loader, die_at=die_at)
            if scheduled:
                schedule.step()
        say("done", seen=sorted(seen[:samples].tolist()), **place(run))


@scene
def leave_on_stop(epochs=8, where="loop", **given):
    """Leave the script as soon as a stop is requested: in a loop, or between two loops."""
    with strata.join(checkpoint_every=5, **given) as run:
        seen, schedule = begin(run)
        loader = run.batches(arrays("numbers", 40), global_batch=8)
        for _ in run.epochs(epochs):
            for batch in loader:
                with run.step():
                    counted = np.bincount(batch["x"], minlength=200).astype(float)
                    seen += np.rint(run.average(counted, weight=1.0) * run.world_size)
                    time.sleep(0.05)
                if where == "loop" and run.stop_requested:
                    raise strata.StopRequested(run.stop_requested)
            schedule.step()
            if where == "between" and run.stop_requested:
                raise strata.StopRequested(run.stop_requested)
        done = {"seen": seen[:40].tolist(), "schedule": schedule.count}
        say("done", **done, **place(run))


@scene
def evaluated(losses, **given):
    """A loop per epoch, each followed by a validation loss and a save."""
    os.environ["STRATA_CHECKPOINT_WHEN_BUSY"] = "wait"
    with strata.join(**given) as run:
        seen, _ = begin(run)
        loader = run.batches(arrays("numbers", 40), global_batch=8)
        for epoch in run.epochs(len(losses)):
            train(run, seen, loader)
            run.log(val_loss=losses[epoch])
            run.save()
    say("left")


@scene
def plain_epochs(epochs=3, global_batch=8, **given):
    """The plain loop: `range`, with one epoch of batches in each iteration."""
    with strata.join(**given) as run:
        seen, _ = begin(run)
        steps = []
        for _ in range(epochs):
            loader = run.batches(arrays("numbers", 40), global_batch=global_batch, epochs=1)
            train(run, seen, loader)
            steps.append(run.steps)
        say("done", steps_after=steps, seen=seen[:40].tolist(), **place(run))


@scene
def two_phases(step_s=0.0, die_at=-1, **given):
    """Train a dataset, a shorter one, then the first one again."""
    with strata.join(**given) as run:
        seen, _ = begin(run)
        say("joined", **place(run))
        train(run, seen, run.batches(arrays("long", 200), global_batch=20, steps=5), step_s, die_at)
        say("first", **place(run))
        short = run.batches(arrays("short", 40), global_batch=8, epochs=2)
        train(run, seen, short, step_s, die_at)
        say("second", **place(run))
        train(run, seen, run.batches(arrays("long", 200), global_batch=20, steps=5), step_s, die_at)
        say("done", seen=seen.tolist(), **place(run))


@scene
def look_first(how, epochs=3, die_at=-1, **given):
    """Look at a batch before training: with `peek`, or with `next(iter(...))`."""
    with strata.join(**given) as run:
        seen, schedule = begin(run)
        loader = run.batches(arrays("numbers", 40), global_batch=8)
        other = run.batches(arrays("others", 30), global_batch=6)
        try:
            if how == "peek":
                looked = [each.peek()["x"].tolist() for each in (loader, other)]
            else:
                looked = [next(iter(loader))["x"].tolist()]
            say("looked", batches=looked, **place(run))
            for _ in run.epochs(epochs):
                train(run, seen, loader, 0.02, die_at)
                schedule.step()
        except (strata.StrataError, StopIteration) as error:
            say("refused", message=str(error))
            raise
        say("done", seen=seen[:40].tolist(), schedule=schedule.count, **place(run))


@scene
def leave_at_once(**given):
    """Leave a loop before its first step, which is allowed."""
    with strata.join(**given) as run:
        seen, _ = begin(run)
        loader = run.batches(arrays("numbers", 40), global_batch=8)
        for _ in run.epochs(3):
            for batch in loader:
                if run.steps >= 5:
                    break
                with run.step():
                    seen[batch["x"]] += 1
        say("done", seen=seen[:40].tolist(), **place(run))


@scene
def stop_early(at=12, alone=False, die_after=False, **given):
    """Leave an endless loop when rank 0 decides; or on rank 0 only, which is an error."""
    with strata.join(**given) as run:
        seen, _ = begin(run)
        say("joined", **place(run))
        try:
            for batch in run.batches(arrays("numbers", 40), global_batch=8):
                with run.step():
                    counted = np.bincount(batch["x"], minlength=200).astype(float)
                    seen += np.rint(run.average(counted, weight=1.0) * run.world_size)
                enough = run.steps >= at and run.rank == 0
                if enough if alone else run.agree(enough):
                    break
        except strata.StrataError as error:
            say("refused", code=error.code, message=error.message, hint=error.hint)
            raise
        if die_after and run.rank == 1 and run.incarnation <= 2:
            os.kill(os.getpid(), signal.SIGKILL)
        score = run.evaluate(list(range(10)), lambda batch: float(np.mean(batch)))
        say("done", score=score, total=float(seen.sum()), **place(run))
    say("left")


@scene
def stop_all(at=10, **given):
    """Stop all workers from one of them; nothing after the loop runs."""
    with strata.join(**given) as run:
        seen, _ = begin(run)
        for batch in run.batches(arrays("numbers", 40), global_batch=8):
            with run.step():
                counted = np.bincount(batch["x"], minlength=200).astype(float)
                seen += np.rint(run.average(counted, weight=1.0) * run.world_size)
            if run.steps == at and run.rank == run.world_size - 1:
                run.stop("good enough")
        say("after the loop")
    say("left", why=run.stop_requested)


@scene
def each_alone(**given):
    """Train without an exchange with the other workers, which is an error.

    The workers meet before the step: a worker that comes later would wait for a replacement of
    those that have failed.
    """
    with strata.join(**given) as run:
        seen, _ = begin(run)
        for batch in run.batches(arrays("numbers", 40), global_batch=8, epochs=1):
            run.barrier("before the step")
            with run.step():
                seen[batch["x"]] += 1


@scene
def fail_once(marker, **given):
    """Fail in the middle of a loop, inside a function, at the first start."""
    with strata.join(**given) as run:
        seen, _ = begin(run)
        say("joined", **place(run))
        _train_or_fail(run, seen, marker)
        say("done", seen=seen[:40].tolist(), **place(run))


def _train_or_fail(run, seen, marker):
    for batch in run.batches(arrays("numbers", 40), global_batch=8, epochs=2):
        with run.step():
            seen[batch["x"]] += 1
        if run.steps == 6 and not os.path.exists(marker):
            open(marker, "w").close()
            raise RuntimeError("the loss is not a number")


@scene
def steps_alone(steps=20, **given):
    """A loop without data."""
    with strata.join(**given) as run:
        total = run.restore(total=np.zeros(1))["total"]
        say("joined", **place(run))
        while run.steps < steps:
            with run.step() as step:
                total += run.average(1.0)
                time.sleep(0.02 if run.world_size > 1 else 0.2)  # until the other one comes
                step.log(loss=float(total[0]))
        say("done", total=float(total[0]), **place(run))


@scene
def schedule_after_restore(steps=8, **given):
    """Change the restored state before training, which is an error after a resume."""
    with strata.join(**given) as run:
        seen, schedule = begin(run)
        schedule.step()
        say("joined", **place(run))
        try:
            train(run, seen, run.batches(arrays("numbers", 40), global_batch=8, steps=50), 0.1)
        except strata.StrataError as error:
            say("refused", message=error.message, hint=error.hint)


if __name__ == "__main__":
    main()
