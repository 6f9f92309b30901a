"""Curves show what the script logged: compared with the files that its workers wrote."""

import math
from contextlib import suppress
from statistics import fmean

import pytest
from msgspec import structs

from strata.core.events import COORDINATOR
from strata.core.record.event_codec import CODEC
from strata.errors import InvalidArgument, LimitExceeded, NotFound
from strata.store.event_batches import pack, unpack
from strata.store.event_store import Window
from strata.store.sqlite import SqliteReader, SqliteStore
from strata.timeline.archive.run_archive import archive, open_anywhere
from strata.timeline.archive.run_excerpt import run_of
from strata.timeline.archive.run_lookup import open_timeline
from strata.timeline.curves import curve_reader, task_curves
from strata.timeline.curves.curve_answers import Wanted
from strata.timeline.curves.curve_reader import logged_points
from strata.timeline.queries import TimelineQueries
from strata.timeline.read.records import SECOND_NS
from tests.cli.curved import LOST_AT, NAN_AT, SAVED_AT, SPIKE, SPIKE_AT, STEPS, TASK, logged_losses

WORKERS = (f"{TASK}-w0", f"{TASK}-w1")


@pytest.fixture(scope="module", params=["log", "archived"])
def curves(request, curved, tmp_path_factory):
    """The curves of the run, read from its log and from an archive of it."""
    timeline = open_timeline(curved / "data")
    if request.param == "archived":
        kept = tmp_path_factory.mktemp("kept")
        archived(timeline, kept)
        timeline = open_anywhere(str(kept), TASK)
    with timeline:
        yield TimelineQueries(timeline).curves


def archived(timeline, kept):
    """Archive the only task of a log."""
    end = max(record.at_ns for record in timeline.records(kinds={"TaskStateChanged"}))
    archive(run_of(timeline, TASK, end + 60 * SECOND_NS), str(kept), TASK)


def wanted(*names, **given):
    return Wanted(names=list(names), **given)


def expected(folder):
    """The losses of the model by step: those of the last training of each step."""
    before, after = logged_losses(folder)
    return {step: before[step] if step < SAVED_AT else after[step] for step in range(STEPS)}


def test_curve_has_the_logged_values_of_the_model(curves, curved):
    (loss,) = curves.points(TASK, wanted("loss")).curves
    losses = expected(curved)
    assert (loss.exact, loss.step, loss.x) == (True, list(range(STEPS)), list(range(STEPS)))
    for at, step in enumerate(loss.step):
        if step == NAN_AT:
            assert (loss.mean[at], loss.min[at], loss.max[at]) == (None, None, None)
        else:
            assert loss.mean[at] == pytest.approx(fmean(losses[step]))
            assert [loss.min[at], loss.max[at]] == [min(losses[step]), max(losses[step])]
    assert loss.not_finite == [NAN_AT]
    assert loss.max[SPIKE_AT] == SPIKE
    assert loss.count == 2 * STEPS


def test_undone_steps_are_shown_when_asked_for(curves, curved):
    before, _ = logged_losses(curved)
    assert curves.curves(TASK).undone_steps == LOST_AT - SAVED_AT
    kept, undone = curves.points(TASK, wanted("loss", undone=True)).curves
    assert (kept.undone, undone.undone) == (False, True)
    assert undone.step == list(range(SAVED_AT, LOST_AT))
    assert undone.mean == pytest.approx([fmean(before[step]) for step in undone.step])


def test_one_worker_is_chosen(curves, curved):
    losses = expected(curved)
    for rank, worker in enumerate(WORKERS):
        (loss,) = curves.points(TASK, wanted("loss", worker=worker, high=4.0)).curves
        assert loss.mean == [losses[step][rank] for step in range(5)]
        assert loss.min == loss.max == loss.mean
    with pytest.raises(NotFound, match="nobody"):
        curves.points(TASK, wanted("loss", worker="nobody"))


