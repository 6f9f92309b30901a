"""The metrics that the script logged last: they are saved with the state that they describe.

A checkpoint has the value that was logged last before its step, by `step.log`, `run.log` or
`run.mark_step`. A restored state brings the values that were saved with it.
"""

import logging
from collections.abc import Mapping
from typing import SupportsFloat

from strata.core.checkpoints.keep_reasons import metric_name
from strata.core.limits import MAX_NAME

log = logging.getLogger(__name__)

MAX_METRICS = 100


class LoggedMetrics:
    """The last value of each metric. For the training thread.

    `best` is the metric by which the task keeps its best checkpoints; empty for none.
    """

    def __init__(self, keep_best: str) -> None:
        self.best = metric_name(keep_best)
        self._last: dict[str, SupportsFloat] = {}
        self._checked = self._full = False

    def note(self, metrics: Mapping[str, SupportsFloat]) -> None:
        """Replace the values of these metrics."""
        for name, value in metrics.items():
            if name in self._last or name == self.best or self._has_room(name):
                self._last[name] = value

    def _has_room(self, name: str) -> bool:
        if len(self._last) < MAX_METRICS and len(name) <= MAX_NAME:
            return True
        if not self._full:
            self._full = True
            log.warning(
                "metric %.80r is not saved with checkpoints: they have at most %d metrics, with "
                "names of at most %d characters",
                name,
                MAX_METRICS,
                MAX_NAME,
            )
        return False

    def restore(self, values: Mapping[str, float]) -> None:
        """Replace all metrics by those of a restored state."""
        self._last = dict(values)

    def last(self) -> dict[str, SupportsFloat]:
        """The last values, some of which a GPU may not have computed yet."""
        return dict(self._last)

    def check_best(self) -> None:
        """Log a warning, once, if a checkpoint is saved before its best metric was logged."""
        if not self._checked and self.best and self.best not in self._last:
            log.warning(
                "keep_best is %r, but the script has not logged it: no checkpoint counts as the "
                "best one until run.log or step.log is called with %s=VALUE",
                self.best,
                self.best,
            )
        self._checked = True
