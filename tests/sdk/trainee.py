"""Worker processes for tests: `trainee.py SCENE JSON`. Each prints its progress as JSON."""

import gc
import json
import logging
import multiprocessing
import os
import random
import resource
import sys
import threading
import time
from functools import partialmethod

import grpc
import numpy as np
import psutil

import strata
from strata.checkpoint.read.box_overlaps import even_cuts
from strata.storage import direct_io
from strata.storage.folder import LocalStorage
from strata.storage.s3 import S3Storage

SCENES = {}


def scene(function):
    SCENES[function.__name__] = function
    return function


def say(what: str, **more: object) -> None:
    # Past the capture, in one write, so that lines of several threads do not mix.
    os.write(1, (json.dumps({"say": what, **more}) + "\n").encode())


def place(run) -> dict[str, object]:
    names = ("task_id", "worker_id", "incarnation", "rank", "world_size", "generation")
    names += ("attempt", "steps")
    return {name: getattr(run, name) for name in names} | {"pid": os.getpid()}


@scene
def frame(gate, **given):
    """Train one step with a framework's trainer, which is built when the file `gate` is there."""
    with strata.join(**given) as run:
        say("joined")
        while not os.path.exists(gate):
            time.sleep(0.01)
        run.declare_trainer("a trainer")
        run.restore({"w": np.zeros(2)})
        say("restored", source=run.recovery.source)
        run.barrier("together")
        run.mark_step()
    say("left")


@scene
def meet(rounds=3, barrier="b", **given):
    """Join, pass a few barriers, leave."""
    with strata.join(**given) as run:
        say("joined", **place(run))
        for _ in range(rounds):
            result = run.barrier(barrier)
            say("met", participants=result.participants, order=result.arrival_order)
            run.mark_step(loss=1.0)
    say("left")


@scene
def train(step_s=0.01, steps=10**9, barrier_every=0, **given):
    """Step until a stop, entering every new generation."""
    with strata.join(**given) as run:
        say("joined", **place(run))
        try:
            while run.steps < steps and _one_step(run, step_s, barrier_every):
                pass
        finally:
            say("ending", why=run.stop_requested, **place(run))
    say("left")


def _one_step(run, step_s, barrier_every):
    try:
        if barrier_every and run.steps % barrier_every == 0:
            run.barrier(f"step-{run.steps}")
            say("met", step=run.steps, incarnation=run.incarnation)
        time.sleep(step_s)
        return run.mark_step(loss=1.0 / (run.steps + 1))
    except strata.GenerationChanged:
        recovery = run.sync()
        how = {"source": recovery.source, "step": recovery.step, "in_place": recovery.in_place}
        say("synced", **how, **place(run))
        return True


@scene
def leave_nothing(**given):
    """Join and leave; print how many streams are not finalized then."""
    gc.disable()
    with strata.join(**given):
        pass
    kept = [each for each in gc.get_objects() if isinstance(each, grpc.RpcError)]
    say("kept", streams=len(kept))


@scene
def wait_alone(barrier="never", **given):
    """Wait at a barrier at which no other worker arrives."""
    with strata.join(**given) as run:
        say("joined", **place(run))
        try:
            run.barrier(barrier)
        except KeyboardInterrupt:
            say("interrupted")
            raise


@scene
def gate(gate, rounds=2, barrier="b", **given):
    """Arrive at the barrier when a file exists."""
    with strata.join(**given) as run:
        say("joined", **place(run))
        while not os.path.exists(gate):
            time.sleep(0.01)
        for _ in range(rounds):
            result = run.barrier(barrier)
            say("met", participants=result.participants, order=result.arrival_order)
            run.mark_step(loss=1.0)
    say("left")


@scene
def fail(**given):
    """Raise an error inside the block."""
    with strata.join(**given) as run:
        say("joined", **place(run))
        raise RuntimeError("the loss is not a number")


