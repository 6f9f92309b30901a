"""Recorded operations: unique ids, and progress at most once per interval."""

import pytest

from strata.config import Settings
from strata.core.workers.worker_facts import CODEC
from strata.core.workers.worker_operations import (
    BatchDownloadCompleted,
    BatchDownloadProgress,
    BatchDownloadStarted,
)
from strata.sdk.record.recorder import RecordedOperation, Recorder
from strata.store.event_batches import unpack


@pytest.fixture
def recorded(tmp_path):
    """Record an operation of ten parts twice; returns its events."""

    def record(progress_interval_s):
        recorder = Recorder(progress_interval_s=progress_interval_s)
        recorder.begin(tmp_path, "w", 1)
        for _ in range(2):
            operation = RecordedOperation(
                recorder,
                "download-x",
                BatchDownloadStarted(batch="x", size_bytes=10),
                lambda done_bytes: BatchDownloadProgress(done_bytes=done_bytes, batch="x"),
                lambda ok, error: BatchDownloadCompleted(ok=ok, error=error, batch="x"),
            )
            for done_bytes in range(1, 11):
                operation.progress(done_bytes)
            operation.end()
        recorder.collect()
        events = [event for batch in iter(recorder.to_send, None) for event in unpack(CODEC, batch)]
        recorder.close()
        return events

    return record


def test_repeated_operation_has_a_new_id(recorded):
    first, second = recorded(0.0)[:12], recorded(0.0)[12:]
    assert len({event.op for event in first}) == len({event.op for event in second}) == 1
    assert first[0].op != second[0].op


@pytest.mark.parametrize(("interval_s", "progressed"), [(3600.0, 0), (0.0, 20)])
def test_progress_is_recorded_at_most_once_an_interval(recorded, interval_s, progressed):
    kinds = [event.kind for event in recorded(interval_s)]
    assert kinds.count("BatchDownloadStarted") == kinds.count("BatchDownloadCompleted") == 2
    assert kinds.count("BatchDownloadProgress") == progressed


def test_default_intervals_are_those_of_the_documents():
    assert (Settings().progress_interval_s, Settings().resource_interval_s) == (5.0, 30.0)
