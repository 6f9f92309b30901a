"""Guards the reader of losses: what it finds in stored batches, on which workers, within bounds."""

import math

import pytest

from strata.coordinator.alerts import loss_reader
from strata.coordinator.alerts.loss_reader import LossReader, read
from strata.core.events import Envelope
from strata.core.state import Cluster, Worker
from strata.core.workers.worker_facts import (
    CODEC,
    EventsDropped,
    LogLine,
    MetricsLogged,
    StepFinished,
    TrainingFinished,
)
from strata.store.event_batches import pack
from tests.agent.harness import until


def step(number, loss, **metrics):
    times = {"data_s": 0.1, "compute_s": 0.2, "communication_s": 0.0, "wait_s": 0.0}
    return StepFinished(step=number, loss=loss, metrics=metrics or None, generation=3, **times)


def batch(*bodies, worker="w-0"):
    events = [Envelope(seq, 10**18 + seq, seq, body) for seq, body in enumerate(bodies)]
    return pack(CODEC, worker, 2, events)


def found(*bodies, leader):
    samples, _ = read(batch(*bodies), "t", leader=leader)
    return [(each.name, each.step, str(each.value), each.ref) for each in samples]


def test_all_losses_of_rank_0_are_read_with_their_events():
    logged = MetricsLogged(step=8, metrics={"val_loss": 0.5, "accuracy": 0.9}, generation=3)
    assert found(step(7, 1.5, lr=0.1), logged, leader=True) == [
        ("loss", 7, "1.5", "w-0.2.0"),
        ("val_loss", 8, "0.5", "w-0.2.1"),
    ]


@pytest.mark.parametrize("value", [math.nan, -math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("leader", [True, False])
def test_value_that_is_not_finite_is_read_on_every_worker(value, leader):
    many = [step(number, number / 7) for number in range(200)]
    many[117] = step(117, value)
    values = [each for each in found(*many, leader=leader) if each[2] in ("nan", "inf", "-inf")]
    assert [each[1] for each in values] == [117]


def test_finite_losses_of_other_workers_are_not_decoded():
    many = [step(number, 1.7976931348623157e308 / (number + 1), g=-5e-324) for number in range(99)]
    assert found(*many, leader=False) == []


def test_text_that_names_a_kind_is_no_loss():
    line = LogLine(level="warning", message="\xa4kind\xacStepFinished", source="StepFinished")
    assert found(line, step(1, math.nan), leader=True)[0][1] == 1


def test_loss_of_a_batch_counts_only_without_that_of_its_step():
    trained = TrainingFinished(batch="d/4", step=4, loss=math.nan)
    assert len(found(trained, leader=False)) == 1
    assert len(found(trained, step(4, math.nan), leader=False)) == 1


def test_dropped_events_are_read():
    _, dropped = read(batch(EventsDropped(count=12, reason="full")), "t", leader=False)
    assert [(each.worker, each.count, each.ref) for each in dropped] == [("w-0", 12, "w-0.2.0")]


def state(**ranks):
    found = Cluster()
    for name, rank in ranks.items():
        about = {"incarnation": 2, "task": "t", "nonce": "", "hostname": "", "address": ""}
        sizes = {"port": 0, "gpu_count": 0, "memory_bytes": 0, "weight": 1}
        times = {"registered_ns": 0, "changed_ns": 0}
        found.workers[name] = Worker(id=name, rank=rank, **about, **sizes, **times)
    return found


def test_full_queue_skips_other_workers_before_rank_0_and_says_how_many(monkeypatch, caplog):
    many = [step(number, math.nan) for number in range(30)]
    room = 3 * len(batch(*many).payload) + 10
    monkeypatch.setattr(loss_reader, "MAX_QUEUE_BYTES", room)
    reader, workers = LossReader(), state(first=0, other=1)
    for _ in range(3):
        for name in ("first", "other"):
            reader.offer(batch(*many, worker=name), workers)
    reader.start()
    until(lambda: not reader._queue and not reader._busy, "the reading")
    samples = reader.take().samples
    assert [sample.worker for sample in samples] == ["first"] * 90
    assert "3 batches of events were not searched for losses" in caplog.text
    reader.close()
