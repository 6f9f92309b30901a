"""Guards training with other frameworks' trainers, against the real libraries: weights, learning
rates and evaluations equal those of the framework without Strata, on as many processes, whatever
happens to a worker in between.
"""

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

from strata.core.checkpoints.checkpoint_lifecycle import CheckpointCommitted
from strata.core.record.event_codec import CODEC
from strata.store.event_store import Window
from strata.store.sqlite import SqliteReader
from tests.sdk.harness import clean_environment

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(480)]

MAIN = [sys.executable, "-c", "from strata.cli import main; main()"]
HERE = Path(__file__).parent
MODULES = {"huggingface": "transformers.trainer", "lightning": "lightning.pytorch"}
FRAMEWORKS = tuple(MODULES)
STEPS = 40


def require(framework):
    pytest.importorskip(MODULES[framework].partition(".")[0])


def script(framework):
    return str(HERE / f"fit_{framework}.py")


def variables(settings):
    """The environment of a run. Only a run that loses workers profits from prepared processes."""
    warm = bool({"KILLS", "STOP_AT"} & settings.keys())
    prepared = {"STRATA_WARM_STARTS_AFTER_S": "0.1"} if warm else {"STRATA_WARM_STARTS": "false"}
    return clean_environment(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", **(prepared | settings))


def fit(folder, framework, workers=1, *flags, **settings):
    """Run the script under Strata; return its result, its output, and the run's log."""
    require(framework)
    command = [*MAIN, "run", script(framework), "--workers", str(workers), "--data-dir", "data"]
    done = subprocess.run(
        [*command, *flags],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        env=variables(settings),
    )
    return done, SqliteReader(folder / "data" / "log.db", CODEC)


def strata(folder, *arguments):
    """Run a command of Strata in the folder, to its end."""
    return subprocess.run(
        [*MAIN, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        env=variables({}),
    )


def fitted(output):
    """What rank 0 printed at its end."""
    (line,) = re.findall(r"fitted (\{.*\})", output)
    return json.loads(line)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Prepared:
    """A process that has imported a framework, and runs its script in processes forked from it."""

    def __init__(self, framework, folder):
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "plain_ranks.py"), script(framework), MODULES[framework]],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environment(
                OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", PYTHONPATH=os.pathsep.join(sys.path)
            ),
        )

    def train(self, workers, settings):
        """Train without Strata on so many ranks; what rank 0 printed."""
        shared = {
            "PLAIN": "1",
            "WORLD_SIZE": str(workers),
            "LOCAL_WORLD_SIZE": str(workers),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "TORCHELASTIC_RUN_ID": "plain",
            "GROUP_RANK": "0",
            **settings,
        }
        ranks = [{**shared, "RANK": str(n), "LOCAL_RANK": str(n)} for n in range(workers)]
        ended = self.run(ranks)
        assert [code for code, _ in ended] == [0] * workers, ended
        return ended[0][1]

    def run(self, environments):
        """Run the script in a process for each environment; exit codes and outputs."""
        self._process.stdin.write(json.dumps(environments) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self):
        self._process.communicate()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """The process that has imported a framework: `prepared(framework)`."""
    started = {}

    def prepare(framework):
        require(framework)
        if framework not in started:
            started[framework] = Prepared(framework, tmp_path_factory.mktemp("plain"))
        return started[framework]

    yield prepare
    for each in started.values():
        each.close()


@pytest.fixture(scope="module")
def plain(prepared):
    """What the framework learns without Strata, on that many processes; each case is run once."""
    known = {}

    def train(framework, workers, **settings):
        case = (framework, workers, *sorted(settings.items()))
        if case not in known:
            known[case] = fitted(prepared(framework).train(workers, settings))
        return known[case]

    return train


def assert_same(found, expected, seen_some=True):
    """Assert the same training; of the evaluations before a recovery only some may have been seen
    here, and none if all were before it (`seen_some`).
    """
    np.testing.assert_allclose(found["weights"], expected["weights"], rtol=0, atol=1e-6)
    assert found["steps"] == expected["steps"]
    seen, whole = found["evaluated"], expected["evaluated"]
    assert len(seen) <= len(whole)
    assert bool(seen) == bool(whole) or not seen_some
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
        nodes = sorted(
            {node for node, _ in log.streams() if node.startswith(f"fit_{framework}-1-w")}
        )
        assert len(nodes) == workers
        for node in nodes:
            window = Window(node=node, kinds=frozenset({"StepFinished"}))
            steps = [event.body for _, _, event in log.query(window)]
            assert [step.step for step in steps] == list(range(expected["steps"]))
            assert sum(step.loss is not None for step in steps) >= len(steps) - 1


