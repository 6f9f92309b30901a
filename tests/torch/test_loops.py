"""Guards training with other frameworks' trainers, against the real libraries: the weights, the
learning rates and the evaluations are those of the framework without Strata, on as many processes,
whatever happens to a worker in between."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from strata.core.catalogue import CODEC
from strata.core.checkpoints import CheckpointCommitted
from strata.store.base import Window
from strata.store.sqlite import SqliteReader
from tests.sdk.harness import clean_environment

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(480)]

MAIN = [sys.executable, "-c", "from strata.cli import main; main()"]
FITTING = Path(__file__).with_name("fitting.py")
FRAMEWORKS = ("huggingface", "lightning")
STEPS = 40


def require(framework):
    pytest.importorskip({"lightning": "lightning", "huggingface": "transformers"}[framework])


def variables(settings):
    return clean_environment(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", **settings)


def fit(folder, framework, workers=1, *flags, **settings):
    """Runs the script under Strata; how it ended and what was printed, and the run's log."""
    require(framework)
    done = subprocess.run(
        [
            *MAIN, "run", str(FITTING), "--workers", str(workers), "--data-dir", "data",
            *flags, "--", framework,
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        env=variables(settings),
    )  # fmt: skip
    return done, SqliteReader(folder / "data" / "log.db", CODEC)


def fitted(output):
    """What rank 0 said at its end."""
    (line,) = re.findall(r"fitted (\{.*\})", output)
    return json.loads(line)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """What the framework learns by itself, on so many processes; each case is run once."""
    known = {}

    def run(framework, workers, **settings):
        require(framework)
        case = (framework, workers, *sorted(settings.items()))
        if case not in known:
            folder = tmp_path_factory.mktemp("plain")
            known[case] = fitted(run_plain(folder, framework, workers, settings))
        return known[case]

    return run


def run_plain(folder, framework, workers, settings):
    shared = {
        "PLAIN": "1",
        "WORLD_SIZE": str(workers),
        "LOCAL_WORLD_SIZE": str(workers),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "TORCHELASTIC_RUN_ID": "plain",
        "PYTHONPATH": os.pathsep.join(sys.path),
        **settings,
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, str(FITTING), framework],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=variables(shared | {"RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0"}),
        )
        for rank in range(workers)
    ]
    outputs = [rank.communicate(timeout=240)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * workers, "\n".join(outputs)
    return outputs[0]


def assert_same(found, expected):
    """The same training; of the steps before a recovery only some may have been seen here."""
    np.testing.assert_allclose(found["weights"], expected["weights"], rtol=0, atol=1e-6)
    assert found["steps"] == expected["steps"]
    seen, whole = found["evaluated"], expected["evaluated"]
    assert bool(seen) == bool(whole)
    np.testing.assert_allclose(seen, whole[len(whole) - len(seen) :], rtol=1e-6, atol=0)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_undisturbed_training_equals_the_framework_alone(tmp_path, plain, framework, workers):
    expected = plain(framework, workers)
    done, log = fit(tmp_path, framework, workers)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_same(fitted(done.stdout), expected)
    assert fitted(done.stdout)["rates"] == expected["rates"]
    with log:
        nodes = sorted({node for node, _ in log.streams() if node.startswith("fitting-1-w")})
        assert len(nodes) == workers
        for node in nodes:
            window = Window(node=node, kinds=frozenset({"StepFinished"}))
            steps = [event.body for _, _, event in log.query(window)]
            assert [step.step for step in steps] == list(range(expected["steps"]))
            assert sum(step.loss is not None for step in steps) >= len(steps) - 1


# In the middle of an epoch, in its last step, in the first step of the next one, and of all.
@pytest.mark.parametrize(("workers", "step"), [(2, 13), (2, 15), (2, 16), (2, 0), (3, 13), (3, 22)])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_killed_worker_changes_nothing(tmp_path, plain, framework, workers, step):
    expected = plain(framework, workers)
    done, _ = fit(tmp_path, framework, workers, KILL_AT=str(step))
    assert done.returncode == 0, done.stdout + done.stderr
    went_on = f"goes on from step {step} (peer)" if step else "starts from step 0"
    assert went_on in done.stdout
    assert_same(fitted(done.stdout), expected)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_killed_rank_0_changes_nothing(tmp_path, plain, framework):
    expected = plain(framework, 2)
    done, _ = fit(tmp_path, framework, 2, KILL_AT="13", KILL_RANK="0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "goes on from step 13 (peer)" in done.stdout
    assert_same(fitted(done.stdout), expected)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_worker_killed_alone_resumes_from_a_checkpoint(tmp_path, plain, framework):
    expected = plain(framework, 1)
    settings = {"STRATA_CHECKPOINT_EVERY": "5", "STRATA_CHECKPOINT_WHEN_BUSY": "wait"}
    done, _ = fit(tmp_path, framework, 1, KILL_AT="30", **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    (step,) = map(int, re.findall(r"goes on from step (\d+) \(checkpoint\)", done.stdout))
    assert step in (20, 25), "the save of step 25 began when that of step 20 was committed"
    found = fitted(done.stdout)
    assert_same(found, expected)
    assert found["rates"] == expected["rates"][step:]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_worker_killed_in_an_evaluation_sends_all_to_a_checkpoint(tmp_path, plain, framework):
    expected = plain(framework, 2)
    settings = {"KILL_AT": "32", "KILL_IN": "evaluation", "STRATA_CHECKPOINT_EVERY": "3"}
    done, _ = fit(tmp_path, framework, 2, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"goes on from step \d+ \(checkpoint\)", done.stdout)
    found = fitted(done.stdout)
    np.testing.assert_allclose(found["weights"], expected["weights"], rtol=0, atol=1e-6)
    assert found["steps"] == expected["steps"]
    np.testing.assert_allclose(found["evaluated"][-2:], expected["evaluated"][-2:], rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "step"),
    [
        ({"ACCUMULATE": "3"}, 5),
        ({"MAX_STEPS": "21"}, 16),
        ({"HALF_EPOCHS": "1"}, 12),
        ({"LOADERS": "1"}, 19),
        ({"STOP_EARLY": "1"}, 13),
    ],
    ids=["accumulation", "max_steps", "evaluation_in_epochs", "loader_processes", "early_stopping"],
)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_killed_worker_changes_nothing_with(tmp_path, plain, framework, settings, step):
    expected = plain(framework, 2, **settings)
    done, _ = fit(tmp_path, framework, 2, KILL_AT=str(step), **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_same(fitted(done.stdout), expected)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_preempted_worker_saves_and_is_replaced(tmp_path, plain, framework, workers):
    expected = plain(framework, workers)
    done, log = fit(tmp_path, framework, workers, STOP_AT="12")
    assert done.returncode == 0, done.stdout + done.stderr
    with log:
        saved = [e.body.step for e in log.read() if isinstance(e.body, CheckpointCommitted)]
    assert saved
    assert saved[0] > 12
    assert_same(fitted(done.stdout), expected)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_stopped_task_saves_and_does_not_come_to_its_end(tmp_path, framework, workers):
    require(framework)
    command = ["run", str(FITTING), "--workers", str(workers), "--data-dir", "data"]
    with subprocess.Popen(
        [*MAIN, *command, "--", framework],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=variables({"WAIT_AT": "12"}),
    ) as running:
        assert running.stdout is not None
        shown = ""
        for line in running.stdout:
            shown += line
            if "waits for a stop" in line:
                running.send_signal(signal.SIGINT)
    assert running.returncode == 130, shown
    assert "fitted" not in shown
    with SqliteReader(tmp_path / "data" / "log.db", CODEC) as log:
        saved = [e.body.step for e in log.read() if isinstance(e.body, CheckpointCommitted)]
    assert saved, shown
    assert 12 < saved[-1] < STEPS


@pytest.mark.parametrize(
    ("framework", "given", "named"),
    [
        ("huggingface", "iterable", "does not support an IterableDataset"),
        ("huggingface", "skip", "does not support ignore_data_skip"),
        ("huggingface", "trainer", "needs a function that builds the Trainer"),
        ("lightning", "iterable", "does not support an IterableDataset"),
        ("lightning", "plateau", "does not support ReduceLROnPlateau with interval='step'"),
        ("lightning", "monitor", "ReduceLROnPlateau monitors 'train'"),
        ("lightning", "sampler", "does not support a training sampler of type RandomSampler"),
    ],
)
def test_what_cannot_be_resumed_exactly_is_refused_by_name(tmp_path, framework, given, named):
    done, _ = fit(tmp_path, framework, 1, "--max-restarts", "0", REFUSED=given)
    assert done.returncode != 0
    assert named in done.stdout + done.stderr


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_fewer_workers_are_refused(tmp_path, framework):
    flags = ("--policy", "continue", "--min-workers", "1")
    done, _ = fit(tmp_path, framework, 2, *flags, KILL_AT="13")
    assert done.returncode != 0
    assert "trains with 2 workers and has 1 now" in done.stdout + done.stderr
