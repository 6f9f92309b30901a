"""The training script of these tests: it reads a dataset, saves checkpoints, waits at barriers, and
prints markup, control characters and a line of a megabyte."""

import time

import numpy as np

import strata

SAMPLES, SIDE, BATCH = 256, 8, 8
LINES = ("<script>document.title = 'broken'</script>", "bell \x07 and \x1b[31mred\x1b[0m")


def main():
    random = np.random.default_rng(1)
    images = random.integers(0, 255, (SAMPLES, SIDE, SIDE, 1), np.uint8)
    labels = random.integers(0, 10, SAMPLES)
    data = strata.open_arrays({"image": images, "label": labels}, name="noise")
    with strata.join() as run:
        if run.rank == 0:
            for line in LINES:
                print(line)
            print("long " + "x" * 1_000_000)
        state = run.restore({"mean": np.zeros(SIDE * SIDE)})
        for batch in run.batches(data, batch_size=BATCH, epochs=10_000):
            try:
                mean = run.average({"mean": batch["image"].reshape(-1, SIDE * SIDE).mean(axis=0)})
            except strata.GenerationChanged:
                continue
            state["mean"] += 0.1 * (mean["mean"] - state["mean"])
            time.sleep(float(run.config.get("step_s", 0.05)))
            run.mark_step(loss=float(state["mean"].mean()))
            if run.save_due():
                run.save(state)
            if run.steps % 20 == 0:
                print(f"step {run.steps}: mean {state['mean'].mean():.3f}")
                wait_at_barrier(run)


def wait_at_barrier(run):
    """Wait for all workers; if one is lost meanwhile, the next step reports it."""
    try:
        run.barrier("every-twenty")
    except strata.StrataError:
        return


if __name__ == "__main__":
    main()