def test_list_names_logged_and_derived_curves(curves):
    answer = curves.curves(TASK)
    found = {each.name: each for each in answer.curves}
    assert [each.name for each in answer.curves if each.source == "logged"] == ["loss", "lr", "val"]
    assert (found["val"].points, found["val"].last, found["val"].workers) == (2, 24.0, 1)
    assert (found["loss"].points, found["loss"].not_finite, found["loss"].max) == (STEPS, 1, SPIKE)
    assert answer.axes == ["step", "time", "samples", "tokens"]
    assert found["step_s"].unit == "s"
    assert answer.notes == []


def test_rates_are_amounts_divided_by_the_time_of_steps(curves):
    names = ("step_s", "steps/s", "samples/s", "tokens/s", "mfu")
    seconds, steps, samples, tokens, mfu = curves.points(TASK, wanted(*names)).curves
    for at, took_s in enumerate(seconds.mean):
        assert steps.mean[at] == pytest.approx(1 / took_s)
        assert samples.mean[at] == pytest.approx(8 / took_s)
        assert tokens.mean[at] == pytest.approx(8 * 16 / took_s)
        assert mfu.mean[at] == pytest.approx(8 * 16 * 3e6 / took_s / (2 * 1e12))
    (whole,) = curves.points(TASK, wanted("steps/s", points=1, low=0.0, high=float(STEPS))).curves
    assert whole.mean == [pytest.approx(STEPS / sum(seconds.mean))]


def test_parts_of_a_step_add_up(curves):
    names = ("step_s", "data_s", "compute_s", "communication_s", "wait_s")
    answer = curves.points(TASK, wanted(*names, worker=WORKERS[0]))
    whole, *parts = (each.mean for each in answer.curves)
    assert [sum(each) for each in zip(*parts, strict=True)] == pytest.approx(whole)


def test_axes_agree(curves):
    by_step = curves.points(TASK, wanted("lr")).curves[0]
    by_time = curves.points(TASK, wanted("lr", axis="time")).curves[0]
    by_samples = curves.points(TASK, wanted("lr", axis="samples")).curves[0]
    by_tokens = curves.points(TASK, wanted("lr", axis="tokens")).curves[0]
    assert by_step.mean == by_time.mean == by_samples.mean == by_tokens.mean
    assert by_time.x == by_step.time_ms == sorted(by_time.x)
    assert by_samples.x == [8 * (step + 1) for step in range(STEPS)]
    assert by_tokens.x == [16 * x for x in by_samples.x]
    middle = curves.points(TASK, wanted("lr", axis="samples", low=80.0, high=96.0)).curves[0]
    assert middle.step == [9, 10, 11]
    val = curves.points(TASK, wanted("val", axis="samples")).curves[0]
    assert val.x == [12 * 8, 24 * 8]


def test_buckets_keep_spikes_and_not_finite_values(curves, curved):
    (loss,) = curves.points(TASK, wanted("loss", points=3)).curves
    losses = expected(curved)
    assert not loss.exact
    assert len(loss.x) <= 4
    assert max(loss.max) == SPIKE
    assert loss.count == 2 * STEPS
    assert loss.not_finite == [NAN_AT]
    spoilt = next(at for at, step in enumerate(loss.step) if step >= NAN_AT)
    assert [at for at, mean in enumerate(loss.mean) if mean is None] == [spoilt]
    finite = [each for values in losses.values() for each in values if math.isfinite(each)]
    assert min(loss.min) == min(finite)


def test_markers_name_what_happened(curves):
    markers = curves.markers(TASK).markers
    assert [each.at_ms for each in markers] == sorted(each.at_ms for each in markers)
    kinds = {each.kind for each in markers}
    assert {"lost", "recovery", "checkpoint"} <= kinds
    (back,) = [each for each in markers if each.kind == "recovery"]
    assert back.step == SAVED_AT
    lost = [each.step for each in markers if each.kind == "lost"]
    assert lost == [LOST_AT, LOST_AT]


def test_settings_have_what_was_submitted_and_logged(curves):
    found = curves.settings(TASK)
    assert found.logged["optimizer.lr"] == 0.5
    assert found.logged["flops_per_token"] == 3e6
    assert (found.name, found.state, found.parent) == ("script", "completed", "")
    assert found.parameters["world_size"] == "2"


