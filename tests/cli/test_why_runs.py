"""Guards the answers of `why` about real runs: `strata run` with a cause planted in its script."""

import pytest

from strata.timeline.desk import Desk
from strata.timeline.opening import open_timeline
from tests.cli.runs import run, script

RESTART_LOOP = """
import os, time
import strata

with strata.join() as run:
    run.mark_step(loss=1.0)
    time.sleep(0.2)
    os._exit(10 + int(os.environ["STRATA_START"]))
"""


def recorded(folder, text, *arguments, expected=0):
    """Runs a script to its end and opens the log that it left."""
    name = script(folder, text)
    code, told = run(folder, name, "--data-dir", str(folder / "data"), *arguments)
    assert code == expected, told
    return open_timeline(folder / "data")


def ask(timeline, question, **params):
    return Desk(timeline).why(question, params={name: str(each) for name, each in params.items()})


def facts(timeline, kind):
    return list(timeline.records(node="coordinator", kinds={kind}))


@pytest.fixture(scope="module")
def loop(tmp_path_factory):
    """A worker that ends with another exit code each time it is started."""
    folder = tmp_path_factory.mktemp("loop")
    with recorded(folder, RESTART_LOOP, "--workers", "1", expected=93) as timeline:
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

    def test_an_incarnation_can_be_asked_for_by_its_number(self, loop):
        second = facts(loop, "WorkerLost")[1]
        answer = ask(loop, "lost", incarnation=second.get("incarnation"))
        assert answer.answer.endswith("exit code 12")

    def test_the_end_of_the_task_is_explained_by_the_last_exit(self, loop):
        answer = ask(loop, "changed", task=facts(loop, "TaskSubmitted")[0].text("task"))
        assert answer.verdict == "yes"
        assert "restart loop" in answer.answer
        assert answer.chain[0].ref == facts(loop, "WorkerExited")[-1].ref

    def test_no_timeout_would_have_avoided_a_crash(self, loop):
        answer = ask(
            loop, "timeout", worker=facts(loop, "WorkerLost")[0].text("worker"), timeout_s=60
        )
        assert answer.verdict == "yes"
        assert "no timeout was involved" in answer.answer
