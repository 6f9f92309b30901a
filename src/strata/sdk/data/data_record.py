"""Record data downloads and opened datasets of a worker.

The time in which the training thread opens a dataset counts as data time, whether the run opens it
or the script calls `strata.open_dataset`.
"""

import threading

from strata.core.events import Fact
from strata.core.workers.worker_operations import (
    BatchDownloadCompleted,
    BatchDownloadProgress,
    BatchDownloadRequested,
    BatchDownloadStarted,
    DatasetOpenCompleted,
    DatasetOpenStarted,
)
from strata.data.cache.fetch_observers import OBSERVERS, Fetch, Opening
from strata.sdk.record.recorder import Recorder
from strata.sdk.steps.step_block import StepTime, Timing

MAX_ERROR_CHARACTERS = 500


class DataRecord:
    """Records downloads and openings of this process. Made by the training thread."""

    def __init__(self, recorder: Recorder, times: StepTime) -> None:
        self._recorder, self._times = recorder, times
        self._thread = threading.get_ident()
        self._timings: dict[int, Timing] = {}

    def begin(self) -> None:
        """Start recording; earlier downloads are recorded too."""
        OBSERVERS.add(self)

    def end(self) -> None:
        """Stop recording."""
        OBSERVERS.remove(self)

    def fetched(self, fetch: Fetch) -> None:
        """Record a download. Called by the downloading thread."""
        self._recorder.emit(_fact_of(fetch), op=f"fetch-{fetch.number}")

    def opened(self, opening: Opening) -> None:
        """Record an opened dataset. Called by the opening thread."""
        op = f"open-{opening.number}"
        if not opening.completed:
            self._recorder.emit(
                DatasetOpenStarted(dataset=opening.dataset, source=opening.source), op=op
            )
            if threading.get_ident() == self._thread:
                timing = self._timings[opening.number] = Timing(self._times, "data")
                timing.__enter__()
            return
        timed = self._timings.pop(opening.number, None)
        if timed is not None:
            timed.__exit__(None, None, None)
        completed = DatasetOpenCompleted(
            ok=not opening.error,
            error=opening.error[:MAX_ERROR_CHARACTERS],
            dataset=opening.dataset,
            source=opening.source,
            files=opening.files,
            samples=opening.samples,
            range_bytes=opening.range_bytes,
            took_s=opening.took_s,
            ago_s=opening.ago_s,
        )
        self._recorder.emit(completed, op=op)


def _fact_of(fetch: Fetch) -> Fact:
    if fetch.phase == "requested":
        return BatchDownloadRequested(
            batch=fetch.batch,
            size_bytes=fetch.size_bytes,
            dataset=fetch.dataset,
            source=fetch.source,
            attempt=fetch.attempt,
        )
    if fetch.phase == "started":
        return BatchDownloadStarted(
            batch=fetch.batch,
            size_bytes=fetch.size_bytes,
            dataset=fetch.dataset,
            source=fetch.source,
            attempt=fetch.attempt,
            queued_s=fetch.queued_s,
        )
    if fetch.phase == "progress":
        return BatchDownloadProgress(done_bytes=fetch.done_bytes, batch=fetch.batch)
    return BatchDownloadCompleted(
        ok=not fetch.error,
        error=fetch.error[:MAX_ERROR_CHARACTERS],
        batch=fetch.batch,
        dataset=fetch.dataset,
        source=fetch.source,
        done_bytes=fetch.done_bytes,
        attempt=fetch.attempt,
        queued_s=fetch.queued_s,
        took_s=fetch.took_s,
        shared=fetch.shared,
        ago_s=fetch.ago_s,
    )
