"""Guards the words: what matters is said in the log, at a fitting level, with whom it is about."""

import logging

from strata.coordinator.narrate import narrate, words
from strata.core.cluster import CODEC
from tests.core.scenario import every_kind


def test_every_fact_has_words_or_none_and_no_fact_breaks_the_log(caplog):
    caplog.set_level(logging.DEBUG, "strata.coordinator")
    log = every_kind().log
    narrate(log)
    told = {event.kind for event in log if words(event.body) is not None}
    assert told < set(CODEC.kinds)
    assert len(caplog.records) == sum(words(event.body) is not None for event in log)


def test_a_loss_is_a_warning_about_its_worker(caplog):
    caplog.set_level(logging.INFO, "strata.coordinator")
    lost = [event for event in every_kind().log if event.kind == "WorkerLost"]
    narrate(lost[:1])
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.worker_id == lost[0].body.worker
    assert record.task_id == lost[0].body.task
    assert lost[0].body.reason in record.getMessage()
