"""Guards alerts in real runs: each planted condition raises the right alert about its subject, and
is resolved by itself; `strata alerts`, `strata why` and `strata run` show it."""

import json
import re
import subprocess
from contextlib import contextmanager

import httpx
import pytest
from msgspec import structs

from strata.core.alerts.alert_record import Ending, Finding, RecordAlerts
from strata.core.record.event_codec import CODEC
from strata.store.sqlite import SqliteStore
from tests.agent.harness import until
from tests.cli.conftest import Started, strata
from tests.cli.runs import script, seen, url_of
from tests.coordinator.alert_servers import webhook
from tests.core.world import World

QUICK = {
    "STRATA_ALERT_SETTLE_S": "0.5",
    "STRATA_ALERT_NO_STEP_S": "3",
    "STRATA_ALERT_DISK_FREE_BYTES": str(2 * 2**20),
    "STRATA_PROGRESS_INTERVAL_S": "1",
}
WAIT_S = 60.0

LOSSES = """
import math, os, time, strata
with strata.join() as run:
    rank = run.rank
    while not os.path.exists("finish"):
        step = run.steps
        time.sleep(0.02)
        if rank == 0 and step == 150:
            time.sleep(8)
        loss = 2.0 + 0.1 * math.sin(step)
        if rank == 1 and step == 20:
            loss = math.nan
        if 100 <= step < 110:
            loss = 9.0
        run.mark_step(loss=loss)
"""

LOST = """
import os, time, strata
with strata.join() as run:
    while not os.path.exists("finish"):
        time.sleep(0.02)
        deaths = len([name for name in os.listdir() if name.startswith("death")])
        if run.rank == 1 and run.steps >= 20 * (deaths + 1) and deaths < 2:
            open(f"death-{deaths}", "w").close()
            os._exit(7)
        try:
            run.mark_step(loss=1.0)
        except strata.GenerationChanged:
            run.sync()
"""

HANGS = """
import os, time, numpy as np, strata

def load_batch(late):
    while late and not os.path.exists("data"):
        time.sleep(0.02)
    return np.ones(4)

def skip_average(late):
    while late and not os.path.exists("collective"):
        time.sleep(0.02)

with strata.join() as run:
    while not run.agree(os.path.exists("finish")):
        with run.step():
            time.sleep(0.02)
            batch = load_batch(run.rank == 1 and run.steps == 40)
            skip_average(run.rank == 1 and run.steps == 80)
            run.average(batch)
"""

STARVES = """
import os, time, numpy as np, strata

with strata.join() as run:
    while not run.agree(os.path.exists("finish")):
        with run.step():
            with run.timing("data"):
                time.sleep(0.2 if os.path.exists("starve") else 0.001)
            time.sleep(0.05)
            run.average(np.ones(4))
"""

STRAGGLES = """
import os, time, numpy as np, strata

with strata.join() as run:
    while not run.agree(os.path.exists("finish")):
        with run.step():
            with run.timing("data"):
                time.sleep(0.15 if run.rank == 2 and os.path.exists("load") else 0.01)
            time.sleep(0.2 if run.rank == 2 and os.path.exists("compute") else 0.03)
            run.average(np.ones(4))
"""

FULL = """
import os, time, numpy as np, strata
with strata.join(checkpoint_every=20) as run:
    state = run.restore({"w": np.zeros(50_000)})
    while not os.path.exists("finish"):
        time.sleep(0.05)
        state["w"] += np.random.default_rng(run.steps).random(50_000)
        if run.steps == 100:
            with open("fill", "wb") as fill:
                try:
                    while True:
                        fill.write(bytes(2**16))
                        fill.flush()
                except OSError:
                    pass
        if run.save_due():
            run.save(state)
        run.mark_step(loss=1.0)
"""


@contextmanager
def running(folder, text, workers=2, **variables):
    """A run of a script; yields it and a function that lists its alerts by rule."""
    name = script(folder, text)
    run = Started("run", name, "--workers", str(workers), cwd=folder, **(QUICK | variables))
    try:
        run.wait_for(seen("dashboard"), "start", WAIT_S)
        url = url_of(run)

        def alerts(**params):
            found = httpx.get(f"{url}/api/alerts", params=params).json()
            return {each["rule"]: each for each in found}

        yield run, alerts
        (folder / "finish").touch()
        assert run.ended() == 0, "".join([*run.out, *run.err])[-3000:]
    finally:
        run.process.kill()
        run.ended()


def resolved(alerts, *rules):
    """The alerts of these rules, once all of them are resolved."""
    return until(
        lambda: (found := alerts(status="resolved")) and set(rules) <= set(found) and found,
        f"the end of {', '.join(rules)}",
        WAIT_S,
    )


def messages(hook):
    """The messages that an alert is resolved, by rule; each comes once."""
    ends = [each for each in hook.taken if each["event"] == "alert.resolved"]
    found = {each["rule"]: each for each in ends}
    assert len(found) == len(ends)
    return found


