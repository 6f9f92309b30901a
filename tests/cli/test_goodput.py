"""Guards goodput on real processes: planted causes (a killed worker with and without a spare, slow
data, a slow worker, evaluation, SIGSTOP, a rollback, missing events) get the time that was planted,
and the terminal, REST and the audit give the same figures."""

import json
import shutil

import httpx
import pytest

from strata.core.record.event_codec import CODEC
from strata.store.event_batches import pack, unpack
from strata.store.memory_store import MemoryStore
from strata.timeline.archive.run_lookup import open_timeline
from strata.timeline.goodput.ledger import ledger
from strata.timeline.goodput.task_goodput import goodput, newest_task
from strata.timeline.queries import TimelineQueries
from strata.timeline.read.run_timeline import Timeline
from tests.cli.conftest import Started, strata
from tests.cli.runs import run, script, seen, url_of
from tests.cli.trained import DATA_S
from tests.coordinator.rest.served import Coordinator

SLOW_S = 0.15
SLOW_STEPS = 10
SCORE_S = 0.5
STOPPED_S = 5.0
HEARTBEAT_S = 1.0

PLANTED = f"""
import os, signal, subprocess, time
from pathlib import Path
import numpy as np
import strata

samples = strata.open_arrays({{"x": np.arange(640, dtype=np.int64)}}, name="numbers")

def score(batch):
    time.sleep({SCORE_S})
    return 1.0

def once(name):
    if Path(name).exists():
        return False
    Path(name).touch()
    return True

with strata.join(checkpoint_every=10) as run:
    state = run.restore({{"w": np.zeros(1000, np.float32)}})
    for batch in run.batches(samples, batch_size=8, epochs=1):
        time.sleep(0.02)
        if run.rank == 1 and 5 <= run.steps < {5 + SLOW_STEPS}:
            time.sleep({SLOW_S})
        if run.rank == 0 and run.steps == 20 and once("stopped"):
            me = os.getpid()
            stop = f"kill -STOP {{me}}; sleep {STOPPED_S}; kill -CONT {{me}}"
            subprocess.Popen(["sh", "-c", stop])
            time.sleep(0.2)
        if run.rank == 1 and run.steps == 30 and once("lost"):
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            run.average({{"g": np.ones(8, np.float32)}}, len(batch["x"]))
        except strata.GenerationChanged:
            continue
        state["w"] += 1
        run.mark_step(loss=1.0)
        if run.save_due():
            run.save(state)
    run.evaluate([1.0] * 32, score, batch_size=16)
"""


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """The data folder of a run with several planted causes and a spare, and its output."""
    folder = tmp_path_factory.mktemp("planted")
    name = script(folder, PLANTED)
    arguments = ("--workers", "2", "--spares", "1", "--data-dir", str(folder / "data"))
    code, output = run(folder, name, *arguments)
    assert code == 0, output
    return folder / "data", output


@pytest.fixture(scope="module")
def found(planted):
    with open_timeline(planted[0]) as timeline:
        yield goodput(timeline)


def seconds(answer):
    return {each.name: each.seconds for each in answer.classes}


def moments(timeline, kind, **fields):
    """The times of facts of a kind, in seconds."""
    records = timeline.records(node="coordinator", kinds={kind})
    return [
        each.at_ns / 1e9 for each in records if all(each.get(f) == v for f, v in fields.items())
    ]


@pytest.mark.parametrize("recorded", ["planted", "trained", "logged"])
def test_classes_add_up_to_the_wall_time_of_all_workers(recorded, request):
    data = request.getfixturevalue(recorded)
    folder = data[0] if isinstance(data, tuple) else data
    with open_timeline(folder) as timeline:
        sums = ledger(timeline, newest_task(timeline))
        assert sums.total.ns == sums.wall_ns
        assert sum(ns for each in sums.slices for ns in each.values()) == sums.wall_ns
        leaving = moments(timeline, "WorkerStateChanged", after="left")
        assert sums.to_ns / 1e9 == pytest.approx(max(leaving))


def test_slow_worker_is_named_and_the_others_wait_for_it(planted, found):
    slow = max((each for each in found.causes if each.kind == "slow"), key=lambda c: c.seconds)
    # Rank 0 waits for rank 1 in the slow steps, and rank 1 for rank 0 while that is stopped.
    assert seconds(found)["straggler_wait"] >= 0.9 * (SLOW_S * SLOW_STEPS + STOPPED_S - HEARTBEAT_S)
    assert slow.text.startswith("other workers waited for script-1-w")