# In the first step of all, in the middle of an epoch, in its last step, and in the first step of
# the next one.
@pytest.mark.parametrize(("workers", "kills"), [(2, "0:1 13:1 15:0 16:1"), (3, "13:2 22:2")])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_killed_workers_change_nothing(tmp_path, plain, framework, workers, kills):
    expected = plain(framework, workers)
    done, _ = fit(tmp_path, framework, workers, "--max-restarts", "9", KILLS=kills)
    assert done.returncode == 0, done.stdout + done.stderr
    lost = re.findall(r"was lost: its process ended with signal 9", done.stdout)
    assert len(lost) == len(kills.split())
    for step in (int(kill.partition(":")[0]) for kill in kills.split()):
        went_on = f"continues from step {step} (peer)" if step else "starts from step 0"
        assert went_on in done.stdout
    assert_same(fitted(done.stdout), expected)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_worker_killed_alone_resumes_from_a_checkpoint(tmp_path, plain, framework):
    expected = plain(framework, 1)
    settings = {"STRATA_CHECKPOINT_EVERY": "5", "STRATA_CHECKPOINT_WHEN_BUSY": "wait"}
    done, _ = fit(tmp_path, framework, 1, KILLS="30:0", **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    (step,) = map(int, re.findall(r"continues from step (\d+) \(checkpoint\)", done.stdout))
    assert step in (20, 25), "the save of step 25 began when that of step 20 was committed"
    found = fitted(done.stdout)
    assert_same(found, expected)
    assert found["rates"] == expected["rates"][step:]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_worker_killed_in_an_evaluation_sends_all_to_a_checkpoint(tmp_path, plain, framework):
    expected = plain(framework, 2)
    settings = {"KILLS": "32:1", "KILL_IN": "evaluation", "STRATA_CHECKPOINT_EVERY": "3"}
    done, _ = fit(tmp_path, framework, 2, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"continues from step \d+ \(checkpoint\)", done.stdout)
    found = fitted(done.stdout)
    np.testing.assert_allclose(found["weights"], expected["weights"], rtol=0, atol=1e-6)
    assert found["steps"] == expected["steps"]
    np.testing.assert_allclose(found["evaluated"][-2:], expected["evaluated"][-2:], rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "kills"),
    [
        ({"ACCUMULATE": "3", "LOADERS": "1"}, "5:1"),
        ({"MAX_STEPS": "21", "HALF_EPOCHS": "1"}, "12:1 16:1"),
        ({"STOP_EARLY": "1"}, "13:1"),
    ],
    ids=["accumulation_and_loader_processes", "max_steps_and_half_epochs", "early_stopping"],
)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_killed_workers_change_nothing_with(tmp_path, plain, framework, settings, kills):
    expected = plain(framework, 2, **settings)
    done, _ = fit(tmp_path, framework, 2, "--max-restarts", "9", KILLS=kills, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("was lost: its process ended with signal 9") == len(kills.split())
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
    # The signal is noticed after a step: on a busy machine, that may be the last one.
    assert_same(fitted(done.stdout), expected, seen_some=saved[0] < expected["steps"])


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_stopped_task_saves_and_does_not_come_to_its_end(tmp_path, framework, workers):
    require(framework)
    command = ["run", script(framework), "--workers", str(workers), "--data-dir", "data"]
    with subprocess.Popen(
        [*MAIN, *command],
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


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_another_number_of_workers_is_refused_while_it_trains_and_when_it_continues(
    tmp_path, framework
):
    require(framework)
    task = f"fit_{framework}-1"
    command = ["run", script(framework), "--data-dir", "data"]
    refusals = []
    with subprocess.Popen(
        [*MAIN, *command, "--workers", "2"],
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
                url = re.search(r"dashboard +(\S+)", shown)[1]
                refusals.append(strata(tmp_path, "resize", task, "--workers", "1", "--url", url))
                running.send_signal(signal.SIGINT)
    assert running.returncode == 130, shown
    assert "was lost" not in shown
    refusals.append(strata(tmp_path, *command, "--workers", "1"))
    for refused in refusals:
        assert refused.returncode != 0, refused.stdout
        assert f"task '{task}' keeps its number of workers" in refused.stdout + refused.stderr
    continued = strata(tmp_path, *command, "--workers", "2")
    assert continued.returncode == 0, continued.stdout + continued.stderr
    assert fitted(continued.stdout)["steps"] == STEPS


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
def test_what_cannot_be_resumed_exactly_is_refused_by_name(
    tmp_path, prepared, framework, given, named
):
    alone = {"REFUSED": given, "STRATA_DATA_DIR": str(tmp_path)}
    ((code, output),) = prepared(framework).run([alone])
    assert code != 0
    assert named in output


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_fewer_workers_are_refused(tmp_path, framework):
    flags = ("--policy", "continue", "--min-workers", "1", "--max-restarts", "1")
    settings = {"KILLS": "13:1", "STRATA_WARM_STARTS": "false"}
    done, _ = fit(tmp_path, framework, 2, *flags, **settings)
    assert done.returncode != 0
    assert "trains with 2 workers and has 1 now" in done.stdout + done.stderr