def test_nan_of_one_step_spike_and_hang_are_found_delivered_and_resolved(tmp_path):
    rules = ("loss_not_finite", "loss_spike", "no_step")
    # The webhook refuses the first message; an alert that ends before the retry sends one message.
    slower = {"STRATA_ALERT_SETTLE_S": "5"}
    with (
        webhook(500) as hook,
        running(tmp_path, LOSSES, **slower, STRATA_ALERT_WEBHOOK=hook.url) as (run, alerts),
    ):
        found = resolved(alerts, *rules)
        url = url_of(run)
        listed = strata("alerts", "--all", "--url", url, cwd=tmp_path)
        as_json = strata("alerts", "script-1", "--all", "--json", "--url", url, cwd=tmp_path)
        why = strata("why", "alert", f"alert={found['no_step']['id']}", "--url", url, cwd=tmp_path)
        until(lambda: len(told := messages(hook)) == 3 and told, "all messages", WAIT_S)
        marked = httpx.get(f"{url}/api/timeline/curves/markers", params={"task": "script-1"}).json()
    nan, spike, hang = (found[rule] for rule in rules)
    assert set(found) == set(rules)
    assert {each["subject"] for each in found.values()} == {"task:script-1"}
    assert (nan["worker_id"], nan["evidence"]["step"]) == ("script-1-w1", 20)
    assert nan["evidence"]["value"] == "NaN"
    assert nan["causes"][0].startswith("script-1-w1/")
    assert (spike["worker_id"], spike["evidence"]["step"]) == ("script-1-w0", 100)
    assert spike["evidence"]["highest_before"] < 2.2
    assert hang["evidence"]["limit_s"] == 3
    assert hang["resolution"].startswith("step ")
    assert [len(found[rule]["failed"]) for rule in rules] == [0, 0, 0]
    assert (
        sorted(each["event"] for each in hook.taken)
        == ["alert.raised"] * 3 + ["alert.resolved"] * 3
    )
    assert listed.returncode == 0, listed.stderr
    for rule in rules:
        assert rule in listed.stdout
    rows = [json.loads(line) for line in as_json.stdout.splitlines()]
    assert {row["rule"] for row in rows} == set(rules)
    assert "has made no step for" in why.stdout, why
    assert "StepsCommitted" in why.stdout or "were committed" in why.stdout
    markers = [each for each in marked["markers"] if each["kind"] == "alert"]
    steps = {each["text"].split(" was raised")[0]: each["step"] for each in markers}
    assert (steps.pop(nan["id"]), steps.pop(spike["id"])) == (20, 100)
    assert steps[hang["id"]] >= 150
    output = "".join(run.out)
    assert "loss of script-1 is NaN at step 20" in output
    assert "is closed: the last 10 values of loss are finite" in output


@pytest.mark.parametrize(
    ("hang", "step", "place"), [("data", 39, "load_batch"), ("collective", 79, "skip_average")]
)
def test_hang_is_found_and_the_stacks_name_the_rank_that_the_others_wait_for(
    tmp_path, hang, step, place
):
    (tmp_path / ("collective" if hang == "data" else "data")).touch()
    with running(tmp_path, HANGS) as (run, alerts):
        found = until(lambda: alerts(status="open").get("no_step"), "the alert", WAIT_S)
        url = url_of(run)
        stacks = strata("stacks", "script-1", "--url", url, cwd=tmp_path)
        why = strata("why", "hang", "task=script-1", "--url", url, cwd=tmp_path)
        (tmp_path / hang).touch()
        ended = resolved(alerts, "no_step")["no_step"]
    assert (found["subject"], found["severity"]) == ("task:script-1", "error")
    assert f"since step {step} (running)" in found["text"]
    assert stacks.returncode == 0, stacks.stderr
    answer = " ".join(why.stdout.split())
    assert f"rank 1 is in {place} at script.py:" in answer
    assert "rank 0 waits in average" in answer
    assert int(re.fullmatch(r"step (\d+) was committed", ended["resolution"])[1]) > step


@pytest.mark.parametrize(("slow", "part"), [("compute", "computing"), ("load", "waiting for data")])
def test_straggler_is_found_with_its_worker_and_the_part_of_its_steps(tmp_path, slow, part):
    (tmp_path / slow).touch()
    with running(tmp_path, STRAGGLES, workers=3, STRATA_ALERT_STRAGGLER_S="2") as (run, alerts):
        found = until(lambda: alerts(status="open").get("straggler"), "the alert", WAIT_S)
        (tmp_path / slow).unlink()
        ended = resolved(alerts, "straggler")["straggler"]
        url = url_of(run)
        why = strata("why", "alert", f"alert={found['id']}", "--url", url, cwd=tmp_path)
    assert (found["subject"], found["worker_id"]) == ("worker:script-1-w2", "script-1-w2")
    assert (found["task_id"], found["severity"]) == ("script-1", "warning")
    assert found["text"].startswith("script-1-w2 of script-1 takes 0.")
    assert found["text"].endswith(f"it spends the difference {part}")
    evidence = found["evidence"]
    assert evidence["busy_s"] > 1.5 * evidence["others_busy_s"]
    assert evidence["part"] == part
    assert found["causes"][0].startswith("@")
    assert "as long as that of others" in ended["resolution"]
    assert "script-1-w2" in why.stdout


