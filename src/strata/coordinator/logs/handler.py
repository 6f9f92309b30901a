"""Feeds a process's own `logging` records into the log.

A record becomes a line in memory, which a thread of the store writes: emitting costs a few
microseconds and never waits for the disk, so the event loop may log freely. A record may say what
it is about: `log.info(..., extra={"task_id": ..., "worker_id": ...})`.
"""

import logging

from strata.coordinator.logs.entries import Line
from strata.coordinator.logs.store import LogStore
from strata.logsetup import full_message, level_name


class StoreHandler(logging.Handler):
    """Keeps records as lines from `source`."""

    def __init__(self, store: LogStore, source: str = "coordinator") -> None:
        super().__init__()
        self._store = store
        self._source = source

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = Line(
                level_name(record.levelno),
                full_message(record),
                self._source,
                str(getattr(record, "task_id", "")),
                str(getattr(record, "worker_id", "")),
                "logging",
                int(record.created * 1000),
            )
        except Exception:  # a record whose arguments do not fit: as `logging` does it
            self.handleError(record)
        else:
            self._store.append(line)
