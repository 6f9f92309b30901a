"""A `logging` handler that stores the records of this process in the log.

A record becomes a buffered line, which a thread of the store writes: emitting costs a few
microseconds and never waits for the disk, so the event loop may log freely. A record may name a
task and a worker: `log.info(..., extra={"task_id": ..., "worker_id": ...})`.
"""

import logging

from strata.coordinator.logs.log_entries import LogLine
from strata.coordinator.logs.log_store import LogStore
from strata.logsetup import full_message, level_name


class StoreHandler(logging.Handler):
    """Stores records as lines of `source`."""

    def __init__(self, store: LogStore, source: str = "coordinator") -> None:
        super().__init__()
        self._store = store
        self._source = source

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = LogLine(
                level=level_name(record.levelno),
                message=full_message(record),
                source=self._source,
                task_id=str(getattr(record, "task_id", "")),
                worker_id=str(getattr(record, "worker_id", "")),
                stream="logging",
                timestamp=int(record.created * 1000),
            )
        except Exception:  # arguments that do not fit the format, handled as `logging` does
            self.handleError(record)
        else:
            self._store.append(line)
