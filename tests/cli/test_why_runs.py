"""Guards the answers of `why` about real runs: `strata run` with a cause planted in its script."""

import pytest

from strata.timeline.archive.run_lookup import open_timeline
from strata.timeline.queries import TimelineQueries
from tests.cli.runs import run, script

RESTART_LOOP = """
import os, time
import strata

with strata.join() as run:
    run.mark_step(loss=1.0)
    time.sleep(0.2)
    if not os.path.exists("calm"):
        os._exit(10 + int(os.environ["STRATA_START"]))
"""

KILLS = """
import os, signal, time
from pathlib import Path
import numpy as np
import strata

samples = strata.open_arrays({"x": np.arange(4_000, dtype=np.int64)}, name="numbers")

def kill(*names):
    for name in names:
        os.kill(int(Path(f"pid-{name}").read_text()), signal.SIGKILL)

def once(what):
    return not Path(what).exists() and (Path(what).touch() or True)

with strata.join(checkpoint_every=20) as run:
    Path(f"pid-{run.worker_id}").write_text(str(os.getpid()))
    state = run.restore({"w": np.zeros(1_000, np.float32)})
    for batch in run.batches(samples, batch_size=8, steps=90):
        if run.steps == 70 and run.worker_id.endswith("w0") and once("lost-all"):
            kill(f"{run.task_id}-w1", f"{run.task_id}-w0")
        try:
            run.average({"g": np.ones(8, np.float32)}, len(batch["x"]))
        except strata.GenerationChanged:
            continue
        state["w"] += 1
        if 60 <= run.steps < 70:
            time.sleep(0.15)  # heartbeats commit these steps, which are then rolled back
        run.mark_step(loss=1.0)
        if run.steps == 30 and run.worker_id.endswith("w1") and once("lost-one"):
            kill(run.worker_id)  # it has applied step 29, and nobody gets its record of it
        if run.save_due():
            run.save(state)
"""


def recorded(folder, text, *arguments, expected=0, data=None):
    """Run a script to its end and open its log."""
    data = data or folder / "data"
    often = {"STRATA_HEARTBEAT_INTERVAL_S": "0.25"}  # so that steps are committed soon
    code, output = run(folder, script(folder, text), "--data-dir", str(data), *arguments, **often)
    assert code == expected, output
    return open_timeline(data)


def ask(timeline, question, **params):
    return TimelineQueries(timeline).why(
        question, params={name: str(each) for name, each in params.items()}
    )


def facts(timeline, kind):
    return list(timeline.records(node="coordinator", kinds={kind}))


@pytest.fixture(scope="module")
def loop_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("loop")


@pytest.fixture(scope="module")
def loop(loop_folder):
    """A worker that ends with another exit code at each start."""
    with recorded(loop_folder, RESTART_LOOP, "--workers", "1", expected=93) as timeline:
        yield timeline


class TestRestartLoop:
    def test_every_lost_incarnation_has_its_own_exit_code(self, loop):
        losses = facts(loop, "WorkerLost")
        assert len(losses) == 4
        for start, loss in enumerate(losses, 1):
            answer = ask(loop, "lost", worker=loss.text("worker"), time_ms=loss.at_ns / 1e6)
            assert answer.verdict == "yes"
            assert answer.answer.endswith(f"exit code {10 + start}")
            exits = [each for each in answer.chain if "ended with exit code" in each.text]
            named = {each.ref for each in exits} & {
                each.ref for each in facts(loop, "WorkerExited")
            }
            assert len(named) == 1

    def test_lost_can_be_asked_for_an_incarnation(self, loop):
        second = facts(loop, "WorkerLost")[1]
        answer = ask(loop, "lost", incarnation=second.get("incarnation"))
        assert answer.answer.endswith("exit code 12")

    def test_end_of_the_task_is_explained_by_the_last_exit(self, loop):
        answer = ask(loop, "changed", task=facts(loop, "TaskSubmitted")[0].text("task"))
        assert answer.verdict == "yes"
        assert "restart loop" in answer.answer
        assert answer.chain[0].ref == facts(loop, "WorkerExited")[-1].ref

    def test_recoveries_that_train_the_same_step_again_are_a_loop(self, loop):
        changes = facts(loop, "TaskStateChanged")
        recovering = [each for each in changes if each.text("after") == "recovering"]
        third = ask(loop, "recovery", time_ms=recovering[2].at_ns / 1e6)
        assert third.verdict == "yes"
        assert "3 recoveries, and no new step between the last 3" in third.answer
        last = ask(loop, "recovery")
        assert last.verdict == "yes"
        assert last.answer.startswith("yes, it loops: ")

    def test_same_script_without_the_crash_differs_at_the_first_loss(self, loop, loop_folder):
        (loop_folder / "calm").touch()
        data = loop_folder / "again"
        with recorded(loop_folder, RESTART_LOOP, "--workers", "1", data=data) as calm:
            assert ask(calm, "trust").answer == "yes: the log is complete"
            assert ask(calm, "samples", task="script-1").verdict == "no"
            assert ask(calm, "differs", other=data).verdict == "no"
        answer = ask(loop, "differs", other=data)
        assert answer.verdict == "yes"
        assert "here script-1-w0 was declared lost (exit)" in answer.answer
        assert "there script-1 went from running to completed" in answer.answer

    def test_no_timeout_would_have_avoided_a_crash(self, loop):
        answer = ask(
            loop, "timeout", worker=facts(loop, "WorkerLost")[0].text("worker"), timeout_s=60
        )
        assert answer.verdict == "yes"
        assert "did not depend on a timeout" in answer.answer