def test_slow_worker_and_the_part_of_its_steps_are_answered_by_why_slow(planted):
    with open_timeline(planted[0]) as timeline:
        seats = next(iter(timeline.records(kinds={"GenerationChanged"}))).get("seats")
        steps = list(timeline.records(node=dict(seats)[1], kinds={"StepFinished"}))
        last = next(each for each in steps if each.get("step") == 4 + SLOW_STEPS)
        ask = TimelineQueries(timeline).why
        slow, other = (
            ask("slow", params={"worker": dict(seats)[rank], "time_ms": str(last.at_ns / 1e6)})
            for rank in (1, 0)
        )
    assert slow.verdict == "yes", slow
    assert "in compute" in slow.answer
    assert "in compute" not in other.answer, other


def test_stopped_process_is_paused_from_its_next_heartbeat(found):
    paused = seconds(found)["paused"]
    assert paused >= STOPPED_S - HEARTBEAT_S - 0.5
    # A busy machine may starve a process for longer; but the stop is not counted for two workers.
    assert paused < 2 * STOPPED_S


def test_evaluation_is_recorded_with_its_time(planted, found):
    # Two workers score a batch each, and the dataset has two.
    assert seconds(found)["evaluation"] >= 2 * SCORE_S
    assert seconds(found)["evaluation"] <= 2 * SCORE_S + 5
    with open_timeline(planted[0]) as timeline:
        ends = [each.event.body.ok for each in timeline.records(kinds={"EvaluationCompleted"})]
    assert ends == [True, True]


def test_spare_spares_the_wait_for_a_replacement(planted, found):
    with open_timeline(planted[0]) as timeline:
        (lost_s,) = moments(timeline, "WorkerLost")
        lost = next(timeline.records(kinds={"WorkerLost"})).event.body
        back = [t for t in moments(timeline, "WorkerRegistered", worker=lost.worker) if t > lost_s]
        ended_s = max(moments(timeline, "WorkerStateChanged", after="left"))
    until_s = back[0] if back else ended_s
    # Nobody else waits: only the empty place of the lost process counts.
    assert seconds(found)["replacement_wait"] <= until_s - lost_s + 1e-3
    assert seconds(found)["standby"] > 1.0
    assert all(each.saving is None for each in found.causes if each.kind == "WorkerLost")


def test_kill_without_spare_is_waited_for_by_all_and_says_what_a_spare_saves(trained):
    with open_timeline(trained[0]) as timeline:
        answer = goodput(timeline)
        (lost_s,) = moments(timeline, "WorkerLost")
        worker = next(timeline.records(kinds={"WorkerLost"})).text("worker")
        registered = moments(timeline, "WorkerRegistered", worker=worker)
        recorded_s = sum(
            each.event.body.data_s for each in timeline.records(kinds={"StepFinished"})
        )
    again_s = next(t for t in registered if t > lost_s)
    (loss,) = [each for each in answer.causes if each.kind == "WorkerLost"]
    waited = loss.classes["replacement_wait"]
    # The empty place waits all the time, the other worker from when it noticed.
    assert again_s - lost_s <= waited + 1e-6 <= 2 * (again_s - lost_s) + 1e-3
    assert waited > 1.5 * (again_s - lost_s)
    assert loss.saving.seconds == pytest.approx(waited)
    assert loss.saving.text.startswith("a spare would have saved")
    assert seconds(answer)["checkpoint_restore"] > 0
    undone_s = seconds(answer)["rolled_back"] + 1e-6
    assert recorded_s - undone_s <= seconds(answer)["data_wait"] <= recorded_s + 1e-6
    assert seconds(answer)["data_wait"] > 100 * DATA_S


def test_rollback_is_work_that_was_lost_with_the_workers(logged):
    with open_timeline(logged) as timeline:
        answer = goodput(timeline)
        lost_s = moments(timeline, "WorkerLost")[0]
        resumed = list(timeline.records(kinds={"RecoveryChosen"}))[-1].event.body
        undone = [
            each.event.body
            for each in timeline.records(kinds={"StepFinished"})
            if each.at_ns / 1e9 < lost_s and each.event.body.step >= resumed.step
        ]
    assert undone
    lost = [each for each in answer.causes if each.kind == "WorkerLost"]
    undone_s = sum(s.data_s + s.compute_s + s.communication_s + s.wait_s for s in undone)
    # The steps contain checkpoint stalls, and the wait for the workers that were gone, too.
    others_s = sum(seconds(answer).get(n, 0.0) for n in ("loss_detection", "checkpoint_stall"))
    assert seconds(answer)["rolled_back"] + others_s >= undone_s - 1e-6
    assert seconds(answer)["rolled_back"] > 0.3 * undone_s
    assert sum(each.classes.get("rolled_back", 0.0) for each in lost) == pytest.approx(
        seconds(answer)["rolled_back"]
    )


