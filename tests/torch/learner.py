"""Trains every case of `cases.py` in one run, each with its own model; `strata run` starts it.

Config: `signals` is what rank 1 sends itself, each once: `step:signal`, or `step:signal:case` to do
so before a case that is not the first. `only` is the one case to train, `communicate` lets one
worker alone do what several do, `late` lets optimizers be launched as on a GPU. With `skip` rank 1
is killed after its backward pass in step 12, and rank 0 finds its collectives aborted. Writes what
it trained and learned to `folder`.
"""

import json
import os
import signal
import time
from pathlib import Path

import torch
from cases import ALONE, BATCH, CASES, DEVICE, SAMPLES, STEPS, data

import strata
import strata.torch


def main() -> None:
    torch.set_num_threads(1)
    dataset = strata.open_arrays(data(), name="rows")
    with strata.join(checkpoint_every=5) as run:
        folder = Path(str(run.config["folder"]))
        wanted = [str(run.config["only"])] if run.config.get("only") else list(CASES)
        if run.world_size > 1:
            wanted = [name for name in wanted if name not in ALONE]
        cases = {name: CASES[name]() for name in wanted}
        for case in cases.values():
            strata.torch.data_parallel(run, case.model)
        for hook in run._hooks._hooks:
            hook.always_communicate = bool(run.config.get("communicate"))
            hook.averaging.late = bool(run.config.get("late"))
        if run.config.get("skip"):
            abort_once(run, *cases.values())
        run.restore({name: case.state() for name, case in cases.items()})
        if run.steps == 0:
            torch.manual_seed(1)
        epochs = STEPS * BATCH // SAMPLES
        for batch in run.batches(dataset, global_batch=BATCH, epochs=epochs):
            x, y = (torch.from_numpy(batch[name]).to(DEVICE) for name in ("x", "y"))
            number, rank = run.steps, run.rank
            for case in cases.values():
                case.prepare()
            with run.step() as step:
                for name, case in cases.items():
                    disturb(run, name, wanted)
                    case.update(x, y, step)
            if run.steps > number:
                said = json.dumps(batch["row"].tolist())
                (folder / f"rows-{number}-{rank}").write_text(said)
        if run.rank == 0:
            for name, case in cases.items():
                torch.save(case.result(), folder / f"{name}.pt")


def abort_once(run, case):
    """Lets the optimizer be launched after the collectives of step 12 were aborted."""
    (hook,) = run._hooks._hooks
    apply = case.apply

    def disturbed():
        if (run.steps, run.generation) == (12, 1):
            if run.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            while not run.membership_changed:
                time.sleep(0.01)
            delivery = hook.averaging._delivery
            aborted = torch.ones(())
            delivery.__init__(torch.tensor(delivery.head), hook.averaging._head, 2, aborted)
            before = case.result()
            try:
                apply()
            finally:
                assert torch.equal(case.result(), before)
        apply()

    case.apply = disturbed


def disturb(run, name, wanted) -> None:
    for each in str(run.config.get("signals", "")).split():
        step, number, *before = each.split(":")
        done = Path(str(run.config["folder"]), f"sent-{step}")
        here = (run.rank, run.steps, name) == (1, int(step), *(before or wanted[:1]))
        if here and not done.exists():
            done.touch()
            os.kill(os.getpid(), int(number))


if __name__ == "__main__":
    main()
