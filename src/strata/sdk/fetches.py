"""What a worker records of the files that are brought to its host for its batches."""

from strata.core.events import Fact
from strata.core.worker_operations import (
    BatchDownloadCompleted,
    BatchDownloadProgress,
    BatchDownloadStarted,
)
from strata.data.files import Fetch
from strata.data.streams import Stream
from strata.sdk.events import Recorder


class Fetches:
    """Records each download as an operation of the batch that it is for."""

    def __init__(self, name: str, batches: Stream, shift: int, recorder: Recorder) -> None:
        self._name, self._batches, self._recorder = name, batches, recorder
        self._shift = shift

    def __call__(self, fetch: Fetch) -> None:
        """Called by whatever thread downloads."""
        batch = f"{self._name}/{self._batches.reading - self._shift}"
        facts: dict[str, Fact] = {
            "started": BatchDownloadStarted(batch, fetch.size_bytes),
            "progress": BatchDownloadProgress(fetch.done_bytes, batch),
            "completed": BatchDownloadCompleted(not fetch.error, fetch.error, batch),
        }
        self._recorder.emit(facts[fetch.what], op=f"fetch-{fetch.number}")