def test_missing_events_are_unknown_time(trained):
    with open_timeline(trained[0]) as timeline:
        node, incarnation = timeline.reader.streams()[0]
        steps = [r for r in timeline.events_of(node, incarnation) if r.kind == "StepFinished"]
        first, last = steps[4], steps[11]
        store = MemoryStore(CODEC)
        batches = []
        for batch in timeline.reader.batches():
            events = list(unpack(CODEC, batch)) if batch.node != "coordinator" else []
            if (batch.node, batch.incarnation) != (node, incarnation):
                batches += [batch] if events else []
                continue
            low, high = first.event.seq, last.event.seq
            for part in (
                [e for e in events if e.seq < low],
                [e for e in events if e.seq > high],
            ):
                batches += [pack(CODEC, node, incarnation, part)] if part else []
        store.append(list(timeline.reader.read(0)), incarnation=1, expected=0, batches=batches)
        whole = ledger(timeline, newest_task(timeline))
        task = newest_task(timeline)
    holed = ledger(Timeline(store, "holed"), task)
    assert holed.total.ns == holed.wall_ns == whole.wall_ns
    gained = holed.classes["unknown"].ns - (
        whole.classes["unknown"].ns if "unknown" in whole.classes else 0
    )
    missing_s = (last.at_ns - steps[3].at_ns) / 1e9
    assert gained / 1e9 == pytest.approx(missing_s, rel=0.25)


HANGS = """
import time, strata
with strata.join() as run:
    while True:
        time.sleep(600 if run.rank == 1 and run.steps == 40 else 0.02)
        run.mark_step(loss=1.0)
"""


def test_stopped_hang_is_lost_by_the_hang_not_by_the_signal(tmp_path):
    settings = {"STRATA_ALERT_NO_STEP_S": "4", "STRATA_STOP_GRACE_S": "2"}
    arguments = ("--workers", "2", "--data-dir", str(tmp_path / "data"))
    hung = Started("run", script(tmp_path, HANGS), *arguments, cwd=tmp_path, **settings)
    try:
        hung.wait_for(seen("has made no step for"), "alert", 60)
        stopped = strata("stop", "script-1", "--url", url_of(hung), cwd=tmp_path)
        assert stopped.returncode == 0, stopped.stderr
        hung.process.wait(60)
    finally:
        hung.process.kill()
        hung.ended()
    with open_timeline(tmp_path / "data") as timeline:
        answer = goodput(timeline)
        (stop_s,) = moments(timeline, "TaskStateChanged", after="stopping")
        last_s = moments(timeline, "StepsCommitted")[-1]
    first = answer.causes[0]
    assert first.kind == "AlertRaised", answer.causes
    assert first.text.startswith("no progress: script-1 has made no step for"), first
    # The other worker does not wait for the hung one, so its time may be rolled-back work.
    assert first.classes["loss_detection"] > 0.9 * (stop_s - last_s)
    assert not [each for each in answer.causes if each.kind == "WorkerLost"]


def test_terminal_shows_each_class_and_rest_has_the_same_figures(planted, found, tmp_path):
    data, output = planted
    for each in found.classes:
        assert f"  {each.label} " in output
    ended = strata("goodput", "--data", str(data), "--price", "36/worker-hour", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert f"goodput {100 * found.goodput:.1f} %  script-1" in ended.stdout
    assert "causes of lost time" in ended.stdout
    cost = found.total_s / 100
    assert f"= ${cost:,.2f}, of which " in ended.stdout
    told = strata("goodput", "--data", str(data), "--json", cwd=tmp_path)
    assert json.loads(told.stdout)["productive_s"] == pytest.approx(found.productive_s)
    runs = strata("goodput", "--runs", "--data", str(data), "--json", cwd=tmp_path)
    assert json.loads(runs.stdout)["total_s"] == pytest.approx(found.total_s)
    for file in data.glob("log.db*"):
        shutil.copy(file, tmp_path / file.name.replace("log.db", "log"))
    with Coordinator(tmp_path) as served:
        shown = httpx.get(
            f"{served.url}/api/timeline/goodput", params={"price": "2.49/gpu-hour"}
        ).json()
        across = httpx.get(f"{served.url}/api/timeline/goodput/runs").json()
        wrong = httpx.get(f"{served.url}/api/timeline/goodput", params={"price": "2.49"})
    assert {each["name"]: each["seconds"] for each in shown["classes"]} == pytest.approx(
        seconds(found)
    )
    # The workers of this machine have no GPU: that is said, and no cost is shown.
    assert shown["cost"] is None
    assert "registered no GPU" in shown["notes"][0]
    assert across["total_s"] == pytest.approx(found.total_s)
    assert wrong.status_code == 400
    assert "use 2.49/gpu-hour" in wrong.json()["error"]["hint"]


def test_runs_take_no_task(tmp_path):
    ended = strata("goodput", "train-1", "--runs", cwd=tmp_path)
    assert ended.returncode == 2
    assert "--runs counts all runs" in ended.stderr
