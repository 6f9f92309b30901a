"""Guards the goodput ledger: every worker-second is in exactly one class, the classes add up to the
workers' wall time, and planted causes cost what was planted. The simulator's clock is exact."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from strata.config import Settings
from strata.core.record.event_codec import CODEC
from strata.core.task_spec import TaskSpec
from strata.core.tasks.placement import StopTask, SubmitTask
from strata.core.workers.worker_facts import StepFinished, TrainingStarted
from strata.errors import InvalidArgument, NotFound
from strata.sim.injected_faults import FAULTS
from strata.store.event_batches import pack, unpack
from strata.store.memory_store import MemoryStore
from strata.timeline.archive import run_archive
from strata.timeline.archive.run_archive import archive, open_anywhere
from strata.timeline.archive.run_excerpt import run_of
from strata.timeline.archive.run_lookup import open_recorded
from strata.timeline.audit.sample_audit import audit
from strata.timeline.goodput import runs_goodput
from strata.timeline.goodput.ledger import ledger
from strata.timeline.goodput.prices import Host, HostShares, Meter, parse_prices
from strata.timeline.goodput.recent_goodput import recent_goodput
from strata.timeline.goodput.runs_goodput import RunsLedger
from strata.timeline.goodput.task_goodput import goodput
from strata.timeline.read.run_timeline import Timeline
from tests.timeline.planted import Planted, worker

HOUR_S = 3_600


def of(run, prices="", task="train-1"):
    """The goodput of the first task of a run."""
    return goodput(run.timeline, task, parse_prices(prices))


def seconds(answer):
    return {each.name: each.seconds for each in answer.classes}


def cause(answer, kind):
    """The only cause with an event of this kind."""
    (found,) = [each for each in answer.causes if each.kind == kind]
    return found


def moment(run, kind, **fields):
    """The time of the first fact of a kind with these fields, in seconds."""
    found = run.kinds(kind)
    return next(
        each.at_ns / 1e9 for each in found if all(each.get(f) == v for f, v in fields.items())
    )


def exact(timeline, task):
    """Check that each piece of time is counted once; returns the ledger."""
    found = ledger(timeline, task)
    assert found.total.ns + found.pending_ns == found.wall_ns
    assert sum(ns for each in found.slices for ns in each.values()) == found.total.ns
    assert len(found.slices) <= 200
    for sums in (found.weeks, found.hosts):
        assert sum(s.ns for each in sums.values() for s in each.values()) == found.total.ns
    lost_ns = sum(each.total.ns for each in found.lost.causes.values())
    assert lost_ns == found.total.ns - found.productive_ns
    assert not found.pending_ns or not found.interruptions.ended
    return found


def paused_for(seconds):
    """A plant that stops the process of a worker for a while."""

    def stop(sim):
        stopped = worker(sim)
        stopped.pause()
        sim.world.after(seconds, stopped.resume)

    return stop


@pytest.fixture(scope="module")
def waited():
    """A run in which a worker is stopped until it is lost by its heartbeats."""
    return Planted(paused_for(90.0))


@pytest.mark.parametrize("seed", [0, 4, 7, 31, 64, 96])
def test_classes_add_up_to_wall_time_whatever_fails(seed):
    """Seeds 64 and 96 have steps that end after their worker left, by a clock that jumped."""
    draw = Random(seed)
    run = Planted(
        seed=seed,
        faults=tuple(draw.sample(sorted(FAULTS), draw.randint(1, 4))),
        fault_every_s=60.0,
        policy=draw.choice(["replace", "continue"]),
        spares=draw.choice([0, 1]),
        hours=0.15,
        workers=3,
        steps=40,
    )
    placed = {each.text("task") for each in run.kinds("TaskPlaced")}
    assert placed
    for task in placed:
        exact(run.timeline, task)


def test_calm_run_has_no_lost_workers(calm):
    found = exact(calm.timeline, "train-1")
    lost = {"loss_detection", "replacement_wait", "rolled_back", "paused", "unknown", "standby"}
    assert not lost & found.classes.keys()
    steps = [r.event.body for r in calm.kinds("StepFinished")]
    trained = {r.text("task") for r in calm.kinds("RunStarted")}
    if trained == {"train-1"}:
        computed_s = sum(step.compute_s for step in steps)
        assert found.productive_ns / 1e9 == pytest.approx(computed_s, rel=1e-6)


def test_killed_worker_costs_replacement_start_and_restore(crashed):
    answer = of(crashed, "36/worker-hour")
    lost_s = moment(crashed, "WorkerLost")
    again_s = next(
        r.at_ns / 1e9 for r in crashed.kinds("WorkerRegistered") if r.at_ns / 1e9 > lost_s
    )
    loss = cause(answer, "WorkerLost")
    assert loss.ref == crashed.kinds("WorkerLost")[0].ref
    # All four workers wait for the registration: three members and the empty seat.
    assert loss.classes["replacement_wait"] == pytest.approx(4 * (again_s - lost_s), rel=1e-6)
    assert loss.classes["checkpoint_restore"] > 0
    assert loss.cost == pytest.approx(loss.seconds * 0.01)
    assert loss.saving.seconds == pytest.approx(loss.classes["replacement_wait"])
    assert loss.saving.text.startswith("a spare would have saved ")
    assert f"= ${loss.saving.cost:,.2f}" in loss.saving.text
    assert "WorkerLost to the registration" in loss.saving.method


def test_spare_leaves_members_no_wait_and_costs_its_standby():
    run = Planted(lambda sim: worker(sim).exit(137, 9), spares=1)
    answer = of(run)
    lost_s = moment(run, "WorkerLost")
    again_s = next(r.at_ns / 1e9 for r in run.kinds("WorkerRegistered") if r.at_ns / 1e9 > lost_s)
    loss = cause(answer, "WorkerLost")
    # Only the lost process itself is waited for; the members continue with the spare.
    assert loss.classes["replacement_wait"] == pytest.approx(again_s - lost_s, rel=1e-6)
    assert loss.saving is None
    assert seconds(answer)["standby"] > 0.15 * answer.total_s
    exact(run.timeline, "train-1")


def test_loss_by_heartbeats_is_detected_from_the_last_sign_of_life(waited):
    lost = waited.kinds("WorkerLost")[0].event.body
    assert lost.signal == "heartbeat"
    found = cause(of(waited), "WorkerLost").classes["loss_detection"]
    # All four workers stop in the detection, but the step in progress may still compute.
    assert lost.evidence["silence_s"] < found <= 4 * lost.evidence["silence_s"]
    exact(waited.timeline, "train-1")


def test_short_pause_is_a_pause_and_makes_others_wait():
    run = Planted(paused_for(14.0), workers=3)
    assert not run.kinds("WorkerLost")
    answer = of(run)
    # The pause counts from the heartbeat that was due, at most one interval later.
    assert 14.0 - 5.5 <= seconds(answer)["paused"] <= 14.5
    calm_s = seconds(of(Planted(workers=3)))["straggler_wait"]
    assert seconds(answer)["straggler_wait"] > calm_s + 10
    exact(run.timeline, "train-1")


def test_straggler_is_named_with_what_it_cost():
    def slow_down(sim):
        worker(sim).slowness = 2.0

    run = Planted(slow_down, workers=3)
    name = next(r.event.body.seats for r in run.kinds("GenerationChanged"))[1][1]
    answer = of(run)
    first = next(each for each in answer.causes if each.kind == "slow")
    assert first.text == f"other workers waited for {name}, which was slower"
    assert 0 < first.saving.seconds <= first.seconds
    assert first.saving.text.startswith(f"{name} as fast as the next slowest worker would have")


def test_slow_data_is_waiting_for_data():
    def starve(sim):
        for each in sim.workers.values():
            each.data_s = 3.0

    run = Planted(starve, workers=3)
    recorded_s = sum(r.event.body.data_s for r in run.kinds("StepFinished"))
    assert recorded_s > 100
    found = sum(
        seconds(of(run, task=r.text("task"))).get("data_wait", 0.0)
        for r in run.kinds("TaskSubmitted")
    )
    assert found == pytest.approx(recorded_s, rel=1e-6)


def test_rollback_is_paid_by_the_loss_and_earlier_checkpoint_would_have_helped():
    def lose_all(sim):
        for each in list(sim.workers.values()):
            each.exit(137, 9)

    run = Planted(lose_all, at_s=320.0, workers=3)
    (back,) = [r.event.body for r in run.kinds("RolledBack")]
    lost_s = moment(run, "RolledBack")
    steps = [r.event.body for r in run.kinds("StepFinished") if r.at_ns / 1e9 < lost_s]
    undone = {each.step: [] for each in steps if each.step >= back.to}
    for each in steps:
        if each.step in undone:
            undone[each.step].append(each.compute_s + each.wait_s)
    answer = of(run)
    lost = [each for each in answer.causes if each.kind == "WorkerLost"]
    rolled_s = sum(each.classes.get("rolled_back", 0.0) for each in lost)
    assert rolled_s == pytest.approx(seconds(answer)["rolled_back"])
    # In the newest of these steps, the wait for the workers that were gone is detection.
    undone_s = sum(map(sum, undone.values()))
    assert rolled_s + seconds(answer)["loss_detection"] >= undone_s - 1e-6
    assert rolled_s > 0.8 * undone_s
    first, second = [r.event.body.step for r in run.kinds("CheckpointCommitted")][:2]
    half = second + (second - first) // 2
    assert back.to == second < half < back.origin
    kept_s = sum(sum(took) for step, took in undone.items() if step < half)
    savings = [each.saving for each in lost if each.saving]
    # All workers were lost: one spare would not have been enough, an earlier checkpoint would.
    assert [each.text.startswith("a checkpoint interval half as long") for each in savings] == [
        True
    ]
    assert savings[0].seconds == pytest.approx(kept_s, rel=1e-6)
    exact(run.timeline, "train-1")


def workers_events(run):
    """The node, incarnation and events of each stored batch of a worker."""
    for batch in run.timeline.reader.batches():
        if batch.node != "coordinator":
            yield batch.node, batch.incarnation, list(unpack(CODEC, batch))


def stored(facts, batches, name):
    """A run of these facts and batches."""
    store = MemoryStore(CODEC)
    store.append(facts, incarnation=1, expected=0, batches=batches)
    return Timeline(store, name)


def without(run, node, first, stop):
    """The run with a hole: the events [first, stop) of a worker's process never arrived."""
    batches = []
    for name, incarnation, events in workers_events(run):
        if name == node:
            events = [each for each in events if not first <= each.seq < stop]
        start = 0
        for at in range(1, len(events) + 1):
            if at == len(events) or events[at].seq != events[at - 1].seq + 1:
                batches.append(pack(CODEC, name, incarnation, events[start:at]))
                start = at
    return stored(list(run.timeline.reader.read(0)), batches, "holed")


