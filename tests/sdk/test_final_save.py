"""The final checkpoint of a task is written even if a worker is killed."""

import signal

import pytest

from strata.checkpoint.manager import CheckpointManager
from tests.sdk.harness import until
from tests.sdk.test_saving import TASK, states

STEPS = 10
COMPLETED = f"strata: task {TASK} is completed, so this process has nothing to do"


@pytest.fixture
def training(hub, trainees, tmp_path):
    """Start workers of one task that save at their end: `training("abc", slow="c")`."""

    def start(names, slow="", lingers="", every=10**6):
        given = {"world_size": len(names), "steps": STEPS, "checkpoint_every": every}
        workers = {}
        for name in names:
            scene = "keep_on_a_slow_disk" if name == slow else "keep"
            more = {"gate": str(tmp_path / "never")} if name == slow else {}
            more |= {"linger": str(tmp_path / "go")} if name == lingers else {}
            workers[name] = trainees(hub.address, scene, worker_id=name, **given, **more)
        return workers

    return start


def assert_saved(hub, tmp_path, workers):
    assert [worker.ends() for worker in workers] == [0] * len(workers)
    assert all(worker.says("ended")["exact"] for worker in workers)
    task = hub.state.tasks[TASK]
    assert (task.state, task.exit_code, task.committed) == ("completed", 0, STEPS), task.reason
    (cluster,) = (tmp_path / "data" / "checkpoints").iterdir()
    with CheckpointManager(cluster / TASK) as manager:
        assert manager.latest().step == STEPS
        assert manager.load()["applied"] == STEPS


def ended_quietly(worker, line):
    assert worker.ends() == 0, worker.story()
    assert worker.output == [line + "\n"]


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_worker_killed_while_the_final_checkpoint_is_written(hub, tmp_path, training, names):
    workers = training(names, slow=names[-1])
    killed = workers.pop(names[-1])
    killed.says("writing")
    killed.kill()
    assert_saved(hub, tmp_path, [*workers.values()])
    assert [*states(hub).values()] == ["failed", "committed"]


def test_worker_killed_before_it_saves_the_final_state(hub, tmp_path, training):
    workers = training("ab", lingers="b")
    workers["b"].says("looped")
    until(lambda: states(hub), what="the final checkpoint of the other worker")
    workers["b"].kill()
    assert_saved(hub, tmp_path, [workers["a"]])


def test_worker_killed_before_another_one_comes_to_its_end(hub, tmp_path, training):
    workers = training("ab", lingers="a")
    for worker in workers.values():
        worker.says("looped")
    until(lambda: states(hub), what="the final checkpoint of the other worker")
    workers["b"].kill()
    until(lambda: not hub.state.workers["b"].alive, what="its loss")
    (tmp_path / "go").touch()
    assert_saved(hub, tmp_path, [workers["a"]])


def test_worker_declared_lost_in_the_final_save_fails(hub, tmp_path, training):
    """It was declared lost, so its model is outdated and it must start again."""
    worker = training("a", lingers="a", every=6)["a"]
    worker.says("looped")
    until(lambda: "committed" in states(hub).values(), what="a checkpoint")
    worker.signal(signal.SIGSTOP)
    until(lambda: not hub.state.workers["a"].alive, what="its loss")
    worker.signal(signal.SIGCONT)
    until(lambda: hub.state.workers["a"].alive, what="its return")
    (tmp_path / "go").touch()
    assert worker.ends() == 1
    assert "start this process again" in "".join(worker.output)
    assert hub.state.tasks[TASK].state != "completed"


def test_replacement_of_a_worker_lost_at_the_end_ends_quietly(hub, tmp_path, training, trainees):
    workers = training("ab", lingers="a")
    for worker in workers.values():
        worker.says("looped")
    workers["b"].kill()
    until(lambda: not hub.state.workers["b"].alive, what="its loss")
    late = trainees(hub.address, "keep", worker_id="c", task=TASK, steps=STEPS)
    until(lambda: "c" in hub.state.workers, what="its registration")
    (tmp_path / "go").touch()
    assert_saved(hub, tmp_path, [workers["a"]])
    ended_quietly(late, COMPLETED)


def test_process_that_joins_a_completed_task_ends_quietly(hub, tmp_path, training, trainees):
    assert_saved(hub, tmp_path, [*training("a").values()])
    late = trainees(hub.address, "keep", worker_id="c", task=TASK)
    ended_quietly(late, COMPLETED)
    again = trainees(hub.address, "keep", worker_id="a", task=TASK)
    ended_quietly(again, COMPLETED)


def test_process_that_waits_to_join_when_the_task_is_stopped_ends_quietly(hub, trainees):
    waiting = trainees(hub.address, "keep", worker_id="a", world_size=2)
    until(lambda: "a" in hub.state.workers, what="its registration")
    hub.stop_task(TASK)
    ended_quietly(waiting, f"strata: task {TASK} is stopping, so this process has nothing to do")
    assert hub.state.tasks[TASK].state == "stopped"


def test_worker_that_was_paused_until_its_task_had_completed_ends_quietly(hub, tmp_path, training):
    workers = training("ab", lingers="b")
    workers["b"].says("looped")
    workers["b"].signal(signal.SIGSTOP)
    assert_saved(hub, tmp_path, [workers["a"]])
    workers["b"].signal(signal.SIGCONT)
    until(
        lambda: "registering as a new incarnation" in "".join(workers["b"].output),
        what="its return",
    )
    (tmp_path / "go").touch()
    assert workers["b"].ends() == 0
    assert "Traceback" not in "".join(workers["b"].output)
    assert "not saved" not in "".join(workers["b"].output)
