"""Scenes of workers that train on data: `learner.py SCENE JSON`, like `trainee.py`.

The model counts how often each sample was applied, added up over the workers in every step. So the
model itself says at the end whether each sample was trained exactly once per epoch.
"""

import os
import socket
import time

import numpy as np
from trainee import main, place, say, scene

import strata


@scene
def learn(
    total, epochs=1, step_s=0.0, sample_s=0.0, crowd=0, save_at=0, how=None, after="", **given
):
    """Trains on the dataset `numbers`, and says which samples each step gave it.

    Steps take `step_s` and `sample_s` for each sample, or until there are `crowd` workers, long
    enough for another one to come. It begins when there is a file `after`.
    """
    with strata.join(**given) as run:
        model = run.restore({"applied": np.zeros(total)})
        say("joined", **place(run))
        while after and not os.path.exists(after):
            time.sleep(0.01)
        for batch in run.batches("numbers", global_batch=8, epochs=epochs, **(how or {})):
            counted = np.bincount(batch["index"], minlength=total).astype(float)
            time.sleep(sample_s * len(batch["index"]))
            with run.step() as step:
                mean = run.average(counted, weight=1.0)
                time.sleep(step_s if run.world_size >= crowd else 0.2)
                model["applied"] += np.rint(mean * run.world_size)
                step.log(loss=1.0)
            if run.steps == step.number:
                continue  # a worker was lost: the step is done again
            say("step", own=batch["index"].tolist(), **place(run))
            if run.steps == save_at:
                run.save(model)
        say("done", applied=model["applied"].astype(int).tolist(), **place(run))
    say("left")


@scene
def forget_to_step(**given):
    """Asks for a second batch without having marked the first."""
    with strata.join(**given) as run:
        batches = run.batches("numbers", global_batch=8, epochs=1)
        next(batches)
        try:
            next(batches)
        except strata.StrataError as error:
            say("refused", code=error.code, message=error.message, hint=error.hint)


@scene
def ask(global_batch=8, **given):
    """Asks for batches, and says whether that was refused."""
    with strata.join(**given) as run:
        try:
            next(run.batches("numbers", global_batch=global_batch, epochs=1))
            say("attached", **place(run))
        except strata.StrataError as error:
            say("refused", code=error.code, message=error.message)
        run.barrier("all have asked")


@scene
def mix(first, second, steps=30, **given):
    """Trains on two datasets, one part to three, and says how many samples came from each."""
    with strata.join(**given) as run:
        few = strata.open_arrays({"x": np.zeros(first)}, name="few")
        many = strata.open_arrays({"x": np.ones(second)}, name="many")
        found = 0
        for batch in run.batches({few: 1, many: 3}, global_batch=40):
            found += int(batch["x"].sum())
            with run.step():
                pass
            if run.steps == steps:
                break
        say("done", found=found, **place(run))


@scene
def read(path, on_error="raise", processes=None, **given):
    """Trains an epoch of files, and says what could not be read; by a `DataLoader` if it is to
    have processes. Progress is recorded each time it is told."""
    os.environ["STRATA_PROGRESS_INTERVAL_S"] = "0.000001"
    how = {"on_error": on_error}
    if processes is not None:
        from strata.torch import Loading

        how |= {"engine": Loading(num_workers=processes), "contents": True}
    with strata.join(**given) as run:
        rows = 0
        try:
            files = strata.open_dataset(path, name="files")
            for batch in run.batches(files, global_batch=8, epochs=1, **how):
                with run.step():
                    rows += len(next(iter(batch.values())))
        except strata.StrataError as error:
            say("refused", code=error.code, message=error.message)
        say("done", rows=rows, **place(run))


@scene
def read_once(path, **given):
    """Opens files and trains one step of them, and says how long that took."""
    with strata.join(**given) as run:
        begun_s = time.monotonic()
        for _ in run.batches(strata.open_dataset(path, name="files"), global_batch=8, steps=1):
            with run.step():
                pass
        say("done", elapsed_s=time.monotonic() - begun_s, **place(run))


@scene
def load(path, processes, **given):
    """Trains an epoch of files as tensors by a `DataLoader`, pinned where there is a GPU."""
    import torch

    from strata.torch import Loading

    pinned = torch.cuda.is_available()
    engine = Loading(num_workers=processes, pin_memory=pinned, persistent_workers=processes > 0)
    with strata.join(**given) as run:
        say("joined", **place(run))
        for batch in run.batches(
            strata.open_dataset(path, name="files"), global_batch=8, epochs=1, engine=engine
        ):
            assert isinstance(batch["data"], torch.Tensor)
            assert batch["data"].is_pinned() == pinned
            own = batch["data"].tolist()
            with run.step() as step:
                run.average(np.zeros(1))
                time.sleep(0.02 if run.world_size > 1 else 0.5)  # until somebody else comes
            if run.steps > step.number:
                say("step", own=own, **place(run))
        say("done", **place(run))


@scene
def crack(path, options, victim, on_error, **given):
    """Trains an epoch of files, one of which is cut in half after the first step."""
    with strata.join(**given) as run:
        rows = 0
        try:
            for batch in run.batches(
                strata.open_dataset(path, name="files", **options),
                global_batch=8,
                epochs=1,
                on_error=on_error,
                prefetch_bytes=0,
            ):
                rows += len(next(iter(batch.values())))
                with run.step():
                    if not run.steps:
                        os.truncate(victim, os.stat(victim).st_size // 2)
        except strata.StrataError as error:
            say("refused", code=error.code, message=error.message)
        say("done", rows=rows, **place(run))


@scene
def roam(epochs=1, step_s=0.0, leave_at=-1, fail_at=-1, **given):
    """Trains shard by shard at its own pace; may leave a shard in the middle, or fail in one."""
    with strata.join(**given) as run:
        say("joined", **place(run))
        for count, shard in enumerate(run.shards("numbers", batch_size=8, epochs=epochs)):
            own = []
            say("shard", number=shard.number, epoch=shard.epoch)
            for batch in shard:
                own += batch["index"].tolist()
                time.sleep(step_s)
                if count == leave_at:
                    break
                if count == fail_at:
                    raise RuntimeError("the loss is not a number")
            else:
                say("trained", epoch=shard.epoch, own=own)
        say("done", **place(run))
    say("left")


@scene
def agree(rounds, late_at=-1, slow_at=-1, slow_s=0.0, cut_at=-1, wrong_at=-1, **given):
    """Averages its number with the others' numbers; in some round it never comes, comes late,
    loses its connection, or brings other arrays."""
    with strata.join(**given) as run:
        say("joined", **place(run))
        while run.steps < rounds:
            if run.steps == late_at:
                say("late")
                time.sleep(600)
            if run.steps == slow_at:
                time.sleep(slow_s)
            if run.steps == cut_at and run.generation == 1:
                run._exchanges._present._links[0].shutdown(socket.SHUT_RDWR)
            size = 2 if run.steps == wrong_at else 1
            with run.step() as step:
                mean = run.average({"rank": np.full(size, float(run.rank))}, weight=run.rank + 1.0)
            if run.steps > step.number:
                say("agreed", mean=mean["rank"].tolist(), **place(run))
            else:
                run.recover()
                say("recovered", **place(run))
    say("left")


if __name__ == "__main__":
    main()