def test_low_goodput_is_found_although_steps_are_fast_and_names_where_the_time_goes(tmp_path):
    given = {"STRATA_ALERT_GOODPUT_WINDOW_S": "6", "STRATA_ALERT_GOODPUT_BELOW": "0.5"}
    with running(tmp_path, STARVES, **given) as (run, alerts):
        goodput = f"{url_of(run)}/api/timeline/goodput"
        until(lambda: httpx.get(goodput).json().get("productive_s", 0) > 12, "steps", WAIT_S)
        until(lambda: "goodput_low" not in alerts(status="open"), "the end of the start", WAIT_S)
        (tmp_path / "starve").touch()
        found = until(lambda: alerts(status="open").get("goodput_low"), "the alert", WAIT_S)
        (tmp_path / "starve").unlink()
        ended = resolved(alerts, "goodput_low")["goodput_low"]
        shown = httpx.get(goodput).json()
    assert (found["subject"], found["severity"]) == ("task:script-1", "warning")
    evidence = found["evidence"]
    assert evidence["goodput"] < 0.5
    assert evidence["most_lost_as"] == "waiting for data"
    assert "waiting for data" in found["text"]
    assert evidence["worker_s"] <= 2 * 6.5
    assert ended["resolution"].startswith("its goodput is ")
    assert 0 < shown["goodput"] < 1


def test_worker_that_is_lost_twice_is_found_with_both_losses(tmp_path):
    with running(tmp_path, LOST) as (run, alerts):
        found = until(lambda: alerts().get("worker_lost_again"), "the alert", WAIT_S)
        run.wait_for(seen("generation 3 continues"), "recovery", WAIT_S)
        status = strata("status", "--url", url_of(run), cwd=tmp_path)
    assert (found["subject"], found["task_id"]) == ("worker:script-1-w1", "script-1")
    assert (found["evidence"]["losses"], len(found["causes"])) == (2, 2)
    assert "exit code 7" in found["text"]
    assert "script-1-w1 of script-1 was lost 2 times" in status.stdout
    assert status.stdout.count("script-1-w1 of script-1") == 1


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 24 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_full_disk_is_found_with_the_checkpoints_that_fail_and_resolved_when_there_is_room(
    tmp_path, small_disk
):
    given = {"STRATA_DATA_DIR": str(tmp_path / "data"), "STRATA_CHECKPOINT_DIR": "checkpoints"}
    with running(small_disk, FULL, workers=1, **given) as (_, alerts):
        opened = until(
            lambda: (
                (found := alerts(status="open"))
                and {"disk_filling", "checkpoint_failing"} <= set(found)
                and found
            ),
            "both alerts",
            WAIT_S,
        )
        (small_disk / "fill").unlink()
        ended = resolved(alerts, "disk_filling", "checkpoint_failing")
    disk, saves = opened["disk_filling"], opened["checkpoint_failing"]
    assert disk["subject"].startswith("host:")
    assert disk["evidence"]["free_bytes"] < 2 * 2**20
    assert disk["severity"] == "error"
    assert saves["subject"] == "task:script-1"
    assert len(saves["causes"]) >= 2
    assert "No space left" in saves["text"]
    assert ended["disk_filling"]["resolution"].endswith("are free")
    assert "was committed" in ended["checkpoint_failing"]["resolution"]


def test_expired_alert_is_not_shown_as_resolved(tmp_path):
    world = World()
    rules = ("task_failed", "no_step")
    found = [Finding(rule=rule, subject="task:t", severity="error", text=rule) for rule in rules]
    world.do(RecordAlerts(changes=tuple(found)))
    ends = [Ending(rule=rule, subject="task:t", reason=f"{rule} is over") for rule in rules]
    world.do(RecordAlerts(changes=(structs.replace(ends[0], expired=True), ends[1])))
    with SqliteStore(tmp_path / "log.db", CODEC) as store:
        store.append(world.log, incarnation=1, expected=0)
    shown = strata("alerts", "--all", "--data", str(tmp_path), cwd=tmp_path, COLUMNS="140").stdout
    as_json = strata("alerts", "--all", "--json", "--data", str(tmp_path), cwd=tmp_path).stdout
    expired, resolved = (next(x for x in shown.splitlines() if f" {rule} " in x) for rule in rules)
    assert ("expired" in expired, "resolved" in expired) == (True, False)
    assert ("expired" in resolved, "resolved" in resolved) == (False, True)
    assert "expired: task_failed is over" in shown
    assert "resolved: no_step is over" in shown
    rows = {row["rule"]: row["expired"] for row in map(json.loads, as_json.splitlines())}
    assert rows == {"task_failed": True, "no_step": False}
