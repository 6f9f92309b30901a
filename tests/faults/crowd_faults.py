"""A crowd: a thousand workers that join at once and vanish at once, beside a task that trains."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.agent.harness import environment, until
from tests.faults.fault_checks import Why
from tests.faults.fault_cluster import WAIT_S, Given, Trial
from tests.faults.fault_matrix import fault

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CROWD = 1_000
JOIN = "import sys, fleet; fleet.Fleet(int(sys.argv[1]), int(sys.argv[2])); print('joined')"


@contextmanager
def patient(folder: Path) -> Iterator[Given]:
    """Long timeouts: a thousand sessions may keep two cores busy for seconds."""
    yield Given({"heartbeat_timeout_s": 30.0})


@fault(
    "1,000 sessions at once",
    "1,000 workers of another task register and open sessions at once, and vanish together",
    prepare=patient,
)
def crowd(trial: Trial) -> Why:
    command = [sys.executable, "-c", JOIN, str(trial.cluster.coordinator.port), str(CROWD)]

    def join() -> None:
        ended = subprocess.run(
            command,
            cwd=BENCHMARKS,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
        assert ended.stdout == "joined\n", ended.stderr

    trial.plant(join)
    trial.lift(lambda: None)
    until(lambda: len(trial.since("WorkerLost")) == CROWD, "the loss of all of them", WAIT_S)
    assert not [each for each in trial.since("WorkerLost") if each["fields"]["task"] == trial.task]
    last = trial.since("WorkerLost")[-1]["fields"]["worker"]
    return Why(("lost", f"worker={last}"), "its connection broke")