def without_generations(run):
    """The run as recorded by a release that did not record the generation of a worker's steps."""
    batches = []
    for name, incarnation, events in workers_events(run):
        old = [
            structs.replace(each, body=structs.replace(each.body, generation=0))
            if isinstance(each.body, StepFinished | TrainingStarted)
            else each
            for each in events
        ]
        batches.append(pack(CODEC, name, incarnation, old))
    return stored(list(run.timeline.reader.read(0)), batches, "old")


def test_old_run_has_productive_steps():
    """The recorded demo is of a release that did not record the generation of steps."""
    with open_recorded() as timeline:
        steps = [each.event.body for each in timeline.records(kinds={"StepFinished"})]
        found = exact(timeline, "train-1")
    assert {each.generation for each in steps} == {0}
    assert found.productive_ns / 1e9 == pytest.approx(sum(each.compute_s for each in steps))


def test_steps_without_generation_are_classified_by_their_time(crashed):
    whole = ledger(crashed.timeline, "train-1")
    found = exact(without_generations(crashed), "train-1")
    assert found.classes == whole.classes
    assert found.lost.causes == whole.lost.causes


def test_hole_in_the_log_is_unknown(calm):
    node, incarnation = next(iter(calm.timeline.reader.streams()))
    steps = [r for r in calm.timeline.events_of(node, incarnation) if r.kind == "StepFinished"]
    first, last = steps[10], steps[14]
    holed = without(calm, node, first.event.seq, last.event.seq + 1)
    whole = ledger(calm.timeline, "train-1")
    found = exact(holed, "train-1")
    assert found.wall_ns == whole.wall_ns
    missing_s = sum(s.event.body.compute_s + s.event.body.wait_s for s in steps[10:15])
    assert found.classes["unknown"].ns / 1e9 == pytest.approx(missing_s, rel=0.02)
    # Without the records of one member, the waits of those steps cannot be told apart.
    assert found.classes["communication_wait"].ns > whole.classes["communication_wait"].ns


