"""Metrics that a GPU has not computed yet: a step does not wait for them, and they are recorded
with their own step, in order."""

import threading

import pytest

import strata
from strata.core.workers.worker_facts import CODEC, StepFinished, TrainingFinished
from strata.sdk.record.blackbox import SUFFIX, read_newest
from strata.sdk.record.late_numbers import LateFact, fact_with_numbers, number_of
from strata.sdk.record.recorder import Recorder
from strata.sdk.record.spool import read_spool
from strata.store.event_batches import unpack
from tests.sdk.test_events import Note, sent


class Computed:
    """A number that another thread computes, like a GPU stream."""

    def __init__(self, value: float) -> None:
        self._value, self.done = value, threading.Event()

    def ready(self) -> bool:
        return self.done.is_set()

    def __float__(self) -> float:
        assert self.done.wait(30)
        return self._value


class Failed(Computed):
    """A number of a device that has failed."""

    def ready(self) -> bool:
        raise RuntimeError("CUDA error: unspecified launch failure")

    __float__ = ready


def finished(step, loss=None, **metrics):
    return fact_with_numbers(
        lambda loss, metrics: StepFinished(
            step=step,
            data_s=0.0,
            compute_s=0.0,
            communication_s=0.0,
            wait_s=0.0,
            loss=loss,
            epoch=0,
            metrics=metrics or None,
        ),
        loss,
        metrics,
    )


@pytest.fixture
def facts(monkeypatch):
    """All emitted facts."""
    seen = []
    emit = Recorder.emit

    def note(self, fact, *more, **named):
        seen.append(fact)
        emit(self, fact, *more, **named)

    monkeypatch.setattr(Recorder, "emit", note)
    return seen


def test_known_numbers_make_no_late_fact():
    assert finished(3, 0.5, rate=1) == StepFinished(
        step=3,
        data_s=0.0,
        compute_s=0.0,
        communication_s=0.0,
        wait_s=0.0,
        loss=0.5,
        metrics={"rate": 1.0},
    )


def test_late_number_keeps_its_place_among_the_events(recorder):
    first, second = Computed(0.25), Computed(0.75)
    recorder.emit(finished(0, first, rate=1.0))
    recorder.emit(Note(text="between"))
    recorder.emit(finished(1, 0.5, norm=second))
    assert sent(recorder) == []
    second.done.set()
    assert sent(recorder) == []
    first.done.set()
    events = sent(recorder)
    assert [event.seq for event in events] == [0, 1, 2]
    assert events[0].wall_ns <= events[1].wall_ns <= events[2].wall_ns
    assert (events[0].body.loss, events[0].body.metrics) == (0.25, {"rate": 1.0})
    assert (events[2].body.loss, events[2].body.metrics) == (0.5, {"norm": 0.75})


def test_settle_waits_for_late_numbers(recorder):
    number = Computed(0.25)
    recorder.emit(finished(0, number))
    threading.Timer(0.05, number.done.set).start()
    recorder.settle()
    assert number.ready()
    assert sent(recorder)[0].body.loss == 0.25


def test_fact_that_names_its_event_waits_for_late_numbers_before_it(recorder):
    number = Computed(0.25)
    recorder.emit(finished(0, number))
    threading.Timer(0.05, number.done.set).start()
    assert recorder.record(Note(text="cause")) == "w/1.7.1"


def test_number_of_a_failed_device_does_not_lose_its_step(recorder):
    recorder.emit(finished(4, Failed(0), rate=2.0))
    (event,) = sent(recorder)
    assert (event.body.step, event.body.loss, event.body.metrics) == (4, None, {"rate": 2.0})


def test_closed_recorder_keeps_the_step_without_the_number(tmp_path):
    recorder = Recorder()
    recorder.begin(tmp_path, "w", 1)
    recorder.emit(finished(4, Computed(0)))
    recorder.close()
    (file,) = (each for each in tmp_path.rglob("*") if each.is_file())
    ((event,),) = (unpack(CODEC, batch) for batch in read_spool(file))
    assert (event.body.step, event.body.loss) == (4, None)


def test_killed_worker_leaves_the_step_and_the_numbers_that_were_settled(tmp_path, recorder):
    early, late = Computed(0.25), Computed(0.75)
    recorder.emit(finished(0, early))
    early.done.set()
    recorder.settle()
    recorder.emit(finished(1, late))
    (newest,) = tmp_path.rglob(f"*{SUFFIX}")
    left = [event.body for event in unpack(CODEC, read_newest(newest, -1))]
    assert [(body.step, body.loss) for body in left] == [(0, 0.25), (1, None)]


def test_step_does_not_wait_for_a_late_loss_and_the_next_step_does(hub, spool, facts, monkeypatch):
    numbers = [Computed(float(step)) for step in range(3)]
    monkeypatch.setattr("strata.sdk.record.late_numbers.number_of", lambda value: value)
    facts = []
    emit = Recorder.emit

    monkeypatch.setattr(
        Recorder,
        "emit",
        lambda self, fact, *a, **k: (facts.append(fact), emit(self, fact, *a, **k)),
    )
    with strata.join(hub.address, "a", world_size=1, spool_dir=spool) as run:
        for step, number in enumerate(numbers):
            if step:
                numbers[step - 1].done.set()
            with run.step() as block:
                block.log(loss=number)
            late = [each for each in facts if isinstance(each, LateFact)]
            assert not number.ready()
            assert len(late) == step + 1
            if step:
                assert late[step - 1].fact.loss == step - 1
                assert run._worker.loss == step - 1
        numbers[-1].done.set()
    assert [each.fact.loss for each in late] == [0.0, 1.0, 2.0]
    assert [each.fact.step for each in late] == [0, 1, 2]


def test_numbers_on_the_host_are_not_late():
    assert number_of(1) == 1.0
    torch = pytest.importorskip("torch")
    assert number_of(torch.tensor([0.5], requires_grad=True)) == 0.5


def test_loss_of_a_batch_is_recorded_when_it_is_known(hub, spool, facts, monkeypatch):
    monkeypatch.setattr("strata.sdk.record.late_numbers.number_of", lambda value: value)
    facts = []
    emit = Recorder.emit
    monkeypatch.setattr(
        Recorder,
        "emit",
        lambda self, fact, *a, **k: (facts.append(fact), emit(self, fact, *a, **k)),
    )
    dataset = strata.open_arrays({"x": list(range(8))}, name="numbers")
    with strata.join(hub.address, "a", world_size=1, spool_dir=spool) as run:
        for _ in run.batches(dataset, batch_size=4, epochs=1):
            number = Computed(run.steps + 0.5)
            with run.step() as block:
                block.log(loss=number)
            number.done.set()
    trained = [
        each.fact
        for each in facts
        if isinstance(each, LateFact) and isinstance(each.fact, TrainingFinished)
    ]
    assert [(each.step, each.loss) for each in trained] == [(0, 0.5), (1, 1.5)]
