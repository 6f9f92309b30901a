"""How a run reads its data, whichever way it trains: columns, transform, what to do on damage."""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from strata.core.worker_facts import SampleSkipped
from strata.data.dataset import OnError, Skipped
from strata.data.per_lane import Transform
from strata.sdk.worker import Worker

log = logging.getLogger(__name__)


class Reading(NamedTuple):
    """How batches are read."""

    columns: Sequence[str] | None = None
    transform: Transform | None = None
    on_error: OnError = "raise"
    prefetch_bytes: int = 0
    contents: bool = False


def recorded_skip(worker: Worker) -> Callable[[Skipped], None]:
    """Records a row that was left out of a batch, and warns of it."""

    def skipped(row: Skipped) -> None:
        log.warning("left out of a batch: dataset %s, file %s, row %s: %s", *row)
        worker.recorder.emit(SampleSkipped(row.dataset, row.row, row.file, row.reason))

    return skipped
