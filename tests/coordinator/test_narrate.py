"""Guards the words: what matters is said in the log, at a fitting level, with whom it is about."""

import logging
from typing import get_args

from strata.coordinator.narrate import narrate, words
from strata.core.cluster import CODEC
from strata.core.events import Envelope
from strata.core.workers import Signal, WorkerLost
from tests.core.scenario import every_kind


def test_every_fact_has_words_or_none_and_no_fact_breaks_the_log(caplog):
    caplog.set_level(logging.DEBUG, "strata.coordinator")
    log = every_kind().log
    narrate(log)
    told = {event.kind for event in log if words(event.body) is not None}
    assert told < set(CODEC.kinds)
    assert len(caplog.records) == sum(words(event.body) is not None for event in log)


def test_loss_is_an_error_about_its_worker_however_it_was_noticed(caplog):
    caplog.set_level(logging.INFO, "strata.coordinator")
    signals = get_args(Signal)
    for signal in signals:
        fact = WorkerLost("w", 7, "fit-1", signal, "its process is gone", {})
        narrate([Envelope(0, 0, 0, fact)])
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * len(signals)
    assert {(record.worker_id, record.task_id) for record in caplog.records} == {("w", "fit-1")}
    assert all("its process is gone" in record.getMessage() for record in caplog.records)


def test_barrier_reached_and_checkpoint_saved_are_information(caplog):
    caplog.set_level(logging.INFO, "strata.coordinator")
    narrate([e for e in every_kind().log if e.kind in ("BarrierReleased", "CheckpointCommitted")])
    assert {record.levelno for record in caplog.records} == {logging.INFO}
    said = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("barrier ") and "reached by" in line for line in said)
    assert any(line.startswith("checkpoint ") for line in said)
