"""The coordinator's clock: the only place that reads it."""

import time

from strata.core.events import Now


def read_clock() -> Now:
    """The present wall-clock and monotonic time."""
    return Now(time.time_ns(), time.monotonic_ns())
