"""Workers that a user starts with only COORDINATOR_ADDR set: `user_worker.py SCENE`."""

import os
import time

import numpy as np
from trainee import main, say, scene

import strata
from strata import TrainingOrchestrator

GLOBAL_BATCH = 12


@scene
def joined(data, total, gate, **given):
    """Train with `strata.join`; the model counts how often each sample was applied.

    From step 5 on it waits until file `gate` exists.
    """
    with strata.join(**given) as run:
        model = run.restore({"applied": np.zeros(total)})
        say("joined", worker=run.worker_id, task=run.task_id, world_size=run.world_size)
        rows = strata.open_dataset(data, name="rows")
        for batch in run.batches(rows, global_batch=GLOBAL_BATCH, epochs=1):
            while run.steps >= 5 and not os.path.exists(gate) and not run.membership_changed:
                time.sleep(0.01)
            own = np.bincount(batch["index"], minlength=total) / max(len(batch["index"]), 1)
            with run.step() as step:
                model["applied"] += np.rint(run.average(own) * GLOBAL_BATCH)
                step.log(loss=1.0)
            say("stepped", step=run.steps, world_size=run.world_size)
        say("trained", steps=run.steps, applied=model["applied"].astype(int).tolist())


@scene
def called(dataset, steps, gate, **given):
    """Train with `TrainingOrchestrator`: request shards in each step, and pass a barrier.

    It leaves when file `gate` exists.
    """
    with TrainingOrchestrator() as orchestrator:
        config = orchestrator.register_worker(**given)
        say("joined", worker=config.worker_id)
        orchestrator.barrier("start")
        for step in range(steps):
            shards = [shard.shard_id for shard in orchestrator.get_shards(dataset)]
            orchestrator.heartbeat(step=step, state="training")
            say("stepped", step=step, shards=shards, world_size=orchestrator.world_size)
            orchestrator.barrier(f"step-{step}")
        while not os.path.exists(gate):
            time.sleep(0.01)
        say("trained", steps=steps)


if __name__ == "__main__":
    main()