@scene
def forks(**given):
    """Fork children like a data loader, before and after the session is used."""
    with strata.join(**given) as run:
        say("joined", **place(run))
        context = multiprocessing.get_context("fork")
        loader = context.Process(target=_load, args=(run,))
        loader.start()
        loader.join(20)
        say("loader", code=loader.exitcode)
        sleeper = context.Process(target=time.sleep, args=(60,))
        sleeper.start()
        sleeper.terminate()
        sleeper.join(20)
        say("sleeper", code=sleeper.exitcode)
        child = os.fork()
        if child == 0:
            sys.exit(7)
        say("forked", code=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        run.barrier("after")
        say("met", **place(run))
    say("left")


def _load(run):
    run.emit(strata.Fact())
    try:
        run.barrier("in a child")
    except strata.StrataError as error:
        say("refused", code=error.code, message=error.message)


@scene
def talk(lines=3, **given):
    """Print and log."""
    with strata.join(**given) as run:
        for number in range(lines):
            print(f"line {number} of {run.worker_id}")
        logging.getLogger("trainer").error("it went wrong \udc80 somewhere")
        run.mark_step()
    say("left")


@scene
def in_thread(**given):
    """Join, step and leave in a thread other than the main one."""

    def work():
        with strata.join(**given) as run:
            say("joined", **place(run))
            run.barrier("b")
            run.mark_step()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    say("left")


@scene
def forgets(**given):
    """End without leaving."""
    run = strata.join(**given)
    say("joined", **place(run))
    run.mark_step()


def resident_bytes() -> int:
    return psutil.Process().memory_info().rss


def value_after(steps: int) -> list[float]:
    """The model of `keep` after so many steps, each applied once, with any workers."""
    numbers = np.arange(1, steps + 1, dtype=np.float64)
    return [float(numbers.sum()), float((numbers**2).sum())]


@scene
def keep(
    steps=50,
    step_s=0.01,
    size=1000,
    meet=True,
    functional=False,
    from_="",
    dawdle_s=0.0,
    when_busy="postpone",
    adaptive=False,
    linger="",
    **given,
):
    """Train a model that shows whether each step was applied exactly once, and save it.

    With `linger`, it stays after the loop until that file exists.
    """
    os.environ["STRATA_CHECKPOINT_ADAPTIVE"] = str(adaptive).lower()
    os.environ["STRATA_CHECKPOINT_WHEN_BUSY"] = when_busy
    with strata.join(**given) as run:
        initial = {"sum": np.zeros(size), "squares": np.zeros((size, 2)), "applied": 0}
        run.restore(initial, from_=from_)
        first = {"applied": run.state["applied"], "interval_s": run.checkpoint_interval_s}
        say("restored", source=run.recovery.source, **first, **place(run))
        while run.steps < steps:
            try:
                if meet:
                    run.barrier(f"step-{run.steps}")
                run.state = applied(run.state, run.steps + 1, functional)
                time.sleep(step_s)
                going = run.mark_step(loss=1.0)
                if run.save_due() and run.save(metadata={"by": run.worker_id}):
                    told = {"interval_s": run.checkpoint_interval_s, "memory": resident_bytes()}
                    told["cost_s"] = run._run_state.due.cost_s
                    say("saved", step=run.steps, rank=run.rank, **told)
                if not going:
                    break
            except strata.GenerationChanged:
                run.sync()
                time.sleep(dawdle_s)
                run.restore(run.state)
                how = {"in_place": run.recovery.in_place, "interval_s": run.checkpoint_interval_s}
                say("recovered", source=run.recovery.source, **how, **place(run))
        say("looped")
        while linger and not os.path.exists(linger):
            time.sleep(0.005)
        found = [float(run.state["sum"].min()), float(run.state["squares"].max())]
        exact = found == value_after(run.steps) and run.state["applied"] == run.steps
        say("ended", exact=exact, found=found, why=run.stop_requested, **place(run))
    say("left")


@scene
def seeded(seed, steps=10, from_="", **given):
    """Seed the random generators, restore, and print their next numbers."""
    with strata.join(**given) as run:
        random.seed(seed)
        np.random.seed(seed)
        run.restore({"weight": np.zeros(3)}, from_=from_)
        say("drew", numbers=[random.random(), float(np.random.random())])
        while run.steps < steps:
            run.mark_step(loss=1.0)
            if run.save_due():
                run.save()
    say("left")


@scene
def drift(steps=40, drift_at=15, **given):
    """Save every ten steps; from `drift_at` to step 30 one element of rank 1 differs."""
    os.environ["STRATA_CHECKPOINT_WHEN_BUSY"] = "wait"
    with strata.join(**given) as run:
        state = {"weight": np.zeros(5_000), "running_mean": np.zeros(4)}
        run.restore(state)
        while run.steps < steps:
            run.barrier(f"step-{run.steps}")
            state["weight"] += 1
            if run.rank == 1 and run.steps in (drift_at, 25):
                state["running_mean"][2] += 1 if run.steps == drift_at else -1
            run.mark_step(loss=1.0)
            if run.save_due():
                run.save()
    say("left")


@scene
def measured(values, steps, step_s=0.0, **given):
    """Save every ten steps; rank 0 logs `values` as val_loss after the steps that they name."""
    os.environ["STRATA_CHECKPOINT_WHEN_BUSY"] = "wait"
    with strata.join(checkpoint_every=10, **given) as run:
        state = {"weight": np.zeros(1_000)}
        run.restore(state)
        while run.steps < steps:
            run.barrier(f"step-{run.steps}")
            state["weight"] += 1
            time.sleep(step_s)
            run.mark_step(loss=1.0)
            if str(run.steps) in values:
                run.log(val_loss=values[str(run.steps)] + run.rank)
            if run.save_due():
                run.save()
    say("left")


@scene
def keep_in_little_room(largest_bytes, **given):
    """Like `keep`, with a disk that rejects larger files."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_bytes, largest_bytes))
    keep(**given)


@scene
def keep_on_a_slow_disk(gate, **given):
    """Like `keep`, with a disk that blocks in the middle of a part until a file exists."""
    put_stream = LocalStorage.put_stream

    def slowly(storage, name, chunks, **more):
        def held():
            for chunk in chunks:
                yield chunk
                say("writing", name=name)
                while not os.path.exists(gate):
                    time.sleep(0.005)

        return put_stream(storage, name, held(), **more)

    LocalStorage.put_stream = slowly
    keep(**given)


@scene
def keep_on_a_stalling_disk(gate, **given):
    """Like `keep`, on a disk that blocks after the first block of a file until file `gate` exists.

    Progress is recorded at every call.
    """
    os.environ["STRATA_PROGRESS_INTERVAL_S"] = "0.000001"
    write = direct_io.write_all

    def stalling(fd, view, offset):
        while offset and not os.path.exists(gate):
            time.sleep(0.01)
        write(fd, view, offset)

    direct_io.write_all = stalling
    keep(**given)


@scene
def keep_impatiently(retries, **given):
    """Like `keep`, with short S3 timeouts, and progress that is recorded at every call."""
    os.environ["STRATA_PROGRESS_INTERVAL_S"] = "0.000001"
    S3Storage.__init__ = partialmethod(S3Storage.__init__, **retries)
    keep(**given)


@scene
def shards(steps=20, rows=1000, **given):
    """Each rank holds its rows of one matrix, divided again when the world size changes."""
    with strata.join(**given) as run:
        edges = even_cuts(rows, run.world_size)
        start, stop = int(edges[run.rank]), int(edges[run.rank + 1])
        own = np.arange(start * 3, stop * 3, dtype=np.float32).reshape(-1, 3)
        if run.recovery.source == "checkpoint":
            own = np.zeros_like(own)
        matrix = strata.Sharded(own, [rows, 3], [start, 0])
        run.restore({"matrix": matrix, "alike": np.full(10, run.steps)})
        right = np.arange(start * 3, stop * 3).reshape(-1, 3) + run.steps
        say("restored", exact=bool((own == right).all()), bytes=own.nbytes, **place(run))
        while run.steps < steps:
            run.barrier(f"step-{run.steps}")
            own += 1
            run.mark_step()
            run._run_state.save_if_due(run.steps, 0)
    say("left")


def applied(state, number, functional):
    """The state after one more step: the same arrays, or new ones."""
    if functional:
        return {
            "sum": state["sum"] + number,
            "squares": state["squares"] + number**2,
            "applied": state["applied"] + 1,
        }
    state["sum"] += number
    state["squares"] += number**2
    state["applied"] += 1
    return state


def main() -> None:
    name, order = sys.argv[1:]
    SCENES[name](**json.loads(order))


if __name__ == "__main__":
    main()