@pytest.fixture(scope="module")
def kills(tmp_path_factory):
    """One of two workers is killed after it applied a step, and both of them later."""
    folder = tmp_path_factory.mktemp("kills")
    waits = ("--env", "STRATA_CHECKPOINT_WHEN_BUSY=wait")
    with recorded(folder, KILLS, "--workers", "2", *waits) as timeline:
        yield timeline


@pytest.fixture(scope="module")
def task(kills):
    return facts(kills, "TaskSubmitted")[0].text("task")


class TestKills:
    def test_agent_keeps_the_events_of_a_killed_worker(self, kills, task):
        answer = ask(kills, "trust")
        assert answer.verdict == "yes"
        lost = facts(kills, "WorkerLost")[0].get("incarnation")
        assert any(f"{task}-w1, incarnation {lost}, may be missing" in f for f in answer.findings)

    def test_steps_that_were_undone_are_named(self, kills, task):
        rolled = facts(kills, "RolledBack")[-1]
        answer = ask(kills, "samples", task=task)
        assert answer.verdict == "yes"
        steps = f"steps {rolled.get('to')} to {rolled.get('origin') - 1}"
        assert steps in answer.answer
        assert f"({16 * (rolled.get('origin') - rolled.get('to'))} samples)" in answer.answer

    def test_model_came_from_the_peer_and_then_from_a_checkpoint(self, kills, task):
        first, last = (facts(kills, "RecoveryChosen")[at].get("generation") for at in (1, -1))
        peer = ask(kills, "restored", task=task, generation=first)
        assert f"from the model of {task}-w0" in peer.answer
        saved = ask(kills, "restored", task=task, generation=last)
        assert "at step 60 from checkpoint step-00000060-" in saved.answer
        loads = {each.node for each in saved.chain if "load the model" in each.text}
        assert loads == {f"{task}-w0", f"{task}-w1"}

    def test_curves_mark_the_step_that_each_rollback_returned_to(self, kills, task):
        markers = TimelineQueries(kills).curves.markers(task).markers
        undone = [(each.ref, each.step) for each in markers if each.kind == "rollback"]
        assert undone == [(each.ref, each.get("to")) for each in facts(kills, "RolledBack")]
        assert undone[-1][1] == 60

    def test_recovery_is_split_into_its_stages(self, kills, task):
        lost = facts(kills, "WorkerLost")[0]
        answer = ask(kills, "recovery", task=task, time_ms=lost.at_ns / 1e6 + 1)
        assert answer.verdict == "no"
        assert len(answer.findings) == 4
        assert f"{task}-w1 was lost: its process ended with signal 9" in answer.chain[0].text

    def test_generation_change_is_explained_by_the_signal(self, kills, task):
        lost = facts(kills, "GenerationChanged")[1].get("generation")
        answer = ask(kills, "changed", task=task, generation=lost)
        assert answer.verdict == "yes"
        assert answer.chain[0].ref == facts(kills, "WorkerExited")[0].ref

    def test_throughput_drop_is_explained_by_the_loss(self, kills, task):
        lost = facts(kills, "WorkerLost")[1]
        answer = ask(kills, "throughput", task=task, time_ms=lost.at_ns / 1e6)
        assert answer.verdict == "yes"
        assert "was declared lost" in answer.answer