def while_running(run, at_s, unreported_s):
    """The run as recorded up to a moment, without the newest events of workers."""
    batches = []
    for name, incarnation, events in workers_events(run):
        kept = [each for each in events if each.wall_ns < (at_s - unreported_s) * 1e9]
        batches += [pack(CODEC, name, incarnation, kept)] if kept else []
    facts = [each for each in run.timeline.reader.read(0) if each.wall_ns < at_s * 1e9]
    return stored(facts, batches, "running")


@pytest.mark.parametrize("unreported_s", [0.0, 25.0])
def test_newest_steps_of_a_running_task_are_pending_not_unknown(calm, unreported_s):
    commits = [r for r in calm.kinds("StepsCommitted") if r.text("task") == "train-1"]
    half = commits[len(commits) // 2]
    found = exact(while_running(calm, half.at_ns / 1e9 + 4, unreported_s), "train-1")
    assert "unknown" not in found.classes
    assert {each for each in found.classes if each != "productive"} <= {
        "starting",
        "checkpoint_stall",
        "communication_wait",
        "straggler_wait",
        "data_wait",
        "checkpoint_restore",
    }
    members = 4
    assert found.pending_ns >= members * unreported_s * 1e9
    assert found.pending_ns < members * (unreported_s + 40) * 1e9
    assert found.to_ns <= half.at_ns + 4e9 - unreported_s * 1e9


def test_recent_goodput_counts_its_window_and_names_the_largest_cause(waited):
    lost_s = moment(waited, "WorkerLost")
    running = while_running(waited, lost_s + 1, 0.0)
    silent_s = waited.kinds("WorkerLost")[0].event.body.evidence["silence_s"]
    found = recent_goodput(running, "train-1", silent_s)
    assert found.share < 0.2
    assert found.counted_s == pytest.approx(4 * silent_s, rel=0.1)
    assert "was declared lost" in found.cause
    assert found.ref == waited.kinds("WorkerLost")[0].ref
    whole = recent_goodput(while_running(waited, lost_s - silent_s - 5, 0.0), "train-1", silent_s)
    assert whole.share > 0.6
    assert recent_goodput(running, "train-1", 10_000) is None


def test_audit_has_the_figures_of_the_ledger(crashed):
    spent = audit(crashed.timeline.reader, "train-1").effective
    answer = of(crashed)
    assert spent.total_s == pytest.approx(answer.total_s)
    assert spent.productive_s == pytest.approx(answer.productive_s)
    assert spent.seconds == pytest.approx(seconds(answer))


def test_series_has_every_second_of_every_class(crashed):
    answer = of(crashed)
    for name, total_s in seconds(answer).items():
        assert sum(each.seconds.get(name, 0.0) for each in answer.series) == pytest.approx(total_s)
    assert len(answer.series) <= 200
    assert answer.series[0].from_ms == pytest.approx(answer.from_ms)


def test_runs_are_summed_by_run_week_and_host(folder, crashed):
    found = RunsLedger(Settings(), str(folder)).goodput(None, parse_prices("1/worker-hour"))
    parts = [
        of(crashed, task=r.text("task"))
        for r in crashed.kinds("TaskSubmitted")
        if any(p.text("task") == r.text("task") for p in crashed.kinds("WorkerRegistered"))
    ]
    total_s = sum(each.total_s for each in parts)
    assert found.total_s == pytest.approx(total_s)
    for rows in (found.runs, found.weeks, found.hosts):
        assert sum(row.total_s for row in rows) == pytest.approx(total_s)
        assert sum(row.cost for row in rows) == pytest.approx(total_s / HOUR_S)
    assert {row.name for row in found.hosts} == {"host0"}
    assert any(each.kind == "WorkerLost" for each in found.causes)
    lost_s = found.total_s - found.productive_s
    assert sum(each.seconds for each in found.kinds) == pytest.approx(lost_s)
    assert sum(each.cost for each in found.kinds) == pytest.approx(lost_s / HOUR_S)
    losses = [each for each in found.kinds if each.kind.startswith("WorkerLost")]
    in_tasks = [c for part in parts for c in part.causes if c.kind == "WorkerLost"]
    assert [(each.kind, each.text) for each in losses] == [
        ("WorkerLost exit", "worker lost: its process ended")
    ]
    assert losses[0].count == len(in_tasks)
    assert losses[0].seconds == pytest.approx(sum(each.seconds for each in in_tasks))


@pytest.fixture(scope="module")
def several():
    """Three short tasks, one after the other."""
    return Planted(steps=40)


def test_older_tasks_of_a_log_are_named_as_left_out(several, monkeypatch, tmp_path):
    monkeypatch.setattr(runs_goodput, "MAX_TASKS", 1)
    tasks = list(dict.fromkeys(each.text("task") for each in several.kinds("WorkerRegistered")))
    assert len(tasks) > 2
    text = f": {len(tasks) - 1} tasks older than the newest 1"
    saved = several.saved(tmp_path / "several")
    stored = RunsLedger(Settings(), str(saved)).goodput(None, parse_prices(""))
    assert [each.endswith(text) for each in stored.left_out] == [True]
    none = tmp_path / "none"
    present = RunsLedger(Settings(), str(none)).goodput(several.queries, parse_prices(""))
    assert present.left_out == [f"planted{text}"]
    newest = ledger(several.timeline, tasks[-1])
    assert present.total_s == stored.total_s == pytest.approx(newest.total.ns / 1e9)


def test_archived_run_without_workers_is_read_once(several, monkeypatch, tmp_path):
    submitted = next(r for r in several.kinds("TaskSubmitted") if r.text("task") == "train-2")
    archive(run_of(several.timeline, "train-2", submitted.at_ns), str(tmp_path), "waiting")
    opened = []

    def opening(where, name, settings):
        opened.append(name)
        return open_anywhere(where, name, settings)

    monkeypatch.setattr(run_archive, "open_anywhere", opening)
    monkeypatch.setattr(runs_goodput, "GOODPUT_MOST_S", 0.0)
    found = RunsLedger(Settings(), str(tmp_path))
    for _ in range(2):
        assert found.goodput(None, parse_prices("")).runs == []
    assert opened == ["waiting"]


def test_unknown_task_is_an_error(crashed):
    with pytest.raises(NotFound, match="no workers of task 'nothing'"):
        of(crashed, task="nothing")


def test_prices_are_read_for_all_hosts_or_some():
    prices = parse_prices("host-a=3/gpu-hour, 1.5/worker-hour")
    assert (prices.at("host-a").amount, prices.at("host-a").unit) == (3, "gpu-hour")
    assert (prices.at("other").amount, prices.at("other").unit) == (1.5, "worker-hour")
    assert parse_prices("€20/host-hour").currency == "€"
    assert parse_prices("20 EUR/host-hour").currency == "EUR "
    assert not parse_prices("").given


@pytest.mark.parametrize(
    "text",
    [
        "2.49",
        "2.49/day",
        "x/gpu-hour",
        "-1/gpu-hour",
        "1/gpu-hour,2/gpu-hour",
        "=1/gpu-hour",
        "a=$1/gpu-hour,€2/gpu-hour",
        "nan/gpu-hour",
        "1e400/gpu-hour",
        "99999999999999999999/gpu-hour",
    ],
)
def test_invalid_price_is_refused(text):
    with pytest.raises(InvalidArgument):
        parse_prices(text)


def test_every_worker_of_a_run_is_priced_by_its_gpus(crashed):
    answer = of(crashed, "2.49/gpu-hour")  # simulated workers register one GPU
    assert answer.cost == pytest.approx(2.49 * answer.total_s / HOUR_S)
    assert answer.lost_cost == pytest.approx(answer.cost * (1 - answer.goodput))


def test_small_saving_is_not_shown_as_nothing(crashed):
    saving = cause(of(crashed, "1/worker-hour"), "WorkerLost").saving
    assert 0 < saving.cost < 0.005
    assert saving.text.endswith(f" = ${saving.cost:.4f}")


def test_gpu_price_counts_the_gpus_of_each_worker():
    hour_ns = HOUR_S * 10**9
    meter = Meter(parse_prices("2.50/gpu-hour"), HostShares([]))
    assert meter.cost(Host("a", 8), 0, hour_ns) == pytest.approx(20)
    assert meter.cost(Host("a", 0), 0, hour_ns) is None
    assert meter.notes() == [
        "3,600.0 worker-seconds were on workers that registered no GPU, so a price per GPU-hour "
        "does not apply"
    ]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=1, max_size=8))
def test_host_price_is_shared_by_the_workers_of_the_host(stays):
    hour_ns = HOUR_S * 10**9
    spans = [("a", at * hour_ns, (at + length) * hour_ns) for at, length in stays]
    meter = Meter(parse_prices("20/host-hour"), HostShares(spans))
    paid = sum(meter.cost(Host("a"), begin, end) for _, begin, end in spans)
    used = {hour for at, length in stays for hour in range(at, at + length)}
    assert paid == pytest.approx(20 * len(used))


def test_task_that_waits_for_slots_has_an_empty_ledger():
    def submit_and_stop(sim):
        sim.coordinator.order(
            SubmitTask(spec=TaskSpec(name="large", worker_count=500, entry="train.py"))
        )
        sim.world.after(10.0, sim.coordinator.order, StopTask(task="large-2"))

    run = Planted(submit_and_stop)
    found = goodput(run.timeline, run.kinds("TaskSubmitted")[-1].text("task"))
    assert (found.total_s, found.goodput, found.workers) == (0.0, 0.0, 0)
    assert (found.classes, found.series, found.causes) == ([], [], [])
