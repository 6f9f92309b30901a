"""Log lines for facts: text, level, task and worker."""

import logging
from typing import get_args

from strata.coordinator.fact_log_lines import log_facts, log_line
from strata.core.checkpoints.checkpoint_lifecycle import CheckpointCommitted
from strata.core.cluster import CODEC
from strata.core.events import Envelope
from strata.core.workers.worker_lifecycle import Signal, WorkerLost
from tests.core.scenario import every_kind


def test_log_line_of_every_fact_kind(caplog):
    caplog.set_level(logging.DEBUG, "strata.coordinator")
    log = every_kind().log
    log_facts(log)
    logged = {event.kind for event in log if log_line(event.body) is not None}
    assert logged < set(CODEC.kinds)
    assert len(caplog.records) == sum(log_line(event.body) is not None for event in log)


def test_loss_is_logged_as_error_with_its_worker(caplog):
    caplog.set_level(logging.INFO, "strata.coordinator")
    signals = get_args(Signal)
    for signal in signals:
        fact = WorkerLost(
            worker="w",
            incarnation=7,
            task="fit-1",
            signal=signal,
            reason="its process is gone",
            evidence={},
        )
        log_facts([Envelope(0, 0, 0, fact)])
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * len(signals)
    assert {(record.worker_id, record.task_id) for record in caplog.records} == {("w", "fit-1")}
    assert all("its process is gone" in record.getMessage() for record in caplog.records)


def test_barrier_and_checkpoint_are_logged_as_info(caplog):
    caplog.set_level(logging.INFO, "strata.coordinator")
    log_facts([e for e in every_kind().log if e.kind in ("BarrierReleased", "CheckpointCommitted")])
    assert {record.levelno for record in caplog.records} == {logging.INFO}
    said = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("barrier ") and "reached by" in line for line in said)
    assert any(line.startswith("checkpoint ") for line in said)


def test_checkpoint_log_line_has_worker_path_size_and_duration():
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
    assert log_line(fact) == (
        logging.INFO,
        "checkpoint step-00000010-1 of step 10 saved by worker a and 1 more to "
        "s3://bucket/step-00000010-1: 1.04 MB written, 3.02 MB unchanged, in 250 ms",
    )