def test_wrong_questions_are_refused(curves):
    with pytest.raises(NotFound, match="'acc'"):
        curves.points(TASK, wanted("acc"))
    with pytest.raises(NotFound, match="train-9"):
        curves.curves("train-9")
    with pytest.raises(InvalidArgument, match="before it begins"):
        curves.points(TASK, wanted("loss", low=5.0, high=1.0))


def test_logged_points_come_in_order_of_time(curved):
    with open_timeline(curved / "data") as timeline:
        points = list(logged_points(timeline, TASK))
    assert [at_ns for *_, at_ns, _ in points] == sorted(at_ns for *_, at_ns, _ in points)
    losses = {step: value for name, step, _, value in points if name == "loss"}
    assert losses.keys() == set(range(STEPS))
    assert math.isnan(losses[NAN_AT])
    assert losses[3] == pytest.approx(fmean(expected(curved)[3]))


def test_fewer_workers_are_read_if_there_are_too_many_steps(curved, monkeypatch):
    monkeypatch.setattr(task_curves, "MAX_ROWS", 40)
    with open_timeline(curved / "data") as timeline:
        curves = TimelineQueries(timeline).curves
        answer = curves.curves(TASK)
        (loss,) = curves.points(TASK, wanted("loss", high=4.0)).curves
    assert "these are the curves of 1 of 2 workers" in answer.notes[0]
    losses = expected(curved)
    assert loss.mean == [losses[step][0] for step in range(5)]


def test_mfu_counts_all_workers_if_only_some_are_read(curved, monkeypatch):
    """The samples of a step are recorded by each worker as those of all workers."""
    monkeypatch.setattr(task_curves, "MAX_ROWS", 40)
    with open_timeline(curved / "data") as timeline:
        curves = TimelineQueries(timeline).curves
        seconds, mfu = curves.points(TASK, wanted("step_s", "mfu")).curves
        assert "these are the curves of 1 of 2 workers" in curves.curves(TASK).notes[0]
    assert mfu.step == seconds.step == list(range(STEPS))
    for used, took_s in zip(mfu.mean, seconds.mean, strict=True):
        assert used == pytest.approx(8 * 16 * 3e6 / took_s / (2 * 1e12))


def test_worker_with_too_many_steps_is_refused(curved, monkeypatch):
    monkeypatch.setattr(task_curves, "MAX_ROWS", 10)
    with open_timeline(curved / "data") as timeline:
        curves = TimelineQueries(timeline).curves
        with pytest.raises(LimitExceeded, match="more than 10 recorded steps"):
            curves.curves(TASK)


def test_curves_grow_with_the_log(curved, tmp_path, monkeypatch):
    """Read while the log is written, event by event, and at once: the answers are the same."""
    monkeypatch.setattr(curve_reader, "MIN_S", 0.0)
    monkeypatch.setattr(curve_reader, "SHARE", 0)
    source, path = SqliteReader(curved / "data" / "log.db", CODEC), tmp_path / "log.db"
    facts = list(source.batches(Window(node=COORDINATOR)))
    batches = [batch for batch in source.batches() if batch.node != COORDINATOR]
    parts = [part for batch in batches for part in split(batch)]
    with SqliteStore(path, CODEC) as store:
        store.load(sorted(facts, key=lambda batch: batch.first_seq), [])
        with open_timeline(path) as timeline:
            curves = TimelineQueries(timeline).curves
            for part in parts:
                position = store.position
                store.append([], incarnation=1, expected=position, batches=[part])
                with suppress(NotFound):
                    curves.points(TASK, wanted("loss"))
                    curves.curves(TASK)
            grown, listed = shown(curves), curves.curves(TASK)
    with open_timeline(curved / "data") as timeline:
        curves = TimelineQueries(timeline).curves
        assert shown(curves) == grown
        assert curves.curves(TASK).curves == listed.curves


def shown(curves):
    """Curves without their times, which depend on when the workers' clocks were compared."""
    found = curves.points(TASK, wanted("loss", "lr", "steps/s", "samples/s", undone=True)).curves
    return [structs.replace(each, time_ms=[]) for each in found]


def split(batch):
    """Batches of a few events each, as a worker sends them that is read."""
    events = unpack(CODEC, batch)
    for at in range(0, len(events), 7):
        yield pack(CODEC, batch.node, batch.incarnation, events[at : at + 7])
