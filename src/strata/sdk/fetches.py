"""What a worker records of its data: files that are brought to its host, datasets that it opens.

The time in which the training thread opens a dataset is booked as data, whoever opens it: the run,
or the script with `strata.open_dataset`.
"""

import threading

from strata.core.events import Fact
from strata.core.worker_operations import (
    BatchDownloadCompleted,
    BatchDownloadProgress,
    BatchDownloadRequested,
    BatchDownloadStarted,
    DatasetOpenCompleted,
    DatasetOpenStarted,
)
from strata.data.observers import OBSERVERS, Fetch, Opening
from strata.sdk.events import Recorder
from strata.sdk.steptime import StepTime, Timing

MAX_ERROR_CHARACTERS = 500


class DataRecord:
    """Records downloads and openings of this process. Made by the training thread."""

    def __init__(self, recorder: Recorder, times: StepTime) -> None:
        self._recorder, self._times = recorder, times
        self._thread = threading.get_ident()
        self._timings: dict[int, Timing] = {}

    def begin(self) -> None:
        """Records from now on, and what was fetched before."""
        OBSERVERS.add(self)

    def end(self) -> None:
        """Records nothing more."""
        OBSERVERS.remove(self)

    def fetched(self, fetch: Fetch) -> None:
        """Called by whatever thread downloads."""
        self._recorder.emit(_fact_of(fetch), op=f"fetch-{fetch.number}")

    def opened(self, opening: Opening) -> None:
        """Called by whatever thread opens a dataset."""
        op = f"open-{opening.number}"
        if not opening.completed:
            self._recorder.emit(DatasetOpenStarted(opening.dataset, opening.source), op=op)
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
        return BatchDownloadProgress(fetch.done_bytes, fetch.batch)
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
