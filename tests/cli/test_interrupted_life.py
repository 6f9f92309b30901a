"""Guards one training over its whole life: it is stopped, killed, failed, extended and resized at
random moments, on one to four workers, and ends with the weights of an undisturbed NumPy program.

`LIFE_INTERRUPTIONS` and `LIFE_SEED` set the number of interruptions and their seed.
"""

import json
import os
import random
import re
import signal
import subprocess
import time

import numpy as np
import pytest

import strata
from strata.cli.support.exit_codes import FAILED, INTERRUPTED, RESTART_LOOP
from tests.agent.harness import environment, worker_pids
from tests.cli.conftest import MAIN, until
from tests.cli.conftest import strata as strata_verb
from tests.cli.runs import script

WAIT_S = 120.0
TASK = "train-1"
ENDLESS = 10_000
SLOTS = 4
SAMPLES, INPUTS, BATCH = 96, 6, 12
EPOCH = SAMPLES // BATCH
INTERRUPTIONS = int(os.environ.get("LIFE_INTERRUPTIONS", "9"))
SEED = int(os.environ.get("LIFE_SEED", "1"))

MODEL = f"""
import json
import os
import time
from pathlib import Path

import numpy as np


def arrays():
    drawn = np.random.default_rng(5)
    x = drawn.normal(size=({SAMPLES}, {INPUTS}))
    return {{"x": x, "y": np.tanh(x @ drawn.normal(size=({INPUTS}, 1)))}}


class Noise:
    \"\"\"A random generator with a `state_dict`.\"\"\"

    def __init__(self):
        self.drawn = np.random.Generator(np.random.SFC64(7))

    def state_dict(self):
        return self.drawn.bit_generator.state

    def load_state_dict(self, state):
        self.drawn.bit_generator.state = state


def fresh():
    model = {{"a": np.full(({INPUTS}, 4), 0.1) + np.eye({INPUTS}, 4), "b": np.full((4, 1), 0.3)}}
    momentum = {{name: np.zeros_like(each) for name, each in model.items()}}
    return {{"model": model, "momentum": momentum, "rate": np.array([0.1]), "noise": Noise()}}


def gradients(model, batch):
    hidden = np.tanh(batch["x"] @ model["a"])
    error = hidden @ model["b"] - batch["y"]
    back = (error @ model["b"].T) * (1 - hidden**2)
    count = max(len(error), 1)
    return {{"a": batch["x"].T @ back / count, "b": hidden.T @ error / count}}


def update(state, slopes):
    for name, weights in state["model"].items():
        noise = 0.01 * state["noise"].drawn.normal(size=weights.shape)
        state["momentum"][name] *= 0.9
        state["momentum"][name] += slopes[name] + noise
        weights -= state["rate"] * state["momentum"][name]
"""

TRAINING = (
    MODEL
    + f"""

if __name__ == "__main__":
    import strata

    with strata.join(checkpoint_every=5) as run:
        state = run.restore(**fresh())
        data = strata.open_arrays(arrays(), name="rows")
        loader = run.batches(data, global_batch={BATCH})
        for _ in run.epochs(run.config["epochs"]):
            for batch in loader:
                if run.steps == run.config["fail_at"] and run.rank == run.world_size - 1:
                    raise RuntimeError("the loss is not a number")
                with run.step():
                    update(state, run.average(gradients(state["model"], batch), len(batch["y"])))
                Path(f"steps-{{run.rank}}").write_text(str(run.steps))
                time.sleep(0.03)  # so that interruptions come between and inside of steps
            state["rate"] *= 0.9
        if run.rank == 0:
            weights = [each.tolist() for each in state["model"].values()]
            Path("weights").write_text(json.dumps([run.steps, weights]))
"""
)


def undisturbed(epochs):
    """The weights after some epochs of the same training in one process without a run."""
    program = {"__name__": "model"}
    exec(MODEL, program)
    state, arrays = program["fresh"](), program["arrays"]()
    data = strata.open_arrays(arrays, name="rows")
    order = data.order(BATCH)
    for step in range(epochs * EPOCH):
        samples = order.step_samples(step)
        batch = {name: each[samples] for name, each in arrays.items()}
        program["update"](state, program["gradients"](state["model"], batch))
        if (step + 1) % EPOCH == 0:
            state["rate"] *= 0.9
    return list(state["model"].values())


