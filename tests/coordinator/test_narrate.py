"""Guards the words: what matters is said in the log, at a fitting level, with whom it is about."""

import logging

from strata.coordinator.narrate import narrate, words
from strata.core.checkpoints import CheckpointCommitted
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


def test_a_saved_checkpoint_is_told_with_who_where_how_much_and_how_long():
    fact = CheckpointCommitted(
        task="t",
        checkpoint="step-00000010-1",
        step=10,
        path="s3://bucket/step-00000010-1",
        size_bytes=1_040_000,
        worker="a",
        parts=2,
        kept_bytes=3_020_000,
        took_s=0.25,
    )
    assert words(fact) == (
        logging.INFO,
        "checkpoint step-00000010-1 of step 10 saved by worker a and 1 more to "
        "s3://bucket/step-00000010-1: 1.04 MB written, 3.02 MB unchanged, in 250 ms",
    )
