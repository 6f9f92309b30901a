"""Guards that a real run records every kind of the catalogue: workers that train, save, warn,
are lost one by one and all at once, and load their model from a peer and from a checkpoint."""

import pytest

from strata.timeline.archive.run_lookup import open_timeline
from strata.timeline.queries import TimelineQueries
from strata.timeline.why.questions import QUESTIONS
from tests.cli.runs import run, script

TRAINING = """
import logging, os, signal, time
from pathlib import Path
import numpy as np
import strata

os.environ["STRATA_PROGRESS_INTERVAL_S"] = "0.000001"
samples = strata.open_arrays({"x": np.arange(4_000, dtype=np.int64)}, name="numbers")

def kill(*names):
    for name in names:
        os.kill(int(Path(f"pid-{name}").read_text()), signal.SIGKILL)

def once(what):
    if Path(what).exists():
        return False
    Path(what).touch()
    return True

with strata.join(checkpoint_every=20, resource_interval=0.2) as run:
    Path(f"pid-{run.worker_id}").write_text(str(os.getpid()))
    state = run.restore({"w": np.zeros(2_000_000, np.float32)})
    for batch in run.batches(samples, batch_size=8, epochs=1):
        if run.steps == 30 and run.rank == 1 and once("lost-one"):
            kill(run.worker_id)
        if run.steps == 78 and run.rank == 0 and once("lost-all"):
            everyone = {f"{run.task_id}-w{number}" for number in range(3)}
            kill(*(everyone - {run.worker_id}), run.worker_id)
        try:
            run.average({"g": np.ones(8, np.float32)}, len(batch["x"]))
        except strata.GenerationChanged:
            continue
        state["w"] += 1
        if 60 <= run.steps < 78:
            time.sleep(0.15)  # beats say meanwhile that steps count, which are undone then
        run.mark_step(loss=1.0 / (run.steps + 1))
        if run.save_due():
            run.save(state)
            logging.getLogger("script").warning("saved at step %d", run.steps)
"""

COORDINATOR = {
    "AgentRegistered", "AssignmentChanged", "CheckpointCommitted", "CheckpointDeleted",
    "CheckpointPartAcked", "CheckpointSealed", "CheckpointStarted", "CoordinatorStarted",
    "DatasetAttached", "DatasetRegistered", "EpochAdvanced", "GenerationChanged",
    "GenerationEntered", "RecoveryChosen", "RolledBack", "StepsCommitted", "TaskPlaced",
    "TaskStateChanged", "TaskSubmitted", "WorkerExited", "WorkerLost", "WorkerRegistered",
    "WorkerStateChanged",
}  # fmt: skip

WORKERS = {
    "BatchesAssigned", "BlobAdded", "BlobDownloadCompleted", "BlobDownloadProgress",
    "BlobDownloadStarted", "BlobUploadCompleted", "BlobUploadProgress", "BlobUploadStarted",
    "CheckpointDownloadCompleted", "CheckpointDownloadProgress", "CheckpointDownloadStarted",
    "CheckpointWriteCompleted", "CheckpointWriteProgress", "CheckpointWriteStarted",
    "ClockSampled", "ConnectionChanged", "CoordinatorStateSeen", "ExchangeCompleted",
    "ExchangeOpened", "ExchangeStarted", "LogLine", "ModelLoadCompleted",
    "ModelLoadProgress", "ModelLoadStarted", "ModelSerializationCompleted",
    "ModelSerializationProgress", "ModelSerializationStarted", "ParametersRequested",
    "RequestCompleted", "RequestSubmitted", "ResourceSnapshot", "RunEnded", "RunStarted",
    "StepFinished", "TrainingFinished", "TrainingStarted",
}  # fmt: skip


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The timeline of such a run."""
    folder = tmp_path_factory.mktemp("recorded")
    name = script(folder, TRAINING)
    waits = ("--env", "STRATA_CHECKPOINT_WHEN_BUSY=wait")  # so that enough are saved to expire
    code, output = run(folder, name, "--workers", "3", "--data-dir", str(folder / "data"), *waits)
    assert code == 0, output
    with open_timeline(folder / "data") as timeline:
        yield timeline


def test_every_kind_that_such_a_run_has_is_recorded(recorded):
    kinds = {record.kind: record.node == "coordinator" for record in recorded.records()}
    assert COORDINATOR - {kind for kind, decided in kinds.items() if decided} == set()
    assert WORKERS - {kind for kind, decided in kinds.items() if not decided} == set()


def test_log_of_the_run_can_be_trusted(recorded):
    assert [
        finding.text for finding in TimelineQueries(recorded).trust().findings if finding.grave
    ] == []
    sources = [each.text("source") for each in recorded.records(kinds={"RecoveryChosen"})]
    assert {"fresh", "peer", "checkpoint"} <= set(sources)


def first(timeline, kind, field):
    """The field of the first record of a kind."""
    return next(timeline.records(kinds={kind})).text(field)


def question_params(timeline) -> dict[str, dict[str, str]]:
    """Parameters for each question about this run; it has no messages and no
    alerts to ask about."""
    task = first(timeline, "TaskSubmitted", "task")
    lost = first(timeline, "WorkerLost", "worker")
    moment = {"time_ms": repr(next(timeline.records(kinds={"WorkerLost"})).at_ns / 1e6)}
    request = next(timeline.records(kinds={"RequestSubmitted"}))
    return {
        "barrier": {"barrier": first(timeline, "BarrierReleased", "barrier")},
        "slow": {"worker": lost},
        "samples": {"task": task},
        "checkpoint": {"checkpoint": first(timeline, "CheckpointCommitted", "checkpoint")},
        "lost": {"worker": lost},
        "hang": {"task": task},
        "moved": {"shard": "0", "dataset": "numbers", "task": task},
        "changed": {"task": task},
        "restored": {"task": task},
        "request": {"worker": request.node, "request": request.text("request")},
        "recovery": {"task": task},
        "throughput": {"task": task, **moment},
        "unfinished": {"worker": lost},
        "differs": {"other": str(timeline.reader.path)},
        "trust": {},
        "timeout": {"worker": lost, "timeout_s": "60"},
        "outage": {},
    }


SURE = {
    "samples": "yes",
    "checkpoint": "yes",
    "lost": "yes",
    "changed": "yes",
    "restored": "yes",
    "request": "yes",
    "differs": "no",
    "trust": "yes",
    "timeout": "yes",
}


def test_every_question_about_it_is_answered(recorded):
    queries, params = TimelineQueries(recorded), question_params(recorded)
    assert set(QUESTIONS) - {"delivery", "alert"} == set(params)
    answers = {question: queries.why(question, params=given) for question, given in params.items()}
    assert {name: answers[name].verdict for name in SURE} == SURE
    assert all(answer.answer for answer in answers.values())
    assert all(answers[name].chain for name in ("lost", "changed", "restored", "request"))


def test_every_request_of_a_process_that_left_was_answered(recorded):
    def requests(kind):
        found = recorded.records(kinds={kind})
        return {(each.node, each.incarnation, each.text("request")) for each in found}

    left = {(each.node, each.incarnation) for each in recorded.records(kinds={"RunEnded"})}
    question_params, answered = requests("RequestSubmitted"), requests("RequestCompleted")
    assert {each for each in question_params - answered if each[:2] in left} == set()


def test_warning_of_a_script_is_recorded_also_under_an_agent(recorded):
    said = [each for each in recorded.records(kinds={"LogLine"}) if each.text("level") == "warn"]
    assert {each.node[-2:] for each in said} == {"w0", "w1", "w2"}
    assert said[0].text("message").startswith("saved at step")