class Life:
    """One training in one data folder, and what is done to it."""

    def __init__(self, folder, seed):
        self.folder = folder
        self.random = random.Random(seed)
        self.process = None
        self.runs = 0
        self.workers = 0
        self.begun = False
        script(folder, TRAINING, "train.py")

    def steps(self):
        """The newest step that a worker has made in this run; 0 before the first."""
        found = [file.read_text() for file in self.folder.glob("steps-*")]
        steps = max((int(each) for each in found if each), default=0)
        self.begun = self.begun or steps > 0
        return steps

    def output(self):
        return (self.folder / f"output-{self.runs}").read_text("utf-8")

    def start(self, epochs=ENDLESS, fail_at=-1):
        """Start `strata run` in a process group of its own, as a shell does."""
        self.runs += 1
        self.workers = self.random.randint(1, SLOTS)
        for file in self.folder.glob("steps-*"):
            file.unlink()
        options = ["--workers", str(self.workers), "--slots", str(SLOTS)]
        options += ["--config", f"epochs={epochs}", "--config", f"fail_at={fail_at}"]
        options += ["--max-restarts", "0" if fail_at >= 0 else "3"]
        options += ["--resume"] if self.begun else []
        with (self.folder / f"output-{self.runs}").open("w") as output:
            self.process = subprocess.Popen(
                [*MAIN, "run", "train.py", "--data-dir", "kept", *options],
                cwd=self.folder,
                env=environment(),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def runs_now(self):
        return self.process is not None and self.process.poll() is None

    def train(self, steps):
        """Wait until the run has made some steps."""
        until(lambda: not self.runs_now() or self.steps(), WAIT_S)
        first = self.steps()
        until(lambda: not self.runs_now() or self.steps() >= first + steps, WAIT_S)
        assert self.runs_now(), self.output()

    def ended(self, *codes):
        assert self.process.wait(WAIT_S) in codes, self.output()
        assert "audit proven" in self.output() or not self.steps(), self.output()

    def interrupt(self, kind):
        """Interrupt the training at a random moment; starts it first where necessary."""
        if kind in ENDINGS:
            self.stop_if_running()
            ENDINGS[kind](self)
            return
        if not self.runs_now():
            self.start()
        if kind in ("kill_run", "kill_all") and self.random.random() < 0.5:
            time.sleep(self.random.uniform(0.0, 3.0))
        else:
            self.train(self.random.randint(0, 15))
        time.sleep(self.random.uniform(0.0, 0.1))
        MOMENTS[kind](self)

    def stop_if_running(self):
        if self.runs_now():
            self.train(1)
            self.ctrl_c()

    def ctrl_c(self):
        os.killpg(self.process.pid, signal.SIGINT)
        self.ended(INTERRUPTED)

    def sigterm(self):
        self.process.terminate()
        self.ended(INTERRUPTED)

    def stop_by_rest(self):
        ended = strata_verb("stop", TASK, "--url", self.url(), cwd=self.folder)
        assert ended.returncode == 0, ended.stderr
        self.ended(INTERRUPTED)

    def url(self):
        return re.search(r"dashboard +(\S+)", self.output())[1]

    def kill_worker(self):
        workers = worker_pids(self.folder)
        os.kill(workers[self.random.choice(sorted(workers))], signal.SIGKILL)
        self.train(1)

    def kill_run(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(WAIT_S)
        self.steps()

    def kill_all(self):
        self.kill_run()
        for pid in worker_pids(self.folder).values():
            os.killpg(pid, signal.SIGKILL)

    def resize(self):
        """Resize to another number of workers and train with it."""
        self.workers = self.random.choice([n for n in range(1, SLOTS + 1) if n != self.workers])
        given = ("--workers", str(self.workers), "--url", self.url())
        ended = strata_verb("resize", TASK, *given, cwd=self.folder)
        assert ended.returncode == 0, ended.stderr
        self.train(2)

    def fail(self):
        """Let the script raise an exception a few steps after it continues."""
        self.start(fail_at=self.trained() + self.random.randint(3, 10))
        self.ended(FAILED, RESTART_LOOP)
        assert "the loss is not a number" in self.output()

    def complete(self):
        """Let a run with a small number of epochs complete, and check its weights."""
        epochs = self.trained() // EPOCH + self.random.randint(1, 2)
        (self.folder / "weights").unlink(missing_ok=True)
        self.start(epochs=epochs)
        self.ended(0)
        steps, weights = json.loads((self.folder / "weights").read_text())
        assert steps == epochs * EPOCH
        for found, expected in zip(weights, undisturbed(epochs), strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-6, rtol=0)

    def trained(self):
        """The step of the newest checkpoint, as its folder is named."""
        saved = (self.folder / "kept" / "checkpoints").rglob("step-*-*")
        return max((int(each.name.split("-")[1]) for each in saved), default=0)


MOMENTS = {
    "ctrl_c": Life.ctrl_c,
    "sigterm": Life.sigterm,
    "stop_by_rest": Life.stop_by_rest,
    "kill_worker": Life.kill_worker,
    "kill_run": Life.kill_run,
    "kill_all": Life.kill_all,
    "resize": Life.resize,
}
"""Interruptions of a run that trains."""

ENDINGS = {"fail": Life.fail, "complete": Life.complete}
"""Runs that end by themselves."""


def interruptions(seed):
    """Every kind once, then any, in a random order."""
    drawn, kinds = random.Random(seed), [*MOMENTS, *ENDINGS]
    chosen = kinds + drawn.choices(kinds, k=max(INTERRUPTIONS - len(kinds), 0))
    drawn.shuffle(chosen)
    return chosen


@pytest.fixture
def life(tmp_path):
    life = Life(tmp_path, SEED)
    yield life
    if life.runs_now():
        os.killpg(life.process.pid, signal.SIGKILL)
        life.process.wait(WAIT_S)
    for pid in worker_pids(tmp_path).values():
        os.killpg(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(60 * INTERRUPTIONS)
def test_training_that_is_interrupted_often_ends_with_the_weights_of_one_process(life):
    for kind in interruptions(SEED):
        print(f"{kind} in run {life.runs}", flush=True)
        life.interrupt(kind)
    life.stop_if_running()
    life.complete()
    audited = strata_verb("audit", TASK, "--data", "kept", cwd=life.folder)
    assert audited.returncode == 0, audited.stdout + audited.stderr
    assert "proven" in audited.stdout
