"""Worker processes that train on data: `learner.py SCENE JSON`, like `trainee.py`.

The model counts how often each sample was applied, summed over the workers in every step. So it
shows at the end whether each sample was trained exactly once per epoch.
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
    """Train on the dataset `numbers`, and print the samples of each step.

    A step takes `step_s`, and `sample_s` for each sample; until there are `crowd` workers it takes
    longer, so that another one can join. Starts when file `after` exists.
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
    """Take a second batch without applying a step for the first."""
    with strata.join(**given) as run:
        batches = run.batches("numbers", global_batch=8, epochs=1)
        next(batches)
        try:
            next(batches)
        except strata.StrataError as error:
            say("refused", code=error.code, message=error.message, hint=error.hint)


@scene
def ask(global_batch=8, **given):
    """Request batches, and print the error if they are refused."""
    with strata.join(**given) as run:
        try:
            next(run.batches("numbers", global_batch=global_batch, epochs=1))
            say("attached", **place(run))
        except strata.StrataError as error:
            say("refused", code=error.code, message=error.message)
        run.barrier("all have asked")


@scene
def mix(first, second, steps=30, **given):
    """Train on two datasets mixed 1 to 3, and print the number of samples of each."""
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
    """Train an epoch of files, and print errors; with a `DataLoader` if it has processes.

    Progress is recorded at every call.
    """
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
    """Open files and train one step, and print how long that took."""
    with strata.join(**given) as run:
        begun_s = time.monotonic()
        for _ in run.batches(strata.open_dataset(path, name="files"), global_batch=8, steps=1):
            with run.step():
                pass
        say("done", elapsed_s=time.monotonic() - begun_s, **place(run))


@scene
def load(path, processes, **given):
    """Train an epoch of files as tensors of a `DataLoader`, pinned if there is a GPU."""
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
                time.sleep(0.02 if run.world_size > 1 else 0.5)  # until another worker joins
            if run.steps > step.number:
                say("step", own=own, **place(run))
        say("done", **place(run))


@scene
def crack(path, options, victim, on_error, **given):
    """Train an epoch of files, one of which is truncated after the first step."""
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
    """Train shard by shard at its own pace; may leave a shard early, or fail in one."""
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
    """Average its number with the others'; in one round it may be missing or late, lose its
    connection, or pass different arrays."""
    with strata.join(**given) as run:
        say("joined", **place(run))
        while run.steps < rounds:
            if run.steps == late_at:
                say("late")
                time.sleep(600)
            if run.steps == slow_at:
                time.sleep(slow_s)
            if run.steps == cut_at and run.generation == 1:
                run._exchanges._current._links[0].socket.shutdown(socket.SHUT_RDWR)
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
